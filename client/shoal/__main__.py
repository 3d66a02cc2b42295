"""``shoal``, or ``python -m shoal``: the entry point, which handles Ctrl-C even during imports."""

import sys
from collections.abc import Sequence

from shoal_schema.process.exit_status import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``shoal`` command, by default with the process's arguments; return its exit status."""

    def run() -> int:
        from shoal.command_line import run  # noqa: PLC0415 (guarded)

        return run(list(sys.argv[1:] if arguments is None else arguments))

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main())
