"""Merge waiting rows into one batch, and split the batch's result into the rows of each request.

Rows of variable length are padded to equal length. Inputs that name the same mask share the lengths of their rows. A
model may declare the lengths to which it pads (`InputSpec.pad_buckets`). Otherwise a batch is padded to its longest
row, and rows share a batch only with rows of the same size class. The first class holds rows of up to 128 elements; the
limit of each further class is `FACTOR` times the previous one. No row is padded to more than 128 elements or `FACTOR`
times its own size, whichever is larger. Each class has its own batch key, so the time and memory of long rows are
learned separately.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal_proxy.access.control import AuthenticatedClient
from shoal_proxy.access.limits import ClientQuota
from shoal_proxy.batching.pending import BatchKey, Delivery, PendingRequest, RequestSlice
from shoal_proxy.errors import InvalidRequest, ModelFailed
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.row_errors import RowError

APART_BYTES = 16384
"""Mean size of pieces from which copying them together costs more than sending each from its own memory."""

Rows = Array | tuple[Array, ...]
"""A batch's rows of one input: one array, or several to be read one after another."""


class Batch:
    """Rows of one or more requests that run together, in the order of ``slices``."""

    __slots__ = ("attempts", "fitting_rows", "rows", "slices", "suspect")

    def __init__(
        self,
        slices: tuple[RequestSlice, ...],
        rows: int,
        tries: int = 0,
        fitting_rows: int = 0,
        *,
        suspect: bool = False,
    ) -> None:
        self.slices = slices
        self.rows = rows
        self.attempts = tries
        """Number of times that the batch's rows have been sent before."""
        self.fitting_rows = fitting_rows
        """Rows that a batch could hold when the first try of these rows ran out of memory."""
        self.suspect = suspect
        """Whether its rows may have ended a runtime (`quarantine`)."""

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


def make_batch(
    slices: Sequence[RequestSlice], tries: int = 0, fitting_rows: int = 0, *, suspect: bool = False
) -> Batch:
    """Create a batch of ``slices``, with the sum of their rows."""
    return Batch(tuple(slices), sum([part.rows for part in slices]), tries, fitting_rows, suspect=suspect)


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


FACTOR = 4.0
SMALL_ELEMENTS = 128
"""Rows of up to so many elements share a batch at any length: separate batches would cost more."""


def pad_group(spec: InputSpec) -> str:
    """Return the name that inputs padded to the same length have in common.

    This is the name of their mask, or the input's own name if it has no mask.
    """
    return spec.pad_mask or spec.name


def fill_value(spec: InputSpec) -> float | bytes:
    """Return the value that fills the padding of an input."""
    return b"" if spec.datatype == "BYTES" else spec.pad_value


def bucket_for(length: int, spec: InputSpec) -> int:
    """Return the length to which the model pads a row of ``length``.

    This is the shortest sufficient length in `InputSpec.pad_buckets`; -1 if the model declares no padded lengths.

    Raises:
        InvalidRequest: the row is longer than the longest padded length.
    """
    if not spec.pad_buckets:
        return -1
    for bucket in spec.pad_buckets:
        if length <= bucket:
            return bucket
    raise InvalidRequest(
        f"input {spec.name!r} has length {length} along axis {spec.pad_axis};"
        f" the longest allowed is {spec.pad_buckets[-1]}"
    )


def check_lengths(lengths: Mapping[str, Sequence[int]], signature: ModelSignature) -> None:
    """Reject inputs of one pad group whose rows differ in length."""
    seen: dict[str, tuple[str, Sequence[int]]] = {}
    for name, own in lengths.items():
        group = pad_group(signature.inputs[name])
        other, others = seen.setdefault(group, (name, own))
        if list(others) != list(own):
            raise InvalidRequest(
                f"inputs {other!r} and {name!r} must have equal lengths, got {list(others)} and {list(own)}"
            )


