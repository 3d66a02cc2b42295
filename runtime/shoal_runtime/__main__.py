"""`python -m shoal_runtime`: serve one model; settings come from the environment.

`python -m shoal_runtime fetch` only brings the model into the cache, for an init container; `inspect FILE` loads it and
writes what it is, as JSON, into FILE.
Only a guard: Ctrl-C counts from here on, while all the rest is imported.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from shoal_schema.ending import ended


def main(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the runtime and return its exit code."""

    def run() -> int:
        from shoal_runtime.command_line import run  # noqa: PLC0415 (guarded)

        return run(arguments, environ)

    return ended(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
