"""Completion, asked as the shells' scripts ask: the line in the environment, the answer on descriptor 8."""

import os
import subprocess
import sys

import pytest

from shoal.__main__ import main

pytestmark = pytest.mark.integration


def completed(line: str) -> set[str]:
    """Return what may stand at the end of a line."""
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" -m shoal 8>&1 9>/dev/null >/dev/null', sys.executable],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return {each.strip() for each in done.stdout.splitlines()}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("shoal s", {"serve", "simulate"}),
        ("shoal completion ", {"bash", "zsh", "fish"}),
        ("shoal predict --t", {"--text", "--timeout"}),
        ("shoal loc", {"local"}),
        ("shoal local ", {"up", "down", "status"}),
        ("shoal local up --m", {"--model"}),
        ("shoal simulate --pol", {"--policy"}),
        ("shoal simulate --policy ", {"Adaptive", "Fixed", "None"}),
        ("shoal record --se", {"--seconds"}),
    ],
)
def test_every_command_is_completed_by_its_program(line: str, words: set[str]) -> None:
    assert completed(line) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0

    assert "shoal" in capsys.readouterr().out


def test_the_script_is_one_that_bash_takes(capsys: pytest.CaptureFixture[str]) -> None:
    main(["completion", "bash"])
    script = capsys.readouterr().out

    done = subprocess.run(["bash", "-c", f"{script}\ncomplete -p shoal"], capture_output=True, text=True, check=True)

    assert done.stdout.rstrip().endswith("shoal")
