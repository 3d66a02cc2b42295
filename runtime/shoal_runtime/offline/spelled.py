"""Text that spells numbers, true and false: the cells of CSV files and of paths. Pure."""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from shoal_schema.wire.datatypes import Array

NULLS: Final = tuple(csv.ConvertOptions().null_values)
"""Where numbers are read these words are null: NA, NULL, nan and the like."""
BOOLS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?)", re.ASCII | re.IGNORECASE)
_MOST: Final = 2**63


def without_words(texts: Any) -> Any:
    """Return large text, trimmed, with nulls where a word stands for null."""
    trimmed = pc.utf8_trim_whitespace(texts)
    return pc.if_else(pc.is_in(trimmed, pa.array(NULLS, trimmed.type)), None, trimmed)


def numbers(texts: Any, *, whole: bool = False) -> tuple[Any, list[int]]:
    """Return the numbers that text spells, and the rows that spell none; both null there.

    Args:
        texts: as `without_words` returns them.
        whole: whole numbers are wanted, exact: 64 bits wide, from 1.0 too. Else, or where one is none: fractions.
    """
    for kind in (pa.int64(), pa.uint64()) if whole else (pa.float64(),):
        try:
            found = texts.cast(kind)
        except pa.ArrowException:
            continue
        # Of a number beyond the range Arrow makes an infinity.
        if pa.types.is_integer(kind) or not pc.any(pc.is_inf(found)).as_py():
            return found, []
    return _one_by_one(texts.to_pylist(), whole=whole)


def wholes(texts: Any) -> Any:
    """Return the whole numbers of 64 bits that text spells, null where it spells none."""
    try:
        return texts.cast(pa.int64())
    except pa.ArrowException:
        found = [None if cell is None else _number(cell, whole=True) for cell in texts.to_pylist()]
    return pa.array([each if isinstance(each, int) and -_MOST <= each < _MOST else None for each in found], pa.int64())


def _one_by_one(cells: Sequence[str | None], *, whole: bool) -> tuple[Any, list[int]]:
    found = [None if cell is None else _number(cell, whole=whole) for cell in cells]
    bad = [
        row for row, (cell, number) in enumerate(zip(cells, found, strict=True)) if cell is not None and number is None
    ]
    if whole and all(number is None or isinstance(number, int) for number in found):
        for kind in (pa.int64(), pa.uint64()):
            try:
                return pa.array(found, kind), bad
            except (pa.ArrowException, OverflowError):
                continue
    return pa.array([None if number is None else float(number) for number in found], pa.float64()), bad


def _number(cell: str, *, whole: bool) -> int | float | None:
    if not _NUMBER.fullmatch(cell):
        return None
    near = float(cell)
    if math.isinf(near) and "inf" not in cell.lower():
        return None
    if not whole or math.isinf(near):
        return near
    exact = Decimal(cell)
    return int(exact) if exact == exact.to_integral_value() else near


def bools(texts: Any) -> tuple[Any, list[int]]:
    """Return true and false, and the rows that are neither, null there."""
    lower = pc.utf8_lower(texts)
    known = pc.is_in(lower, pa.array(list(BOOLS), lower.type))
    wrong = pc.and_(pc.invert(known), pc.is_valid(lower)).to_numpy(zero_copy_only=False)
    found = pc.if_else(known, pc.equal(lower, pa.scalar("true", lower.type)), pa.scalar(None, pa.bool_()))
    return found, rows_of(wrong)


def rows_of(marked: Array) -> list[int]:
    """Return the rows that are marked."""
    return [int(row) for row in np.flatnonzero(marked)]
