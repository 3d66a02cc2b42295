"""Files of keys that are rewritten, that are no files of keys, or no files."""

import logging
import os
from pathlib import Path

import pytest

from shoal_proxy.access.control import AccessControl
from shoal_proxy.access.limits import ClientLimits
from shoal_proxy.credentials import KeyFiles

ALICE, BOB = b"key-of-alice-0123456789", b"key-of-bob-0123456789"


@pytest.fixture
def gate() -> AccessControl:
    return AccessControl(ClientLimits({}, {}))


def owner(gate: AccessControl, key: bytes) -> str | None:
    assert gate.keys is not None
    return gate.keys.owner(key)


def test_a_file_that_is_amid_being_written_is_left_until_it_stays_for_a_look(
    tmp_path: Path, gate: AccessControl
) -> None:
    path = tmp_path / "keys.env"
    path.write_bytes(b"alice=" + ALICE)
    files = KeyFiles(str(path), gate)
    files.look()
    assert owner(gate, ALICE) == "alice"

    for part in (b"", b"bob=" + BOB[:18]):
        path.write_bytes(part)
        files.look()
        assert owner(gate, ALICE) == "alice"
        assert owner(gate, BOB[:18]) is None
    path.write_bytes(b"bob=" + BOB)
    files.look()
    files.look()
    assert (owner(gate, ALICE), owner(gate, BOB)) == (None, "bob")


def test_a_file_that_becomes_no_text_leaves_the_keys_that_were(tmp_path: Path, gate: AccessControl) -> None:
    path = tmp_path / "keys.env"
    path.write_bytes(b"alice=" + ALICE)
    files = KeyFiles(str(path), gate)
    files.look()

    path.write_bytes(bytes(range(256)))
    files.look()
    files.look()

    assert owner(gate, ALICE) == "alice"


def test_what_is_no_file_is_told_and_never_waited_for(
    tmp_path: Path, gate: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "keys.env")

    KeyFiles(str(tmp_path / "keys.env"), gate).look()

    assert gate.keys is None
    assert "neither a file nor a directory" in caplog.text


def test_no_line_of_a_certificate_is_a_key(
    tmp_path: Path, gate: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    line = b"MIIBszCCAVmgAwIBAgIUQyQ4bXQ0"
    (tmp_path / "tls.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\n" + line + b"\n-----END CERTIFICATE-----\n")
    (tmp_path / "alice").write_bytes(ALICE)

    with caplog.at_level(logging.WARNING):
        KeyFiles(str(tmp_path), gate).look()

    assert (owner(gate, ALICE), owner(gate, line)) == ("alice", None)
    assert "'tls.crt'" in caplog.text
