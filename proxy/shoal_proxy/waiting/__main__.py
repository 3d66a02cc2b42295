"""``python -m shoal_proxy.waiting``: run a waiting room with settings from the environment.

Only a guard: Ctrl-C counts from here on, while all the rest is imported.
"""

import sys

from shoal_schema.ending import ended


def main() -> int:
    """Run until told to stop; return the exit status."""

    def run() -> int:
        from shoal_proxy.waiting.process import run  # noqa: PLC0415 (guarded)

        return run()

    return ended(run)


if __name__ == "__main__":
    sys.exit(main())
