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
def access_control() -> AccessControl:
    return AccessControl(ClientLimits({}, {}))


def owner(access_control: AccessControl, key: bytes) -> str | None:
    assert access_control.keys is not None
    return access_control.keys.owner(key)


def test_a_file_that_is_being_written_is_left_until_it_is_unchanged_for_one_check(
    tmp_path: Path, access_control: AccessControl
) -> None:
    path = tmp_path / "keys.env"
    path.write_bytes(b"alice=" + ALICE)
    files = KeyFiles(str(path), access_control)
    files.reload()
    assert owner(access_control, ALICE) == "alice"

    for part in (b"", b"bob=" + BOB[:18]):
        path.write_bytes(part)
        files.reload()
        assert owner(access_control, ALICE) == "alice"
        assert owner(access_control, BOB[:18]) is None
    path.write_bytes(b"bob=" + BOB)
    files.reload()
    files.reload()
    assert (owner(access_control, ALICE), owner(access_control, BOB)) == (None, "bob")


def test_a_file_that_becomes_no_text_leaves_the_keys_that_were(tmp_path: Path, access_control: AccessControl) -> None:
    path = tmp_path / "keys.env"
    path.write_bytes(b"alice=" + ALICE)
    files = KeyFiles(str(path), access_control)
    files.reload()

    path.write_bytes(bytes(range(256)))
    files.reload()
    files.reload()

    assert owner(access_control, ALICE) == "alice"


def test_what_is_no_file_is_reported_and_never_waited_for(
    tmp_path: Path, access_control: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(tmp_path / "keys.env")

    KeyFiles(str(tmp_path / "keys.env"), access_control).reload()

    assert access_control.keys is None
    assert "neither a file nor a directory" in caplog.text


def test_no_line_of_a_certificate_is_a_key(
    tmp_path: Path, access_control: AccessControl, caplog: pytest.LogCaptureFixture
) -> None:
    line = b"MIIBszCCAVmgAwIBAgIUQyQ4bXQ0"
    (tmp_path / "tls.crt").write_bytes(b"-----BEGIN CERTIFICATE-----\n" + line + b"\n-----END CERTIFICATE-----\n")
    (tmp_path / "alice").write_bytes(ALICE)

    with caplog.at_level(logging.WARNING):
        KeyFiles(str(tmp_path), access_control).reload()

    assert (owner(access_control, ALICE), owner(access_control, line)) == ("alice", None)
    assert "'tls.crt'" in caplog.text
