"""How the command ends: by Ctrl-C, with its output closed, and on a terminal."""

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from importlib import metadata

import pytest

from tests.client.fake_server import running, v2

pytestmark = pytest.mark.integration
SHOAL = [sys.executable, "-m", "shoal"]
TIMEOUT_S = 30.0


@pytest.mark.parametrize("command", [["info"], ["predict", "--data", "1"], ["simulate", "--poisson", "1", "--from"]])
def test_ctrl_c_while_a_server_is_silent_exits_130_without_a_word(command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asking = subprocess.Popen([*SHOAL, *command, url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        silent.settimeout(TIMEOUT_S)
        connection, _ = silent.accept()

        asking.send_signal(signal.SIGINT)
        out, err = asking.communicate(timeout=TIMEOUT_S)
        connection.close()

    assert (asking.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize(
    ("module", "program", "arguments"),
    [
        ("click", "shoal", ["--help"]),
        ("click", "shoal_operator", ["--help"]),
        ("logging", "shoal_runtime", ["--help"]),
        ("numpy", "shoal", ["info", "http://127.0.0.1:1"]),
        ("httpx", "shoal", ["serve", "/no/such/model"]),
        ("numpy", "shoal_proxy", ["simulate", "--help"]),
        ("yaml", "shoal_local", ["status"]),
        ("click", "shoal_local", ["down", "--help"]),
    ],
)
def test_ctrl_c_in_the_middle_of_start_up_exits_130_without_a_word(
    module: str, program: str, arguments: list[str]
) -> None:
    script = f"""
import builtins, os, signal, sys
imported = builtins.__import__
def interrupted(name, *rest):
    if name == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *rest)
builtins.__import__ = interrupted
from {program}.__main__ import main
sys.exit(main({arguments!r}))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=TIMEOUT_S, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


SIMULATE = "simulate --poisson 10 --requests 100 --latency 4ms+1ms --max-batch-size 8"


@pytest.mark.parametrize("command", ["--help", "info {url}", "predict {url} --data '[1,2,3]'", SIMULATE])
def test_a_reader_that_leaves_is_no_error(command: str) -> None:
    with running(v2()) as server:
        line = f"{shlex.join(SHOAL)} {command.format(url=server.url)} | true"
        ended = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, timeout=TIMEOUT_S, check=False
        )

    assert ended.stderr == b""
    assert ended.returncode in (0, 141)


def on_a_terminal(command: list[str], **environment: str) -> str:
    """Return what a command writes on a terminal."""
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    subprocess.run(
        [*SHOAL, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**variables, "TERM": "xterm", **environment},
        timeout=TIMEOUT_S,
        check=False,
    )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        return _drain(terminal.fileno())


def _drain(number: int) -> str:
    pieces = []
    while True:
        try:
            pieces.append(os.read(number, 65536))
        except OSError:  # Linux reports EIO for a closed terminal
            return b"".join(pieces).decode()


def test_a_terminal_gets_colours_unless_they_are_not_wanted() -> None:
    failing = ["serve", "/no/such/model"]

    assert re.match(r"\x1b\[1;31mshoal:\x1b\[0m there is no file", on_a_terminal(failing))
    assert on_a_terminal(failing, NO_COLOR="1").startswith("shoal: there is no file")
    assert on_a_terminal(failing, TERM="dumb").startswith("shoal: there is no file")


def test_the_version_is_the_packages() -> None:
    ended = subprocess.run([*SHOAL, "--version"], capture_output=True, text=True, check=True)

    assert ended.stdout == f"shoal {metadata.version('shoal')}\n"


@pytest.mark.parametrize(
    "command",
    [[], ["serve"], ["predict"], ["info"], ["completion"], ["simulate"], ["record"], ["local"], ["local", "up"]],
)
def test_help_is_plain_text_about_the_command(command: list[str]) -> None:
    ended = subprocess.run([*SHOAL, *command, "--help"], capture_output=True, text=True, check=True)

    assert ended.stdout.startswith(f"Usage: {' '.join(['shoal', *command])} ")
    assert "`" not in ended.stdout
    assert "python -m" not in ended.stdout


@pytest.mark.parametrize("command", ["--version", "completion bash", "--help"])
def test_a_full_disk_is_one_line(command: str) -> None:
    """The longest of them fails in the middle of its output, others at its end."""
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*SHOAL, *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=False,
        )

    assert (ended.returncode, ended.stderr) == (1, b"shoal: cannot write: No space left on device\n")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("--version >&-", 0),
        ("completion bash >&-", 0),
        ("serve /no/such/model 2>&-", 2),
        ("serve /no/such/model <&- >&- 2>&-", 2),
    ],
)
def test_closed_standard_streams_are_never_written(line: str, status: int) -> None:
    command = f"{shlex.join(SHOAL)} {line}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, timeout=TIMEOUT_S, check=False)

    assert (ended.returncode, ended.stdout, ended.stderr) == (status, b"", b"")
