"""Columns of the table that a model was trained on, and conversion of a batch to that table.

A model with only numeric columns has one input tensor that names its columns. Any other model has one input per column.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from math import nan
from typing import Any, Final

import numpy as np
import orjson

from shoal_runtime.errors import LoadError
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import DTYPES, FIRST_ROUNDED, Array, first_rounded

INPUT: Final = "input-0"
"""KServe's input name, for files without names."""
TEXT: Final = "text/plain"
DATETIME: Final = "datetime"
SHOWN: Final = 5
"""Maximum names in one message."""
_ISO_8601: Final = re.compile(r"\d{4}-?\d\d-?\d\d([T ]\d[\d:]*(\.\d+)?(Z|[+-]\d[\d:]*)?)?", re.ASCII)
"""Calendar dates and times; pandas checks the numbers."""
_FLOATING: Final = ("FP32", "FP64")

Batch = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table that a model was trained on."""

    name: str
    """Name in training."""
    datatype: str = "FP64"
    """Datatype of the values in requests."""
    categories: tuple[Any, ...] | None = None
    """Values of a pandas category in the order of their codes; None for other columns."""
    rejects_unknown: bool = False
    """Whether a value outside `categories` is an error; otherwise it counts as missing."""
    missing: Any = nan
    """The model's value for null in a column of texts."""
    example: Any = None
    """A valid value."""
    known: tuple[Any, ...] = ()
    """Values from training."""
    used: bool = True
    """Whether the model reads the column."""
    logical_type: str | None = None
    """As in `TensorSpec`."""
    unit: str | None = None
    """As in `TensorSpec`."""
    input: str | None = None
    """Name of the input, if it differs from `name`."""


def category(name: str, values: Sequence[Any], numbers: str = "FP64", *, rejects_unknown: bool = False) -> Column:
    """Return a `Column` for a pandas category.

    Args:
        name: name of the column.
        values: categories in the order of their codes.
        numbers: floating-point datatype for numeric categories. Integers use it too, because floats can represent null.
        rejects_unknown: see `Column`.

    Raises:
        LoadError: the categories have several types, or a type without a datatype.
    """
    known = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    kinds = {type(value) for value in known}
    if kinds <= {str}:
        datatype = "BYTES"
    elif kinds == {bool}:
        datatype = "BOOL"
    elif kinds == {int} and max(map(abs, known)) >= FIRST_ROUNDED:
        # Floating-point numbers would round these integers, so the column keeps the type of training.
        unsigned = any(isinstance(value, np.unsignedinteger) for value in values) or max(known) >= 2**63
        datatype = "UINT64" if unsigned else "INT64"
    elif kinds <= {int, float}:
        rounded = numbers == "FP32" and max(map(abs, known)) >= first_rounded(DTYPES["FP32"])
        datatype = "FP64" if rounded else numbers
    else:
        types = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise LoadError(f"the categories of column {name!r} have the types {types}. Train with only texts or numbers")
    example = known[0] if known else None
    return Column(name, datatype, categories=known, rejects_unknown=rejects_unknown, example=example)


def inputs_of(columns: Sequence[Column], *, named: bool = True) -> tuple[TensorSpec, ...]:
    """Return model inputs for columns: one tensor of numbers or texts, or one input per column.

    Args:
        columns: columns in the model's order.
        named: whether the model stores column names.

    Raises:
        LoadError: a column's name is not valid for an input.
    """
    datatypes = {column.datatype for column in columns}
    # One tensor only if all columns have one datatype.
    [datatype, *others] = datatypes
    together = not others and all(column.used and column.logical_type is None for column in columns)
    if together and (datatype in _FLOATING or (datatype == "BYTES" and not named)):
        names = [column.name for column in columns] if named else ()
        text = TEXT if datatype == "BYTES" else None
        return (TensorSpec(INPUT, datatype, [ANY, len(columns)], columns=names, content_type=text),)
    inputs = []
    for column in columns:
        if not column.used:
            continue
        is_text = column.datatype == "BYTES"
        try:
            spec = TensorSpec(
                column.name,
                column.datatype,
                [ANY],
                example=(column.example or None) if is_text and isinstance(column.example, str) else None,
                content_type=TEXT if is_text else None,
                logical_type=column.logical_type,
                unit=column.unit,
            )
        except ValueError as error:
            raise LoadError(f"column {column.name!r} of the model cannot be an input: {error}") from None
        inputs.append(spec)
    return tuple(inputs)


