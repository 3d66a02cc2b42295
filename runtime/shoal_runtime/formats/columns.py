"""Columns of the table that a model was trained on: what each holds, and the pandas frame made of a batch.

Models whose columns are all numbers take one tensor that names its columns; any other takes one input per column.
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
from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import DTYPES, FIRST_ROUNDED, Array, first_rounded

INPUT: Final = "input-0"
"""KServe's name of an input, where the file has none."""
TEXT: Final = "text/plain"
DATETIME: Final = "datetime"
SHOWN: Final = 5
"""Names in one sentence."""
_ISO_8601: Final = re.compile(r"\d{4}-?\d\d-?\d\d([T ]\d[\d:]*(\.\d+)?(Z|[+-]\d[\d:]*)?)?", re.ASCII)
"""Dates of the calendar, and times of the day; pandas judges the numbers."""
_FLOATING: Final = ("FP32", "FP64")

Batch = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a model's table.

    Args:
        name: as in training.
        datatype: of the values that clients send.
        categories: of a pandas category, in the order of the model's codes; None: it is none.
        rejects_unknown: whether the library rejects a value outside of the categories; otherwise that is missing.
        missing: what stands for null in a column of texts, as the model expects it.
        example: a value that the model takes.
        known: values that the model was trained on.
        used: whether the model reads it at all.
        logical_type, unit: as in `TensorSpec`.
        input: the input that holds it, where that has another name.
    """

    name: str
    datatype: str = "FP64"
    categories: tuple[Any, ...] | None = None
    rejects_unknown: bool = False
    missing: Any = nan
    example: Any = None
    known: tuple[Any, ...] = ()
    used: bool = True
    logical_type: str | None = None
    unit: str | None = None
    input: str | None = None


def category(name: str, values: Sequence[Any], numbers: str = "FP64", *, rejects_unknown: bool = False) -> Column:
    """Return the column of a pandas category.

    Args:
        name: of the column.
        values: its categories, in the order of their codes.
        numbers: the datatype of numbers: whole ones too, so that they can be null.
        rejects_unknown: as in `Column`.

    Raises:
        LoadError: its categories are of several types, or of one that no request can hold.
    """
    known = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
    kinds = {type(value) for value in known}
    if kinds <= {str}:
        datatype = "BYTES"
    elif kinds == {bool}:
        datatype = "BOOL"
    elif kinds == {int} and max(map(abs, known)) >= FIRST_ROUNDED:
        # Of the type of training: compared with the other one, whole numbers are rounded.
        unsigned = any(isinstance(value, np.unsignedinteger) for value in values) or max(known) >= 2**63
        datatype = "UINT64" if unsigned else "INT64"
    elif kinds <= {int, float}:
        rounded = numbers == "FP32" and max(map(abs, known)) >= first_rounded(DTYPES["FP32"])
        datatype = "FP64" if rounded else numbers
    else:
        told = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise LoadError(f"the categories of column {name!r} are of the types {told}: train with texts or numbers alone")
    example = known[0] if known else None
    return Column(name, datatype, categories=known, rejects_unknown=rejects_unknown, example=example)


def inputs_of(columns: Sequence[Column], *, named: bool = True) -> tuple[TensorSpec, ...]:
    """Return the inputs that these columns make: one tensor of numbers or of texts, or else one for each column.

    Args:
        columns: in the model's order.
        named: whether the model knows their names; if not, a tensor of rows names none.

    Raises:
        LoadError: a name cannot be an input's.
    """
    datatypes = {column.datatype for column in columns}
    [datatype, *others] = datatypes
    together = not others and all(column.used and column.logical_type is None for column in columns)
    if together and (datatype in _FLOATING or (datatype == "BYTES" and not named)):
        names = [column.name for column in columns] if named else ()
        text = TEXT if datatype == "BYTES" else None
        return (TensorSpec(INPUT, datatype, [ANY, len(columns)], columns=names, content_type=text),)
    try:
        return tuple(_spec(column) for column in columns if column.used)
    except ValueError as error:
        raise LoadError(f"a column of the model cannot be an input: {error}") from None


def rows_of(features: int, datatype: str) -> tuple[TensorSpec, ...]:
    """Return the one input of a model that takes rows of so many features, whose names it does not know."""
    return (TensorSpec(INPUT, datatype, [ANY, features]),)


def declared_columns(inputs: Sequence[TensorSpec]) -> list[Column]:
    """Return the columns that inputs of one element a row declare."""
    return [_merged(Column(spec.name), spec) for spec in inputs]


def _example(spec: TensorSpec, known: Any) -> Any:
    """Return a value that a declared input takes: its own example, or what the model's file knows."""
    if spec.example is not None:
        return spec.example
    if spec.logical_type == DATETIME:
        return "2000-01-01"
    return known if isinstance(known, str) == (spec.datatype == "BYTES") else None


