"""Commands of the runtime: serve without an argument, `fetch`, `inspect`, `precision`, `batch`, `batch-ray`, `engine`.

`help_text` describes them.
"""

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoal_runtime.errors import EXIT_LOAD_FAILED, EXIT_USAGE, LoadError
from shoal_runtime.execution.garbage import seldom_collected
from shoal_runtime.execution.threads import wait_briefly
from shoal_runtime.packages import install_extras
from shoal_runtime.settings import Settings, help_text
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.logs import configure, requested_format
from shoal_schema.process.memory import KEEP_TENSORS, keep_freed_memory
from shoal_schema.resource.locations import shown
from shoal_schema.version import VERSION

SWITCH_INTERVAL_S = 0.0005
MISSING_EXTRA = 'pip install "shoal[runtime]" (or "shoal[runtime-light]", for a model that needs no PyTorch)'

logger = logging.getLogger(__name__)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command of the command line; return the exit status."""
    if arguments == ["--version"]:
        sys.stdout.write(f"shoal-runtime {VERSION}\n")
        return 0
    if arguments[:1] == ["batch"] and len(arguments) <= 2:
        return batch(environ, *arguments[1:])
    if arguments == ["batch-ray"]:
        return batch_on_ray(environ)
    # Commands below need the model's settings.
    command = {(): serve, ("fetch",): fetch}.get(tuple(arguments))
    if arguments[:1] == ["inspect"] and len(arguments) == 2:
        # The model's code may change the working directory.
        command = partial(inspect, file=Path(arguments[1]).absolute())
    if arguments[:1] == ["precision"] and len(arguments) in (2, 3):
        rows = arguments[2] if len(arguments) > 2 else None
        command = partial(precision, file=Path(arguments[1]).absolute(), rows=rows)
    if arguments[:1] == ["engine"] and len(arguments) == 2 and arguments[1].isdigit():
        command = partial(engine, descriptor=int(arguments[1]))
    if command is None:
        asked_for_help = arguments in (["--help"], ["-h"])
        (sys.stdout if asked_for_help else sys.stderr).write(help_text() + "\n")
        return 0 if asked_for_help else EXIT_USAGE
    configure(form=requested_format(environ))
    # With the default of 5 ms, a preprocess busy in Python delays the device's thread.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        # The environment of `fetch` holds keys of a Secret under any names, so its values are not shown.
        settings = Settings.from_env(environ, show_values=command is not fetch)
        configure(settings.logging.level, settings.logging.form)
        return command(settings)
    except SettingsError as error:
        logger.critical("%s", error)
        return EXIT_USAGE


def serve(settings: Settings) -> int:
    """Serve the configured model until a signal; return the exit status."""
    if settings.instances > 1 and settings.process.instance is None:
        from shoal_runtime.instances import supervise  # noqa: PLC0415 (asyncio)

        return supervise(settings, os.environ)
    keep_freed_memory(KEEP_TENSORS)
    wait_briefly(os.environ)
    # Imported late, so that `--help` and errors of settings appear at once.
    try:
        import uvloop  # noqa: PLC0415

        from shoal_runtime.serving import Runtime  # noqa: PLC0415
    except ModuleNotFoundError as error:
        logger.critical("%s: %s", error, MISSING_EXTRA)
        return EXIT_USAGE

    async def run() -> tuple[int, bool]:
        runtime = Runtime(settings)
        return await runtime.run(), runtime.clean

    code, clean = uvloop.run(run())
    if not clean:
        # A thread is stuck in the device or in loading, and might never end.
        logging.shutdown()
        os._exit(code)
    return code


def inspect(settings: Settings, file: Path) -> int:
    """Load the model, and write its description to ``file`` as JSON; see `_report`."""

    def inspected() -> Mapping[str, Any]:
        from shoal_runtime.inspecting import inspect  # noqa: PLC0415

        return inspect(settings)

    return _report(inspected, file)


def precision(settings: Settings, file: Path, rows: str | None) -> int:
    """Measure the model in each precision, and write the figures to ``file`` as JSON; see `_report`.

    Args:
        settings: settings of the runtime.
        file: file for the report.
        rows: address of a file with the rows; None to generate rows.
    """

    def measured() -> Mapping[str, Any]:
        from shoal_runtime.measuring import measure_precisions  # noqa: PLC0415

        return measure_precisions(settings, rows)

    return _report(measured, file)


def _report(make: Callable[[], Mapping[str, Any]], file: Path) -> int:
    """Write a report on a model to ``file`` as JSON.

    The function ends the process with the exit status. It returns, with a status, only if a required package is
    missing.
    """
    keep_freed_memory(KEEP_TENSORS)
    wait_briefly(os.environ)
    with seldom_collected():
        try:
            report = make()
        except ModuleNotFoundError as error:
            logger.critical("%s: %s", error, MISSING_EXTRA)
            return EXIT_USAGE
    file.write_text(json.dumps(report), encoding="utf-8")
    # Without a wait for threads of the model's own code.
    logging.shutdown()
    os._exit(0 if report["refused"] is None else EXIT_LOAD_FAILED)


def batch(environ: Mapping[str, str], command: str = "") -> int:
    """Run the batch program with settings from the environment; return the exit status.

    If the user typed ``command``, errors are printed as messages of that command, else they are logged.
    """
    configure(form=requested_format(environ))
    try:
        from shoal_runtime.offline.program import run_job  # noqa: PLC0415
    except ModuleNotFoundError as error:
        logger.critical("%s. %s", error, install_extras("batch"))
        return EXIT_USAGE
    return run_job(environ, command)


def batch_on_ray(environ: Mapping[str, str]) -> int:
    """Run the batch program on a Ray cluster with settings from the environment; return the exit status."""
    configure(form=requested_format(environ))
    try:
        from shoal_runtime.offline.on_ray import run_on_ray  # noqa: PLC0415
    except ModuleNotFoundError as error:
        logger.critical("%s: %s", error, 'pip install "shoal[batch]" ray')
        return EXIT_USAGE
    return run_on_ray(environ)


def engine(settings: Settings, descriptor: int) -> int:
    """Compute batches received from a socket until the socket closes; return the exit status."""
    keep_freed_memory(KEEP_TENSORS)
    wait_briefly(os.environ)
    from shoal_runtime.offline.worker import work  # noqa: PLC0415 (torch)

    return work(settings, descriptor)


def fetch(settings: Settings) -> int:
    """Download the model's files to the cache; return the exit status."""
    from shoal_runtime.readiness import Readiness  # noqa: PLC0415
    from shoal_runtime.storage.fetching import fetch_model  # noqa: PLC0415
    from shoal_runtime.storage.redaction import redacted_line, without_secrets  # noqa: PLC0415

    try:
        files = fetch_model(settings, Readiness())
    except LoadError as error:
        logger.critical("%s", error)
        return EXIT_LOAD_FAILED
    except Exception as error:  # the message reaches the resource's status, and may hold credentials
        logger.error("event=fetching_failed traceback=\n%s", without_secrets(traceback.format_exc(), os.environ))
        why = redacted_line(str(error), os.environ)
        logger.critical("%s cannot be downloaded: %s: %s", shown(settings.uri), type(error).__name__, why)
        return EXIT_LOAD_FAILED
    logger.info("event=model_fetched directory=%s", files.directory)
    return 0
