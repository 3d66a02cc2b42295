"""Triton's classification extension: the largest elements of an output, each as ``value:index``."""

from typing import Final

import numpy as np

from shoal_proxy.codecs.base import MAX_LISTS, shown
from shoal_proxy.errors import BodyTooLarge, InvalidRequest, ModelFailed
from shoal_proxy.model.signature import OutputSpec
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32

PARAMETER: Final = "classification"


def class_count(spec: OutputSpec, given: object) -> int:
    """Return the requested number of classes of an output.

    Raises:
        InvalidRequest: ``given`` is not a positive integer, or the output has no numbers.
    """
    if type(given) is not int or given < 1:
        raise InvalidRequest(f"output {spec.name!r}: {PARAMETER} must be an integer of at least 1, not {shown(given)}")
    if spec.datatype == "BYTES":
        raise InvalidRequest(f"output {spec.name!r} is BYTES: {PARAMETER} needs numbers")
    return given


def check_classes(rows: int, count: int) -> None:
    """Limit the number of texts in a response.

    Raises:
        BodyTooLarge: ``rows`` times ``count`` exceeds the limit.
    """
    if rows * count > MAX_LISTS:
        raise BodyTooLarge(f"{rows} rows of {count} classes exceed the limit of {MAX_LISTS}. Request fewer classes")


def classified(spec: OutputSpec | None, array: Array, count: int, *, batches: bool) -> Array:
    """Return the ``count`` largest elements of each row, largest first, as ``BYTES``.

    Args:
        spec: the output's declaration.
        array: the output, rows first.
        count: number of elements; all if there are fewer. Equal elements keep their order, NaN comes last.
        batches: whether the model has rows; otherwise the whole output counts as one row, and the result has no batch
            dimension.

    Raises:
        ModelFailed: the output has no numbers.
    """
    if array.dtype.hasobject:
        raise ModelFailed("classification requires a numeric output, but the runtime returned texts")
    numbers = bfloat16_to_float32(array) if spec is not None and spec.datatype == "BF16" else array
    if numbers.dtype.kind == "b":
        # Values are written as 1 and 0.
        numbers = numbers.astype(np.uint8)
    rows = numbers.reshape((len(numbers), -1) if batches and len(numbers) else (1, -1))
    # Indices by falling value; equal elements keep their order.
    order: Array
    if rows.dtype.kind == "f":
        # NaN is sorted behind every number, also behind infinities.
        order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    else:
        # Negated integers could overflow. Sorting the mirrored rows stably, and mirroring back, keeps the order.
        mirrored = np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1]
        order = (rows.shape[1] - 1 - mirrored)[:, :count]
    result = np.empty(order.shape, dtype=object)
    for number, indices in enumerate(order.tolist()):
        row = rows[number]
        result[number] = [f"{row[index]!s}:{index}".encode() for index in indices]
    classes: Array = result[: len(numbers)] if batches else result[0]
    return classes
