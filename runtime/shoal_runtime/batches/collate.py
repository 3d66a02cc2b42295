"""Collation of rows that `preprocess` returned to the argument of `forward`.

Dicts become a dict of tensors, tensors or arrays one tensor, and other values a list.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from shoal_runtime.batches.padding import pad_and_stack
from shoal_runtime.signature.spec import Rule
from shoal_runtime.tensors.library import Library, Tensor

VALUE: Final = "value"
"""Tensor name in messages about rows that are not dicts."""


def collate(rows: Sequence[Any], rules: Sequence[Rule], library: Library) -> Any:
    """Collate preprocessed rows to one batch.

    Args:
        rows: at least one row, all of the same form (see `misfits`).
        rules: padding rules by tensor name for dicts; for other rows only the first rule applies.
        library: tensor library of the rows.

    Raises:
        ValueError: keys of dicts differ, or shapes of tensors differ and no rule pads them.
    """
    if not all(isinstance(row, dict) for row in rows):
        if not all(_has_shape(row, library) for row in rows):
            return list(rows)
        rule = rules[0] if rules else None
        return _stack(VALUE, [library.as_tensor(row) for row in rows], rule, library)[0]
    by_name = {rule.name: rule for rule in rules}
    batch: dict[str, Any] = {}
    masks: dict[str, Tensor] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        # Values other than arrays and numbers stay a list.
        if not all(_has_shape(v, library) or isinstance(v, np.generic | int | float) for v in values):
            batch[name] = values
            continue
        tensors = [library.as_tensor(value) for value in values]
        if not all(_has_shape(value, library) for value in values):
            # Stacking would convert one request's integer to the floating-point type of another request.
            kinds = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})
            if len(kinds) > 1:
                kind = " in one row and ".join(kinds)
                raise ValueError(f"preprocess returned {name} as {kind} in another. Return one type for all rows")
        rule = by_name.get(name)
        batch[name], mask = _stack(name, tensors, rule, library)
        if rule is not None and rule.pad_mask is not None and mask is not None:
            masks.setdefault(rule.pad_mask, mask)
    # A mask that preprocess returned replaces the generated one.
    return {**masks, **batch}


def misfits(rows: Sequence[Any], rules: Sequence[Rule], library: Library) -> dict[int, str]:
    """Return the rows whose form differs from that of most rows, with an error for each.

    The form is the keys, types and shapes; axes that `rules` pad may differ in length.
    """
    by_name: Mapping[str, Rule] = {rule.name: rule for rule in rules}
    forms = []
    for row in rows:
        if isinstance(row, dict):
            parts = [f"{key}: {_shape(row[key], by_name.get(key), library)}" for key in sorted(row, key=str)]
            forms.append("{" + ", ".join(parts) + "}")
        else:
            forms.append(_shape(row, rules[0] if rules else None, library))
    usual = Counter(forms).most_common(1)[0][0]
    return {
        index: f"preprocess returned {form}, the other rows of the batch are {usual}"
        for index, form in enumerate(forms)
        if form != usual
    }


def _stack(name: str, tensors: Sequence[Tensor], rule: Rule | None, library: Library) -> tuple[Tensor, Tensor | None]:
    if rule is not None and rule.pad_axis is not None:
        return pad_and_stack(tensors, rule, library)
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        raise ValueError(f"{name} has rows of shapes {sorted(map(list, shapes))}")
    return library.stack(tensors), None


def _has_shape(value: object, library: Library) -> bool:
    return isinstance(value, np.ndarray) or library.is_tensor(value)


def _shape(value: Any, rule: Rule | None, library: Library) -> str:
    if not _has_shape(value, library):
        return "a value"
    dims: list[int | str] = list(value.shape)
    if rule is not None and rule.pad_axis is not None and rule.pad_axis <= len(dims):
        dims[rule.pad_axis - 1] = "any"
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, dims))}]"
