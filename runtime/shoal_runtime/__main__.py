"""`python -m shoal_runtime`: serve one model, with settings from the environment.

`fetch` only downloads the model to the cache, for an init container; `inspect FILE` loads the model and writes its
description to FILE as JSON. This module imports little, so that Ctrl-C is handled during all other imports.
"""

import os
import sys
from collections.abc import Mapping, Sequence

from shoal_schema.process.exit_status import run_command


def main(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run the runtime's command line; return the exit status."""

    def run() -> int:
        from shoal_runtime.command_line import run  # noqa: PLC0415 (guarded)

        return run(arguments, environ)

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
