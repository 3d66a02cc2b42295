"""``python -m shoal_proxy``: run the proxy with settings from the environment; ``simulate`` or ``record``."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

try:
    import uvloop

    from shoal_proxy import record, simulate
    from shoal_proxy.memory import keep_freed_memory
    from shoal_proxy.server import serve
    from shoal_proxy.settings import Settings, SettingsError
except ModuleNotFoundError as missing:
    sys.exit(f'shoal-proxy: {missing}: pip install "shoal[proxy]"')


def main(arguments: Sequence[str]) -> int:
    """Run the proxy, or the command that ``arguments`` name; return the exit status."""
    commands = {"simulate": simulate.main, "record": record.main}
    if not arguments:
        return run()
    if arguments[0] in commands:
        return commands[arguments[0]](arguments[1:])
    print(f"shoal-proxy: there is no command {arguments[0]}; there are simulate and record", file=sys.stderr)  # noqa: T201
    return 2


def run() -> int:
    """Run until told to stop; return the exit status."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        settings = Settings.from_env(os.environ)
    except SettingsError as error:
        print(f"shoal-proxy: {error}", file=sys.stderr)  # noqa: T201 (the last line is what a person reads)
        return 2
    keep_freed_memory()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except OSError as error:
        print(f"shoal-proxy: {error.strerror or error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
