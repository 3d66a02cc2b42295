"""Merge waiting rows into one batch, and split the answer back into each caller's own rows."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal_proxy.batching.padding import check_unpad, pad_inputs, unpad_rows
from shoal_proxy.batching.pending import BatchKey, Delivery, Pending, Slice
from shoal_proxy.errors import ModelFailed
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

APART_BYTES = 16384
"""From here on copying rows together costs more than sending each from where it lies."""

Rows = Array | tuple[Array, ...]
"""A batch's rows of one input, in one array or in several to be read one after another."""


class Batch:
    """The rows of ``slices``, in order, that travel together."""

    __slots__ = ("fitting_rows", "rows", "slices", "tries")

    def __init__(self, slices: tuple[Slice, ...], rows: int, tries: int = 0, fitting_rows: int = 0) -> None:
        self.slices = slices
        self.rows = rows
        self.tries = tries
        """How often its rows have been sent before."""
        self.fitting_rows = fitting_rows
        """What a batch could hold when the first try of these rows failed for want of memory."""

    @property
    def key(self) -> BatchKey:
        """Return the key that all of them share."""
        return self.slices[0].pending.key

    @property
    def live(self) -> bool:
        """Return whether any caller still waits for it."""
        return any(not part.pending.resolved for part in self.slices)

    @property
    def deadline_s(self) -> float:
        """Return when the last of its callers stops waiting."""
        return max(part.pending.deadline_s for part in self.slices)


class Merged:
    """A batch's inputs, batch dimension first, with how many of their elements are padding."""

    __slots__ = ("elements", "inputs", "padded_elements")

    def __init__(self, inputs: Mapping[str, Rows], elements: int, padded_elements: int) -> None:
        self.inputs = inputs
        self.elements = elements
        self.padded_elements = padded_elements


class Result:
    """A runtime's answer to one batch: the rows that succeeded, in order, and the rows that failed.

    ``forward_s`` is what the runtime says its forward took.
    """

    __slots__ = ("errors", "forward_s", "outputs")

    def __init__(
        self, outputs: Mapping[str, Array], errors: Sequence[RowError] = (), forward_s: float | None = None
    ) -> None:
        self.outputs = outputs
        self.errors = errors
        self.forward_s = forward_s


def make_batch(slices: Sequence[Slice], tries: int = 0, fitting_rows: int = 0) -> Batch:
    """Return the batch of ``slices``."""
    return Batch(tuple(slices), sum([part.rows for part in slices]), tries, fitting_rows)


def merge(batch: Batch, signature: ModelSignature) -> Merged:
    """Bring the batch's rows together, padding where the model has a rule."""
    if signature.pads:
        inputs, padded = pad_inputs(batch.slices, signature)
        return Merged(inputs, sum(array.size for array in inputs.values()), padded)
    first = batch.slices[0]
    if len(batch.slices) == 1 and first.rows == first.pending.rows:
        return Merged(first.inputs, sum(array.size for array in first.inputs.values()), 0)
    pieces = {name: [part.inputs[name][part.start : part.stop] for part in batch.slices] for name in first.inputs}
    elements = sum(piece.size for own in pieces.values() for piece in own)
    return Merged({name: _together(own) for name, own in pieces.items()}, elements, 0)


def _together(pieces: Sequence[Array]) -> Rows:
    size_bytes = sum(piece.nbytes for piece in pieces)
    if size_bytes >= APART_BYTES * len(pieces) and not pieces[0].dtype.hasobject:
        return tuple(pieces)
    return np.concatenate(pieces)


def split(batch: Batch, result: Result, signature: ModelSignature) -> list[Delivery]:
    """Give each caller exactly its own rows, resolve those that are complete, and return what they are to get.

    Raises:
        ModelFailed: the runtime answered with another number of rows than it was sent; nobody got anything.
    """
    check_rows(batch, result, signature)
    failed = {error.row: error for error in result.errors}
    outcomes: list[Delivery] = []
    position = answered = 0
    for part in batch.slices:
        pending = part.pending
        good = part.rows
        if failed:
            own = [failed[row] for row in range(position, position + part.rows) if row in failed]
            good -= len(own)
            shift = part.start - position
            pending.errors.extend([RowError(error.row + shift, error.status, error.message) for error in own])
        _hand_over(part, result.outputs, (answered, answered + good), signature)
        position += part.rows
        answered += good
        if (outcome := pending.finish(part.rows)) is not None:
            outcomes.append((pending, outcome))
    # Only now: if anything above raises, nobody is taken to have an outcome that is never handed over.
    return [pending.resolve(outcome) for pending, outcome in outcomes]


def _hand_over(part: Slice, outputs: Mapping[str, Array], rows: tuple[int, int], signature: ModelSignature) -> None:
    """Give a caller who still waits and lost no row its slice of each output."""
    pending = part.pending
    if pending.resolved or pending.errors or rows[1] - rows[0] != part.rows:
        return
    if not signature.batches:
        pending.parts.append((part.start, outputs))
        return
    own = {name: array[rows[0] : rows[1]] for name, array in outputs.items()}
    pending.parts.append((part.start, unpad_rows(own, part, signature) if signature.pads else own))


def check_rows(batch: Batch, result: Result, signature: ModelSignature) -> None:
    """Refuse an answer that cannot be split without guessing."""
    failed = [error.row for error in result.errors]
    if len(set(failed)) != len(failed) or not all(0 <= row < batch.rows for row in failed):
        raise ModelFailed(
            f"the runtime reported errors for rows {failed} of a batch of {batch.rows}: twice, or out of range"
        )
    expected = batch.rows - len(failed)
    if not result.outputs and expected:
        raise ModelFailed("the runtime answered without outputs")
    if signature.batches:
        _check_outputs(batch, result, expected)
    if signature.pads:
        check_unpad(result.outputs, signature)


def _check_outputs(batch: Batch, result: Result, expected: int) -> None:
    for name, array in result.outputs.items():
        if array.ndim == 0 or array.shape[0] != expected:
            rows = array.shape[0] if array.ndim else "no"
            raise ModelFailed(
                f"the runtime returned {rows} rows of {name!r} for a batch of {batch.rows}"
                f" with {len(result.errors)} failed: its answer cannot be split"
            )


def waiting_callers(batch: Batch) -> list[Pending]:
    """Return the callers of ``batch`` that still wait."""
    return [part.pending for part in batch.slices if not part.pending.resolved]
