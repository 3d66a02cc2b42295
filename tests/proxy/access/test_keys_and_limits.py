"""The cores of access: what is kept of keys, and what a client has left."""

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.access.control import TOKENS, AccessControl, AuthenticatedClient
from shoal_proxy.access.keys import MAX_KEYS, ApiKeys, parse_key_file
from shoal_proxy.access.limits import MAX_QUOTAS, ClientLimits, ClientQuota
from shoal_proxy.errors import Forbidden, InvalidRequest, LimitReached, ProxyError, Unauthenticated

SALT = bytes(range(32))
KEY = b"0123456789abcdef"
key_texts = st.text("abcXYZ019+/=_-.~", min_size=16, max_size=64).map(str.encode)


def keys(**entries: bytes) -> ApiKeys:
    return ApiKeys(entries, SALT)


def access_control(limits: ClientLimits | None = None, **more: Any) -> AccessControl:
    made = AccessControl(limits or ClientLimits({}, {}), **more)
    made.keys = keys(alice=KEY, edge=b"edge-key-of-the-gateway")
    return made


@given(st.dictionaries(st.sampled_from("abcdef"), key_texts, min_size=1), key_texts)
def test_each_key_is_its_owners_and_no_other_is_anybodys(entries: dict[str, bytes], other: bytes) -> None:
    known = ApiKeys(entries, SALT)
    for text in entries.values():
        assert known.owner(text) == min(name for name, each in entries.items() if each == text)
    if other not in entries.values():
        assert known.owner(other) is None


@given(key_texts)
def test_a_hash_stands_for_its_key_and_is_none_itself(key: bytes) -> None:
    hashed = f"sha256:{hashlib.sha256(key).hexdigest()}".encode()
    known = keys(alice=hashed)

    assert known.owner(key) == "alice"
    assert known.owner(hashed) is None
    assert known.owner(hashed[7:]) is None


@given(key_texts)
def test_neither_key_nor_plain_hash_is_kept_nor_what_another_process_keeps(key: bytes) -> None:
    """A salted hash is compared, which no client can predict, so the timing reveals nothing."""
    digest = hashlib.sha256(key).digest()
    here, elsewhere = ApiKeys({"alice": key}, SALT), ApiKeys({"alice": key}, bytes(32))

    kept = set(here._names)
    assert kept.isdisjoint({key, digest, digest.hex().encode()})
    assert kept.isdisjoint(elsewhere._names)
    assert key not in repr(vars(here)).encode()


def test_several_keys_of_one_name_are_all_valid() -> None:
    known = keys(alice=b"\n old-key-0123456789 \r\n\nnew-key-0123456789\n")
    assert {known.owner(b"old-key-0123456789"), known.owner(b"new-key-0123456789")} == {"alice"}
    assert known.names == {"alice"}
    assert not known.faults


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("alice", b"tooshort", "a key of alice has 8 characters"),
        ("alice", b"x" * 4097, "has 4097 characters"),
        ("alice", b"with a space 0123456789", "holds a space"),
        ("alice", "schl\u00fcssel-0123456789".encode(), "not ASCII"),
        ("alice", b"sha256:abc", "64 hexadecimal digits"),
        ("alice", b" \n", "alice is empty"),
        ("a b", KEY, "'a b' is not a valid key name"),
        ("*", KEY, "'*' is not a valid key name"),
        ("", KEY, "'' is not a valid key name"),
        ("zoe", b"0123456789-other", "a key of zoe is also a key of bob"),
    ],
)
def test_an_invalid_key_is_skipped_and_not_repeated(name: str, text: bytes, words: str) -> None:
    known = ApiKeys({name: text, "bob": b"0123456789-other"}, SALT)
    assert known.names == {"bob"}
    [fault] = known.faults
    assert words in fault
    assert not text.strip() or text not in fault.encode() or text in words.encode()


def test_no_more_keys_are_held_than_there_may_be() -> None:
    known = ApiKeys({f"n{number:05}": b"key-number-%08d" % number for number in range(MAX_KEYS + 2)}, SALT)
    assert len(known.names) == MAX_KEYS
    assert len(known.faults) == 2


