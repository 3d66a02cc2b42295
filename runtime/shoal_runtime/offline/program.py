"""`python -m shoal_runtime batch`: run one batch job with settings from the environment."""

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from shoal_runtime.errors import EXIT_USAGE
from shoal_runtime.offline.errors import JobError
from shoal_runtime.offline.job import Job
from shoal_runtime.offline.progress import summary
from shoal_runtime.offline.settings import from_env
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.exit_status import INTERRUPTED
from shoal_schema.process.logs import configure

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""File in which Kubernetes reads a container's termination message."""

logger = logging.getLogger(__name__)


class _Stopped(BaseException):
    """A signal to stop arrived."""


def run_job(environ: Mapping[str, str], command: str = "") -> int:
    """Run a batch job and exit the process; return only if the settings are invalid.

    The exit status is 0 if the job is complete, 1 if it failed, 2 for invalid settings, 130 after a signal.

    Args:
        environ: environment variables with the settings.
        command: command that the user typed; errors are then printed instead of logged.
    """
    try:
        settings = from_env(environ)
    except SettingsError as error:
        _report(str(error), command)
        return EXIT_USAGE
    # Errors before this line are logged with the default form.
    configure(settings.logging.level, settings.logging.form)

    def stop(*_: Any) -> None:
        raise _Stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    job = Job(settings, environ)
    status, message = 0, ""
    try:
        job.run()
    except _Stopped:
        _report("stopped. Run the same command again to resume; finished work is not repeated", command)
        status, message = INTERRUPTED, "stopped"
    except JobError as error:
        _report(str(error), command)
        status, message = error.status, str(error)
    else:
        table = summary(job.tally, job.settings.output.uri, job.plan.batch_size, time.monotonic())
        sys.stdout.write(f"{table}\n")
    logging.shutdown()
    # The operator reads the progress of a finished pod from its termination message.
    if TERMINATION_LOG.exists():
        with suppress(OSError):
            TERMINATION_LOG.write_bytes(job.tally.encoded(time.monotonic(), message[:2000]))
    sys.stdout.flush()
    # Without a wait for threads that still read or write.
    os._exit(status)


def _report(message: str, command: str) -> None:
    if command:
        sys.stderr.write(f"{command}: {message}\n")
    else:
        logger.critical("%s", message)
