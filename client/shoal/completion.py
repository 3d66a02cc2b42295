"""Completion of the command line in bash, zsh and fish, by argcomplete.

The shell's script calls the command with the line so far in the environment. Commands that another component owns are
completed by that component's own parser.
"""

import os
from argparse import ArgumentParser
from collections.abc import Collection

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"
"""Set by the shell's script; its value is the word of the line at which the command begins, from 1."""


def is_asked() -> bool:
    """Return whether this process was started to complete a line."""
    return ASKED in os.environ


def command_to_ask(others: Collection[str]) -> str | None:
    """Return the one of the commands ``others`` whose arguments are to be completed."""
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = line.split(" ")
    return words[1] if len(words) > 2 and words[1] in others else None


def hand_over() -> None:
    """Have the next program complete the line as if it began with the command's name."""
    os.environ[ASKED] = "2"


def complete(parser: ArgumentParser) -> None:
    """Answer the shell and end the process."""
    import argcomplete  # noqa: PLC0415 (only completion needs it)

    argcomplete.autocomplete(parser, always_complete_options=False)


def script(shell: str) -> str:
    """Return the script that a shell reads to complete ``shoal``."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 (only completion needs it)

    return shellcode(["shoal"], shell=shell)
