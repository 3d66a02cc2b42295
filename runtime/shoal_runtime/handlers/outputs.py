"""Conversion of the result of `forward` to outputs.

If the handler has no `postprocess`, each tensor is cast and checked as a whole, and a row fails if it has numbers that
the datatype cannot hold. Results of other types are converted row by row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.batches.ragged import own_lengths
from shoal_runtime.errors import FailedRow, ForwardFailed
from shoal_runtime.faults import HANDLER_FAULTS, describe, exception_message
from shoal_runtime.handlers import results
from shoal_runtime.handlers.calling import postprocess_row
from shoal_runtime.handlers.grouping import Grouping
from shoal_runtime.handlers.values import is_json, row_outputs, stack_rows, text_array
from shoal_runtime.signature.tensors import Signature, as_returned
from shoal_runtime.tensors.fetch import Fetch
from shoal_runtime.tensors.library import Library, Tensor
from shoal_schema.wire.datatypes import Array

Outputs = dict[str, Array]


_NO_MISFITS: Final[dict[int, str]] = {}


class HostResult:
    """A result of `forward`, copied to the host."""

    __slots__ = ("misfits", "per_row", "result")

    def __init__(self, result: Any, *, per_row: bool, misfits: Mapping[int, str] = _NO_MISFITS) -> None:
        self.result = result
        """Tensors by output; for results processed row by row a list, or arrays at any depth."""
        self.per_row = per_row
        """Whether rows are processed one by one, which justifies a thread."""
        self.misfits = misfits
        """Reason by row, counted with padding, for numbers that the declared datatype cannot hold."""


class PendingResult:
    """A result of `forward`, being copied to the host."""

    __slots__ = ("_complete", "fetch")

    def __init__(self, fetch: Fetch, complete: Callable[[list[Tensor]], HostResult]) -> None:
        self.fetch = fetch
        self._complete = complete

    def wait(self) -> HostResult:
        """Wait for the copy, and return the result. Runs in any thread.

        Raises:
            ForwardFailed: a ragged output has a number that its datatype cannot hold.
        """
        return self._complete(self.fetch.wait())


class OutputConverter:
    """Converter of results of `forward` to outputs.

    Args:
        signature: the model's signature.
        postprocess: the handler's postprocess, if any.
        fetch: function that starts to copy tensors to the CPU, all in one call.
        library: library of the model's tensors.
        strict: whether an undeclared output is an error; otherwise it is dropped.
    """

    def __init__(
        self,
        signature: Signature,
        postprocess: Callable[[Any], Any] | None,
        fetch: Callable[[list[Tensor]], Fetch],
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

    def collect(self, result: Any) -> PendingResult:
        """Start to copy a result of `forward` to the host. Runs on the device thread.

        Raises:
            ForwardFailed: an output is missing, not a tensor, or not of the declared kind.
        """
        # The usual case: each output already has its declared datatype.
        tensors = self._as_declared(result)
        if tensors is not None:
            names = [name for name, _ in self._declared]
            return PendingResult(
                self._fetch(tensors), lambda host: HostResult(dict(zip(names, host, strict=True)), per_row=False)
            )
        if self._grouping is not None and isinstance(result, list):
            raise ForwardFailed("forward returned a list with one value per row; ragged outputs need tensors by name")
        if isinstance(result, list) or self._postprocess is not None:
            parts, join = self._library.split_tensors(result)
            return PendingResult(self._fetch(parts), lambda host: HostResult(join(host), per_row=True))
        if self._strict and (surplus := results.undeclared(result, self._signature)):
            raise ForwardFailed(surplus)
        return self._cast(results.named_outputs(result, self._signature, self._library))

    def _cast(self, named: Mapping[str, Any]) -> PendingResult:
        given = {spec.name: self._library.as_tensor(named[spec.name]) for spec in self._signature.outputs}
        # Cast on the device, and locate numbers that the declared datatype cannot hold.
        cast: dict[str, Tensor] = {}
        lost: dict[str, Tensor] = {}
        for spec in self._signature.outputs:
            where = None
            if spec.datatype != "BYTES":
                cast[spec.name], where = self._library.cast(given[spec.name], spec)
            elif self._library.holds_text:
                cast[spec.name] = text_array(given[spec.name], spec)
            else:
                raise ForwardFailed(f"forward returned a tensor for output {spec.name}, which is BYTES")
            if where is not None and where.ndim > spec.batch_dim:
                lost[spec.name] = self._library.rows_with(where, spec.batch_dim)

        def complete(host: list[Tensor]) -> HostResult:
            flags = [self._library.host_array(tensor) for tensor in host[len(cast) : len(cast) + len(lost)]]
            originals = dict(zip(lost, host[len(cast) + len(lost) :], strict=True))
            misfits = self._misfits(originals, dict(zip(lost, flags, strict=True)))
            return HostResult(dict(zip(cast, host, strict=False)), per_row=False, misfits=misfits)

        # One transfer for outputs, flags, and the numbers before the cast, which messages quote.
        return PendingResult(self._fetch([*cast.values(), *lost.values(), *(given[name] for name in lost)]), complete)

    def _as_declared(self, result: Any) -> list[Tensor] | None:
        """Return the outputs if each is a tensor of its declared datatype, else None."""
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

    def _misfits(self, given: Mapping[str, Tensor], lost: Mapping[str, Array]) -> dict[int, str]:
        found: dict[int, str] = {}
        for spec in self._signature.outputs:
            for row in np.flatnonzero(lost[spec.name]).tolist() if spec.name in lost else ():
                value = self._library.first_misfit(given[spec.name][(slice(None),) * spec.batch_dim + (row,)], spec)
                why = f"output {spec.name} is {spec.datatype}, which cannot hold {value}"
                # An item of a ragged output belongs to no single row.
                if self._grouping is not None and spec.name in self._grouping.names:
                    raise ForwardFailed(why)
                found.setdefault(row, why)
        return found

    def finish(
        self, collected: HostResult, rows: Sequence[int], given: int, inputs: Mapping[str, Array]
    ) -> tuple[Outputs, list[FailedRow]]:
        """Return the outputs of successful rows, in order, and the errors of the others.

        Args:
            collected: copied result of `forward`.
            rows: indices of the result's rows in the received batch.
            given: number of rows that `forward` received, including padding.
            inputs: inputs of the received batch, whose masks give the lengths of rows.

        Raises:
            WrongRows, WrongShape, RaggedRows: the result contradicts the signature.
        """
        if collected.per_row:
            return self._finish_rows(collected.result, rows, given, inputs)
        # Not in `collect`, so that the device thread can run the next batch.
        arrays = {name: self._library.host_array(tensor) for name, tensor in collected.result.items()}
        if self._grouping is None:
            outputs = results.take_rows(arrays, self._signature, given=given, kept=len(rows))
        else:
            outputs = self._grouping.take(arrays, given=given, kept=len(rows))
        if not collected.misfits:
            return outputs, []
        odd = [index for index in collected.misfits if index < len(rows)]  # without padding
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
        good: dict[int, Mapping[str, Array]] = {}
        errors: list[FailedRow] = []
        for row, value in zip(rows, values, strict=True):
            made = postprocess_row(row, value, self._postprocess)
            if isinstance(made, FailedRow):
                errors.append(made)
                continue
            try:
                outputs = row_outputs(made, self._signature, self._library)
                surplus = None
                if self._strict and not self._one_json_value:
                    surplus = results.undeclared(made, self._signature)
            except ValueError as error:
                errors.append(FailedRow(row, 500, exception_message(error), error))
            except HANDLER_FAULTS as error:  # raised by __array__, __len__... of the value
                errors.append(FailedRow(row, 500, describe(error), error))
            else:
                if surplus:
                    errors.append(FailedRow(row, 500, surplus))
                else:
                    good[row] = outputs
        # Lengths after the cut along `unpad_axis`, of the rows that succeeded.
        lengths = {
            spec.name: own[list(good)]
            for spec in self._signature.outputs
            if spec.unpad_axis is not None and (own := own_lengths(spec, inputs, self._signature)) is not None
        }
        return stack_rows(list(good.values()), self._signature, lengths), errors
