"""Logging of every process: time, level, logger, then ``event=...`` and its fields."""

import logging
import sys
import time
from collections.abc import Mapping
from contextlib import suppress

from shoal_schema.process.log_lines import MAX_TRACEBACK, TEXT, as_json, as_text, fields_of
from shoal_schema.process.settings.log import LOG_FORMAT, LogForm

# These log each malformed request, handler or probe; Shoal logs what matters of it.
QUIET = {
    "uvicorn": logging.ERROR,
    "httpx": logging.ERROR,
    "httpcore": logging.ERROR,
    # Of huggingface_hub, which log signed URLs.
    "httpx2": logging.ERROR,
    "httpcore2": logging.ERROR,
    "kopf._core": logging.WARNING,
    "kopf.objects": logging.WARNING,
    "kopf.activities": logging.WARNING,
    "aiohttp.access": logging.WARNING,
}


class TextFormatter(logging.Formatter):
    """Formatter of text log lines, with tracebacks on lines of their own."""

    def __init__(self) -> None:
        super().__init__(TEXT, datefmt="%Y-%m-%dT%H:%M:%S")
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (of `logging`)
        """Return the line of a record, with values of several words quoted."""
        with suppress(Exception):  # a wrong template must not lose the line
            record.message = as_text(record.msg, record.args) or record.message
        return super().formatMessage(record)


class JsonFormatter(TextFormatter):
    """Formatter of JSON log lines, with tracebacks as a field."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as a JSON object."""
        fields = fields_of(record.msg, record.args)
        if record.exc_info and (error := record.exc_info[1]) is not None:
            fields.setdefault("error", f"{type(error).__name__}: {error}")
            fields.setdefault("traceback", self.formatException(record.exc_info)[-MAX_TRACEBACK:])
        when = f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z"
        return as_json(when, record.levelname, record.name, fields)


def configure(level: str = "INFO", form: str = LogForm.TEXT) -> None:
    """Set up logging to standard error, from ``level`` on and in the format ``form``."""
    in_json = form == LogForm.JSON
    # One handler on the root logger, replacing any other.
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if in_json else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # A higher level of the root applies to these loggers too.
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(least, logging.getLogger().level))
    logging.captureWarnings(in_json)
    # In JSON even an uncaught exception is one line.
    sys.excepthook = _log_uncaught if in_json else sys.__excepthook__


def requested_format(environ: Mapping[str, str]) -> LogForm:
    """Return the log format that an environment requests.

    The environment need not be validated: text if the format is missing or invalid.
    """
    return LogForm.JSON if environ.get(LOG_FORMAT, "").strip().lower() == LogForm.JSON else LogForm.TEXT


def final_line(program: str, why: object) -> str:
    """Return a process's last line, with the reason for its end, in the configured log format."""
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        return f"{program}: {why}\n"
    record = logging.makeLogRecord({"name": program, "levelname": "CRITICAL", "msg": why})
    return f"{JsonFormatter().format(record)}\n"


def log_exit_reason(program: str, why: object) -> None:
    """Write the reason that a process ends, as its last line."""
    sys.stderr.write(final_line(program, why))


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: object) -> None:
    logging.getLogger("shoal").critical("%s: %s", kind.__name__, error, exc_info=error)
