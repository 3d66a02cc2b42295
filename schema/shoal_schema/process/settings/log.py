"""Settings of the log of all processes."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from shoal_schema.fields.declaring import (
    ACTIVATOR,
    BATCH,
    MODEL,
    OPERATOR,
    PROXY,
    RUNTIME,
    Env,
    SettingsSection,
)


class Level(StrEnum):
    """Minimum levels of the log."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


LOG_FORMAT = "SHOAL_LOG_FORMAT"


class LogForm(StrEnum):
    """Formats of the log."""

    TEXT = "text"
    JSON = "json"


class LogSettings(SettingsSection, frozen=True):
    """Log settings of every process."""

    level: Annotated[
        Level,
        Meta(description="Minimum level of log lines."),
        Env("SHOAL_LOG_LEVEL", PROXY, RUNTIME, MODEL, OPERATOR, ACTIVATOR, BATCH),
    ] = Level.INFO
    form: Annotated[
        LogForm,
        Meta(description="Format of the log; `json` is one object per line ([logs](../reference/logs.md))."),
        Env(LOG_FORMAT, PROXY, RUNTIME, MODEL, OPERATOR, ACTIVATOR, BATCH),
    ] = LogForm.TEXT