def test_a_file_of_lines_is_read_as_kubectl_reads_it() -> None:
    entries, faults = parse_key_file(
        b"# clients\n\nalice=key-of-alice-012345==\nbob = key-of-bob-0123456\nalice=second-of-alice-0123\n"
    )
    assert entries == {"alice": b"\nkey-of-alice-012345==\nsecond-of-alice-0123", "bob": b"\n key-of-bob-0123456"}
    assert faults == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"alone", "line 2 is not NAME=KEY"),
        (b"kQ3vR8SECRETbase64key9f0aZZtopsecretPQRSTUVWX=", "the key in line 2 has 0 characters"),
        (b"SWAPPEDsecretkey0123456789=bob", "the key in line 2 has 3 characters"),
        (
            b"ab/c+SECRETwithslash0123456789=",
            "line 2 has no valid name",
        ),
    ],
)
def test_a_skipped_line_is_reported_by_its_number_alone(line: bytes, fault: str) -> None:
    entries, [found] = parse_key_file(b"alice=key-of-alice-012345\n" + line)
    assert entries == {"alice": b"\nkey-of-alice-012345"}
    assert found.startswith(fault)
    assert b"SECRET" not in found.encode()


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, Unauthenticated),
        ({b"x-api-key": KEY}, "alice"),
        ({b"authorization": b"Bearer " + KEY}, "alice"),
        ({b"authorization": b"BEARER   " + KEY}, "alice"),
        ({b"authorization": KEY}, Unauthenticated),
        ({b"authorization": b"Basic " + KEY}, Unauthenticated),
        ({b"authorization": b"Bearer " + KEY + b" x"}, Unauthenticated),
        ({b"authorization": b"Bearer"}, Unauthenticated),
        ({b"x-api-key": b""}, Unauthenticated),
        ({b"x-api-key": b"x" * 100_000}, Unauthenticated),
        # A key of its own speaks for a client, whatever token a gateway passes on beside it.
        ({b"x-api-key": KEY, b"authorization": b"Bearer a.b.c"}, "alice"),
        ({b"x-api-key": b"wrong-key-0123456789", b"authorization": b"Bearer " + KEY}, Unauthenticated),
        ({b"x-consumer": b"carol"}, Unauthenticated),
        ({b"x-api-key": KEY, b"x-consumer": b"carol"}, "alice"),
        ({b"x-api-key": b"edge-key-of-the-gateway", b"x-consumer": b"carol"}, "carol"),
        ({b"x-api-key": b"edge-key-of-the-gateway"}, Forbidden),
        ({b"x-api-key": b"edge-key-of-the-gateway", b"x-consumer": b""}, Forbidden),
        ({b"x-api-key": b"edge-key-of-the-gateway", b"x-consumer": b"a\nb"}, Forbidden),
        ({b"x-api-key": b"edge-key-of-the-gateway", b"x-consumer": b"c" * 254}, Forbidden),
    ],
)
def test_the_client_of_credentials(headers: dict[bytes, bytes], outcome: str | type[ProxyError]) -> None:
    known = access_control(header=b"x-consumer", gateways=["edge"])
    if isinstance(outcome, str):
        assert known.identify(headers).name == outcome
    else:
        with pytest.raises(outcome) as refused:
            known.identify(headers)
        assert not any(
            len(value) > 8 and value.decode("latin-1") in refused.value.message for value in headers.values()
        )


def test_labels_are_names_that_a_client_wrote_down() -> None:
    known = access_control(
        ClientLimits({"carol": 5, "*": 1}, {}),
        header=b"x-consumer",
        gateways=["edge"],
        check_token=lambda token: token.decode(),
    )

    def label(**headers: bytes) -> str:
        return known.identify({name.replace("_", "-").encode(): value for name, value in headers.items()}).label

    edge = b"edge-key-of-the-gateway"
    assert label(x_api_key=KEY) == "alice"
    assert label(x_api_key=edge, x_consumer=b"carol") == "carol"
    assert {label(x_api_key=edge, x_consumer=b"user-%d" % number) for number in range(100)} == {"edge"}
    assert {label(authorization=b"Bearer user-%d" % number) for number in range(100)} == {TOKENS}
    assert label(authorization=b"Bearer carol") == "carol"


def take(account: ClientQuota, rows: int, now_s: float) -> int:
    """Return 0 where rows are let in, else when to come back."""
    try:
        account.charge(rows, now_s)
    except LimitReached as refused:
        return refused.retry_after_s or 0
    return 0


