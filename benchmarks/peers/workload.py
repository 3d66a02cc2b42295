"""The three models that every server serves; imported inside each server, so it needs NumPy alone (mlp: torch).

``wait`` and ``slow`` take as long as an accelerator would: a base, and a little for each row. The time
is slept, not spun, because a host waits for a device without using its own cores.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = 16
HIDDEN = 256
SEED = 20
PR_SET_TIMERSLACK = 29
"""From Linux ``<sys/prctl.h>``: how late a sleep of this thread may end, in ns (50000 if unset)."""

Rows = NDArray[np.float32]
Predict = Callable[[Rows], Rows]
"""Rows [n, COLUMNS] in, as many out."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One model: its name, the rows a batch may hold, and how long a batch takes."""

    name: str
    max_batch_size: int
    base_ms: float = 0.0
    per_row_ms: float = 0.0

    def ceiling_per_s(self) -> float:
        """Return the rows per second of full batches without a gap; 0 where the time is not fixed."""
        batch_ms = self.base_ms + self.max_batch_size * self.per_row_ms
        return 1000 * self.max_batch_size / batch_ms if batch_ms else 0.0


WAIT = Workload("wait", 64, base_ms=4, per_row_ms=0.1)
MLP = Workload("mlp", 64)
SLOW = Workload("slow", 32, base_ms=20, per_row_ms=0.5)
ADD = Workload("add", 64)
"""Takes no time: of the benchmark of graphs."""
WORKLOADS = {workload.name: workload for workload in (WAIT, MLP, SLOW)}
_KNOWN = {**WORKLOADS, ADD.name: ADD}


@dataclass(frozen=True, slots=True)
class Job:
    """The environment of a server's script: the model, the address and the settings."""

    workload: Workload
    port: int
    settings: dict[str, Any]

    @classmethod
    def from_env(cls) -> "Job":
        """Read what ``environment`` wrote."""
        port = int(os.environ["PEER_PORT"])
        return cls(_KNOWN[os.environ["PEER_MODEL"]], port, json.loads(os.environ["PEER_SETTINGS"]))

    def environment(self) -> dict[str, str]:
        """Return the environment variables of this job."""
        settings = json.dumps(self.settings)
        return {"PEER_MODEL": self.workload.name, "PEER_PORT": str(self.port), "PEER_SETTINGS": settings}


def load(workload: Workload) -> Predict:
    """Return the model, ready to predict."""
    return load_mlp() if workload.name == MLP.name else waiting(workload)


def waiting(workload: Workload) -> Predict:
    """Return a model that adds one, and takes its time."""

    def predict(x: Rows) -> Rows:
        started_s = time.monotonic()
        y = x + np.float32(1)
        sleep_until(started_s + (workload.base_ms + len(x) * workload.per_row_ms) / 1000)
        return y

    return predict


def load_mlp() -> Predict:
    """Return a perceptron, 16 to 256 to 16, with the weights of examples/mlp, on one thread."""
    import torch  # noqa: PLC0415, the other models do without it

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    linear = torch.nn.Linear
    layers = torch.nn.Sequential(linear(COLUMNS, HIDDEN), torch.nn.ReLU(), linear(HIDDEN, COLUMNS)).eval()

    def predict(x: Rows) -> Rows:
        with torch.inference_mode():
            y: Rows = layers(torch.from_numpy(x)).numpy()
        return y

    return predict


def sleep_until(deadline_s: float) -> None:
    """Sleep until the monotonic clock shows ``deadline_s``."""
    # The slack belongs to a thread, and which thread predicts is the server's business.
    if sys.platform == "linux":
        c_library().prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    time.sleep(max(deadline_s - time.monotonic(), 0))


@cache
def c_library() -> ctypes.CDLL:
    """Return the C library this process runs on."""
    return ctypes.CDLL(None)
