"""A model of rows of any length, which are padded, and which fails some of them."""

import time

import torch

from shoal_runtime import Context, TensorSpec

ROW_S = 0.01


class Uneven:
    """y = the sum of x; a row that begins with a negative number fails."""

    inputs = (TensorSpec("x", "FP32", [-1, -1], pad_axis=1, pad_buckets=[8, 64]),)
    outputs = (TensorSpec("y", "FP32", [-1]),)

    def load(self, context: Context) -> None:
        """Need nothing."""

    def forward(self, batch: dict[str, torch.Tensor]) -> list[torch.Tensor | Exception]:
        """Sum each row of ``x`` [n, columns]."""
        time.sleep(ROW_S * len(batch["x"]))
        failed = ValueError("the first number is negative")
        return [failed if row[0] < 0 else row.sum() for row in batch["x"]]