def rows_of(features: int, datatype: str) -> tuple[TensorSpec, ...]:
    """Return one input tensor for ``features`` unnamed columns."""
    return (TensorSpec(INPUT, datatype, [ANY, features]),)


def declared_columns(inputs: Sequence[TensorSpec]) -> list[Column]:
    """Return a column for each declared input, with the input's attributes."""
    return [_merged(Column(spec.name), spec) for spec in inputs]


def reconciled(
    inputs: Sequence[TensorSpec], columns: Sequence[Column], *, named: bool = True
) -> tuple[tuple[TensorSpec, ...], tuple[Column, ...]]:
    """Match declared inputs with the model's columns, and merge their attributes.

    Args:
        inputs: inputs declared in model.toml or MLmodel, in any order.
        columns: columns stored in the model.
        named: whether the model stores column names; otherwise a single tensor may declare them.

    Raises:
        LoadError: an input is not a column of the model, a column is missing, or a tensor has another width.
    """
    if len(inputs) == 1 and len(inputs[0].shape) > 1:
        [spec] = inputs
        if tuple(spec.shape[1:]) not in ((len(columns),), (ANY,)):
            raise LoadError(f"input {spec.name} has shape {list(spec.shape)}; the model has {len(columns)} columns")
        whole = replace(spec, shape=[spec.shape[0], len(columns)])
        if not named or spec.datatype == "BYTES":
            return (whole,), tuple(columns)
        names = spec.columns or tuple(column.name for column in columns)
        if missing := sorted({column.name for column in columns} - set(names)):
            raise LoadError(f"input {spec.name} does not name {listed(missing)}, which the model was trained on")
        return (replace(whole, columns=names),), tuple(columns)
    # One input per column, matched by name.
    declared = {spec.name: spec for spec in inputs}
    # lightgbm replaces blanks in names by underscores.
    aliases = {name.replace(" ", "_"): name for name in declared} | {name: name for name in declared}
    found = {column.name: aliases.get(column.name) for column in columns}
    missing = [column.name for column in columns if column.used and found[column.name] is None]
    unknown = [name for name in declared if name not in found.values()]
    if missing or unknown:
        parts = [f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
        for name in unknown[:1]:
            near = get_close_matches(name, missing, n=1)
            parts.append(f"the model was not trained on {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
        raise LoadError(f"the declared inputs differ from the columns of the model: {'; '.join(parts)}")
    merged = [_merged(column, declared[own]) for column in columns if (own := found[column.name]) is not None]
    unused = [column for column in columns if found[column.name] is None]
    # In the order of training, whatever the order of declarations.
    order = {column.name: place for place, column in enumerate(columns)}
    return tuple(inputs), tuple(sorted([*merged, *unused], key=lambda column: order[column.name]))


def _merged(column: Column, spec: TensorSpec) -> Column:
    # Valid for the declared datatype: the declared example, or the model's own.
    known = column.example if isinstance(column.example, str) == (spec.datatype == "BYTES") else None
    default = "2000-01-01" if spec.logical_type == DATETIME else known
    return replace(
        column,
        example=default if spec.example is None else spec.example,
        datatype=spec.datatype,
        logical_type=spec.logical_type,
        unit=spec.unit,
        used=True,
        input=spec.name,
    )


def listed(names: Sequence[str]) -> str:
    """Join names for a message: the first five, and the number of further names."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def in_toml(columns: Sequence[Column]) -> str:
    """Return the `[[inputs]]` section of a model.toml that declares columns."""
    lines = []
    for column in columns:
        name = orjson.dumps(column.name).decode()  # TOML has the escapes of JSON
        lines += ["[[inputs]]", f"name = {name}", f'datatype = "{column.datatype}"', "shape = [-1]"]
        lines += ['content_type = "text/plain"'] if column.datatype == "BYTES" else []
    return "\n".join(lines)


def frame_maker(inputs: Sequence[TensorSpec], columns: Sequence[Column], *, pandas: Any) -> Callable[[Batch], Any]:
    """Return a function that converts a batch to a pandas frame with the columns and types of training."""
    names = [column.name for column in columns]
    rows = inputs[0] if len(inputs) == 1 and len(inputs[0].shape) > 1 else None

    def values_by_column(batch: Batch) -> dict[str, Array]:
        if rows is not None:
            matrix = batch[rows.name]
            order = rows.columns or names
            return {name: matrix[:, place] for place, name in enumerate(order)}
        given = {column.name: batch.get(column.input or column.name) for column in columns}
        count = next(len(values) for values in batch.values())
        # None: an omitted optional input, or a column that the model does not read.
        return {name: np.full(count, None) if values is None else values for name, values in given.items()}

    def frame(batch: Batch) -> Any:
        values = values_by_column(batch)
        return pandas.DataFrame({column.name: _series(column, values[column.name], pandas) for column in columns})

    def numbers(batch: Batch) -> Any:
        # Without categories the whole matrix becomes a frame at once.
        assert rows is not None
        made = pandas.DataFrame(batch[rows.name], columns=list(rows.columns or names))
        return made if list(made.columns) == names else made[names]

    plain = all(column.categories is None for column in columns)
    return numbers if rows is not None and plain else frame


def _series(column: Column, values: Array, pandas: Any) -> Any:
    """Convert the values of a column to the column's type in training.

    Raises:
        ValueError: a value is not a category, and `rejects_unknown` is set.
    """
    if column.categories is not None:
        # Integers from requests may be floating-point numbers, which are equal as dict keys.
        known = {value: value for value in column.categories}
        given = values.tolist()
        for value in given if column.rejects_unknown else ():
            if not is_missing(value) and value not in known:
                raise ValueError(f"column {column.name!r} holds {value!r:.60}, which is not one of its categories")
        return pandas.Categorical([known.get(value) for value in given], categories=list(column.categories))
    if column.logical_type == DATETIME:
        return pandas.Series([_date(column, value, pandas) for value in values], dtype="datetime64[ns]")
    if values.dtype != object:
        return values
    if column.datatype != "BYTES":  # an omitted column of numbers
        return values.astype(np.float64)
    texts = [column.missing if value is None else value for value in values]
    # The type that pandas itself infers: a text type from version 3 on, objects before.
    dtype = pandas.Series([""]).dtype if column.missing is not None else object
    return pandas.Series(texts, dtype=dtype)


def is_missing(value: Any) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or bool(value != value)  # noqa: PLR0124


def _date(column: Column, value: Any, pandas: Any) -> Any:
    """Parse ISO 8601 text, or digits in the declared unit; a time with a zone is converted to UTC."""
    if value is None:
        return pandas.NaT
    try:
        if column.unit is not None and value.lstrip("-").isdecimal():
            moment = pandas.Timestamp(int(value), unit=column.unit)
        elif _ISO_8601.fullmatch(value):  # pandas also accepts "now", "nan" and the like
            moment = pandas.to_datetime(value, format="ISO8601")
        else:
            raise ValueError(value)
    except (ValueError, OverflowError):
        raise ValueError(f"column {column.name!r} requires ISO 8601 dates, not {value[:60]!r}") from None
    return moment if moment.tzinfo is None else moment.tz_convert("UTC").tz_localize(None)
