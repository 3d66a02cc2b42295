"""Allowlist of torch operators that an untrusted model file may call.

A graph names its operators, and torch looks up the names. Without the list, a name could refer to any function of
torch, including access to files, sockets or raw memory. Operators in the list only compute.
"""

import re
from typing import Final

NAMESPACES: Final = frozenset(
    {
        *("aten", "prims", "quantized", "_quantized", "quantized_decomposed", "sparse", "quantization"),
        *("mkldnn", "mkl", "onednn", "mkldnn_prepacked", "onnx", "torchvision", "torchaudio", "torchao"),
    }
)
HIGHER_ORDER: Final = frozenset(
    {
        *("cond", "while_loop", "map_impl", "scan", "associative_scan", "out_dtype", "strict_mode", "invoke_subgraph"),
        *("wrap_with_set_grad_enabled", "wrap_with_autocast", "hints_wrapper", "flex_attention"),
        *("auto_functionalized", "auto_functionalized_v2"),
    }
)
PYTHON: Final = frozenset(
    {
        *("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "mul", "add", "sub", "floordiv", "mod", "pow"),
        *("truediv", "and_", "or_", "not_", "lshift", "rshift", "abs", "getitem"),
    }
)
MATH: Final = frozenset({"trunc", "ceil", "floor"})
SYMBOLIC: Final = frozenset(
    {"sym_int", "sym_float", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sqrt", "sym_sum", "_sym_sqrt"}
)
BITWISE: Final = frozenset(
    f"__{prefix}{name}__" for prefix in ("", "i") for name in ("and", "or", "xor", "lshift", "rshift")
)
"""Operators whose names look like private attributes of Python."""
REFUSED: Final = re.compile(
    r"from_file|save|data_ptr|rpc_\w+|to_here|_sparse_\w+_unsafe|_reinterpret_tensor|PythonOp|IgnoredPythonOp"
)
"""Operators that access files, raw addresses or the network, skip bounds checks, or run Python."""

_GROUPS: Final = {
    ("_operator",): PYTHON,
    ("math",): MATH,
    ("torch",): SYMBOLIC,
    ("torch", "ops", "higher_order"): HIGHER_ORDER,
}


def may_call(target: str) -> bool:
    """Return whether a model file may call an operator, such as `torch.ops.aten.add.Tensor` or `_operator.mul`."""
    # Operators of Python and torch by their full path, and torch.ops.NAMESPACE.NAME.OVERLOAD.
    *path, name = target.split(".")
    if name in _GROUPS.get(tuple(path), ()):
        return True
    if len(path) != 4 or path[:2] != ["torch", "ops"] or path[2] not in NAMESPACES:
        return False
    if not path[3].isidentifier() or not name.isidentifier() or name.startswith("__"):
        return False
    return path[3] in BITWISE or not (path[3].startswith("__") or REFUSED.fullmatch(path[3]))
