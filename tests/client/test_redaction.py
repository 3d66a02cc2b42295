"""No message of a command or of the Python client contains the user, password or query of a URL."""

import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.__main__ import main
from shoal.exchange import base_url
from tests.client.fake_server import running, v2

HOSTILE = [
    "http://s3cretuser:s3cret@127.0.0.1:1",
    "http://u:s3cret@127.0.0.1:1?token=s3cret",
    "http://127.0.0.1:1/path?token=s3cret#s3cret",
    "http://127.0.0.1:1#s3cret",
    "u:s3cret@127.0.0.1:1?token=s3cret",
    "127.0.0.1:1?token=s3cret",
    "http://u:s3cret@127.0.0.1:99999",
    "http://u:s3cret@127.0.0.1:port",
    "http://u:a/s3cret@127.0.0.1:1",
    "http://u:a#s3cret@127.0.0.1:1",
    "http://u:a?s3cret@127.0.0.1:1",
    "http://u:a@s3cret@127.0.0.1:1",
    "http://u:a s3cret@127.0.0.1:1",
    "http://u:s3cret\x01@127.0.0.1:1",
    "http:/u:s3cret@127.0.0.1:1",
    "http:u:s3cret@127.0.0.1:1",
    "HTTP://U:s3cret@127.0.0.1:1",
    "ftp://u:s3cret@127.0.0.1:1",
    "http://u:s3cret@",
    "http://u:s3cret@[::1",
    "http://u:s3cret@no.such.invalid",
]
COMMANDS = [
    ("info",),
    ("predict", "--data", "[1]"),
    ("bench", "--data", "[1]", "--seconds", "1"),
    ("top", "--once"),
]


@pytest.mark.parametrize("url", HOSTILE)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_print_no_secret_of_a_url(
    command: tuple[str, ...], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], url, *command[1:]])

    output = capsys.readouterr()
    assert output.err.startswith("shoal: ")
    assert "s3cret" not in output.err + output.out


@pytest.mark.parametrize("url", HOSTILE)
def test_errors_of_the_client_hold_no_secret_of_a_url(url: str) -> None:
    with pytest.raises(shoal.ConnectionFailed) as caught, shoal.Client(url) as client:
        client.signature()

    assert "s3cret" not in f"{caught.value} {caught.value.message} {caught.value!r}"


@pytest.mark.parametrize("url", HOSTILE[:3])
def test_batch_prints_no_secret_of_the_url_of_its_service(url: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("[1]\n")
    names = ["--to", url, "--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "out")]
    command = [sys.executable, "-m", "shoal", "batch", *names]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    assert ended.returncode
    assert "127.0.0.1" in ended.stderr
    assert "s3cret" not in ended.stderr + ended.stdout


def test_results_of_top_hold_no_secret_of_a_url(capsys: pytest.CaptureFixture[str]) -> None:
    with running(v2()) as server:
        address = server.url.removeprefix("http://")
        main(["top", f"http://u:s3cret@{address}", f"http://v:s3cret@{address}", "--once"])

    assert "s3cret" not in "".join(capsys.readouterr())


def test_credentials_of_a_url_are_sent() -> None:
    assert base_url("http://u:s3cret@host:1").userinfo == b"u:s3cret"
