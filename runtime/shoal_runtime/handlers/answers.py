"""From what `forward` returned to the rows of an answer; the same way for callers' batches and for those of warm-up.

A tensor, or a dict of them, without a postprocess stays whole: it is cast and checked at once, and only rows whose
numbers do not fit are taken out. Everything else is finished row by row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.batches.ragged import own_lengths
from shoal_runtime.errors import FailedRow, ForwardFailed
from shoal_runtime.faults import HANDLER_FAULTS, describe, said
from shoal_runtime.handlers import results
from shoal_runtime.handlers.calling import postprocess_row
from shoal_runtime.handlers.grouping import Grouping
from shoal_runtime.handlers.signature import Signature, as_returned
from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.handlers.values import is_json, row_outputs, stack_rows, text_array
from shoal_runtime.tensors.library import Library, Tensor
from shoal_schema.wire.datatypes import Array

Outputs = dict[str, Array]


_NO_MISFITS: Final[dict[int, str]] = {}


class Collected:
    """What forward returned, on the host.

    Args:
        result: tensors by output; for rows finished one by one a list, or arrays at any depth.
        per_row: whether rows are finished one by one, which is worth a thread.
        misfits: by row of what forward was given, why its numbers are not answered.
    """

    __slots__ = ("misfits", "per_row", "result")

    def __init__(self, result: Any, *, per_row: bool, misfits: Mapping[int, str] = _NO_MISFITS) -> None:
        self.result = result
        self.per_row = per_row
        self.misfits = misfits


class Answers:
    """Make answers of a model's results.

    ``fetch`` brings tensors to the CPU, all at once. An output that is not declared is left out; where ``strict``, it
    is an error.
    """

    def __init__(
        self,
        signature: Signature,
        postprocess: Callable[[Any], Any] | None,
        fetch: Callable[[list[Tensor]], list[Tensor]],
        library: Library,
        *,
        strict: bool = False,
    ) -> None:
        self._strict = strict
        self._outputs = signature.outputs
        self._grouping = Grouping(as_returned(signature)) if signature.returned else None
        signature = as_returned(signature)
        self._signature = signature
        self._postprocess = postprocess
        self._fetch = fetch
        self._library = library
        self._one_json_value = len(signature.outputs) == 1 and is_json(signature.outputs[0])
        self._declared = [(s.name, library.dtype(s.datatype)) for s in signature.outputs if s.datatype != "BYTES"]
        self._takes_whole = postprocess is None and not strict and len(self._declared) == len(signature.outputs)

    def collect(self, result: Any) -> Collected:
        """Bring what forward returned to the host. Belongs to the device's thread.

        Raises:
            ForwardFailed: an output is missing, no tensor, or of another kind than declared.
        """
        tensors = self._as_declared(result)
        if tensors is not None:
            names = [name for name, _ in self._declared]
            return Collected(dict(zip(names, self._fetch(tensors), strict=True)), per_row=False)
        if self._grouping is not None and isinstance(result, list):
            raise ForwardFailed("forward returned a list, one value a row; ragged outputs need tensors by name")
        if isinstance(result, list) or self._postprocess is not None:
            return Collected(self._library.fetch_all(result, self._fetch), per_row=True)
        if self._strict and (surplus := results.undeclared(result, self._signature)):
            raise ForwardFailed(surplus)
        named = results.named_outputs(result, self._signature, self._library)
        given = {spec.name: self._library.as_tensor(named[spec.name]) for spec in self._signature.outputs}
        cast, lost = {}, {}
        for spec in self._signature.outputs:
            cast[spec.name], where = self._cast(given[spec.name], spec)
            if where is not None and where.ndim > spec.batch_dim:
                lost[spec.name] = self._library.rows_with(where, spec.batch_dim)
        fetched = self._fetch([*cast.values(), *lost.values()])
        where_lost = [self._library.host_array(tensor) for tensor in fetched[len(cast) :]]
        misfits = self._misfits(given, cast, dict(zip(lost, where_lost, strict=True)))
        return Collected(dict(zip(cast, fetched, strict=False)), per_row=False, misfits=misfits)

    def _as_declared(self, result: Any) -> list[Tensor] | None:
        """Return the outputs if each is a tensor of its declared type, as most are: nothing is to be cast."""
        if not self._takes_whole:
            return None
        if not isinstance(result, dict):
            same = len(self._declared) == 1 and self._library.is_declared(result, self._declared[0][1])
            return [result] if same else None
        tensors = []
        for name, dtype in self._declared:
            tensor = result.get(name)
            if not self._library.is_declared(tensor, dtype):
                return None
            tensors.append(tensor)
        return tensors

    def _cast(self, tensor: Tensor, spec: TensorSpec) -> tuple[Tensor, Tensor | None]:
        if spec.datatype != "BYTES":
            return self._library.cast(tensor, spec)
        if not self._library.holds_text:
            raise ForwardFailed(f"forward returned a tensor for output {spec.name}, which is BYTES")
        return text_array(tensor, spec), None

    def _misfits(
        self, given: Mapping[str, Tensor], cast: Mapping[str, Tensor], lost: Mapping[str, Array]
    ) -> dict[int, str]:
        found: dict[int, str] = {}
        for spec in self._signature.outputs:
            for row in np.flatnonzero(lost[spec.name]).tolist() if spec.name in lost else ():
                value = self._first_misfit(given[spec.name], row, spec)
                why = f"output {spec.name} is {spec.datatype}, which does not hold {value}"
                if self._grouping is not None and spec.name in self._grouping.names:
                    raise ForwardFailed(why)
                found.setdefault(row, why)
        return found

    def _first_misfit(self, tensor: Tensor, row: int, spec: TensorSpec) -> int | float:
        return self._library.first_misfit(tensor[(slice(None),) * spec.batch_dim + (row,)], spec)

    def finish(
        self, collected: Collected, rows: Sequence[int], given: int, inputs: Mapping[str, Array]
    ) -> tuple[Outputs, list[FailedRow]]:
        """Return the outputs of the rows that succeeded, in order, and the errors of the others.

        Args:
            collected: what forward returned.
            rows: how the answered rows are counted in the batch as it arrived.
            given: rows that forward was given, padding included.
            inputs: of the batch as it arrived; masks there tell how long rows are.

        Raises:
            WrongRows, WrongShape, RaggedRows: the result is not what the signature declares.
        """
        if collected.per_row:
            return self._finish_rows(collected.result, rows, given, inputs)
        # Not in `collect`: the device's thread has the next batch to run.
        arrays = {name: self._library.host_array(tensor) for name, tensor in collected.result.items()}
        if self._grouping is None:
            outputs = results.take_rows(arrays, self._signature, given=given, kept=len(rows))
        else:
            outputs = self._grouping.take(arrays, given=given, kept=len(rows))
        if not collected.misfits:
            return outputs, []
        odd = [index for index in collected.misfits if index < len(rows)]
        if not odd:
            return outputs, []
        errors = [FailedRow(rows[index], 500, collected.misfits[index]) for index in odd]
        if len(odd) == len(rows):
            return {}, errors
        return {s.name: np.delete(outputs[s.name], odd, s.batch_dim) for s in self._outputs}, errors

    def _finish_rows(
        self, result: Any, rows: Sequence[int], given: int, inputs: Mapping[str, Array]
    ) -> tuple[Outputs, list[FailedRow]]:
        results.check_result_rows(result, given, self._signature)
        values = results.split_rows(result, len(rows), self._signature)
        finished = [self._finish_row(row, value) for row, value in zip(rows, values, strict=True)]
        good = {row: made for row, made in zip(rows, finished, strict=True) if not isinstance(made, FailedRow)}
        errors = [made for made in finished if isinstance(made, FailedRow)]
        lengths = {
            spec.name: own[list(good)]
            for spec in self._signature.outputs
            if spec.unpad_axis is not None and (own := own_lengths(spec, inputs, self._signature)) is not None
        }
        return stack_rows(list(good.values()), self._signature, lengths), errors

    def _finish_row(self, row: int, value: Any) -> Mapping[str, Array] | FailedRow:
        value = postprocess_row(row, value, self._postprocess)
        if isinstance(value, FailedRow):
            return value
        try:
            outputs = row_outputs(value, self._signature, self._library)
            if self._strict and not self._one_json_value and (surplus := results.undeclared(value, self._signature)):
                return FailedRow(row, 500, surplus)
            return outputs
        except ValueError as error:
            return FailedRow(row, 500, said(error), error)
        except HANDLER_FAULTS as error:  # a value's own __array__, __len__...
            return FailedRow(row, 500, describe(error), error)
