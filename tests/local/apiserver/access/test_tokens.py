import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_local.apiserver.access.rbac import Account, make_token, read_token

ACCOUNT = Account("team", "bot", "uid")
KEY = b"k" * 32
TOKEN = make_token(ACCOUNT, KEY, now_s=1000, lifetime_s=600)


def test_a_token_stands_for_its_account_until_it_is_too_old() -> None:
    assert read_token(TOKEN, KEY, 1599) == ACCOUNT
    with pytest.raises(jwt.InvalidTokenError, match="expired"):
        read_token(TOKEN, KEY, 1600)


def test_a_token_of_another_key_is_refused() -> None:
    with pytest.raises(jwt.InvalidTokenError):
        read_token(TOKEN, b"o" * 32, 1000)


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from("aZ0.-_é"))
def test_a_token_that_was_touched_is_refused(at: int, letter: str) -> None:
    forged = TOKEN[:at] + letter + TOKEN[at + 1 :]
    if forged != TOKEN:
        with pytest.raises(jwt.InvalidTokenError):
            read_token(forged, KEY, 1000)
