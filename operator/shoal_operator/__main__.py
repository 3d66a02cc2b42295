"""Entry point of ``shoal-operator`` and ``python -m shoal_operator``.

Imports few modules, so that Ctrl-C is handled during all other imports.
"""

import sys
from collections.abc import Sequence

from shoal_schema.process.exit_status import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator's command line and return the exit status."""

    def run() -> int:
        from shoal_operator.command_line import run  # noqa: PLC0415 (guarded)

        return run(list(sys.argv[1:] if arguments is None else arguments))

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main())
