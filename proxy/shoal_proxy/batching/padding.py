"""Pad rows of variable length: select buckets, fill inputs, cut outputs.

Inputs that name the same mask form one pad group and share their lengths; an input without a mask is its own group.

A model without buckets pads a batch to its longest row. So rows share a batch only with rows of the same size class.
The first class holds rows of up to 128 elements; the limit of each further class is `FACTOR` times the previous one. No
row is padded to more than 128 elements or `FACTOR` times its own size, whichever is larger. Each class has its own
batch key, so the time and memory of long rows are learned separately.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal_proxy.batching.pending import RequestSlice
from shoal_proxy.errors import InvalidRequest, ModelFailed
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array

FACTOR = 4.0
SMALL_ELEMENTS = 128
"""Rows of up to so many elements share a batch at any length: separate batches would cost more."""


def pad_group(spec: InputSpec) -> str:
    """Return the name of the pad group that ``spec`` belongs to."""
    return spec.pad_mask or spec.name


def fill_value(spec: InputSpec) -> float | bytes:
    """Return the value that fills the padding of an input."""
    return b"" if spec.datatype == "BYTES" else spec.pad_value


def bucket_for(length: int, spec: InputSpec) -> int:
    """Return the bucket of a row of ``length``; -1 when the model has no buckets.

    Raises:
        InvalidRequest: the row is longer than the last bucket.
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
    """Return input names and trailing shapes, with bucket or class of padded axes."""
    key: list[tuple[str, tuple[int, ...]]] = []
    for name, array in sorted(inputs.items()):
        spec, shape = signature.inputs[name], list(array.shape)
        if spec.pad_axis is not None:
            bucket = bucket_for(shape[spec.pad_axis], spec)
            shape[spec.pad_axis] = bucket if bucket > 0 else size_class(array.size // max(shape[0], 1), factor)
        key.append((name, tuple(shape[1:])))
    return tuple(key)


def size_class(elements: int, factor: float) -> int:
    """Return the size class of a row: -1 for the smallest, then -2, -3 and so on."""
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
