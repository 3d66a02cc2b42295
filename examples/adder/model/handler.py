"""Add one to each number, and take as long about it as an accelerator would.

A batch of n rows lasts ``baseMicroseconds + n * perRowMicroseconds``: the shape of a real accelerator's cost, in which the
first row pays for the launch. The time is slept, not spun, because a host waits for a device without using its own cores.
"""

import ctypes
import sys
import time

import torch
from shoal_runtime import Context, TensorSpec

PR_SET_TIMERSLACK = 29
"""From Linux ``<sys/prctl.h>``: how late, in nanoseconds, a sleep of the calling thread may end (50000 unless set)."""


class Adder:
    """y = x + 1, for rows of 16 numbers."""

    inputs = (TensorSpec("x", "FP32", [-1, 16]),)
    outputs = (TensorSpec("y", "FP32", [-1, 16]),)

    def load(self, context: Context) -> None:
        """Read the cost of a batch from the model's parameters."""
        self._base_s = seconds(context.parameters, "baseMicroseconds")
        self._per_row_s = seconds(context.parameters, "perRowMicroseconds")

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Add one to ``x`` [n, 16], and return when the batch's time is over."""
        started_s = time.monotonic()
        x = batch["x"]
        y = x + 1
        sleep_until(started_s + self._base_s + len(x) * self._per_row_s)
        return y


def seconds(parameters: dict[str, object], key: str) -> float:
    """Return a parameter given in microseconds (>= 0, default 0) in seconds."""
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 60e6:
        raise ValueError(f"{key} must be a number of microseconds from 0 to 60000000, not {value!r}")
    return value / 1e6


def sleep_until(deadline_s: float) -> None:
    """Sleep until the monotonic clock shows ``deadline_s``, to within about 10 microseconds on Linux."""
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        return
    if sys.platform == "linux":
        # The slack belongs to a thread, and which thread calls forward is the runtime's business: set it here, for 1 us a call.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
        remaining_s = deadline_s - time.monotonic()
    time.sleep(max(remaining_s, 0))
