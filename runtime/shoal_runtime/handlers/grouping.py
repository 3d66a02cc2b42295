"""Conversion of ragged outputs to one value per row.

A ragged output has any number of items per row. Detectors return such outputs: the boxes of all images, and the image
number of each box. The items of each row become one JSON value, in their original order. A row number outside the batch
fails the batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from shoal_runtime.errors import WrongRows, WrongShape
from shoal_runtime.handlers import results
from shoal_runtime.signature.spec import TensorSpec, fits
from shoal_runtime.signature.tensors import Signature
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32
from shoal_schema.wire.elements import object_array


class Grouping:
    """Conversion of a model's ragged outputs to one JSON value per row.

    Args:
        signature: signature with the outputs that `forward` returns (`as_returned`).
    """

    def __init__(self, signature: Signature) -> None:
        specs = {spec.name: spec for spec in signature.outputs}
        self._ragged = [spec for spec in signature.outputs if spec.rows is not None]
        self._index = {spec.name: specs[spec.row_index] for spec in self._ragged if spec.row_index is not None}
        self.names = {spec.name for spec in (*self._ragged, *self._index.values())}
        rows = tuple(spec for spec in signature.outputs if spec.name not in self.names)
        self._rows = replace(signature, outputs=rows)

    def take(self, outputs: Mapping[str, Array], *, given: int, kept: int) -> dict[str, Array]:
        """Return each output with one element per row, without padding rows.

        Args:
            outputs: outputs that `forward` returned.
            given: number of rows in the batch, including padding.
            kept: number of rows without padding.

        Raises:
            WrongRows: an item has a row number outside the batch, or an output has another number of rows.
            WrongShape: an output differs from its declared shape.
        """
        taken = results.take_rows(outputs, self._rows, given=given, kept=kept)
        for spec in self._ragged:
            items = _items(outputs[spec.name], spec)
            rows = self._numbers(spec, items, outputs, given)
            if spec.row_index is None and spec.row_column is not None:
                items = np.delete(items, spec.row_column, axis=1)
            # Stable, so that the items of a row keep their order.
            order = np.argsort(rows, kind="stable")
            ends = np.searchsorted(rows[order], np.arange(kept + 1)).tolist()
            ordered = np.ascontiguousarray(items[order])
            parts = [ordered[ends[row] : ends[row + 1]] for row in range(kept)]
            if items.dtype != object:
                values = [orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY) for part in parts]
            else:
                try:
                    values = [orjson.dumps(_texts(part.tolist())) for part in parts]
                except UnicodeDecodeError:
                    raise WrongShape(
                        f"output {spec.name} holds bytes that are not UTF-8, which JSON cannot hold"
                    ) from None
            taken[spec.name] = object_array(values, (kept,))
        return taken

    def _numbers(self, spec: TensorSpec, items: Array, outputs: Mapping[str, Array], given: int) -> Array:
        """Return the row number of each item of a ragged output."""
        # Row numbers are in another output, in a column, or absent with one row.
        source = self._index.get(spec.name)
        if source is None and spec.row_column is None:
            if given != 1:
                raise WrongRows(f"output {spec.name} declares no row numbers, which a batch of {given} rows needs")
            return np.zeros(len(items), np.int64)
        array = items if source is None else _items(outputs[source.name], source)
        numbers = array.reshape(len(array)) if spec.row_column is None else array[:, spec.row_column]
        if len(numbers) != len(items):
            raise WrongRows(f"output {spec.name} has {len(items)} items; {spec.row_index} has {len(numbers)}")
        # NaN fails the comparisons below.
        with np.errstate(invalid="ignore"):
            good = (numbers >= 0) & (numbers < given) & (numbers == np.floor(numbers))
        if not good.all():
            odd = numbers[int(np.argmin(good))]
            raise WrongRows(f"output {spec.name} has an item of row {odd}; the batch has rows 0 to {given - 1}")
        return numbers.astype(np.int64)


def _items(array: Array, spec: TensorSpec) -> Array:
    if not fits(array.shape, spec.shape):
        raise WrongShape(f"output {spec.name} has shape {list(array.shape)}; the signature declares {list(spec.shape)}")
    return bfloat16_to_float32(array) if spec.datatype == "BF16" else array


def _texts(value: Any) -> Any:
    return [_texts(each) for each in value] if isinstance(value, list) else value.decode()
