"""Completion, asked as bash's script asks: the words of the line and the cursor's word in the environment."""

import os
import subprocess
import sys

import pytest

from shoal.__main__ import main

pytestmark = pytest.mark.integration


def completed(line: str) -> set[str]:
    """Return what may stand at the end of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-m", "shoal"],
        env={**os.environ, "_SHOAL_COMPLETE": "bash_complete", **words},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    # Each line is a kind, such as "plain" or "file", and a word.
    return {each.partition(",")[2] for each in done.stdout.splitlines()}


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
        ("shoal serve --log-level w", {"warning"}),
        ("shoal serve --bogus --log-level w", {"warning"}),
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
