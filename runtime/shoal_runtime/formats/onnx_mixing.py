"""Nodes of an ONNX graph that are proven to mix the rows of a batch.

The batch axis is followed from the inputs through the operators that `_RULES` has; all others, loops and branches among
them, make values of which nothing is known.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from shoal_runtime.formats import mixing
from shoal_runtime.formats.mixing import Apart, How, Mixed, Shared, Value
from shoal_runtime.formats.onnx_graph import Facts, Step
from shoal_runtime.formats.onnx_layout import LAYOUT

ELEMENTWISE: Final = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift"),
    *("BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos"),
    *("Cosh", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity"),
    *("IsInf", "IsNaN", "LeakyRelu", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg"),
    *("Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid"),
    *("Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh"),
    *("ThresholdedRelu", "Where", "Xor"),
)
COMPARING: Final = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
ADDING: Final = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd"),
    *("ReduceSum", "ReduceSumSquare"),
)
PER_ROW: Final = (
    *("Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "Binarizer"),
    *("OneHotEncoder", "Scaler", "SVMClassifier", "SVMRegressor", "TreeEnsemble"),
    *("TreeEnsembleClassifier", "TreeEnsembleRegressor"),
)
"""Of ai.onnx.ml: they take rows of features."""
IMAGES: Final = (
    *("AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
    *("GroupNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth"),
)
"""Of images, and of other grids of channels: they take each one by itself."""
UNTRAINED: Final = 14
"""The opset from which on BatchNormalization says whether it trains."""


def find_mixing(onnx: Any, model: Any, taken: Mapping[str, int]) -> dict[str, Mixed]:
    """Return the outputs whose rows are proven to depend on other rows, each with the node.

    Args:
        onnx: the package.
        model: with the shapes that `onnx_rows` infers.
        taken: the batch axis by input.
    """
    facts = Facts(onnx, model)
    counts = {facts.shapes.get(name, ())[axis : axis + 1] for name, axis in taken.items()}
    if len(counts) != 1 or counts == {()}:
        return {}
    [(facts.rows,)] = counts
    for value in (*model.graph.input, *model.graph.initializer):
        facts.values[value.name] = Apart(taken[value.name]) if value.name in taken else _constant(facts, value.name)
    for node in model.graph.node:
        _follow(facts, node)
    found = {output.name: facts.values.get(output.name) for output in model.graph.output}
    return {name: value for name, value in found.items() if isinstance(value, Mixed)}


def _constant(facts: Facts, name: str) -> Shared:
    dims = facts.shapes.get(name, ())
    return Shared(math.prod(dim if isinstance(dim, int) else 2 for dim in dims) == 1)


def _follow(facts: Facts, node: Any) -> None:
    step = facts.step(node)
    if step.op == "Constant":
        if "value" in step.attributes:
            facts.add_constant(node.output[0], step.attributes["value"])
        elif "value_ints" in step.attributes or "value_int" in step.attributes:
            found = step.attributes.get("value_ints", [step.attributes.get("value_int")])
            facts.constants[node.output[0]] = list(found)
        facts.values[node.output[0]] = _constant(facts, node.output[0])
        return
    try:
        made = _made(step)
    except (LookupError, ValueError, TypeError, ArithmeticError):  # not known well enough
        made = None
    values = made if isinstance(made, list) else [made] * len(node.output)
    for name, value in zip(node.output, values, strict=False):
        facts.values[name] = value
        dims = facts.shapes.get(name)
        if isinstance(value, Apart) and not value.merged and dims is not None and value.axis < len(dims):
            # What inference of shapes has lost.
            facts.shapes[name] = (*dims[: value.axis], facts.rows, *dims[value.axis + 1 :])


def _made(step: Step) -> Value | list[Value]:
    rule = _RULES.get(step.op)
    return None if rule is None else rule(step)


def _elementwise(step: Step) -> Value:
    operands = [each for each in step.inputs if each is not None]
    return mixing.combined(operands, step.by, len(step.dims()))


def _compared(step: Step) -> Value:
    value = _elementwise(step)
    # Of sums and lengths of the whole batch that may hold for all batches.
    return None if isinstance(value, Mixed) else value


def _first(step: Step) -> Value:
    return step.given(0).value


def _scaled(step: Step) -> Value:
    operand, *others = [each for each in step.inputs if each is not None]
    return operand.value if all(isinstance(each.value, Shared) for each in others) else None


def _per_row(step: Step) -> Value:
    value = step.given(0).value
    return value if isinstance(value, Apart) and value.axis == 0 and not value.merged else None


def _reduced(step: Step) -> Value:
    axes = step.axes(1)
    keep = bool(step.attributes.get("keepdims", 1))
    if not axes and step.attributes.get("noop_with_empty_axes", 0):
        return step.given(0).value
    largest = step.op not in ADDING
    return mixing.reduced(step.given(0), axes or None, step.by, keep=keep, largest=largest)


def _best(step: Step) -> Value:
    keep = bool(step.attributes.get("keepdims", 1))
    return mixing.reduced(step.given(0), [step.axis(0)], step.by, keep=keep)


def _softmax(step: Step) -> Value:
    operand = step.given(0)
    if step.opset >= 13 or step.op.startswith("Lp"):
        return mixing.along(operand, [step.axis(-1)], step.by)
    # Over all dimensions from this one on.
    first = step.axis(1) % operand.rank
    return mixing.along(operand, range(first, operand.rank), step.by)


def _cumulated(step: Step) -> Value:
    return mixing.along(step.given(0), [step.constants[1][0]], step.by)


def _ordered(step: Step) -> Value:
    return mixing.along(step.given(0), [step.axis(-1)], step.by, How.ORDERED)


def _normalized(step: Step) -> Value:
    operand = step.given(0)
    axes = range(step.axis(-1) % operand.rank, operand.rank)
    return mixing.along(operand, axes, step.by)


def _over_mean(step: Step) -> Value:
    return mixing.along(step.given(0), step.attributes.get("axes", [0, 2, 3]), step.by)


def _batch_norm(step: Step) -> list[Value]:
    operand = step.given(0)
    made = len(step.outputs)
    trains = bool(step.attributes.get("training_mode", 0)) or (step.opset < UNTRAINED and made > 1)
    if not trains:
        return [_on_first_axis(step), *[None] * (made - 1)]
    statistics = mixing.reduced(operand, [axis for axis in range(operand.rank) if axis != 1], step.by, keep=False)
    normed = mixing.along(operand, [axis for axis in range(operand.rank) if axis != 1], step.by)
    return [normed, *[statistics] * (made - 1)]


def _on_first_axis(step: Step) -> Value:
    """Return what operators make that compute each item along the first axis by itself, with shared weights."""
    operand, *others = [each for each in step.inputs if each is not None]
    value = operand.value
    if not all(isinstance(each.value, Shared) for each in others):
        return None
    return value if not isinstance(value, Apart) or value.axis == 0 else None


def _per_channel(step: Step) -> Value:
    return mixing.along(step.given(0), range(2, step.given(0).rank), step.by)


def _recurrent(step: Step) -> list[Value]:
    x, layout = step.given(0), step.attributes.get("layout", 0)
    others = [each for each in step.inputs[1:] if each is not None]
    if not isinstance(x.value, Apart):
        return [x.value if isinstance(x.value, Mixed) else None] * 3
    if any(each.value is None for each in others):
        return [None] * 3
    if x.value.axis != 1 - layout:
        return [mixing.mixes(x, step.by, How.SUMMED) if x.value.axis == layout else None] * 3
    state = mixing.moved(x.value, 0 if layout else 1)
    return [mixing.moved(x.value, 0 if layout else 2), state, state]


_RULES: Final[Mapping[str, Callable[[Step], Value | list[Value]]]] = {
    **LAYOUT,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(COMPARING, _compared),
    **dict.fromkeys((*ADDING, "ReduceMax", "ReduceMin"), _reduced),
    **dict.fromkeys((f"ai.onnx.ml.{name}" for name in PER_ROW), _per_row),
    "CastLike": _first,
    **dict.fromkeys(("Dropout", "QuantizeLinear", "DequantizeLinear"), _scaled),
    **dict.fromkeys(("ArgMax", "ArgMin"), _best),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), _softmax),
    "CumSum": _cumulated,
    "TopK": _ordered,
    "LayerNormalization": _normalized,
    "RMSNormalization": _normalized,
    "MeanVarianceNormalization": _over_mean,
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": _per_channel,
    **dict.fromkeys(IMAGES, _on_first_axis),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
}
