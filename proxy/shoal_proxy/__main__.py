"""Entry point of ``python -m shoal_proxy``.

Handles Ctrl-C from here on, also while the other modules are imported.
"""

import sys
from collections.abc import Sequence

from shoal_schema.process.exit_status import run_command


def main(arguments: Sequence[str]) -> int:
    """Run the command named by ``arguments``; return the exit status."""

    def run() -> int:
        from shoal_proxy.command_line import run  # noqa: PLC0415 (guarded)

        return run(list(arguments))

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