@given(
    rate_s=st.floats(0.1, 100),
    arrivals=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=60),
)
def test_a_rate_is_kept_over_any_time(rate_s: float, arrivals: list[tuple[float, int]]) -> None:
    """What is let in never exceeds the rate and one burst, but for the rows of the last request."""
    account, now_s, let_in = ClientQuota(rate_s, 0, 0.0), 0.0, 0
    for pause_s, rows in arrivals:
        now_s += pause_s
        if not take(account, rows, now_s):
            assert let_in <= max(1.0, rate_s) + rate_s * now_s + 1e-6
            let_in += rows


@given(rate_s=st.floats(0.1, 1000), rows=st.integers(1, 5000), used=st.integers(0, 2000), clock_s=st.floats(0, 1e9))
def test_a_client_that_retries_after_retry_after_is_admitted(
    rate_s: float, rows: int, used: int, clock_s: float
) -> None:
    account = ClientQuota(rate_s, 0, clock_s)
    if used:
        take(account, used, clock_s)
    wait_s = take(account, rows, clock_s)
    if wait_s:
        assert take(account, rows, clock_s + wait_s + 1e-3) == 0


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    account = ClientQuota(1.0, 0, 10.0)
    assert take(account, 1, 10.0) == 0
    assert take(account, 1, 10.0) > 0
    assert take(account, 1, 5.0) > 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=80))
def test_rows_in_flight_never_exceed_what_is_allowed_but_by_a_request_alone(steps: list[tuple[bool, int]]) -> None:
    known = access_control(ClientLimits({}, {"alice": 8}))
    held: list[AuthenticatedClient] = []
    for enters, rows in steps:
        if enters:
            client = known.identify({b"x-api-key": KEY})
            before = sum(each.rows for each in held)
            try:
                known.charge(client, rows, 0.0, forwarded=False)
            except LimitReached:
                assert before
                assert before + rows > 8
                known.record_response(client, 429)
            else:
                assert not before or before + rows <= 8
                held.append(client)
        elif held:
            client = held.pop(0)
            known.record_response(client, 200)
            known.release(client)  # a second time gives nothing back
    account = known._limits.quota("alice", 0.0, forwarded=False)
    assert account is not None
    assert account.rows == sum(each.rows for each in held)


def test_what_is_forwarded_is_neither_charged_twice_nor_a_way_around() -> None:
    """Who only says so gains one account more of the same size, and is counted all the same."""
    known = access_control(ClientLimits({"alice": 2.0}, {}))

    def enter(*, forwarded: bool) -> bool:
        client = known.identify({b"x-api-key": KEY})
        try:
            known.charge(client, 1, 0.0, forwarded=forwarded)
        except LimitReached:
            return False
        known.record_response(client, 200)
        return True

    assert [enter(forwarded=True) for _ in range(3)] == [True, True, False]
    assert [enter(forwarded=False) for _ in range(3)] == [True, True, False]
    assert known.requests == {("alice", 200): 4}
    assert known.rows == {"alice": 4}


@pytest.mark.parametrize("name", [b"x-api-key", b"authorization", b"x-consumer"])
def test_the_client_of_credentials_is_reported_once(name: bytes) -> None:
    known, other = access_control(header=b"x-consumer", gateways=["edge"]), (b"accept", b"*/*")
    said = (name, KEY)
    known.reject_repeated_credentials([other, said, other])
    with pytest.raises(InvalidRequest, match=f"more than one {name.decode()} header") as refused:
        known.reject_repeated_credentials([said, other, said])
    assert KEY.decode() not in refused.value.message

    access_control().reject_repeated_credentials([(b"x-consumer", b"a")] * 2)  # it is not read there


def test_each_of_the_others_has_an_account_and_they_are_bounded() -> None:
    limits = ClientLimits({"*": 1.0}, {})
    for number in range(MAX_QUOTAS + 10):
        account = limits.quota(f"user-{number}", 0.0, forwarded=False)
        assert account is not None
        account.charge(1, 0.0)
        account.rows = 0
    assert len(limits._quotas) == MAX_QUOTAS
    assert limits.quota("user-5000", 0.0, forwarded=False) is limits.quota("user-5000", 0.0, forwarded=False)
    assert ClientLimits({"a": 1.0}, {}).quota("b", 0.0, forwarded=False) is None
