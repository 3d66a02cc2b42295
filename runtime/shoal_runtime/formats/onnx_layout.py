"""ONNX operators that move, join, look up and multiply: where the batch axis is in what they make."""

from collections.abc import Callable, Mapping
from typing import Final

from shoal_runtime.formats import mixing
from shoal_runtime.formats.mixing import Apart, How, Operand, Shared, Value
from shoal_runtime.formats.onnx_graph import Step

EVERYTHING: Final = 2**31 - 1
"""An end beyond all sizes, as exporters write it."""


def _transposed(step: Step) -> Value:
    operand = step.given(0)
    return mixing.transposed(operand, step.attributes.get("perm", range(operand.rank)[::-1]))


def _reshaped(step: Step) -> Value:
    if len(step.inputs) > 1 and not isinstance(step.given(1).value, Shared):
        return None
    return mixing.reshaped(step.given(0), step.dims(), step.rows)


def _squeezed(step: Step) -> Value:
    return mixing.squeezed(step.given(0), step.axes(1))


def _unsqueezed(step: Step) -> Value:
    return mixing.unsqueezed(step.given(0), step.axes(1) or ())


def _expanded(step: Step) -> Value:
    operand, value = step.given(0), step.given(0).value
    if not isinstance(step.given(1).value, Shared):
        return None
    if isinstance(value, Shared):
        return Shared(value.uniform or all(dim == 1 for dim in operand.dims))
    return mixing.moved(value, value.axis + len(step.dims()) - operand.rank) if isinstance(value, Apart) else value


def _tiled(step: Step) -> Value:
    operand, value = step.given(0), step.given(0).value
    if isinstance(value, Apart):
        return value if step.constants[1][value.axis] == 1 else None
    return Shared(value.uniform or all(dim == 1 for dim in operand.dims)) if isinstance(value, Shared) else value


def _joined(step: Step) -> Value:
    operands = [each for each in step.inputs if each is not None]
    return mixing.joined(operands, step.axis(0), step.by, len(step.dims()))


def _split(step: Step) -> Value:
    operand, axis = step.given(0), step.axis(0)
    value = operand.value
    return None if isinstance(value, Apart) and value.axis == axis % operand.rank else value


def _sliced(step: Step) -> Value:
    """Return a part of a tensor: along the batch axis all of it, or all of it backwards."""
    operand = step.given(0)
    value, old = operand.value, "starts" in step.attributes
    if any(each is not None and not isinstance(each.value, Shared) for each in step.inputs[1:]):
        return None
    if isinstance(value, Shared):
        return value
    starts = step.attributes["starts"] if old else step.constants.get(1)
    axes = step.axes(3) or range(len(starts) if starts is not None else operand.rank)
    places = [place for place, axis in enumerate(axes) if _axis(value) == axis % operand.rank]
    steps = step.constants.get(4, [1] * len(axes)) if len(step.inputs) > 4 else [1] * len(axes)
    if not isinstance(value, Apart):
        return value if all(each > 0 for each in steps) else None
    if not places:
        return value
    ends = step.attributes["ends"] if old else step.constants.get(2)
    [place] = places
    if steps[place] < 0:
        return mixing.mixes(operand, step.by, How.ORDERED)
    whole = ends is not None and ends[place] >= EVERYTHING
    kept = whole or step.dims()[value.axis] == operand.dims[value.axis]
    return value if starts is not None and starts[place] == 0 and steps[place] == 1 and kept else None


def _axis(value: Value) -> int | None:
    return value.axis if isinstance(value, Apart) else None


def _padded(step: Step) -> Value:
    operand, value = step.given(0), step.given(0).value
    if not isinstance(value, Apart):
        return value
    pads = step.attributes["pads"] if "pads" in step.attributes else step.constants[1]
    axes = list(step.axes(3) or range(operand.rank))
    around = [
        pads[place] == 0 and pads[place + len(axes)] == 0
        for place, axis in enumerate(axes)
        if axis % operand.rank == value.axis
    ]
    return value if all(around) else None


def _resized(step: Step) -> Value:
    operand, value = step.given(0), step.given(0).value
    if not isinstance(value, Apart):
        return value
    return value if value.axis < 2 and step.dims()[value.axis] == operand.dims[value.axis] else None


