"""A model whose parameters make a version that is wrong, slow or failing for part of the rows."""

import time

import torch

from shoal_runtime import Context, TensorSpec


class Drifting:
    """y = x + 1 for rows of 16 numbers; the first number of a row selects the rows to spoil, none of them zeros."""

    def load(self, context: Context) -> None:
        """Read which rows are wrong or fail, one in so many, and what a batch costs."""
        given = context.parameters
        columns = given.get("columns", 16)
        self.inputs = (TensorSpec("x", "FP32", [-1, columns]),)
        self.outputs = (TensorSpec("y", "FP32", [-1, columns]),)
        self._wrong_every = int(given.get("wrongEvery", 0))
        self._fail_every = int(given.get("failEvery", 0))
        self._base_s = float(given.get("baseMilliseconds", 0)) / 1000
        self.version = given.get("version", 0)

    def forward(self, batch: dict[str, torch.Tensor]) -> list[torch.Tensor | Exception]:
        """Add one to each row of ``x`` [n, 16]."""
        time.sleep(self._base_s)
        return [self._row(row) for row in batch["x"]]

    def _row(self, row: torch.Tensor) -> torch.Tensor | Exception:
        first = int(row[0])
        if self._fail_every and first % self._fail_every == 1:
            return ValueError("this version fails for this row")
        return row + (100 if self._wrong_every and first % self._wrong_every == 1 else 1)
