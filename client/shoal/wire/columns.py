"""Names of columns against those of a model: each input has its own, or one for each of its columns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

import numpy as np

from shoal.errors import InvalidInput
from shoal.wire.signature import Signature, Tensor

SHOWN_NAMES: Final = 5
_COMPARED: Final = 64
"""Names among which the nearest is looked for."""


def places_of(
    signature: Signature,
    names: Collection[Any],
    is_column: Callable[[str], bool] = lambda name: True,
    *,
    ignore_extra: bool = False,
) -> dict[str, Sequence[str] | None]:
    """Return the inputs that there are among named columns: by input its columns, None for one under its own name.

    Args:
        signature: the model's.
        names: of the columns, in any order.
        is_column: whether a name that an input shares with one of its columns is the column.
        ignore_extra: whether names that the model does not have are ignored.

    Raises:
        InvalidInput: a column is missing, is there twice, or is none of the model's.
    """
    found: dict[str, Sequence[str] | None] = {}
    missing: list[str] = []
    used: set[Any] = set()
    there = names if isinstance(names, Mapping | set | frozenset) else set(names)
    for tensor in signature.inputs:
        columns = tensor.columns if signature.batches else ()
        if tensor.name in there and not (tensor.name in columns and is_column(tensor.name)):
            found[tensor.name] = None
            used.add(tensor.name)
        elif columns:
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
        raise InvalidInput(_difference(extra, missing, signature, ignore_extra=ignore_extra))
    return found


def own_names(signature: Signature) -> set[str]:
    """Return the names that a model has: those of inputs and of their columns."""
    return {name for tensor in signature.inputs for name in (tensor.name, *tensor.columns)}


def only_input(signature: Signature) -> Tensor | None:
    """Return the only input that a request must have; None if there are several."""
    required = [tensor for tensor in signature.inputs if not tensor.optional] or list(signature.inputs[:1])
    return required[0] if len(required) == 1 else None


def respelled(names: Sequence[Any], signature: Signature) -> list[Any]:
    """Return names of columns, numbers among them as texts where the model has such names."""
    own = own_names(signature)
    return [str(name) if is_number(name) and str(name) in own else name for name in names]


def is_number(name: Any) -> bool:
    """Return whether a name is a whole number, as pandas calls columns that have no names."""
    return hasattr(name, "__index__") and not isinstance(name, bool | np.bool_)


def default_names(names: Sequence[Any]) -> bool:
    """Return whether columns are called 0 to n - 1 in this order, as pandas calls those that have no names."""
    return _as_texts(names) == [str(number) for number in range(len(names))]


def check_order(names: Sequence[Any], signature: Signature) -> None:
    """Raise InvalidInput where columns are called 0 to n - 1 in another order: that order may be meant, or not."""
    if not default_names(names) and set(_as_texts(names)) == {str(number) for number in range(len(names))}:
        raise InvalidInput(
            f"the columns are called {listed(names)}, numbers that are no names of model {signature.name}, and not in"
            " their order: give the values without names (`frame.to_numpy()`), in the order of the columns that the"
            " model was trained with"
        )


def _as_texts(names: Sequence[Any]) -> list[Any]:
    return [str(name) if is_number(name) else name for name in names]


def are_places(labels: Sequence[Any]) -> bool:
    """Return whether labels are no names of columns: neither texts nor several levels of them."""
    return not any(isinstance(label, str | bytes | tuple) for label in labels)


def nameless(signature: Signature, names: str, remedy: str) -> str:
    """Return why names cannot be matched with a model that has none."""
    return (
        f"model {signature.name} does not have names of columns, and these are given: {names}. Give {remedy}, in the"
        " order of the columns that the model was trained with"
    )


def check_twice(names: Sequence[Any]) -> None:
    """Raise InvalidInput where a column is there twice."""
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise InvalidInput(f"the column {twice!r} is there twice")


def listed(names: Sequence[Any]) -> str:
    """Return the first names, and how many more there are."""
    told = ", ".join([f"{name:.100}" if isinstance(name, str) else repr(name) for name in names[:SHOWN_NAMES]])
    return told if len(names) <= SHOWN_NAMES else f"{told} and {len(names) - SHOWN_NAMES} more"


def _difference(extra: Sequence[Any], missing: Sequence[str], signature: Signature, *, ignore_extra: bool) -> str:
    columns = {name for tensor in signature.inputs for name in tensor.columns}
    told: list[str] = []
    if extra and not ignore_extra:
        kind = "column" if columns else "input"
        told.append(f"the model has no {kind} {listed([f'{name!r:.100}' for name in extra])}")
    if told and len(extra) == len(missing) == 1:
        told.append(f"did you mean {missing[0]}?")
    elif missing:
        kind = "column" if missing[0] in columns else "input"
        some = f"{kind}s {listed(missing)} are" if len(missing) > 1 else f"{kind} {missing[0]} is"
        near = _nearest(missing[0], [str(name) for name in extra])
        told.append(f"{some} missing" + (f", and there is {near!r}" if near else ""))
    return "; ".join(told)


def _nearest(name: str, others: Sequence[str]) -> str:
    for other in others:
        if other.lower() == name.lower():
            return other
    near = get_close_matches(name, others[:_COMPARED], n=1)
    return near[0] if near else ""
