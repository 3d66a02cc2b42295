"""A served model beside its truth: rows that it must answer, rows that it may refuse, and what its library says."""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tests.oracle.entries import Entry, Predict
from tests.oracle.frames import Rng, Row, frame, oddities, rows_of, with_value
from tests.oracle.hosting import Served

POOL = 200
Truth = Mapping[str, Any] | None
"""A row's outputs as the library gives them; None: it raises."""


class Form(StrEnum):
    """How a model takes its columns, by its metadata."""

    TENSOR = "tensor"
    """One tensor of numbers, [rows, n]."""
    APART = "apart"
    """An input for each column."""
    SINGLE = "single"
    """One input of a value a row."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A row with one value that its model has not seen."""

    row: Row
    table: Any
    truth: Truth


@dataclass(frozen=True, slots=True)
class Case:
    """A model to ask.

    Args:
        entry: of the table.
        served: where.
        form: in which it takes columns.
        names: its columns, in the order in which rows as lists have them.
        table, rows, truths: what it must answer, as a frame and as values, and how.
        odd: rows that it may refuse.
    """

    entry: Entry
    served: Served
    form: Form
    names: tuple[str, ...]
    table: Any
    rows: Sequence[Row]
    truths: Sequence[Truth]
    odd: Sequence[Odd]
    absent: Mapping[str, Sequence[Truth]]
    """The truths of the rows without a column, for each that may be left out."""

    def kind(self, name: str) -> str:
        """Return the kind of a column's values."""
        return next(column.kind for column in self.entry.columns if column.name == name)

    @property
    def inputs(self) -> Sequence[Mapping[str, Any]]:
        """Return the metadata of the model's inputs."""
        found: Sequence[Mapping[str, Any]] = self.served.metadata["inputs"]
        return found

    @property
    def outputs(self) -> Sequence[str]:
        """Return the names of the model's outputs."""
        return [each["name"] for each in self.served.metadata["outputs"]]


def case_of(entry: Entry, path: Path, served: Served, rng: Rng) -> Case:
    """Return a case with the truth of its rows, computed by the library."""
    predict = entry.load(path)
    table = frame(entry.columns, POOL, rng)
    truths = _split(predict(table), POOL)
    table = _as_declared(table, served.metadata["inputs"])
    rows = rows_of(table)
    odd = []
    for column in entry.columns:
        for value in oddities(column):
            place = int(rng.integers(POOL))
            one = with_value(table.iloc[[place]], column, value)
            odd.append(Odd({**rows[place], column.name: value}, one, _tried(predict, one)))
    form = form_of(served.metadata["inputs"], entry)
    names = _order(served.metadata["inputs"], entry)
    optional = [each["name"] for each in served.metadata["inputs"] if each.get("parameters", {}).get("optional")]
    absent = {name: _split(predict(_without(table, name)), POOL) for name in optional}
    return Case(entry, served, form, names, table, rows, truths, odd, absent)


def form_of(inputs: Sequence[Mapping[str, Any]], entry: Entry) -> Form:
    """Return how a model takes its columns."""
    if entry.named and {each["name"] for each in inputs} == {column.name for column in entry.columns}:
        return Form.APART
    return Form.TENSOR if len(inputs[0]["shape"]) > 1 else Form.SINGLE


def _without(table: Any, name: str) -> Any:
    """Return a frame whose column holds nothing, in its own type where that knows nothing."""
    series = table[name]
    nothing = np.nan if series.dtype.kind in "if" else None
    return table.assign(
        **{name: pd.Series(nothing, index=table.index, dtype=series.dtype if nothing is None else float)}
    )


def _as_declared(table: Any, inputs: Sequence[Mapping[str, Any]]) -> Any:
    """Return the frame with flags as numbers where the metadata declare numbers: some files store both alike."""
    declared = {each["name"]: each["datatype"] for each in inputs}
    flags = [
        name
        for name in table.columns
        if str(table[name].dtype) == "bool" and declared.get(name, inputs[0]["datatype"]) not in ("BOOL", "BYTES")
    ]
    return table.astype(dict.fromkeys(flags, "int64"))


def _order(inputs: Sequence[Mapping[str, Any]], entry: Entry) -> tuple[str, ...]:
    """Return the columns in the order of rows as lists: the metadata's, where they name the columns."""
    names = tuple(column.name for column in entry.columns)
    declared = tuple(json.loads(inputs[0].get("parameters", {}).get("columns", "[]")))
    return declared if set(declared) == set(names) else names


def _tried(predict: Predict, table: Any) -> Truth:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _split(predict(table), 1)[0]
    except Exception:  # whatever a library raises of a row
        return None


def _split(outputs: Mapping[str, Any], rows: int) -> list[Truth]:
    assert all(len(array) == rows for array in outputs.values())
    return [{name: array[row] for name, array in outputs.items()} for row in range(rows)]


def same(truth: Any, answer: Any) -> bool:
    """Return whether an answer is the truth, within what floating-point numbers allow."""
    expected = np.asarray(truth)
    if expected.dtype.kind in "OUS":
        return bool(np.asarray(answer, dtype=object).astype(str).tolist() == expected.astype(str).tolist())
    try:
        given = np.asarray(_without_none(answer), dtype=np.float64)
    except (TypeError, ValueError):
        return False
    close = given.shape == expected.shape and np.allclose(
        given, expected.astype(np.float64), rtol=1e-5, atol=1e-6, equal_nan=True
    )
    return bool(close)


def _without_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_none(each) for each in value]
    return np.nan if value is None else value
