"""Columns of tables as tensors: their names, their nulls and their dates.

An input of rows of numbers may name its columns (`columns` in its metadata). Nulls are NaN in floating-point numbers,
and `NULL` in texts. Dates are ISO 8601 texts.
"""

from collections.abc import Sequence
from typing import Final

import orjson

NULL: Final = b"\xff"
"""The element of a nullable text that stands for null: a byte that UTF-8 never holds."""
LOGICAL_TYPES: Final = ("datetime",)
UNITS: Final = ("s", "ms", "us", "ns")
"""What the numbers of a datetime may count since 1970-01-01T00:00:00Z."""


def encode_columns(names: Sequence[str]) -> str:
    """Return column names as the JSON text of the metadata's `columns`."""
    return orjson.dumps(list(names)).decode()


def decode_columns(text: str) -> tuple[str, ...]:
    """Return the column names in the metadata's `columns`.

    Raises:
        ValueError: it is not a JSON list of different texts.
    """
    names = orjson.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"columns {text!r:.200} is not a JSON list of different texts")
    return tuple(names)
