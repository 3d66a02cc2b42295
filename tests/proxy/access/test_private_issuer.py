"""An issuer of tokens whose certificate is of a private authority."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.fakes import running_proxy
from tests.runtime.storage.stand_in import StandIn, secured, serving

TRUST = Authority()


class Keys(StandIn):
    """Publishes no key."""

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Return an empty set."""
        return 200, b'{"keys": []}', {}


@pytest.fixture
def issuer(tmp_path: Path) -> Iterator[StandIn]:
    server = Keys()
    secured(server, TRUST.issue().written(tmp_path / "server"))
    with serving(server):
        yield server


@pytest.mark.parametrize("trusts", [True, False])
def test_its_keys_are_fetched_where_ssl_cert_file_names_the_authority_and_else_that_is_reported(
    issuer: StandIn,
    trusts: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if trusts:
        monkeypatch.setenv("SSL_CERT_FILE", str(TRUST.written(tmp_path / "ca")))
    given = {"issuer": "https://issuer", "audience": "cat", "jwks_url": f"{issuer.url}/keys"}
    settings: dict[str, Any] = {f"access_jwt__{name}": value for name, value in given.items()}
    with caplog.at_level(logging.ERROR), running_proxy(ready=False, **settings) as running:
        running.until(lambda: bool(issuer.asked if trusts else caplog.records))
    assert ("SSL_CERT_FILE" in caplog.text) is not trusts
