"""Columns of data frames: what models are trained on, and what they are asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

Rng = np.random.Generator
Row = dict[str, Any]

WORDS = ("red", "green", "blue", "grün")
DOCUMENTS = ("a fine day", "late again and again", "no comment", "fine work", "never late", "ein schöner Tag")
UNSEEN = {"int": 97, "text": "unseen", "float": 97.5}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, and the kind of its values, a key of `KINDS`."""

    name: str
    kind: str


def columns(**kinds: str) -> tuple[Column, ...]:
    """Return columns by name; `_` in a name stands for a space."""
    return tuple(Column(name.replace("_", " "), kind) for name, kind in kinds.items())


def _holes(values: Sequence[Any], rng: Rng) -> list[Any]:
    return [None if rng.random() < 0.2 else value for value in values]


def _choice(values: Sequence[Any], rows: int, rng: Rng) -> list[Any]:
    """Return a choice that begins with each of the values, so that a model has seen them all."""
    return [*values, *(values[index] for index in rng.integers(0, len(values), rows))][:rows]


def _category(values: Sequence[Any]) -> Callable[[int, Rng], Any]:
    return lambda rows, rng: pd.Series(pd.Categorical(_choice(values, rows, rng), categories=list(values)))


KINDS: Mapping[str, Callable[[int, Rng], Any]] = {
    "int": lambda rows, rng: pd.Series(rng.integers(-5, 50, rows)),
    "float": lambda rows, rng: pd.Series(rng.normal(size=rows).round(3)),
    "bool": lambda rows, rng: pd.Series(_choice([True, False], rows, rng)),
    "text": lambda rows, rng: pd.Series(_choice(WORDS, rows, rng)),
    "document": lambda rows, rng: pd.Series(_choice(DOCUMENTS, rows, rng)),
    "date": lambda rows, rng: (
        pd.Timestamp("2024-01-01") + pd.Series(pd.to_timedelta(rng.integers(0, 700 * 86400, rows), unit="s"))
    ),
    "nan": lambda rows, rng: pd.Series(_holes(rng.normal(size=rows).round(3).tolist(), rng), dtype=np.float64),
    "nanint": lambda rows, rng: pd.Series(_holes(rng.integers(0, 9, rows).tolist(), rng), dtype=np.float64),
    "nantext": lambda rows, rng: pd.Series(_holes(_choice(WORDS, rows, rng), rng)),
    "category_text": _category(WORDS),
    "category_ascii": _category(WORDS[:3]),
    "category_int": _category([10, 20, 30, 40]),
    "category_float": _category([0.5, 1.5, 2.25]),
    "category_bool": _category([False, True]),
    "category_nan": lambda rows, rng: pd.Series(
        pd.Categorical(_holes(_choice(WORDS[:3], rows, rng), rng), categories=list(WORDS[:3]))
    ),
}


def frame(given: Sequence[Column], rows: int, rng: Rng) -> Any:
    """Return a frame of plausible values."""
    return pd.DataFrame({column.name: KINDS[column.kind](rows, rng) for column in given})


def scores(table: Any) -> Any:
    """Return a number for each row to which all columns contribute: the target of the models."""
    total = np.zeros(len(table))
    for place, name in enumerate(table.columns):
        total += (1 + place) * _codes(table[name])
    return total


def _codes(series: Any) -> Any:
    if isinstance(series.dtype, pd.CategoricalDtype):
        return series.cat.codes.to_numpy(float)
    if pd.api.types.is_datetime64_any_dtype(series):
        return series.dt.month.to_numpy(float)
    if pd.api.types.is_numeric_dtype(series):
        return np.nan_to_num(series.to_numpy(float), nan=-3.0)
    return np.array([len(value) if isinstance(value, str) else -2 for value in series], float)


def rows_of(table: Any) -> list[Row]:
    """Return a frame's rows as plain values: what is missing is None, a date a `Timestamp`."""
    values = {name: [_plain(value) for value in table[name].tolist()] for name in table.columns}
    return [{name: values[name][row] for name in table.columns} for row in range(len(table))]


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def oddities(column: Column) -> list[Any]:
    """Return values that a model has not seen in a column: nothing, and of categories another one."""
    values: list[Any] = [] if column.kind in ("nan", "nanint", "nantext", "category_nan") else [None]
    kind = column.kind.removeprefix("nan").removeprefix("category_") or "float"
    kind = "text" if kind in ("nan", "ascii") else kind
    if (column.kind.startswith("category_") or kind == "text") and kind in UNSEEN:
        values.append(UNSEEN[kind])
    return values


def with_value(table: Any, column: Column, value: Any) -> Any:
    """Return a frame of one row with another value in one column, typed as pandas would."""
    changed = table.copy()
    series = changed[column.name]
    if isinstance(series.dtype, pd.CategoricalDtype):
        known = list(series.cat.categories)
        more = [] if value is None or value in known else [value]
        changed[column.name] = pd.Categorical([value], categories=[*known, *more])
    elif column.kind in ("int", "bool") and value is None:
        changed[column.name] = pd.Series([np.nan], index=series.index)
    else:
        changed[column.name] = pd.Series([value], index=series.index, dtype=series.dtype)
    return changed


def dressed(table: Any, rng: Rng) -> Any:
    """Return the same values in other types of pandas, as other readers of files give them."""
    made = table.copy()
    for name in made.columns:
        dtype = str(made[name].dtype)
        others = {
            "int64": ["int64", "Int64", "float64", "int32"],
            "float64": ["float64", "Float64"],
            "bool": ["bool", "boolean"],
            "str": ["str", "object", "string", "category"],
            "object": ["object", "string", "category"],
        }.get(dtype, [dtype])
        made[name] = made[name].astype(others[rng.integers(0, len(others))])
    return made
