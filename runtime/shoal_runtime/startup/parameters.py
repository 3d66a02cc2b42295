"""Torch modules of a handler, and the size of their parameters."""

import sys
from collections.abc import Iterator
from typing import Any, Final

MODULES_DEEP: Final = 2
"""Depth at which a handler keeps its network: an attribute, or an attribute of that object."""


def count_parameters(handler: Any) -> dict[str, int] | None:
    """Return number and bytes of the parameters and buffers in a handler's torch modules, or None."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    # By identity: modules may share tensors.
    tensors: dict[int, Any] = {}
    for module in modules_of(handler, torch.nn.Module):
        tensors |= {id(each): each for each in (*module.parameters(), *module.buffers())}
    count = sum(each.numel() for each in tensors.values())
    return {"count": count, "bytes": sum(map(_stored_bytes, tensors.values()))} if count else None


def modules_of(owner: Any, kind: type[Any], depth: int = MODULES_DEEP) -> Iterator[Any]:
    """Yield the outermost objects of a class in an object's attributes."""
    if isinstance(owner, kind):
        yield owner
    elif depth:
        for each in list(getattr(owner, "__dict__", {}).values()):
            yield from modules_of(each, kind, depth - 1)


def _stored_bytes(tensor: Any) -> int:
    """Return the bytes of a tensor; of a quantized one, the bytes of its integers and scales."""
    # Quantized weights are tensors that report the type and size of their numbers once converted.
    if type(tensor).__name__ in ("Parameter", "Tensor") or not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    names, _ = tensor.__tensor_flatten__()
    return sum(_stored_bytes(getattr(tensor, name)) for name in names)
