import io
import logging
from typing import TYPE_CHECKING

from shoal_runtime.readiness import Readiness
from shoal_runtime.storage.progress import StepProgress

if TYPE_CHECKING:
    import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bytes_are_a_percentage_when_the_total_is_known() -> None:
    readiness = Readiness()

    with StepProgress(readiness, "downloading", total=200, unit="B") as progress:
        progress.advance(80)
        assert readiness.reason == "downloading 40 %"


def test_bytes_are_counted_when_it_is_not() -> None:
    readiness = Readiness()

    StepProgress(readiness, "downloading", total=None, unit="B").advance(12_500_000)

    assert readiness.reason == "downloading 12 MB"


def test_a_terminal_gets_a_bar() -> None:
    terminal = Terminal()

    with StepProgress(Readiness(), "warming up", total=6, unit="batch", stream=terminal) as progress:
        progress.advance(3)

    assert "warming up" in terminal.getvalue()


def test_a_log_is_not_filled_with_lines(caplog: "pytest.LogCaptureFixture") -> None:
    caplog.set_level(logging.INFO)

    with StepProgress(Readiness(), "warming up", total=50, unit="batch", stream=io.StringIO()) as step:
        for _ in range(50):
            step.advance(1)

    assert caplog.records == []
