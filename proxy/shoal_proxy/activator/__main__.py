"""``python -m shoal_proxy.activator``: run an activator with settings from the environment.

Handles Ctrl-C from the start, also during the import of other modules.
"""

import sys

from shoal_schema.process.exit_status import run_command


def main() -> int:
    """Run the activator until it is stopped; return the exit status."""

    def run() -> int:
        from shoal_proxy.activator.process import run  # noqa: PLC0415 (guarded)

        return run()

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main())
