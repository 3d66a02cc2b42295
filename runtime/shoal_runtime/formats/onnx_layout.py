"""Batch axis of results of ONNX operators that reshape, concatenate, index or multiply tensors."""

from collections.abc import Callable
from typing import Final

from shoal_runtime.formats import mixing
from shoal_runtime.formats.onnx_graph import OnnxCall
from shoal_runtime.formats.row_values import (
    Combination,
    Operand,
    SeparateRows,
    SharedValue,
    Value,
    mixed_along_batch,
    with_batch_axis,
)

EVERYTHING: Final = 2**31 - 1
"""End of a slice beyond any size, as exporters write it."""


Rule = Callable[[OnnxCall], Value]
LAYOUT: Final[dict[str, Rule]] = {
    "Transpose": lambda call: mixing.transposed(
        call.given(0), call.attributes.get("perm", range(call.given(0).rank)[::-1])
    ),
    "Flatten": lambda call: mixing.reshaped(call.given(0), call.dims(), call.rows) if call.axis(1) else None,
    "Squeeze": lambda call: mixing.squeezed(call.given(0), call.axes(1)),
    "Unsqueeze": lambda call: mixing.unsqueezed(call.given(0), call.axes(1) or ()),
    "Concat": lambda call: mixing.joined(call.tensors(), call.axis(0), call.by, len(call.dims())),
    # Lookups and writes by numbers of items.
    "Gather": lambda call: mixing.looked_up(call.given(0), call.given(1), call.axis(0), call.by),
    "GatherElements": lambda call: mixing.looked_up_beside(call.given(0), call.given(1), call.axis(0), call.by),
    "GatherND": lambda call: mixing.looked_up_deep(
        call.given(0), call.given(1), call.attributes.get("batch_dims", 0), _depth(call), call.by
    ),
    **dict.fromkeys(
        ("ScatterElements", "Scatter"),
        lambda call: mixing.scattered(call.given(0), call.given(1), call.given(2), call.axis(0), call.by),
    ),
    "ScatterND": lambda call: mixing.scattered_deep(call.given(0), call.given(1), call.given(2), _depth(call), call.by),
    "MatMul": lambda call: mixing.multiplied(call.given(0), call.given(1), call.by),
    "Einsum": lambda call: mixing.summed(
        [call.given(place) for place in range(len(call.inputs))], call.attributes["equation"].decode(), call.by
    ),
    # Sizes are the same for all clients.
    **dict.fromkeys(("Shape", "Size"), lambda _: SharedValue(uniform=True)),
    "ConstantOfShape": lambda call: SharedValue(uniform=True) if isinstance(call.given(0).value, SharedValue) else None,
    # Trilu of a tensor with rows would depend on their position.
    **dict.fromkeys(
        ("Range", "Trilu", "NonZero"),
        lambda call: SharedValue() if all(isinstance(each.value, SharedValue) for each in call.tensors()) else None,
    ),
    "EyeLike": lambda _: SharedValue(),
}
"""Rules by operator; those of several lines follow."""


def _rule(*operators: str) -> Callable[[Rule], Rule]:
    def registered(rule: Rule) -> Rule:
        LAYOUT.update(dict.fromkeys(operators, rule))
        return rule

    return registered


@_rule("Reshape")
def _reshaped(call: OnnxCall) -> Value:
    if len(call.inputs) > 1 and not isinstance(call.given(1).value, SharedValue):
        return None
    return mixing.reshaped(call.given(0), call.dims(), call.rows)


@_rule("Expand")
def _expanded(call: OnnxCall) -> Value:
    operand, value = call.given(0), call.given(0).value
    if not isinstance(call.given(1).value, SharedValue):
        return None
    if isinstance(value, SharedValue):
        return SharedValue(value.uniform or all(dim == 1 for dim in operand.dims))
    return (
        with_batch_axis(value, value.axis + len(call.dims()) - operand.rank)
        if isinstance(value, SeparateRows)
        else value
    )


@_rule("Tile")
def _tiled(call: OnnxCall) -> Value:
    operand, value = call.given(0), call.given(0).value
    if isinstance(value, SeparateRows):
        return value if call.constants[1][value.axis] == 1 else None
    return (
        SharedValue(value.uniform or all(dim == 1 for dim in operand.dims)) if isinstance(value, SharedValue) else value
    )


