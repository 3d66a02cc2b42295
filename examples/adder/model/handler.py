"""Add one to each number, and take as long about it as an accelerator would.

A batch of n rows lasts ``baseMicroseconds + n * perRowMicroseconds``: the shape of a real
accelerator's cost, in which the first row pays for the launch. The time is slept, not spun, because
a host waits for a device without using its own cores.
"""

import ctypes
import sys
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from shoal_runtime import Context, TensorSpec

MAX_MICROSECONDS = 60_000_000

PR_SET_TIMERSLACK = 29
"""From Linux ``<sys/prctl.h>``: how late a sleep of this thread may end, in ns (50000 if unset)."""


class Adder:
    """y = x + 1, for rows of 16 numbers, or as many as the parameter ``columns`` says."""

    def load(self, context: Context) -> None:
        """Read from the model's parameters how wide a row is and what a batch costs."""
        columns = context.parameters.get("columns", 16)
        self.inputs = (TensorSpec("x", "FP32", [-1, columns]),)
        self.outputs = (TensorSpec("y", "FP32", [-1, columns]),)
        self._base_s = seconds(context.parameters, "baseMicroseconds")
        self._per_row_s = seconds(context.parameters, "perRowMicroseconds")

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Add one to ``x`` [n, columns], and return when the batch's time is over."""
        started_s = time.monotonic()
        x = batch["x"]
        y = x + 1
        sleep_until(started_s + self._base_s + len(x) * self._per_row_s)
        return y


def seconds(parameters: Mapping[str, Any], key: str) -> float:
    """Return in seconds a parameter given in microseconds (0 to a minute, default 0)."""
    value = parameters.get(key, 0)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_MICROSECONDS:
        raise ValueError(f"{key} must be a number of microseconds from 0 to {MAX_MICROSECONDS}, not {value!r}")
    return float(value) / 1e6


def sleep_until(deadline_s: float) -> None:
    """Sleep until the monotonic clock shows ``deadline_s``; return at once when it has passed."""
    if time.monotonic() < deadline_s:
        sharpen_sleep()
        time.sleep(max(deadline_s - time.monotonic(), 0))


def sharpen_sleep() -> None:
    """Let this thread's sleeps end on time: halves how late a 4 ms sleep ends, for 2 us a call.

    The slack belongs to a thread, and which thread calls ``forward`` is the runtime's business.
    """
    if sys.platform == "linux":
        c_library().prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


@cache
def c_library() -> ctypes.CDLL:
    """Return the C library this process runs on; looking it up costs 40 us, so once."""
    return ctypes.CDLL(None)
