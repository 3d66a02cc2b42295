"""Detection of calls in a torch.export program that provably mix rows (see `onnx_mixing`)."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from shoal_runtime.formats import mixing
from shoal_runtime.formats.program_graph import ProgramCall, call_of, dims_of, operator_of
from shoal_runtime.formats.row_values import (
    Combination,
    MixedRows,
    Operand,
    SeparateRows,
    SharedValue,
    Value,
    mixed_along_batch,
    with_batch_axis,
)

COMPARING: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
LARGEST: Final = frozenset(("max", "min", "amax", "amin", "any", "all", "argmax", "argmin"))


Rule = Callable[[ProgramCall], Value]


def _rules(rule: Rule, operators: str) -> dict[str, Rule]:
    return dict.fromkeys(operators.split(), rule)


_RULES: Final[dict[str, Rule]] = {
    # Reductions and normalizations.
    **_rules(lambda call: _over(call, largest=False), "sum mean prod logsumexp var std nansum nanmean"),
    **_rules(lambda call: _over(call, largest=True), " ".join(sorted(LARGEST))),
    **_rules(
        lambda call: mixing.along(call.operand("self"), [call.number("dim", -1)], call.by),
        "softmax log_softmax _softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin",
    ),
    **_rules(
        lambda call: mixing.along(call.operand("self"), [call.number("dim", -1)], call.by, Combination.ORDERED),
        "sort topk argsort",
    ),
    **_rules(
        lambda call: call.tensors()[0].value,
        "contiguous clone to _to_copy dropout native_dropout alias detach lift_fresh_copy type_as",
    ),
    # Products.
    **_rules(lambda call: mixing.multiplied(call.tensors()[0], call.tensors()[1], call.by), "matmul mm bmm"),
    "einsum": lambda call: mixing.summed(
        [call.known(each) for each in call.arguments["tensors"]], call.arguments["equation"], call.by
    ),
    # Lookups and writes by numbers of items.
    "embedding": lambda call: mixing.looked_up(call.operand("weight"), call.operand("indices"), 0, call.by),
    "index_select": lambda call: mixing.looked_up(
        call.operand("self"), call.operand("index"), call.number("dim", 0), call.by
    ),
    "gather": lambda call: mixing.looked_up_beside(
        call.operand("self"), call.operand("index"), call.number("dim", 0), call.by
    ),
    # Shapes.
    **_rules(
        lambda call: mixing.reshaped(call.operand("self"), call.dims, call.rows),
        "view reshape _unsafe_view flatten unflatten",
    ),
    "permute": lambda call: mixing.transposed(call.operand("self"), call.arguments["dims"]),
    "numpy_T": lambda call: mixing.transposed(call.operand("self"), range(call.operand("self").rank)[::-1]),
    "unsqueeze": lambda call: mixing.unsqueezed(call.operand("self"), [call.number("dim", 0)]),
    "cat": lambda call: mixing.joined(
        [call.known(each) for each in call.arguments["tensors"]], call.number("dim", 0), call.by, len(call.dims)
    ),
    # Values that depend on no input.
    **_rules(
        lambda _: SharedValue(uniform=True),
        "sym_size ones zeros full new_ones new_zeros new_full ones_like zeros_like full_like scalar_tensor",
    ),
    **_rules(lambda _: SharedValue(), "arange eye linspace tril_indices triu_indices"),
}
"""Rules by operator; those of several lines follow."""


def _rule(operators: str) -> Callable[[Rule], Rule]:
    def registered(rule: Rule) -> Rule:
        _RULES.update(_rules(rule, operators))
        return rule

    return registered


def find_mixing(program: torch.export.ExportedProgram, batch_dims: Mapping[str, int]) -> dict[str, MixedRows]:
    """Return the nodes whose rows provably depend on other rows, with the call that mixes them.

    Args:
        program: program to check.
        batch_dims: batch dimension of each input, by node name.
    """
    nodes = list(program.graph.nodes)
    values: dict[str, Value] = {}
    counts = {dims_of(node)[batch_dims[node.name] :][:1] for node in nodes if node.name in batch_dims}
    if len(counts) != 1 or counts == {()}:
        return {}
    [(rows,)] = counts
    for node in nodes:
        if node.op == "call_function":
            # A write to a computed tensor also changes its views, which are not tracked.
            schema = getattr(node.target, "_schema", None)
            changed = node.args[0] if schema is not None and schema.is_mutable and node.args else None
            if isinstance(changed, torch.fx.Node) and changed.op == "call_function":
                return {}
            values[node.name] = _made(node, values, rows)
        elif node.name in batch_dims:
            values[node.name] = SeparateRows(batch_dims[node.name])
        elif node.op in ("placeholder", "get_attr"):
            values[node.name] = SharedValue(all(dim == 1 for dim in dims_of(node)))
    return {name: value for name, value in values.items() if isinstance(value, MixedRows)}


def _made(node: torch.fx.Node, values: Mapping[str, Value], rows: Any) -> Value:
    operator = operator_of(node)
    if operator == "getitem":
        return values.get(node.args[0].name) if isinstance(node.args[0], torch.fx.Node) else None
    if not isinstance(node.target, torch._ops.OpOverload):  # arithmetic on sizes
        return (
            SharedValue(uniform=True)
            if all(isinstance(values.get(each.name), SharedValue) for each in node.all_input_nodes)
            else None
        )
    call = call_of(node, values, rows)
    try:
        rule = _RULES.get(operator)
        if rule is not None:
            return rule(call)
        if torch.Tag.pointwise not in node.target.tags:
            return None
        value = mixing.combined(call.tensors(), call.by, len(call.dims))
    except (LookupError, ValueError, TypeError, ArithmeticError):  # an argument that the rule needs is unknown
        return None
    # A comparison with a sum or length of the whole batch may have the same result for all batches.
    return None if operator in COMPARING and isinstance(value, MixedRows) else value


def _over(call: ProgramCall, *, largest: bool) -> Value:
    if len(call.tensors()) > 1:
        return mixing.combined(call.tensors(), call.by, len(call.dims))  # elementwise maximum of two tensors
    keep = bool(call.arguments.get("keepdim", False))
    return mixing.reduced(call.operand("self"), call.axes(), call.by, keep=keep, largest=largest)


@_rule("flip roll")
def _turned(call: ProgramCall) -> Value:
    axes = call.axes("dims")
    return None if axes is None else mixing.along(call.operand("self"), axes, call.by, Combination.ORDERED)


@_rule("layer_norm native_layer_norm rms_norm")
def _layer_norm(call: ProgramCall) -> Value:
    operand = call.operand("input")
    return mixing.along(operand, range(operand.rank - len(call.arguments["normalized_shape"]), operand.rank), call.by)


@_rule("batch_norm native_batch_norm")
def _batch_norm(call: ProgramCall) -> Value:
    operand = call.operand("input")
    axes = [axis for axis in range(operand.rank) if axis != 1]
    trains = call.arguments.get("training", call.arguments.get("use_input_stats"))
    return mixing.along(operand, axes, call.by) if trains else _on_first_axis(call)


@_rule(
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d group_norm"
    " instance_norm max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool2d"
)
def _on_first_axis(call: ProgramCall) -> Value:
    """Return whether rows stay separate in a convolution or a similar operator.

    Such an operator processes the elements of the first axis separately. Rows stay separate if that is the batch axis.
    """
    first, *others = call.tensors()
    if not all(isinstance(each.value, SharedValue) for each in others):
        return None
    return first.value if not isinstance(first.value, SeparateRows) or first.value.axis == 0 else None


@_rule("linear")
def _linear(call: ProgramCall) -> Value:
    operand, *weights = call.tensors()
    value = operand.value
    if not all(isinstance(each.value, SharedValue) for each in weights):
        return None
    return None if isinstance(value, SeparateRows) and value.axis == operand.rank - 1 else value


@_rule("addmm baddbmm")
def _added_product(call: ProgramCall) -> Value:
    added, left, right = call.tensors()
    product = mixing.multiplied(left, right, call.by)
    return mixing.combined([added, Operand(product, call.dims)], call.by, len(call.dims))


@_rule("scaled_dot_product_attention")
def _attention(call: ProgramCall) -> Value:
    query, key, value, *mask = call.tensors()
    found = {each.value for each in (query, key, value)}
    if len(found) > 1 or not isinstance(query.value, SeparateRows):
        return None
    if query.value.axis < query.rank - 2:
        return query.value
    # Without a mask each row attends to each other row.
    bare = not mask and not call.arguments.get("is_causal", False) and query.value.axis == query.rank - 2
    return mixed_along_batch(query, call.by, Combination.PAIRED) if bare else None


@_rule("index _unsafe_index")
def _indexed(call: ProgramCall) -> Value:
    data = call.operand("self")
    places = [place for place, index in enumerate(call.arguments["indices"]) if index is not None]
    indices = [call.arguments["indices"][place] for place in places]
    if any(each.meta["val"].dtype in (torch.bool, torch.uint8) for each in indices):
        return None
    known = [call.known(each) for each in indices]
    if len(places) == 1:
        return mixing.looked_up(data, known[0], places[0], call.by)
    rank = max(each.rank for each in known)
    chosen = Operand(mixing.combined(known, call.by, rank), (0,) * rank)
    if isinstance(chosen.value, SeparateRows) and isinstance(data.value, SeparateRows) and data.value.axis in places:
        return mixed_along_batch(chosen, call.by, Combination.SELECTED)
    return chosen.value if isinstance(data.value, SharedValue) and places[0] == 0 else None


@_rule("index_put")
def _put(call: ProgramCall) -> Value:
    data, [index, *others] = call.operand("self"), call.arguments["indices"]
    if index is None or others or index.meta["val"].dtype == torch.bool:
        return None
    known = call.known(index)
    deep = Operand(known.value, (*known.dims, 1))
    return mixing.scattered_deep(data, deep, call.operand("values"), 1, call.by)


@_rule("scatter scatter_add")
def _scattered(call: ProgramCall) -> Value:
    index = call.operand("index")
    updates = call.operand("src") if "src" in call.arguments else Operand(SharedValue(uniform=True), index.dims)
    return mixing.scattered(call.operand("self"), index, updates, call.number("dim", 0), call.by)


@_rule("select")
def _picked(call: ProgramCall) -> Value:
    operand, axis = call.operand("self"), call.number("dim", 0)
    value = operand.value
    if not isinstance(value, SeparateRows):
        return value
    axis %= operand.rank
    return None if value.axis == axis else with_batch_axis(value, value.axis - (axis < value.axis))


@_rule("slice narrow chunk split split_with_sizes")
def _part(call: ProgramCall) -> Value:
    operand, value = call.operand("self"), call.operand("self").value
    # Along the batch axis, the slice must be the whole axis.
    if not isinstance(value, SeparateRows) or call.number("dim", 0) % operand.rank != value.axis:
        return value
    return value if call.dims[value.axis] == operand.dims[value.axis] else None


@_rule("transpose t")
def _swapped(call: ProgramCall) -> Value:
    operand = call.operand("self")
    order = list(range(operand.rank))
    first, second = call.number("dim0", 0), call.number("dim1", 1)
    if operand.rank > 1:
        order[first], order[second] = order[second], order[first]
    return mixing.transposed(operand, order)


@_rule("squeeze")
def _squeezed(call: ProgramCall) -> Value:
    operand = call.operand("self")
    axes = call.axes()
    return mixing.squeezed(operand, axes and [axis for axis in axes if operand.dims[axis] == 1])


@_rule("expand")
def _expanded(call: ProgramCall) -> Value:
    operand, value = call.operand("self"), call.operand("self").value
    return (
        with_batch_axis(value, value.axis + len(call.dims) - operand.rank) if isinstance(value, SeparateRows) else value
    )


@_rule("stack")
def _stacked(call: ProgramCall) -> Value:
    operands = [call.known(each) for each in call.arguments["tensors"]]
    rank, axis = len(call.dims), call.number("dim", 0)
    value = mixing.combined(operands, call.by, rank - 1)
    return mixing.unsqueezed(Operand(value, call.dims[1:]), [axis]) if isinstance(value, SeparateRows) else value


@_rule("pad constant_pad_nd")
def _padded(call: ProgramCall) -> Value:
    operand, value = call.operand("self"), call.operand("self").value
    first = operand.rank - len(call.arguments["pad"]) // 2
    return value if not isinstance(value, SeparateRows) or value.axis < first else None
