"""Columns of tables as tensors: names, nulls and dates.

An input of numeric rows may name its columns (`columns` in its metadata). Null is NaN in floating-point numbers and
`NULL` in texts. Dates are ISO 8601 texts.
"""

from collections.abc import Sequence
from typing import Final

import orjson

NULL: Final = b"\xff"
"""Null in a nullable text: a byte that never occurs in UTF-8."""
LOGICAL_TYPES: Final = ("datetime",)
UNITS: Final = ("s", "ms", "us", "ns")
"""Units of numeric datetimes, since 1970-01-01T00:00:00Z."""


def encode_columns(names: Sequence[str]) -> str:
    """Encode column names as JSON for the metadata's `columns`."""
    return orjson.dumps(list(names)).decode()


def decode_columns(text: str) -> tuple[str, ...]:
    """Decode the column names in the metadata's `columns`.

    Raises:
        ValueError: the text is not a JSON list of distinct texts.
    """
    # Duplicate names could not be addressed.
    names = orjson.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"columns {text!r:.200} is not a JSON list of distinct texts")
    return tuple(names)