def _spec(column: Column) -> TensorSpec:
    known = column.example if column.datatype == "BYTES" and isinstance(column.example, str) else None
    return TensorSpec(
        column.name,
        column.datatype,
        [ANY],
        example=known or None,
        content_type=TEXT if column.datatype == "BYTES" else None,
        logical_type=column.logical_type,
        unit=column.unit,
    )


def reconciled(
    inputs: Sequence[TensorSpec], columns: Sequence[Column], *, named: bool = True
) -> tuple[tuple[TensorSpec, ...], tuple[Column, ...]]:
    """Return declared inputs and the model's columns, each with what only the other says.

    Args:
        inputs: as model.toml or MLmodel declare them, in any order.
        columns: of the model.
        named: whether it knows their names; if not, an only tensor may name them.

    Raises:
        LoadError: an input is no column of the model, a column is missing, or a tensor has another width.
    """
    if len(inputs) == 1 and len(inputs[0].shape) > 1:
        [spec] = inputs
        if tuple(spec.shape[1:]) not in ((len(columns),), (ANY,)):
            raise LoadError(f"input {spec.name} has the shape {list(spec.shape)}; the model has {len(columns)} columns")
        whole = replace(spec, shape=[spec.shape[0], len(columns)])
        if not named or spec.datatype == "BYTES":
            return (whole,), tuple(columns)
        names = spec.columns or tuple(column.name for column in columns)
        if missing := sorted({column.name for column in columns} - set(names)):
            raise LoadError(f"the columns of input {spec.name} lack {listed(missing)}, which the model was trained on")
        return (replace(whole, columns=names),), tuple(columns)
    declared = {spec.name: spec for spec in inputs}
    # lightgbm writes blanks in names as underscores.
    aliases = {name.replace(" ", "_"): name for name in declared} | {name: name for name in declared}
    found = {column.name: aliases.get(column.name) for column in columns}
    missing = [column.name for column in columns if column.used and found[column.name] is None]
    if wrong := [*missing, *(name for name in declared if name not in found.values())]:
        raise LoadError(_differences(missing, [name for name in wrong if name not in missing], declared))
    merged = [_merged(column, declared[own]) for column in columns if (own := found[column.name]) is not None]
    unused = [column for column in columns if found[column.name] is None]
    order = {column.name: place for place, column in enumerate(columns)}
    return tuple(inputs), tuple(sorted([*merged, *unused], key=lambda column: order[column.name]))


def _merged(column: Column, spec: TensorSpec) -> Column:
    return replace(
        column,
        example=_example(spec, column.example),
        datatype=spec.datatype,
        logical_type=spec.logical_type,
        unit=spec.unit,
        used=True,
        input=spec.name,
    )


