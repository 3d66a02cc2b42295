"""Match column names with a model's inputs: one name for each input, or one for each of its columns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.signature import Signature, Tensor

SHOWN_NAMES: Final = 5
"""Names listed in a message."""
_COMPARED: Final = 64
"""Names searched for the nearest one."""


def places_of(
    signature: Signature,
    names: Collection[Any],
    is_column: Callable[[str], bool] = lambda name: True,
    *,
    ignore_extra: bool = False,
) -> dict[str, Sequence[str] | None]:
    """Return the names of the columns that form each input.

    Only inputs that have columns are returned. None instead of names means a single column with the input's name.

    Args:
        signature: the model's signature.
        names: the column names, in any order.
        is_column: decides whether a name shared by an input and one of its columns means the column.
        ignore_extra: ignore names that the model does not have.

    Raises:
        InvalidInput: a column is missing, duplicated, or unknown to the model.
    """
    found: dict[str, Sequence[str] | None] = {}
    missing: list[str] = []
    used: set[Any] = set()
    there = names if isinstance(names, Mapping | set | frozenset) else set(names)
    for tensor in signature.inputs:
        columns = tensor.columns if signature.batches else ()
        # An input and one of its columns may have the same name.
        if tensor.name in there and not (tensor.name in columns and is_column(tensor.name)):
            found[tensor.name] = None
            used.add(tensor.name)
        elif columns:
            # All columns, or none if the input is optional.
            present = [name for name in columns if name in there]
            used.update(present)
            if len(present) == len(columns):
                found[tensor.name] = columns
            elif present or not tensor.optional:
                missing += [name for name in columns if name not in there]
        elif not tensor.optional:
            missing.append(tensor.name)
    extra = [name for name in names if name not in used]
    if missing or (extra and not ignore_extra):
        raise InvalidInput(_mismatch([] if ignore_extra else extra, missing, signature, extra))
    return found


def own_names(signature: Signature) -> set[str]:
    """Return the names of a model's inputs and of their columns."""
    return {name for tensor in signature.inputs for name in (tensor.name, *tensor.columns)}


def only_input(signature: Signature) -> Tensor | None:
    """Return the only required input (or the only input); None if there are several."""
    required = [tensor for tensor in signature.inputs if not tensor.optional] or list(signature.inputs[:1])
    return required[0] if len(required) == 1 else None


def matched_spelling(names: Sequence[Any], signature: Signature) -> list[Any]:
    """Convert integer column names to text where the model has that name.

    Other names are returned unchanged.
    """
    own = own_names(signature)
    return [str(name) if is_number(name) and str(name) in own else name for name in names]


def is_number(name: Any) -> bool:
    """Return whether a name is an integer, the pandas default for unnamed columns."""
    return hasattr(name, "__index__") and not isinstance(name, bool | np.bool_)


def default_names(names: Sequence[Any]) -> bool:
    """Return whether columns are named 0 to n - 1 in this order, the pandas default for unnamed columns."""
    return _as_texts(names) == [str(number) for number in range(len(names))]


def check_order(names: Sequence[Any], signature: Signature) -> None:
    """Raise InvalidInput if columns are named 0 to n - 1 in another order, which is ambiguous."""
    if not default_names(names) and set(_as_texts(names)) == {str(number) for number in range(len(names))}:
        raise InvalidInput(
            f"the columns are named {listed(names)}: these numbers are out of order, and are not column names of model "
            f"{signature.name}. Pass the values without names (`frame.to_numpy()`), in the order of the columns "
            "that the model was"
            " trained with"
        )


def _as_texts(names: Sequence[Any]) -> list[Any]:
    return [str(name) if is_number(name) else name for name in names]


def are_places(labels: Sequence[Any]) -> bool:
    """Return whether labels are positions, such as 0, 1, 2: neither text nor the tuples of a pandas MultiIndex."""
    return not any(isinstance(label, str | bytes | tuple) for label in labels)


def nameless(signature: Signature, names: str, remedy: str) -> str:
    """Return the error message for named columns that cannot be matched.

    The model has no column names. ``names`` are the client's, and ``remedy`` is what to pass instead.
    """
    return (
        f"model {signature.name} has no column names, but the columns are named {names}. Pass {remedy}, in the order of"
        " the columns that the model was trained with"
    )


def check_twice(names: Sequence[Any]) -> None:
    """Raise InvalidInput if a column name is duplicated."""
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise InvalidInput(f"the column {twice!r} is duplicated")


def listed(names: Sequence[Any]) -> str:
    """Return the first names, and the count of the others."""
    first = ", ".join([f"{name:.100}" if isinstance(name, str) else repr(name) for name in names[:SHOWN_NAMES]])
    return first if len(names) <= SHOWN_NAMES else f"{first} and {len(names) - SHOWN_NAMES} more"


def _mismatch(unknown: Sequence[Any], missing: Sequence[str], signature: Signature, extra: Sequence[Any]) -> str:
    """Return the message for ``unknown`` and ``missing`` names; ``extra`` are candidates for a suggestion."""
    columns = {name for tensor in signature.inputs for name in tensor.columns}
    parts: list[str] = []
    if unknown:
        kind = "column" if columns else "input"
        parts.append(f"the model has no {kind} {listed([f'{name!r:.100}' for name in unknown])}")
    if parts and len(unknown) == len(missing) == 1:
        parts.append(f"did you mean {missing[0]}?")
    elif missing:
        kind = "column" if missing[0] in columns else "input"
        some = f"{kind}s {listed(missing)} are" if len(missing) > 1 else f"{kind} {missing[0]} is"
        # A name that differs in case only comes before one that is merely similar.
        others = [str(name) for name in extra]
        near = [other for other in others if other.lower() == missing[0].lower()]
        near = near or get_close_matches(missing[0], others[:_COMPARED], n=1)
        parts.append(f"{some} missing" + (f", but there is {near[0]!r}" if near else ""))
    return "; ".join(parts)
