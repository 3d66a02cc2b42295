"""`python -m shoal_runtime batch`: one job, as the environment asks for it."""

import logging
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shoal_runtime.errors import EXIT_USAGE
from shoal_runtime.offline.errors import JobError
from shoal_runtime.offline.job import Job
from shoal_runtime.offline.progress import summary
from shoal_runtime.offline.settings import from_env
from shoal_schema.ending import INTERRUPTED
from shoal_schema.environment import SettingsError
from shoal_schema.logs import configure

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""Where Kubernetes reads a container's last words."""

logger = logging.getLogger(__name__)


class _Stopped(BaseException):
    """A signal came."""


def run_job(environ: Mapping[str, str], command: str = "") -> int:
    """Do the job; return the exit code: 0 when all is done, 1 when not, 2 when it cannot be, 130 after a signal.

    ``command`` is what somebody typed, in whose words errors are told; else they are lines of the log.
    """
    try:
        settings = from_env(environ)
    except SettingsError as error:
        _tell(str(error), command)
        return EXIT_USAGE
    configure(settings.logging.level, settings.logging.form)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    job = Job(settings, environ)
    status, words = _done(job, command)
    logging.shutdown()
    _leave(job, words)
    sys.stdout.flush()
    # Threads that read or write wait for nobody.
    os._exit(status)


def _tell(words: str, command: str) -> None:
    if command:
        sys.stderr.write(f"{command}: {words}\n")
    else:
        logger.critical("%s", words)


def _done(job: Job, command: str) -> tuple[int, str]:
    try:
        job.run()
    except _Stopped:
        _tell("stopped; run the same again to go on: what is done is not done twice", command)
        return INTERRUPTED, "stopped"
    except JobError as error:
        _tell(str(error), command)
        return error.status, str(error)
    told = summary(job.tally, job.settings.output.uri, job.plan.batch_size, time.monotonic())
    sys.stdout.write(f"{told}\n")
    return 0, ""


def _stop(*_: Any) -> None:
    raise _Stopped


def _leave(job: Job, words: str) -> None:
    """Tell Kubernetes, which keeps it for who asks, how far the job came."""
    if TERMINATION_LOG.exists():
        try:
            TERMINATION_LOG.write_bytes(job.tally.encoded(time.monotonic(), words[:2000]))
        except OSError:
            return