def _differences(missing: Sequence[str], unknown: Sequence[str], declared: Mapping[str, Any]) -> str:
    parts = []
    if missing:
        parts.append(f"{listed(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    for name in unknown[:1]:
        near = get_close_matches(name, missing, n=1)
        parts.append(f"the model was not trained on {name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return f"the declared inputs are not the columns that the model was trained on: {'; '.join(parts)}"


def listed(names: Sequence[str]) -> str:
    """Return names for a sentence: the first few, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more


def in_toml(columns: Sequence[Column]) -> str:
    """Return the `[[inputs]]` of a model.toml that declare these columns, to be completed by the user."""
    lines = []
    for column in columns:
        name = orjson.dumps(column.name).decode()  # whose escapes TOML has too
        lines += ["[[inputs]]", f"name = {name}", f'datatype = "{column.datatype}"', "shape = [-1]"]
        lines += ['content_type = "text/plain"'] if column.datatype == "BYTES" else []
    return "\n".join(lines)


def frame_maker(inputs: Sequence[TensorSpec], columns: Sequence[Column], *, pandas: Any) -> Callable[[Batch], Any]:
    """Return what makes the model's frame of a batch: its columns in the order and the types of training."""
    names = [column.name for column in columns]
    rows = inputs[0] if len(inputs) == 1 and len(inputs[0].shape) > 1 else None

    def values_by_column(batch: Batch) -> dict[str, Array]:
        if rows is not None:
            matrix = batch[rows.name]
            order = rows.columns or names
            return {name: matrix[:, place] for place, name in enumerate(order)}
        given = {column.name: batch.get(column.input or column.name) for column in columns}
        count = next(len(values) for values in batch.values())
        # An optional input that was left out, or a column that the model never reads.
        return {name: np.full(count, None) if values is None else values for name, values in given.items()}

    def frame(batch: Batch) -> Any:
        values = values_by_column(batch)
        return pandas.DataFrame({column.name: _series(column, values[column.name], pandas) for column in columns})

    def numbers(batch: Batch) -> Any:
        assert rows is not None
        made = pandas.DataFrame(batch[rows.name], columns=list(rows.columns or names))
        return made if list(made.columns) == names else made[names]

    plain = all(column.categories is None for column in columns)
    return numbers if rows is not None and plain else frame


def _series(column: Column, values: Array, pandas: Any) -> Any:
    if column.categories is not None:
        return _categorical(column, values, pandas)
    if column.logical_type == DATETIME:
        return pandas.Series([_date(column, value, pandas) for value in values], dtype="datetime64[ns]")
    if values.dtype != object:
        return values
    if column.datatype != "BYTES":  # left out
        return values.astype(np.float64)
    texts = [column.missing if value is None else value for value in values]
    # As pandas itself would hold them: its own type of texts from version 3 on, objects before.
    dtype = pandas.Series([""]).dtype if column.missing is not None else object
    return pandas.Series(texts, dtype=dtype)


def _categorical(column: Column, values: Array, pandas: Any) -> Any:
    """Return values as a pandas category of the training's values.

    Raises:
        ValueError: one is unknown, and the library rejects such. (xgboost 3.2 misses some, and takes them for others.)
    """
    assert column.categories is not None
    # Whole numbers that came as doubles are equal to those in training, as keys too.
    known = {value: value for value in column.categories}
    given = values.tolist()
    if column.rejects_unknown:
        for value in given:
            if not is_missing(value) and value not in known:
                raise ValueError(f"column {column.name!r} holds {value!r:.60}, which is not one of its categories")
    return pandas.Categorical([known.get(value) for value in given], categories=list(column.categories))


def is_missing(value: Any) -> bool:
    """Return whether a value stands for null: None, or NaN, which alone differs from itself."""
    return value is None or bool(value != value)  # noqa: PLR0124


def _date(column: Column, value: Any, pandas: Any) -> Any:
    """Return a text as a time without a zone; one with a zone is turned into UTC.

    Raises:
        ValueError: it is neither ISO 8601, nor digits of the declared unit.
    """
    if value is None:
        return pandas.NaT
    try:
        if column.unit is not None and value.lstrip("-").isdecimal():
            moment = pandas.Timestamp(int(value), unit=column.unit)
        elif _ISO_8601.fullmatch(value):  # pandas would also take "now", "nan" and the like
            moment = pandas.to_datetime(value, format="ISO8601")
        else:
            raise ValueError(value)
    except (ValueError, OverflowError):
        raise ValueError(f"column {column.name!r} takes ISO 8601 dates, not {value[:60]!r}") from None
    return moment if moment.tzinfo is None else moment.tz_convert("UTC").tz_localize(None)
