"""Rows of numbers to send: each request its own, as real clients have them. Pure: the seed is fixed."""

from collections.abc import Sequence
from random import Random
from typing import Any

SEED = 3


def random_rows(count: int, columns: int) -> list[list[float]]:
    """Return rows whose numbers have six decimals, from a normal distribution."""
    random = Random(SEED)
    return [[round(random.gauss(), 6) for _ in range(columns)] for _ in range(count)]


def v2_request(row: Sequence[float]) -> dict[str, Any]:
    """Return the V2 request with one row for the input ``x``."""
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, len(row)], "data": row}]}
