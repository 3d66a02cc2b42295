"""A model that sleeps as a host waits for a device, and records which rows it has run."""

import os
import time

import torch

from shoal_runtime import Context, TensorSpec


class Recorder:
    """y = x + 1 for rows of numbers, of which the first is the row's id."""

    def load(self, context: Context) -> None:
        """Read what a batch costs, one in how many rows is wrong, and where ids are recorded."""
        given = context.parameters
        columns = int(given.get("columns", 16))
        self.inputs = (TensorSpec("x", "FP32", [-1, columns]),)
        self.outputs = (TensorSpec("y", "FP32", [-1, columns]),)
        self._base_s = float(given.get("baseMilliseconds", 0)) / 1000
        self._per_row_s = float(given.get("perRowMilliseconds", 0)) / 1000
        self._wrong_every = int(given.get("wrongEvery", 0))
        self._file = os.open(str(given.get("record", os.devnull)), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Add one to ``x`` [n, columns], and return when the batch's time is over."""
        started_s = time.monotonic()
        x = batch["x"]
        ids = [int(each) for each in x[:, 0].tolist()]
        # Recorded before it sleeps: a killed process has run them.
        os.write(self._file, "".join(f"{each}\n" for each in ids).encode())
        y = x + 1
        if self._wrong_every:
            y[x[:, 0] % self._wrong_every == 1] += 100
        time.sleep(max(0.0, started_s + self._base_s + len(ids) * self._per_row_s - time.monotonic()))
        return y
