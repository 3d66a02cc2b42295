"""The command line: nothing to serve, `fetch`, `inspect FILE`; `batch` and `batch-ray`, which start `engine FD`."""

import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from shoal_runtime.errors import EXIT_LOAD_FAILED, EXIT_USAGE, LoadError
from shoal_runtime.garbage import seldom_collected
from shoal_runtime.settings import Settings, help_text
from shoal_runtime.threads import wait_briefly
from shoal_schema.environment import SettingsError
from shoal_schema.logs import configure, form_asked
from shoal_schema.memory import KEEP_TENSORS, keep_freed_memory
from shoal_schema.resource.locations import shown
from shoal_schema.version import VERSION

SWITCH_INTERVAL_S = 0.0005
LACKING = 'pip install "shoal[runtime]" (or "shoal[runtime-light]", for a model that needs no PyTorch)'

logger = logging.getLogger(__name__)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the runtime and return its exit code."""
    if arguments == ["--version"]:
        sys.stdout.write(f"shoal-runtime {VERSION}\n")
        return 0
    if arguments[:1] == ["batch"] and len(arguments) <= 2:
        return batch(environ, *arguments[1:])
    if arguments == ["batch-ray"]:
        return batch_on_ray(environ)
    command = {(): serve, ("fetch",): fetch}.get(tuple(arguments))
    if arguments[:1] == ["inspect"] and len(arguments) == 2:
        # The model's code may change the working directory.
        command = partial(inspect, file=Path(arguments[1]).absolute())
    if arguments[:1] == ["engine"] and len(arguments) == 2 and arguments[1].isdigit():
        command = partial(engine, descriptor=int(arguments[1]))
    if command is None:
        asked = arguments in (["--help"], ["-h"])
        (sys.stdout if asked else sys.stderr).write(help_text() + "\n")
        return 0 if asked else EXIT_USAGE
    configure(form=form_asked(environ))
    # A preprocess busy in Python would keep the device's thread waiting for 5 ms, the default.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        # Beside `fetch` its environment holds a Secret's keys, whatever they are called.
        settings = Settings.from_env(environ, told=command is not fetch)
        configure(settings.logging.level, settings.logging.form)
        return command(settings)
    except SettingsError as error:
        logger.critical("%s", error)
        return EXIT_USAGE


def serve(settings: Settings) -> int:
    """Serve the model that the settings name, until a signal; return the exit code."""
    keep_freed_memory(KEEP_TENSORS)
    wait_briefly(os.environ)
    # Not before they are needed: `--help` and a wrong setting answer at once.
    try:
        import uvloop  # noqa: PLC0415

        from shoal_runtime.serving import Runtime  # noqa: PLC0415
    except ModuleNotFoundError as error:
        logger.error("%s: %s", error, LACKING)
        return EXIT_USAGE

    async def run() -> tuple[int, bool]:
        runtime = Runtime(settings)
        return await runtime.run(), runtime.clean

    code, clean = uvloop.run(run())
    if not clean:
        # A thread is stuck in the device or in loading; waiting for it would be for ever.
        logging.shutdown()
        os._exit(code)
    return code


def inspect(settings: Settings, file: Path) -> int:
    """Load the model, and write what it is into ``file``, as JSON; return an exit code if it cannot begin."""
    keep_freed_memory(KEEP_TENSORS)
    wait_briefly(os.environ)
    with seldom_collected():
        try:
            from shoal_runtime.inspecting import inspect  # noqa: PLC0415
        except ModuleNotFoundError as error:
            logger.error("%s: %s", error, LACKING)
            return EXIT_USAGE
        report = inspect(settings)
    file.write_text(json.dumps(report), encoding="utf-8")
    # Threads that the model's code has left running are waited for by nobody.
    logging.shutdown()
    os._exit(0 if report["refused"] is None else EXIT_LOAD_FAILED)


def batch(environ: Mapping[str, str], command: str = "") -> int:
    """Score the rows that the environment names; return the exit code.

    What goes wrong is told as the words of ``command``, where one was typed, and else as a line of the log.
    """
    configure(form=form_asked(environ))
    try:
        from shoal_runtime.offline.program import run_job  # noqa: PLC0415
    except ModuleNotFoundError as error:
        logger.error("%s: %s", error, 'pip install "shoal[batch]"')
        return EXIT_USAGE
    return run_job(environ, command)


def batch_on_ray(environ: Mapping[str, str]) -> int:
    """Score the rows that the environment names on a cluster of Ray; return the exit code."""
    configure(form=form_asked(environ))
    try:
        from shoal_runtime.offline.on_ray import run_on_ray  # noqa: PLC0415
    except ModuleNotFoundError as error:
        logger.error("%s: %s", error, 'pip install "shoal[batch]" ray')
        return EXIT_USAGE
    return run_on_ray(environ)


def engine(settings: Settings, descriptor: int) -> int:
    """Compute what is asked for over a socket, until nobody is there any more; return the exit code."""
    keep_freed_memory(KEEP_TENSORS)
    wait_briefly(os.environ)
    from shoal_runtime.offline.worker import work  # noqa: PLC0415 (torch)

    return work(settings, descriptor)


def fetch(settings: Settings) -> int:
    """Bring the model's files into the cache; return the exit code."""
    from shoal_runtime.fetching import fetch_model  # noqa: PLC0415
    from shoal_runtime.readiness import Readiness  # noqa: PLC0415
    from shoal_runtime.storage.redaction import hidden, safe  # noqa: PLC0415

    try:
        files = fetch_model(settings, Readiness())
    except LoadError as error:
        logger.critical("%s", error)
        return EXIT_LOAD_FAILED
    except Exception as error:  # its last words reach the resource's status, and may hold credentials
        logger.error("event=fetching_failed traceback=\n%s", hidden(traceback.format_exc(), os.environ))
        why = safe(str(error), os.environ)
        logger.critical("%s cannot be downloaded: %s: %s", shown(settings.uri), type(error).__name__, why)
        return EXIT_LOAD_FAILED
    logger.info("event=model_fetched directory=%s", files.directory)
    return 0
