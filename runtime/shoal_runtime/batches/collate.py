"""What `preprocess` returned for each row, to what `forward` takes.

dicts -> a dict of tensors; tensors or arrays -> one tensor; anything else -> a plain list.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from shoal_runtime.batches.padding import pad_and_stack
from shoal_runtime.handlers.spec import Rule

VALUE: Final = "value"
"""The name under which rows that are not dicts are looked up in the rules."""


def collate(rows: Sequence[Any], rules: Sequence[Rule] = ()) -> Any:
    """Make one batch of preprocessed rows, at least one and all of one form.

    Raises:
        ValueError: dicts with different keys, or tensors of different shapes and no rule for them.
    """
    if all(isinstance(row, dict) for row in rows):
        return _stack_dicts(rows, rules)
    if all(isinstance(row, torch.Tensor | np.ndarray) for row in rows):
        rule = rules[0] if rules else None
        return _stack(VALUE, [as_tensor(row) for row in rows], rule)[0]
    return list(rows)


def misfits(rows: Sequence[Any], rules: Sequence[Rule] = ()) -> dict[int, str]:
    """Return the rows that do not fit the most common kind of row, each with the reason.

    One odd row must fail alone: rows are compared by their form, with the axes of `rules` left out.
    """
    forms = [_form(row, rules) for row in rows]
    usual = Counter(forms).most_common(1)[0][0]
    return {
        index: f"preprocess gave {form}, the other rows of the batch {usual}"
        for index, form in enumerate(forms)
        if form != usual
    }


def as_tensor(value: Any) -> Tensor:
    """Return an array or number as a tensor that shares its memory where it can.

    Raises:
        ValueError: a masked array hides some of its numbers.
    """
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        refuse_hidden(value)
        # Four times as quick as as_tensor, which first asks what it has.
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    return torch.as_tensor(value)


def refuse_hidden(array: Any) -> None:
    """Raise ValueError where numbers are masked: no tensor can say so, and its reader would take them for real."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.is_masked(array):
        raise ValueError("a masked array hides some of its numbers: fill them first (array.filled(...))")


def _stack_dicts(rows: Sequence[dict[str, Any]], rules: Sequence[Rule]) -> dict[str, Any]:
    by_name = {rule.name: rule for rule in rules}
    batch: dict[str, Any] = {}
    masks: dict[str, Tensor] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if not all(isinstance(v, torch.Tensor | np.ndarray | np.generic | int | float) for v in values):
            batch[name] = values
            continue
        tensors = [as_tensor(value) for value in values]
        if not all(isinstance(value, torch.Tensor | np.ndarray) for value in values):
            # torch would round the one caller's integer to fit the other's fraction.
            kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
            if len(kinds) > 1:
                kind = " in one row and ".join(kinds)
                raise ValueError(f"{name} is {kind} in another: let preprocess return one type for it")
        rule = by_name.get(name)
        batch[name], mask = _stack(name, tensors, rule)
        if rule is not None and rule.pad_mask is not None and mask is not None:
            masks.setdefault(rule.pad_mask, mask)
    return {**masks, **batch}


def _stack(name: str, tensors: Sequence[Tensor], rule: Rule | None) -> tuple[Tensor, Tensor | None]:
    if rule is not None and rule.pad_axis is not None:
        return pad_and_stack(tensors, rule)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise ValueError(f"{name} has rows of shapes {sorted(map(list, shapes))}")
    return torch.stack(list(tensors)), None


def _form(row: Any, rules: Sequence[Rule]) -> str:
    if isinstance(row, dict):
        by_name: Mapping[str, Rule] = {rule.name: rule for rule in rules}
        parts = [f"{key}: {_shape(row[key], by_name.get(key))}" for key in sorted(row, key=str)]
        return "{" + ", ".join(parts) + "}"
    return _shape(row, rules[0] if rules else None)


def _shape(value: Any, rule: Rule | None) -> str:
    if not isinstance(value, torch.Tensor | np.ndarray):
        return "a value"
    dims: list[int | str] = list(value.shape)
    if rule is not None and rule.pad_axis is not None and rule.pad_axis <= len(dims):
        dims[rule.pad_axis - 1] = "any"
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, dims))}]"
