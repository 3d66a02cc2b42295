"""Match a request's columns with a model's inputs by name, or by position if they have no names.

An input with ``columns`` consists of these columns; an input without ``columns`` is one column.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import numpy as np

from shoal_proxy.codecs.base import shown
from shoal_proxy.codecs.tensors import from_json
from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_schema.wire.datatypes import DTYPES, Array, first_rounded
from shoal_schema.wire.elements import bytes_array

SHOWN_NAMES: Final = 5
"""Most names in a message."""
FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})
INTEGERS: Final = frozenset(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
NUMBERS: Final = FLOATS | INTEGERS
_COMPARED: Final = 64
"""Most names searched for a similar one: each costs about 20 us."""


class InputMatch:
    """The keys under which each row contains the values of one model input.

    Without keys, the whole row is the input's value. ``named``: whether keys are names rather than positions.
    """

    __slots__ = ("columns", "flags", "key", "spec")

    def __init__(self, spec: InputSpec, *, key: Any = None, columns: Sequence[Any] = (), named: bool = True) -> None:
        self.spec = spec
        self.key = key
        self.columns = columns
        self.flags: bool = named and (bool(columns) or (key is not None and holds_one_number(spec)))
        """Whether true and false are accepted as 1 and 0: in named columns of numbers, as pandas writes them."""

    @property
    def keys(self) -> Sequence[Any]:
        """Return the input's keys in a row."""
        return self.columns or ([] if self.key is None else [self.key])


def holds_one_number(spec: InputSpec) -> bool:
    """Return whether each row of an input is one number."""
    return spec.datatype in NUMBERS and has_rows_of_one(spec)


def has_rows_of_one(spec: InputSpec) -> bool:
    """Return whether each row of an input is one value."""
    return spec.shape in ((-1,), (-1, 1))


def match(keys: Mapping[str, Any], first: Any, signature: ModelSignature, *, ignore_extra: bool) -> list[InputMatch]:
    """Match a table's columns with the model's inputs.

    Args:
        keys: by column name, the key of the column's value in each row: a name or a position.
        first: the first row.
        signature: signature of the model.
        ignore_extra: whether unknown columns are ignored.

    Raises:
        InvalidRequest: a column is missing or unknown.
    """
    found: list[InputMatch] = []
    missing: list[str] = []
    used: set[str] = set()
    for name, spec in signature.inputs.items():
        columns = spec.columns if signature.columns else ()
        # An input may have the name of one of its columns: a list is then the whole input, else it is the column.
        if name in keys and not (name in columns and type(first[keys[name]]) is not list):
            found.append(InputMatch(spec, key=keys[name]))
            used.add(name)
        elif columns:
            there = [column for column in columns if column in keys]
            used.update(there)
            if len(there) == len(columns):
                found.append(InputMatch(spec, columns=[keys[column] for column in columns]))
            elif there or not spec.optional:
                missing += [column for column in columns if column not in keys]
        elif not spec.optional:
            missing.append(name)
    extra = [name for name in keys if name not in used] if len(used) < len(keys) else []
    if missing or extra:
        check_names(extra, missing, signature, ignore_extra=ignore_extra)
    return found


def check_names(extra: Sequence[str], missing: Sequence[str], signature: ModelSignature, *, ignore_extra: bool) -> None:
    """Reject missing column names, and unknown ones unless ``ignore_extra``."""
    # A column given both alone and in its whole input is ambiguous.
    twice = [name for name in extra if name in signature.columns]
    if twice:
        whole = signature.columns[twice[0]][0]
        raise InvalidRequest(f"column {shown(twice[0])} is given twice: it is also part of the given input {whole!r}")
    faults: list[str] = []
    if extra and not ignore_extra:
        faults.append(f"unknown {'column' if signature.columns else 'input'} {listed(extra)}")
    if missing:
        kind = "column" if missing[0] in signature.columns else "input"
        some = f"{kind}s {listed(missing)} are" if len(missing) > 1 else f"{kind} {listed(missing)} is"
        # Suggest a name that differs in case only, otherwise a similar one.
        same = [other for other in extra if other.lower() == missing[0].lower()]
        near = same or get_close_matches(missing[0], extra[:_COMPARED], n=1)
        faults.append(f"{some} missing" + (f"; the request has {shown(near[0])} instead" if near else ""))
    elif faults:
        faults.append(f"the model has {listed(list(signature.columns or signature.inputs))}")
    if faults:
        raise InvalidRequest("; ".join(faults))


def listed(names: Sequence[str]) -> str:
    """Format the first `SHOWN_NAMES` names and the number of others."""
    first = ", ".join([shown(name) for name in names[:SHOWN_NAMES]])
    return first if len(names) <= SHOWN_NAMES else f"{first} and {len(names) - SHOWN_NAMES} more"


def check_twice(names: Sequence[str]) -> None:
    """Reject a table with two columns of the same name."""
    if len(set(names)) == len(names):
        return
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidRequest(f"the table has a column twice: {shown(name)}")
        seen.add(name)


