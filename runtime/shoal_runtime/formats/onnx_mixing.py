"""Detection of ONNX nodes that provably mix rows of a batch.

The batch axis is propagated from the inputs through the operators in `_RULES`. Results of other operators, including
loops and branches, are unknown.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from shoal_runtime.formats import mixing
from shoal_runtime.formats.onnx_graph import GraphFacts, OnnxCall
from shoal_runtime.formats.onnx_layout import LAYOUT
from shoal_runtime.formats.row_values import (
    Combination,
    MixedRows,
    SeparateRows,
    SharedValue,
    Value,
    mixed_along_batch,
    with_batch_axis,
)

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
"""Operators of ai.onnx.ml on rows of features."""
IMAGES: Final = (
    *("AveragePool", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"),
    *("GroupNormalization", "LRN", "LpPool", "MaxPool", "SpaceToDepth"),
)
"""Operators on images and other grids of channels, each computed separately."""
UNTRAINED: Final = 14
"""First opset in which BatchNormalization states whether it trains."""


Rule = Callable[[OnnxCall], Value | list[Value]]
R = TypeVar("R", bound=Rule)

_RULES: Final[dict[str, Rule]] = {
    **LAYOUT,
    **dict.fromkeys(ELEMENTWISE, lambda call: mixing.combined(call.tensors(), call.by, len(call.dims()))),
    "CastLike": lambda call: call.given(0).value,
    **dict.fromkeys(
        ("ArgMax", "ArgMin"),
        lambda call: mixing.reduced(
            call.given(0), [call.axis(0)], call.by, keep=bool(call.attributes.get("keepdims", 1))
        ),
    ),
    "CumSum": lambda call: mixing.along(call.given(0), [call.constants[1][0]], call.by),
    "TopK": lambda call: mixing.along(call.given(0), [call.axis(-1)], call.by, Combination.ORDERED),
    "MeanVarianceNormalization": lambda call: mixing.along(
        call.given(0), call.attributes.get("axes", [0, 2, 3]), call.by
    ),
    "InstanceNormalization": lambda call: mixing.along(call.given(0), range(2, call.given(0).rank), call.by),
}
"""Rules by operator; those of several lines follow; the result of several outputs is a list."""


def _rule(*operators: str) -> Callable[[R], R]:
    def registered(rule: R) -> R:
        _RULES.update(dict.fromkeys(operators, rule))
        return rule

    return registered


def find_mixing(onnx: Any, model: Any, taken: Mapping[str, int]) -> dict[str, MixedRows]:
    """Return the outputs whose rows provably depend on other rows, with the node that mixes them.

    Args:
        onnx: the imported onnx package.
        model: model with inferred shapes.
        taken: batch axis of each input.
    """
    facts = GraphFacts(onnx, model)
    counts = {facts.shapes.get(name, ())[axis : axis + 1] for name, axis in taken.items()}
    if len(counts) != 1 or counts == {()}:
        return {}
    [(facts.rows,)] = counts
    for value in (*model.graph.input, *model.graph.initializer):
        facts.values[value.name] = (
            SeparateRows(taken[value.name]) if value.name in taken else _constant(facts, value.name)
        )
    for node in model.graph.node:
        call = facts.call(node)
        if call.op == "Constant":
            if "value" in call.attributes:
                facts.add_constant(node.output[0], call.attributes["value"])
            elif "value_ints" in call.attributes or "value_int" in call.attributes:
                whole = call.attributes.get("value_ints", [call.attributes.get("value_int")])
                facts.constants[node.output[0]] = list(whole)
            facts.values[node.output[0]] = _constant(facts, node.output[0])
            continue
        try:
            rule = _RULES.get(call.op)
            made = None if rule is None else rule(call)
        except (LookupError, ValueError, TypeError, ArithmeticError):  # an argument that the rule needs is unknown
            made = None
        values = made if isinstance(made, list) else [made] * len(node.output)
        for name, result in zip(node.output, values, strict=False):
            facts.values[name] = result
            dims = facts.shapes.get(name)
            if isinstance(result, SeparateRows) and not result.merged and dims is not None and result.axis < len(dims):
                # Shape inference loses the symbol of the batch dimension in some operators.
                facts.shapes[name] = (*dims[: result.axis], facts.rows, *dims[result.axis + 1 :])
    found = {output.name: facts.values.get(output.name) for output in model.graph.output}
    return {name: value for name, value in found.items() if isinstance(value, MixedRows)}


def _constant(facts: GraphFacts, name: str) -> SharedValue:
    dims = facts.shapes.get(name, ())
    return SharedValue(math.prod(dim if isinstance(dim, int) else 2 for dim in dims) == 1)


@_rule(*COMPARING)
def _compared(call: OnnxCall) -> Value:
    value = mixing.combined(call.tensors(), call.by, len(call.dims()))
    # A comparison with a sum or length of the whole batch may have the same result for all batches.
    return None if isinstance(value, MixedRows) else value


@_rule("Dropout", "QuantizeLinear", "DequantizeLinear")
def _scaled(call: OnnxCall) -> Value:
    operand, *others = call.tensors()
    return operand.value if all(isinstance(each.value, SharedValue) for each in others) else None


@_rule(*(f"ai.onnx.ml.{name}" for name in PER_ROW))
def _per_row(call: OnnxCall) -> Value:
    value = call.given(0).value
    return value if isinstance(value, SeparateRows) and value.axis == 0 and not value.merged else None


@_rule(*ADDING, "ReduceMax", "ReduceMin")
def _reduced(call: OnnxCall) -> Value:
    axes = call.axes(1)
    keep = bool(call.attributes.get("keepdims", 1))
    if not axes and call.attributes.get("noop_with_empty_axes", 0):
        return call.given(0).value
    largest = call.op not in ADDING
    return mixing.reduced(call.given(0), axes or None, call.by, keep=keep, largest=largest)


@_rule("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def _softmax(call: OnnxCall) -> Value:
    operand = call.given(0)
    if call.opset >= 13 or call.op.startswith("Lp"):
        return mixing.along(operand, [call.axis(-1)], call.by)
    # Before opset 13, over all dimensions from `axis` on.
    first = call.axis(1) % operand.rank
    return mixing.along(operand, range(first, operand.rank), call.by)


@_rule("LayerNormalization", "RMSNormalization")
def _normalized(call: OnnxCall) -> Value:
    operand = call.given(0)
    axes = range(call.axis(-1) % operand.rank, operand.rank)
    return mixing.along(operand, axes, call.by)


@_rule("BatchNormalization")
def _batch_norm(call: OnnxCall) -> list[Value]:
    operand = call.given(0)
    made = len(call.outputs)
    trains = bool(call.attributes.get("training_mode", 0)) or (call.opset < UNTRAINED and made > 1)
    if not trains:
        return [_on_first_axis(call), *[None] * (made - 1)]
    statistics = mixing.reduced(operand, [axis for axis in range(operand.rank) if axis != 1], call.by, keep=False)
    normed = mixing.along(operand, [axis for axis in range(operand.rank) if axis != 1], call.by)
    return [normed, *[statistics] * (made - 1)]


@_rule(*IMAGES)
def _on_first_axis(call: OnnxCall) -> Value:
    """Return whether rows stay separate in an operator on images.

    Such an operator processes the elements of the first axis separately. Rows stay separate if that is the batch axis.
    """
    operand, *others = call.tensors()
    value = operand.value
    if not all(isinstance(each.value, SharedValue) for each in others):
        return None
    return value if not isinstance(value, SeparateRows) or value.axis == 0 else None


@_rule("LSTM", "GRU", "RNN")
def _recurrent(call: OnnxCall) -> list[Value]:
    # x is [steps, batch, features], or [batch, steps, features] with layout 1.
    x, layout = call.given(0), call.attributes.get("layout", 0)
    others = [each for each in call.inputs[1:] if each is not None]
    if not isinstance(x.value, SeparateRows):
        return [x.value if isinstance(x.value, MixedRows) else None] * 3
    if any(each.value is None for each in others):
        return [None] * 3
    if x.value.axis != 1 - layout:
        return [mixed_along_batch(x, call.by, Combination.SUMMED) if x.value.axis == layout else None] * 3
    state = with_batch_axis(x.value, 0 if layout else 1)
    return [with_batch_axis(x.value, 0 if layout else 2), state, state]
