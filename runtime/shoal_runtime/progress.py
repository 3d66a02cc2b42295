"""Progress of long steps: a bar on a terminal, elsewhere a line now and then, and readiness."""

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from shoal_runtime.readiness import Readiness

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_EVERY_S: Final = 10.0

logger = logging.getLogger(__name__)


class Progress:
    """One step's progress; use as a context manager.

    Bytes, the unit "B", are a percentage of their total, where it is known; anything else is counted. A bar goes to
    ``stream``, or stderr, if that is a terminal.
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
        readiness.progress(self.text())

    def __enter__(self) -> "Progress":
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
        """Say that `amount` more is done."""
        self._done += amount
        self._readiness.progress(self.text())
        if self._bar is not None:
            self._bar.update(amount)
        elif time.monotonic() - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            logger.info("event=progress what=%s", self.text())

    def text(self) -> str:
        """Return "downloading 40 %", "downloading 12 MB" or "warming up 3 of 6"."""
        if self._unit != "B":
            return f"{self._verb} {self._done} of {self._total}"
        if self._total:
            return f"{self._verb} {100 * self._done // self._total} %"
        return f"{self._verb} {self._done // 1_000_000} MB"
