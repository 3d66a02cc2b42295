"""Command-line completion for bash, zsh and fish, with argcomplete.

The shell's completion script runs ``shoal`` with the current line in environment variables. Commands of another
component are completed by that component's parser.
"""

import os
from argparse import ArgumentParser
from collections.abc import Collection

SHELLS = ("bash", "zsh", "fish")
REQUEST_VARIABLE = "_ARGCOMPLETE"
"""Set by the shell's script; its value is the position of the command in the line, from 1."""


def is_requested() -> bool:
    """Return whether a shell started this process to complete a command line."""
    return REQUEST_VARIABLE in os.environ


def command_to_complete(others: Collection[str]) -> str | None:
    """Return the command of ``others`` whose arguments are being completed; None for any other command."""
    # COMP_POINT is the cursor: text after it does not count.
    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = line.split(" ")
    return words[1] if len(words) > 2 and words[1] in others else None


def run_completer() -> None:
    """Set the environment in which the program executed next completes the arguments of a subcommand."""
    os.environ[REQUEST_VARIABLE] = "2"


def complete(parser: ArgumentParser) -> None:
    """Print the completions and exit."""
    import argcomplete  # noqa: PLC0415 (only completion needs it)

    argcomplete.autocomplete(parser, always_complete_options=False)


def script(shell: str) -> str:
    """Return the completion script of a shell."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 (only completion needs it)

    return shellcode(["shoal"], shell=shell)
