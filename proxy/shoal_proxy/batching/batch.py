"""Merge waiting rows into one batch, and split its result into the rows of each request."""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal_proxy.batching.padding import check_unpad, pad_inputs, unpad_rows
from shoal_proxy.batching.pending import BatchKey, Delivery, PendingRequest, RequestSlice
from shoal_proxy.errors import ModelFailed
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

APART_BYTES = 16384
"""Mean size of pieces from which copying them together costs more than sending each from its own memory."""

Rows = Array | tuple[Array, ...]
"""A batch's rows of one input: one array, or several to be read one after another."""


class Batch:
    """Rows of one or more requests that run together, in the order of ``slices``."""

    __slots__ = ("attempts", "fitting_rows", "rows", "slices")

    def __init__(self, slices: tuple[RequestSlice, ...], rows: int, tries: int = 0, fitting_rows: int = 0) -> None:
        self.slices = slices
        self.rows = rows
        self.attempts = tries
        """Number of times that the batch's rows have been sent before."""
        self.fitting_rows = fitting_rows
        """Rows that a batch could hold when the first try of these rows ran out of memory."""

    @property
    def key(self) -> BatchKey:
        """Return the batch key of the batch's requests."""
        return self.slices[0].pending.key

    @property
    def has_unresolved(self) -> bool:
        """Return whether any request of the batch has no outcome yet."""
        return any(not part.pending.resolved for part in self.slices)

    @property
    def deadline_s(self) -> float:
        """Return the latest deadline of the batch's requests."""
        return max(part.pending.deadline_s for part in self.slices)


class MergedInputs:
    """A batch's inputs, batch dimension first."""

    __slots__ = ("elements", "inputs", "padded_elements")

    def __init__(self, inputs: Mapping[str, Rows], elements: int, padded_elements: int) -> None:
        self.inputs = inputs
        self.elements = elements
        self.padded_elements = padded_elements
        """Number of ``elements`` that are padding."""


class BatchResult:
    """Outputs of the successful rows of a batch, and errors of the failed rows."""

    __slots__ = ("errors", "forward_s", "outputs")

    def __init__(
        self, outputs: Mapping[str, Array], errors: Sequence[RowError] = (), forward_s: float | None = None
    ) -> None:
        self.outputs = outputs
        self.errors = errors
        self.forward_s = forward_s
        """Duration of the forward pass as the runtime reports it."""


def make_batch(slices: Sequence[RequestSlice], tries: int = 0, fitting_rows: int = 0) -> Batch:
    """Create a batch of ``slices``, with the sum of their rows."""
    return Batch(tuple(slices), sum([part.rows for part in slices]), tries, fitting_rows)


def merge(batch: Batch, signature: ModelSignature) -> MergedInputs:
    """Concatenate the rows of a batch, padded where the signature requires it."""
    if signature.pads:
        filled, padded = pad_inputs(batch.slices, signature)
        return MergedInputs(filled, sum(array.size for array in filled.values()), padded)
    # A whole request alone needs no copy.
    first = batch.slices[0]
    if len(batch.slices) == 1 and first.rows == first.pending.rows:
        return MergedInputs(first.inputs, sum(array.size for array in first.inputs.values()), 0)
    inputs: dict[str, Rows] = {}
    elements = 0
    for name in first.inputs:
        pieces = [part.inputs[name][part.start : part.stop] for part in batch.slices]
        elements += sum([piece.size for piece in pieces])
        size_bytes = sum([piece.nbytes for piece in pieces])
        # Large pieces are sent from where they lie. Arrays of objects (BYTES) have no bytes to send.
        apart = size_bytes >= APART_BYTES * len(pieces) and not pieces[0].dtype.hasobject
        inputs[name] = tuple(pieces) if apart else np.concatenate(pieces)
    return MergedInputs(inputs, elements, 0)


def split(batch: Batch, result: BatchResult, signature: ModelSignature) -> list[Delivery]:
    """Split a batch's result by request; resolve and return complete requests.

    Raises:
        ModelFailed: the result cannot be split; no request was resolved.
    """
    check_rows(batch, result, signature)
    failed = {error.row: error for error in result.errors}
    outcomes: list[Delivery] = []
    # `position` counts rows of the batch, `answered` the rows of the result, which leaves out failed ones.
    position = answered = 0
    for part in batch.slices:
        pending = part.pending
        good = part.rows
        if failed:
            own = [failed[row] for row in range(position, position + part.rows) if row in failed]
            good -= len(own)
            # Row numbers of the batch become row numbers of the request.
            shift = part.start - position
            pending.errors.extend([RowError(error.row + shift, error.status, error.message) for error in own])
        if not (pending.resolved or pending.errors) and good == part.rows:
            outputs = result.outputs
            if signature.batches:
                outputs = {name: array[answered : answered + good] for name, array in outputs.items()}
                if signature.pads:
                    outputs = unpad_rows(outputs, part, signature)
            pending.parts.append((part.start, outputs))
        position += part.rows
        answered += good
        if (outcome := pending.finish(part.rows)) is not None:
            outcomes.append((pending, outcome))
    # Resolve only now: an exception above must not leave a request resolved without a response.
    return [pending.resolve(outcome) for pending, outcome in outcomes]


def check_rows(batch: Batch, result: BatchResult, signature: ModelSignature) -> None:
    """Check that a batch's result can be split into the rows of each request.

    Raises:
        ModelFailed: error rows are duplicate or out of range, or an output has the wrong number of rows.
    """
    failed = [error.row for error in result.errors]
    if len(set(failed)) != len(failed) or not all(0 <= row < batch.rows for row in failed):
        raise ModelFailed(
            f"the runtime reported errors for rows {failed} of a batch of {batch.rows}: duplicate or out of range"
        )
    expected = batch.rows - len(failed)
    if not result.outputs and expected:
        raise ModelFailed("the runtime returned no outputs")
    if signature.batches:
        for name, array in result.outputs.items():
            if array.ndim == 0 or array.shape[0] != expected:
                rows = array.shape[0] if array.ndim else "no"
                raise ModelFailed(
                    f"the runtime returned {rows} rows of {name!r}, expected {expected}:"
                    f" the batch has {batch.rows} rows, {len(result.errors)} of them failed"
                )
    if signature.pads:
        check_unpad(result.outputs, signature)


def unresolved_requests(batch: Batch) -> list[PendingRequest]:
    """Return the requests of ``batch`` that have no outcome yet."""
    return [part.pending for part in batch.slices if not part.pending.resolved]
