"""Progress of long steps, such as downloads.

It is shown as a bar on a terminal or a log line every 10 s, and in health responses.
"""

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from shoal_runtime.readiness import Readiness

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_EVERY_S: Final = 10.0

logger = logging.getLogger(__name__)


class StepProgress:
    """Progress display of one step, as a context manager.

    Args:
        readiness: receives the progress as its reason.
        verb: name of the step, such as "downloading".
        total: total amount of the step, if known.
        unit: "B" for bytes, shown as a percentage; other units are counted.
        stream: stream that shows a progress bar if it is a terminal; standard error by default.
    """

    def __init__(
        self, readiness: Readiness, verb: str, *, total: int | None, unit: str, stream: TextIO | None = None
    ) -> None:
        self._readiness = readiness
        self._verb = verb
        self._total = total
        self._unit = unit
        self._stream = stream or sys.stderr
        self._done = 0
        self._last_line_s = time.monotonic()
        self._bar: tqdm[Any] | None = None
        # Health requests show the step at once.
        readiness.progress(self.text())

    def __enter__(self) -> "StepProgress":
        if self._stream.isatty():
            from tqdm import tqdm  # noqa: PLC0415 (pods have no terminal)

            self._bar = tqdm(
                total=self._total,
                desc=self._verb,
                unit=self._unit,
                unit_scale=self._unit == "B",
                file=self._stream,
                leave=False,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, amount: int) -> None:
        """Add to the finished amount, and update the display."""
        self._done += amount
        self._readiness.progress(self.text())
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            logger.info("event=progress what=%s", self.text())

    def text(self) -> str:
        """Return the progress as text, such as "downloading 40 %" or "warming up 3 of 6"."""
        if self._unit != "B":
            return f"{self._verb} {self._done} of {self._total}"
        if self._total:
            return f"{self._verb} {100 * self._done // self._total} %"
        return f"{self._verb} {self._done // 1_000_000} MB"