def shape_key(
    inputs: Mapping[str, Array], signature: ModelSignature, factor: float = FACTOR
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the name and the row shape of each input, for the batch key.

    The size of a padded axis is replaced by the padded length, or by the size class if the model declares no padded
    lengths.
    """
    key: list[tuple[str, tuple[int, ...]]] = []
    for name, array in sorted(inputs.items()):
        spec, shape = signature.inputs[name], list(array.shape)
        if spec.pad_axis is not None:
            bucket = bucket_for(shape[spec.pad_axis], spec)
            shape[spec.pad_axis] = bucket if bucket > 0 else size_class(array.size // max(shape[0], 1), factor)
        key.append((name, tuple(shape[1:])))
    return tuple(key)


def size_class(elements: int, factor: float) -> int:
    """Return the number of the size class of a row with ``elements`` elements.

    The class of the smallest rows is -1, the next -2, and so on. Negative numbers differ from any length.
    """
    number, most = -1, float(SMALL_ELEMENTS)
    while elements > most:
        number -= 1
        most *= factor
    return number


def pad_inputs(slices: Sequence[RequestSlice], signature: ModelSignature) -> tuple[Mapping[str, Array], int]:
    """Return a batch's padded inputs and masks, and the number of padding elements."""
    names = list(slices[0].inputs)
    # The length that every row of a pad group is padded to.
    targets: dict[str, int] = {}
    for spec in [signature.inputs[name] for name in names]:
        if spec.pad_axis is not None:
            longest = max([part.inputs[spec.name].shape[spec.pad_axis] for part in slices])
            target = bucket_for(longest, spec) if spec.pad_buckets else longest
            targets[pad_group(spec)] = max(target, targets.get(pad_group(spec), 0))
    merged: dict[str, Array] = {}
    padded_elements = 0
    for name in names:
        spec = signature.inputs[name]
        parts = [part.inputs[name][part.start : part.stop] for part in slices]
        if spec.pad_axis is None:
            merged[name] = np.concatenate(parts)
            continue
        width = targets[pad_group(spec)]
        merged[name] = filled = _fill(parts, spec, width)
        if width:
            # Elements of one row at one position of the padded axis.
            per_position = filled.size // (filled.shape[0] * width)
            padded_elements += int(per_position * sum([width - length for length in _row_lengths(slices, name)]))
    # Masks that the clients left out.
    wanted = {signature.inputs[name].pad_mask for name in names} - set(names)
    for mask in [signature.inputs[mask] for mask in sorted(mask for mask in wanted if mask)]:
        # 1 for each row's own positions and 0 for padding: rows x target.
        source = next(name for name in names if signature.inputs[name].pad_mask == mask.name)
        lengths = np.array(_row_lengths(slices, source))
        made = (np.arange(targets[mask.name]) < lengths[:, None]).astype(DTYPES[mask.datatype])
        merged[mask.name] = made
        padded_elements += int(made.size - lengths.sum())
    return merged, padded_elements


def _fill(parts: Sequence[Array], spec: InputSpec, target: int) -> Array:
    axis = spec.pad_axis or 0
    shape = list(parts[0].shape)
    shape[0] = sum(part.shape[0] for part in parts)
    shape[axis] = target
    merged = np.full(shape, fill_value(spec), dtype=DTYPES[spec.datatype])
    row = 0
    for part in parts:
        # Rows of this part, up to its own length; the rest of each row keeps the fill value.
        index = [slice(None)] * merged.ndim
        index[0] = slice(row, row + part.shape[0])
        index[axis] = slice(0, part.shape[axis])
        merged[tuple(index)] = part
        row += part.shape[0]
    return merged


def _row_lengths(slices: Sequence[RequestSlice], name: str) -> list[int]:
    return [length for part in slices for length in part.pending.lengths[name][part.start : part.stop]]


def check_unpad(outputs: Mapping[str, Array], signature: ModelSignature) -> None:
    """Reject outputs with too few dimensions for their ``unpad_axis``."""
    for name, array in outputs.items():
        spec = signature.outputs.get(name)
        if spec is not None and spec.unpad_axis is not None and array.ndim <= spec.unpad_axis:
            raise ModelFailed(
                f"the runtime returned {name!r} with {array.ndim} dimensions; unpad_axis {spec.unpad_axis} needs more"
            )


def unpad_rows(outputs: Mapping[str, Array], part: RequestSlice, signature: ModelSignature) -> Mapping[str, Array]:
    """Cut padded outputs to the longest row of the slice's request."""
    cut: dict[str, Array] = {}
    for name, array in outputs.items():
        spec = signature.outputs.get(name)
        lengths = part.pending.lengths.get(spec.unpad_input or "") if spec else None
        if spec is None or spec.unpad_axis is None or not lengths:
            cut[name] = array
            continue
        index = [slice(None)] * array.ndim
        index[spec.unpad_axis] = slice(0, max(lengths))
        cut[name] = array[tuple(index)]
    return cut


class CancelledRows:
    """Charges for a batch's running rows of cancelled or expired requests."""

    __slots__ = ("_quotas", "_rows_of")

    def __init__(self, batch: Batch) -> None:
        self._quotas: list[tuple[ClientQuota, int]] = []
        self._rows_of: dict[PendingRequest, int] = {}
        for part in batch.slices:
            self._rows_of[part.pending] = self._rows_of.get(part.pending, 0) + part.rows

    def charge(self, client: AuthenticatedClient, runs: PendingRequest) -> None:
        """Charge the request's rows to the quota of ``client`` until `release`.

        Args:
            client: the client of the request.
            runs: the executed request, whose rows are in the batch.
        """
        rows = self._rows_of.get(runs, 0)
        if rows and client.quota is not None:
            # The account keeps the rows, which the client no longer releases.
            client.rows -= rows
            self._quotas.append((client.quota, rows))

    def release(self) -> None:
        """Release the charged rows, after the batch has ended."""
        for quota, rows in self._quotas:
            quota.rows -= rows
        self._quotas.clear()
