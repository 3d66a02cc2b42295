"""Proxy, runtime and operator write one log format."""

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

import shoal_operator.settings
import shoal_proxy.settings
import shoal_runtime.settings
import shoal_schema.logs
from shoal.serving.supervision import EXIT_LINE, LOG_PREFIX
from shoal_schema.environment import SettingsError


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in shoal_schema.logs.QUIET}
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, each in levels.items():
        logging.getLogger(name).setLevel(each)


def test_a_line_is_time_level_logger_and_event(capsys: pytest.CaptureFixture[str]) -> None:
    shoal_schema.logs.configure("WARNING")

    logging.getLogger("shoal.proxy").info("event=unimportant")
    logging.getLogger("shoal.proxy").warning("event=late rows=%d", 3)

    line = capsys.readouterr().err
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING shoal\.proxy event=late rows=3\n", line)


def test_the_line_that_says_why_a_process_ends_is_known_to_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    shoal_schema.logs.configure()

    logging.getLogger("shoal_runtime.serving").critical("the model cannot be loaded: why")

    line = capsys.readouterr().err.strip()
    assert EXIT_LINE.match(line.encode())
    assert LOG_PREFIX.sub("", line) == "the model cannot be loaded: why"


READERS: dict[Any, dict[str, str]] = {
    shoal_proxy.settings.Settings: {},
    shoal_runtime.settings.Settings: {"SHOAL_MODEL_URI": "/models/cat"},
    shoal_operator.settings.Settings: {},
}


@pytest.mark.parametrize("text", ["debug", "INFO", "Warning", "error"])
def test_levels_are_taken_in_any_case(text: str) -> None:
    for settings, needed in READERS.items():
        assert settings.from_env({**needed, "SHOAL_LOG_LEVEL": text}).logging.level == text.upper()


def test_what_is_no_level_is_refused() -> None:
    for settings, needed in READERS.items():
        with pytest.raises(SettingsError, match="SHOAL_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR, not 'loud'"):
            settings.from_env({**needed, "SHOAL_LOG_LEVEL": "loud"})