@_rule("Split")
def _split(call: OnnxCall) -> Value:
    operand, axis = call.given(0), call.axis(0)
    value = operand.value
    return None if isinstance(value, SeparateRows) and value.axis == axis % operand.rank else value


@_rule("Slice")
def _sliced(call: OnnxCall) -> Value:
    """Return whether rows stay separate in the result of ``Slice``.

    A slice along the batch axis must keep all rows.
    """
    operand = call.given(0)
    value, old = operand.value, "starts" in call.attributes
    if any(each is not None and not isinstance(each.value, SharedValue) for each in call.inputs[1:]):
        return None
    if isinstance(value, SharedValue):
        return value
    # Before opset 10 the attributes hold the bounds, later the inputs.
    starts = call.attributes["starts"] if old else call.constants.get(1)
    axes = call.axes(3) or range(len(starts) if starts is not None else operand.rank)
    batch_axis = value.axis if isinstance(value, SeparateRows) else None
    places = [place for place, axis in enumerate(axes) if axis % operand.rank == batch_axis]
    steps = call.constants.get(4, [1] * len(axes)) if len(call.inputs) > 4 else [1] * len(axes)
    if not isinstance(value, SeparateRows):
        return value if all(each > 0 for each in steps) else None
    if not places:
        return value
    ends = call.attributes["ends"] if old else call.constants.get(2)
    [place] = places
    if steps[place] < 0:
        return mixed_along_batch(operand, call.by, Combination.ORDERED)
    whole = ends is not None and ends[place] >= EVERYTHING
    kept = whole or call.dims()[value.axis] == operand.dims[value.axis]
    return value if starts is not None and starts[place] == 0 and steps[place] == 1 and kept else None


@_rule("Pad")
def _padded(call: OnnxCall) -> Value:
    operand, value = call.given(0), call.given(0).value
    if not isinstance(value, SeparateRows):
        return value
    pads = call.attributes["pads"] if "pads" in call.attributes else call.constants[1]
    axes = list(call.axes(3) or range(operand.rank))
    around = [
        pads[place] == 0 and pads[place + len(axes)] == 0
        for place, axis in enumerate(axes)
        if axis % operand.rank == value.axis
    ]
    return value if all(around) else None


@_rule("Resize", "Upsample")
def _resized(call: OnnxCall) -> Value:
    operand, value = call.given(0), call.given(0).value
    if not isinstance(value, SeparateRows):
        return value
    return value if value.axis < 2 and call.dims()[value.axis] == operand.dims[value.axis] else None


def _depth(call: OnnxCall) -> int:
    """Return the length of the index tuples of `GatherND` or `ScatterND`."""
    depth = call.given(1).dims[-1]
    if not isinstance(depth, int):
        raise LookupError(depth)
    return depth


@_rule("ai.onnx.ml.ArrayFeatureExtractor")
def _extracted(call: OnnxCall) -> Value:
    data, index = call.given(0), call.given(1)
    if not isinstance(data.value, SeparateRows) or data.value.axis == data.rank - 1:
        return mixing.looked_up(data, index, data.rank - 1, call.by) if isinstance(data.value, SeparateRows) else None
    return data.value if isinstance(index.value, SharedValue) else None


@_rule("Gemm")
def _gemm(call: OnnxCall) -> Value:
    left, right = call.given(0), call.given(1)
    if call.attributes.get("transA", 0):
        left = Operand(mixing.transposed(left, (1, 0)), left.dims[::-1])
    if call.attributes.get("transB", 0):
        right = Operand(mixing.transposed(right, (1, 0)), right.dims[::-1])
    product = mixing.multiplied(left, right, call.by)
    added = call.inputs[2] if len(call.inputs) > 2 else None
    return product if added is None else mixing.combined([Operand(product, call.dims()), added], call.by, 2)


@_rule("OneHot")
def _one_hot(call: OnnxCall) -> Value:
    operand, value = call.given(0), call.given(0).value
    if not isinstance(value, SeparateRows):
        return value
    return with_batch_axis(value, value.axis + (call.axis(-1) % (operand.rank + 1) <= value.axis))
