"""Calls in a torch.export program that are proven to mix the rows of a batch, as `onnx_mixing` finds nodes."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from shoal_runtime.formats import mixing
from shoal_runtime.formats.mixing import Apart, How, Mixed, Operand, Shared, Value
from shoal_runtime.formats.program_graph import Call, call_of, dims_of, operator_of

COMPARING: Final = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
LARGEST: Final = frozenset(("max", "min", "amax", "amin", "any", "all", "argmax", "argmin"))


def find_mixing(program: torch.export.ExportedProgram, batch_dims: Mapping[str, int]) -> dict[str, Mixed]:
    """Return the nodes whose rows are proven to depend on other rows, each with the call that mixes them.

    Args:
        program: to follow.
        batch_dims: the batch dimension by the node of each input.
    """
    nodes = list(program.graph.nodes)
    values: dict[str, Value] = {}
    counts = {dims_of(node)[batch_dims[node.name] :][:1] for node in nodes if node.name in batch_dims}
    if len(counts) != 1 or counts == {()}:
        return {}
    [(rows,)] = counts
    for node in nodes:
        if node.op == "call_function":
            if _writes(node):
                return {}
            values[node.name] = _made(node, values, rows)
        elif node.name in batch_dims:
            values[node.name] = Apart(batch_dims[node.name])
        elif node.op in ("placeholder", "get_attr"):
            values[node.name] = Shared(all(dim == 1 for dim in dims_of(node)))
    return {name: value for name, value in values.items() if isinstance(value, Mixed)}


def _writes(node: torch.fx.Node) -> bool:
    """Return whether a call changes a tensor that the program computed: others may be views of it."""
    schema = getattr(node.target, "_schema", None)
    changed = node.args[0] if schema is not None and schema.is_mutable and node.args else None
    return isinstance(changed, torch.fx.Node) and changed.op == "call_function"


def _made(node: torch.fx.Node, values: Mapping[str, Value], rows: Any) -> Value:
    operator = operator_of(node)
    if operator == "getitem":
        return values.get(node.args[0].name) if isinstance(node.args[0], torch.fx.Node) else None
    if not isinstance(node.target, torch._ops.OpOverload):  # of sizes
        return (
            Shared(uniform=True)
            if all(isinstance(values.get(each.name), Shared) for each in node.all_input_nodes)
            else None
        )
    call = call_of(node, values, rows)
    try:
        rule = _RULES.get(operator)
        if rule is not None:
            return rule(call)
        return _pointwise(call, operator) if torch.Tag.pointwise in node.target.tags else None
    except (LookupError, ValueError, TypeError, ArithmeticError):  # not known well enough
        return None


def _pointwise(call: Call, operator: str) -> Value:
    value = mixing.combined(call.tensors(), call.by, len(call.dims))
    # Of sums and lengths of the whole batch that may hold for all batches.
    return None if operator in COMPARING and isinstance(value, Mixed) else value


def _reduced(call: Call) -> Value:
    return _over(call, largest=False)


def _best(call: Call) -> Value:
    return _over(call, largest=True)


def _over(call: Call, *, largest: bool) -> Value:
    if len(call.tensors()) > 1:
        return mixing.combined(call.tensors(), call.by, len(call.dims))  # the larger of two
    keep = bool(call.arguments.get("keepdim", False))
    return mixing.reduced(call.operand("self"), call.axes(), call.by, keep=keep, largest=largest)


def _softmax(call: Call) -> Value:
    return mixing.along(call.operand("self"), [call.number("dim", -1)], call.by)


def _ordered(call: Call) -> Value:
    return mixing.along(call.operand("self"), [call.number("dim", -1)], call.by, How.ORDERED)


def _turned(call: Call) -> Value:
    axes = call.axes("dims")
    return None if axes is None else mixing.along(call.operand("self"), axes, call.by, How.ORDERED)


def _same(call: Call) -> Value:
    return call.tensors()[0].value


def _layer_norm(call: Call) -> Value:
    operand = call.operand("input")
    return mixing.along(operand, range(operand.rank - len(call.arguments["normalized_shape"]), operand.rank), call.by)


def _batch_norm(call: Call) -> Value:
    operand = call.operand("input")
    axes = [axis for axis in range(operand.rank) if axis != 1]
    trains = call.arguments.get("training", call.arguments.get("use_input_stats"))
    return mixing.along(operand, axes, call.by) if trains else _on_first_axis(call)


def _on_first_axis(call: Call) -> Value:
    """Return what operators make that compute each item along the first axis by itself, with shared weights."""
    first, *others = call.tensors()
    if not all(isinstance(each.value, Shared) for each in others):
        return None
    return first.value if not isinstance(first.value, Apart) or first.value.axis == 0 else None


def _linear(call: Call) -> Value:
    operand, *weights = call.tensors()
    value = operand.value
    if not all(isinstance(each.value, Shared) for each in weights):
        return None
    return None if isinstance(value, Apart) and value.axis == operand.rank - 1 else value


def _multiplied(call: Call) -> Value:
    left, right = call.tensors()
    return mixing.multiplied(left, right, call.by)


def _added_product(call: Call) -> Value:
    added, left, right = call.tensors()
    product = mixing.multiplied(left, right, call.by)
    return mixing.combined([added, Operand(product, call.dims)], call.by, len(call.dims))


def _attention(call: Call) -> Value:
    query, key, value, *mask = call.tensors()
    found = {each.value for each in (query, key, value)}
    if len(found) > 1 or not isinstance(query.value, Apart):
        return None
    if query.value.axis < query.rank - 2:
        return query.value
    bare = not mask and not call.arguments.get("is_causal", False) and query.value.axis == query.rank - 2
    return mixing.mixes(query, call.by, How.PAIRED) if bare else None


def _einsum(call: Call) -> Value:
    return mixing.summed([call.known(each) for each in call.arguments["tensors"]], call.arguments["equation"], call.by)


def _embedded(call: Call) -> Value:
    return mixing.looked_up(call.operand("weight"), call.operand("indices"), 0, call.by)


def _index_selected(call: Call) -> Value:
    return mixing.looked_up(call.operand("self"), call.operand("index"), call.number("dim", 0), call.by)


def _indexed(call: Call) -> Value:
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
    if isinstance(chosen.value, Apart) and isinstance(data.value, Apart) and data.value.axis in places:
        return mixing.mixes(chosen, call.by, How.SELECTED)
    return chosen.value if isinstance(data.value, Shared) and places[0] == 0 else None


def _put(call: Call) -> Value:
    data, [index, *others] = call.operand("self"), call.arguments["indices"]
    if index is None or others or index.meta["val"].dtype == torch.bool:
        return None
    known = call.known(index)
    deep = Operand(known.value, (*known.dims, 1))
    return mixing.scattered_deep(data, deep, call.operand("values"), 1, call.by)


def _gathered(call: Call) -> Value:
    return mixing.looked_up_beside(call.operand("self"), call.operand("index"), call.number("dim", 0), call.by)


def _scattered(call: Call) -> Value:
    index = call.operand("index")
    updates = call.operand("src") if "src" in call.arguments else Operand(Shared(uniform=True), index.dims)
    return mixing.scattered(call.operand("self"), index, updates, call.number("dim", 0), call.by)


def _picked(call: Call) -> Value:
    operand, axis = call.operand("self"), call.number("dim", 0)
    value = operand.value
    if not isinstance(value, Apart):
        return value
    axis %= operand.rank
    return None if value.axis == axis else mixing.moved(value, value.axis - (axis < value.axis))


def _part(call: Call) -> Value:
    """Return a part along an axis; of the batch axis all of it."""
    operand, value = call.operand("self"), call.operand("self").value
    if not isinstance(value, Apart) or call.number("dim", 0) % operand.rank != value.axis:
        return value
    return value if call.dims[value.axis] == operand.dims[value.axis] else None


def _reshaped(call: Call) -> Value:
    return mixing.reshaped(call.operand("self"), call.dims, call.rows)


def _swapped(call: Call) -> Value:
    operand = call.operand("self")
    order = list(range(operand.rank))
    first, second = call.number("dim0", 0), call.number("dim1", 1)
    if operand.rank > 1:
        order[first], order[second] = order[second], order[first]
    return mixing.transposed(operand, order)


def _permuted(call: Call) -> Value:
    return mixing.transposed(call.operand("self"), call.arguments["dims"])


def _reversed(call: Call) -> Value:
    operand = call.operand("self")
    return mixing.transposed(operand, range(operand.rank)[::-1])


def _squeezed(call: Call) -> Value:
    operand = call.operand("self")
    axes = call.axes()
    return mixing.squeezed(operand, axes and [axis for axis in axes if operand.dims[axis] == 1])


def _unsqueezed(call: Call) -> Value:
    return mixing.unsqueezed(call.operand("self"), [call.number("dim", 0)])


def _expanded(call: Call) -> Value:
    operand, value = call.operand("self"), call.operand("self").value
    return mixing.moved(value, value.axis + len(call.dims) - operand.rank) if isinstance(value, Apart) else value


def _joined(call: Call) -> Value:
    operands = [call.known(each) for each in call.arguments["tensors"]]
    return mixing.joined(operands, call.number("dim", 0), call.by, len(call.dims))


def _stacked(call: Call) -> Value:
    operands = [call.known(each) for each in call.arguments["tensors"]]
    rank, axis = len(call.dims), call.number("dim", 0)
    value = mixing.combined(operands, call.by, rank - 1)
    return mixing.unsqueezed(Operand(value, call.dims[1:]), [axis]) if isinstance(value, Apart) else value


def _padded(call: Call) -> Value:
    operand, value = call.operand("self"), call.operand("self").value
    first = operand.rank - len(call.arguments["pad"]) // 2
    return value if not isinstance(value, Apart) or value.axis < first else None


def _filled(_: Call) -> Value:
    return Shared(uniform=True)


def _numbered(_: Call) -> Value:
    return Shared()


def _rules(rule: Callable[[Call], Value], operators: str) -> dict[str, Callable[[Call], Value]]:
    return dict.fromkeys(operators.split(), rule)


_RULES: Final[Mapping[str, Callable[[Call], Value]]] = {
    **_rules(_reduced, "sum mean prod logsumexp var std nansum nanmean"),
    **_rules(_best, " ".join(sorted(LARGEST))),
    **_rules(_softmax, "softmax log_softmax _softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin"),
    **_rules(_ordered, "sort topk argsort"),
    **_rules(_turned, "flip roll"),
    **_rules(_same, "contiguous clone to _to_copy dropout native_dropout alias detach lift_fresh_copy type_as"),
    **_rules(_layer_norm, "layer_norm native_layer_norm rms_norm"),
    **_rules(_batch_norm, "batch_norm native_batch_norm"),
    **_rules(_on_first_axis, "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d group_norm"),
    **_rules(_on_first_axis, "instance_norm max_pool1d max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool2d"),
    "linear": _linear,
    **_rules(_multiplied, "matmul mm bmm"),
    **_rules(_added_product, "addmm baddbmm"),
    "scaled_dot_product_attention": _attention,
    "einsum": _einsum,
    "embedding": _embedded,
    "index_select": _index_selected,
    **_rules(_indexed, "index _unsafe_index"),
    "index_put": _put,
    "gather": _gathered,
    **_rules(_scattered, "scatter scatter_add"),
    "select": _picked,
    **_rules(_part, "slice narrow chunk split split_with_sizes"),
    **_rules(_reshaped, "view reshape _unsafe_view flatten unflatten"),
    **_rules(_swapped, "transpose t"),
    "permute": _permuted,
    "numpy_T": _reversed,
    "squeeze": _squeezed,
    "unsqueeze": _unsqueezed,
    "expand": _expanded,
    "cat": _joined,
    "stack": _stacked,
    **_rules(_padded, "pad constant_pad_nd"),
    **_rules(
        _filled, "sym_size ones zeros full new_ones new_zeros new_full ones_like zeros_like full_like scalar_tensor"
    ),
    **_rules(_numbered, "arange eye linspace tril_indices triu_indices"),
}
