"""A model whose answers show whose they are, and which does what the worst row asks of it."""

import os
import time

import torch
from orders import DIE, EXIT, INTERRUPT, OUT_OF_MEMORY, OVERFLOW, RAISE  # type: ignore[import-not-found]

from shoal_runtime import TensorSpec

BASE_S, PER_ROW_S = 0.002, 0.00005


class Total:
    """total = the sum of the row's numbers, whatever its length."""

    inputs = (TensorSpec("x", "FP32", [-1, -1], pad_axis=1),)
    outputs = (TensorSpec("total", "INT32", [-1]),)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Sum each row of ``x`` [n, longest], unless one of them is a command."""
        x = batch["x"]
        obey(set(x[:, 0].int().tolist()))
        time.sleep(BASE_S + len(x) * PER_ROW_S)
        totals = x.double().sum(dim=1)
        return torch.where(x[:, 0] == OVERFLOW, 2.0**40, totals).long()


def obey(commands: set[int]) -> None:
    """Fail as the worst of ``commands`` says."""
    if DIE in commands:
        os._exit(1)
    if EXIT in commands:
        raise SystemExit(0)
    if INTERRUPT in commands:
        raise KeyboardInterrupt
    if OUT_OF_MEMORY in commands:
        raise torch.OutOfMemoryError("a row asked for it")
    if RAISE in commands:
        raise RuntimeError("a row asked for it")
