"""Entry point of `shoal local` and `python -m shoal_local`."""

import sys
from collections.abc import Sequence

from shoal_local.guarding import guarded


def main(arguments: Sequence[str]) -> int:
    """Run `shoal local` with the given arguments; return the exit status."""
    return guarded("shoal_local.command_line", "shoal local", arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
