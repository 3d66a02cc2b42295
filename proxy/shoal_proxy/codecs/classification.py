"""Triton's classification extension: an output's largest elements, each as ``value:index``."""

from typing import Final

import numpy as np

from shoal_proxy.codecs.base import MAX_LISTS, shown
from shoal_proxy.errors import BodyTooLarge, InvalidRequest, ModelFailed
from shoal_proxy.model.signature import OutputSpec
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

PARAMETER: Final = "classification"


def class_count(spec: OutputSpec, given: object) -> int:
    """Return how many classes are asked for of an output.

    Raises:
        InvalidRequest: it is no such number, or the output holds no numbers.
    """
    if type(given) is not int or given < 1:
        raise InvalidRequest(f"output {spec.name!r}: {PARAMETER} must be a whole number from 1, not {shown(given)}")
    if spec.datatype == "BYTES":
        raise InvalidRequest(f"output {spec.name!r} is BYTES: only numbers have classes")
    return given


def check_classes(rows: int, count: int) -> None:
    """Refuse a request for so many texts that to write them would stop everybody else.

    Raises:
        BodyTooLarge: it is one.
    """
    if rows * count > MAX_LISTS:
        raise BodyTooLarge(f"{rows} rows of {count} classes are more than {MAX_LISTS}: ask for fewer")


def classified(spec: OutputSpec | None, array: Array, count: int, *, batches: bool) -> Array:
    """Return the ``count`` largest elements of each row, largest first, as ``BYTES``.

    Args:
        spec: what the output is declared as.
        array: the output, its rows first.
        count: how many; all elements where there are fewer. Of equal ones the first come first, NaN last.
        batches: whether there are rows; else the whole output is one, and the result has no rows either.

    Raises:
        ModelFailed: it holds no numbers.
    """
    if array.dtype.hasobject:
        raise ModelFailed("the runtime's answer holds texts where numbers are to be classified")
    numbers = bfloat16_to_float32(array) if spec is not None and spec.datatype == "BF16" else array
    if numbers.dtype.kind == "b":
        numbers = numbers.astype(np.uint8)
    rows = numbers.reshape((len(numbers), -1) if batches and len(numbers) else (1, -1))
    order = _descending(rows)[:, :count]
    result = np.empty(order.shape, dtype=object)
    for number, indices in enumerate(order.tolist()):
        row = rows[number]
        result[number] = [f"{row[index]!s}:{index}".encode() for index in indices]
    classes: Array = result[: len(numbers)] if batches else result[0]
    return classes


def _descending(rows: Array) -> Array:
    """Return for each row the indices of its elements by falling value."""
    keys = np.where(np.isnan(rows), -np.inf, rows) if rows.dtype.kind == "f" else rows
    # A stable sort of the mirrored row, mirrored again: of equal elements the first stay first.
    mirrored = np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1]
    order: Array = rows.shape[1] - 1 - mirrored
    return order