def have_default_names(names: Mapping[str, Any], signature: ModelSignature) -> bool:
    """Return whether columns have only the numbers that pandas uses as names.

    False if a number is also the name of an input or column of the model.

    Raises:
        InvalidRequest: the names are 0 to n - 1, but not in ascending order, which is ambiguous.
    """
    if not are_default_names(list(names)):
        return False
    for name in names:
        if name in signature.columns or name in signature.inputs:
            return False
    if list(names) != [str(at) for at in range(len(names))]:
        raise InvalidRequest(
            f"the columns are named {listed(list(names))}: numbers that are not in ascending order, and not column "
            "names of the model. Send the rows without names, in the column order of the model's training data"
        )
    return True


def are_default_names(names: Sequence[str]) -> bool:
    """Return whether names are 0 to n - 1, in any order."""
    return set(names) == {str(at) for at in range(len(names))}


def same_keys(rows: list[Any], signature: ModelSignature) -> list[Any]:
    """Add keys that a row does not have but others do, with the value null.

    Returns the rows, which are JSON objects.

    Raises:
        InvalidRequest: a row is not an object, or a non-nullable column is missing.
    """
    names = rows[0].keys() if type(rows[0]) is dict else None
    equal = True
    for number, row in enumerate(rows):
        if type(row) is not dict:
            expected = listed(list(signature.columns or signature.inputs))
            raise InvalidRequest(f"instance {number} must be an object with {expected}")
        equal = equal and row.keys() == names
    if equal:
        return rows
    # All keys, in the order of their first occurrence.
    nulls = dict.fromkeys(chain.from_iterable(rows))
    for number, row in enumerate(rows):
        for name in nulls.keys() - row.keys() if len(row) < len(nulls) else ():
            spec = signature.inputs.get(signature.columns[name][0] if name in signature.columns else name)
            if spec is not None and not spec.nullable:
                raise InvalidRequest(f"instance {number} has no {shown(name)}, unlike other instances")
    return [{**nulls, **row} for row in rows]


def stack(spec: InputSpec, rows: Iterable[Any], keys: Sequence[Any], *, flags: bool) -> Array:
    """Return an input's array from the values under ``keys`` in each row."""
    picked = map(itemgetter(*keys), rows)
    flat = list(picked if len(keys) == 1 else chain.from_iterable(picked))
    return _reshaped(spec, from_json(spec, flat, flags=flags), len(keys), len(flat))


def stack_columns(spec: InputSpec, columns: Sequence[list[Any]]) -> Array:
    """Return an input's array from its columns, each a list of one value per row."""
    # A column may also be a list of one-element lists.
    columns = [
        [value[0] if type(value) is list and len(value) == 1 else value for value in column]
        if column and type(column[0]) is list
        else column
        for column in columns
    ]
    lengths = set(map(len, columns))
    if len(lengths) > 1:
        raise InvalidRequest(f"the columns of input {spec.name!r} differ in their number of rows: {sorted(lengths)}")
    flat = list(chain.from_iterable(zip(*columns, strict=True)))
    return _reshaped(spec, from_json(spec, flat, flags=True), len(columns), len(flat))


def _reshaped(spec: InputSpec, array: Array, width: int, size: int) -> Array:
    if array.size != size:
        raise InvalidRequest(f"the columns of input {spec.name!r} must have one value per row, not lists")
    return array.reshape(-1, width)


def as_column(spec: InputSpec, array: Array) -> Array:
    """Return an array of one value per row in the input's shape: [n] or [n, 1]."""
    if array.ndim == len(spec.shape) or not array.ndim or array.size != array.shape[0]:
        return array
    # Only dimensions of one or free size can be added.
    for size in spec.shape[1:]:
        if size not in (1, -1):
            return array
    return array.reshape(array.shape[:1] + (1,) * (len(spec.shape) - 1))


def converted(spec: InputSpec, array: Array, datatype: str) -> Array:
    """Convert numbers of another datatype to the input's datatype.

    Floating-point numbers are rounded. A datetime's numbers become digits, true and false become 1 and 0.

    Raises:
        InvalidRequest: a number is out of the input's range, or a fraction for an integer.
    """
    if spec.datatype == "BYTES":
        # The runtime reads a datetime's digits as a number.
        return bytes_array([b"%d" % number for number in array.ravel().tolist()], array.shape)
    wanted = DTYPES[spec.datatype]
    if array.dtype == wanted or not array.size:
        return array.astype(wanted, copy=False)
    # Overflows are found by `_are_held`, not by numpy's warnings.
    with np.errstate(all="ignore"):
        made: Array = array.astype(wanted)
        if not _are_held(array, made):
            raise InvalidRequest(
                f"input {spec.name!r} is {spec.datatype}, which cannot represent all of the given {datatype} numbers"
            )
    return made


def _are_held(given: Array, made: Array) -> bool:
    """Return whether ``made`` holds the values of ``given`` after conversion.

    Integers must be exact and in range; a finite number must not become infinite. numpy's warnings must be off.
    """
    if made.dtype.kind == "f":
        return bool((np.isfinite(made) | ~np.isfinite(given)).all())
    limits = np.iinfo(made.dtype)
    if given.dtype.kind != "f":
        return bool(int(given.min()) >= limits.min and int(given.max()) <= limits.max)
    rounded = first_rounded(given.dtype)
    given = given.astype(np.float64)
    # From `rounded` on, the floating-point type cannot represent every integer, so the value may be rounded already.
    held = (np.abs(given) < rounded) & (given >= limits.min) & (given <= limits.max)
    return bool((held & (np.trunc(given) == given)).all())