def _flattened(step: Step) -> Value:
    return mixing.reshaped(step.given(0), step.dims(), step.rows) if step.axis(1) else None


def _gathered(step: Step) -> Value:
    return mixing.looked_up(step.given(0), step.given(1), step.axis(0), step.by)


def _gathered_elements(step: Step) -> Value:
    return mixing.looked_up_beside(step.given(0), step.given(1), step.axis(0), step.by)


def _gathered_deep(step: Step) -> Value:
    before = step.attributes.get("batch_dims", 0)
    return mixing.looked_up_deep(step.given(0), step.given(1), before, _depth(step), step.by)


def _depth(step: Step) -> int:
    depth = step.given(1).dims[-1]
    if not isinstance(depth, int):
        raise LookupError(depth)
    return depth


def _scattered(step: Step) -> Value:
    return mixing.scattered(step.given(0), step.given(1), step.given(2), step.axis(0), step.by)


def _scattered_deep(step: Step) -> Value:
    return mixing.scattered_deep(step.given(0), step.given(1), step.given(2), _depth(step), step.by)


def _extracted(step: Step) -> Value:
    """Return what ai.onnx.ml's `ArrayFeatureExtractor` takes of the last axis."""
    data, index = step.given(0), step.given(1)
    if not isinstance(data.value, Apart) or data.value.axis == data.rank - 1:
        return mixing.looked_up(data, index, data.rank - 1, step.by) if isinstance(data.value, Apart) else None
    return data.value if isinstance(index.value, Shared) else None


def _multiplied(step: Step) -> Value:
    return mixing.multiplied(step.given(0), step.given(1), step.by)


def _gemm(step: Step) -> Value:
    left, right = (
        _turned(step.given(place)) if step.attributes.get(name, 0) else step.given(place)
        for place, name in enumerate(("transA", "transB"))
    )
    product = mixing.multiplied(left, right, step.by)
    added = step.inputs[2] if len(step.inputs) > 2 else None
    return product if added is None else mixing.combined([Operand(product, step.dims()), added], step.by, 2)


def _turned(operand: Operand) -> Operand:
    return Operand(mixing.transposed(operand, (1, 0)), operand.dims[::-1])


def _einsum(step: Step) -> Value:
    operands = [step.given(place) for place in range(len(step.inputs))]
    return mixing.summed(operands, step.attributes["equation"].decode(), step.by)


def _one_hot(step: Step) -> Value:
    operand, value = step.given(0), step.given(0).value
    if not isinstance(value, Apart):
        return value
    return mixing.moved(value, value.axis + (step.axis(-1) % (operand.rank + 1) <= value.axis))


def _size(_: Step) -> Value:
    """Return the sizes of a tensor, which are no client's."""
    return Shared(uniform=True)


def _filled(step: Step) -> Value:
    return Shared(uniform=True) if isinstance(step.given(0).value, Shared) else None


def _counted(step: Step) -> Value:
    return Shared() if all(each is None or isinstance(each.value, Shared) for each in step.inputs) else None


LAYOUT: Final[Mapping[str, Callable[[Step], Value]]] = {
    "Transpose": _transposed,
    "Reshape": _reshaped,
    "Flatten": _flattened,
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Expand": _expanded,
    "Tile": _tiled,
    "Concat": _joined,
    "Split": _split,
    "Slice": _sliced,
    "Pad": _padded,
    **dict.fromkeys(("Resize", "Upsample"), _resized),
    "Gather": _gathered,
    "GatherElements": _gathered_elements,
    "GatherND": _gathered_deep,
    **dict.fromkeys(("ScatterElements", "Scatter"), _scattered),
    "ScatterND": _scattered_deep,
    "ai.onnx.ml.ArrayFeatureExtractor": _extracted,
    "MatMul": _multiplied,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "OneHot": _one_hot,
    **dict.fromkeys(("Shape", "Size"), _size),
    "ConstantOfShape": _filled,
    **dict.fromkeys(("Range", "Trilu", "NonZero"), _counted),
    "EyeLike": lambda _: Shared(),
}
"""Trilu only of what clients share: of others it depends on the place."""
