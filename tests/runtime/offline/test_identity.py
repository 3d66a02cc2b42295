"""Any values, split over files of any types, are written unchanged, or are errors of their rows."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.resource.offline import RowFormat
from tests.runtime.offline.identity import scored

Rows = Sequence[Mapping[str, Any]]
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LARGE = (
    st.sampled_from([2**24, 2**31, 2**53, 2**63, 2**64])
    .flatmap(lambda at: st.integers(at - 2, at + 2))
    .flatmap(lambda number: st.sampled_from([number, -number]))
)
WHOLES = st.integers(-5, 5) | LARGE
FLOATS = st.floats() | st.sampled_from([-0.0, 5e-324, 1.7976931348623157e308, 2.0**53, 2.0**63, 1e22])
TEXTS = st.text(max_size=6) | st.sampled_from(["007", "1e5", "NA", "null", "nan", "", "-0", '"', "a,b", "x\ny"])
DATATYPES = st.sampled_from(["INT64", "UINT64", "INT8", "FP64", "FP32"])
TEXT = TensorSpec("x", "BYTES", [-1], content_type="text/plain")
BOUNDS = {"INT64": (-(2**63), 2**63 - 1), "UINT64": (0, 2**64 - 1), "INT8": (-128, 127)}


def taken(number: Any, datatype: str) -> Any:
    """Return an input's value of a number, None if the number does not fit."""
    if number is None or (datatype in BOUNDS and not (math.isfinite(number) and number == int(number))):
        return None
    if datatype in BOUNDS:
        least, most = BOUNDS[datatype]
        return int(number) if least <= number <= most else None
    if not isinstance(number, float) and number == int(number) and int(float(number)) != number:
        return None
    with np.errstate(over="ignore"):
        near = float(np.float32(float(number))) if datatype == "FP32" else float(number)
    return None if math.isinf(near) and math.isfinite(number) else near


def alike(one: Any, other: Any) -> bool:
    """Return whether two numbers are the same; a decimal and a fraction if they have the same digits."""
    if one is None or other is None:
        return one is other
    if {type(one), type(other)} == {Decimal, float}:
        return bool(Decimal(str(one)) == Decimal(str(other)))
    nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one) and math.isnan(other)
    return nan or bool(one == other and math.copysign(1, one) == math.copysign(1, other))


def job(files: Sequence[bytes | pa.Table], suffix: str, form: RowFormat, spec: TensorSpec) -> Rows | None:
    """Return the rows that a job writes, None if it is rejected before the first row."""
    with TemporaryDirectory() as folder:
        for number, content in enumerate(files):
            path = Path(folder, f"{number}.{suffix}")
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                parquet.write_table(content, path)
        try:
            return scored(Path(folder), form, spec)
        except InvalidSettings:
            return None


def check_numbers(rows: Rows, numbers: Sequence[Any], datatype: str, *, exact_errors: bool = True) -> None:
    assert len(rows) == len(numbers)
    for row, number in zip(rows, numbers, strict=True):
        wanted = taken(number, datatype)
        if row["shoal_error"] is None:
            assert wanted is not None
            assert alike(row["y"], wanted)
        else:
            assert row["y"] is None
            assert wanted is None or not exact_errors


@FEW
@given(st.lists(st.lists(WHOLES | FLOATS, max_size=4), min_size=1, max_size=3), DATATYPES)
def test_numbers_of_csv(files: list[list[float]], datatype: str) -> None:
    texts = [[repr(cell) for cell in cells] for cells in files]
    spec = TensorSpec("x", datatype, [-1])
    rows = job(
        [("x,z\n" + "".join(f"{cell},\n" for cell in cells)).encode() for cells in texts], "csv", RowFormat.CSV, spec
    )

    assert rows is not None
    assert [row["x"] for row in rows] == [cell for cells in texts for cell in cells]
    # A large number with an exponent is the one that is written, also where the nearest fraction is another.
    numbers = [
        cell if isinstance(cell, int) or not math.isfinite(cell) else Decimal(repr(cell)) for c in files for cell in c
    ]
    floats = [cell for cells in files for cell in cells]
    check_numbers(rows, numbers if datatype in BOUNDS else floats, datatype)


@FEW
@given(
    st.lists(
        st.lists(WHOLES | FLOATS.filter(math.isfinite) | st.none(), min_size=1, max_size=4), min_size=1, max_size=3
    ),
    DATATYPES,
)
@example([[2**63]], "INT64")
@example([[2**63, 1, -1]], "UINT64")
@example([[2**63], [1.5]], "FP64")
@example([[-0.0, 2**53 + 1]], "INT64")
@example([[1.5, 2**53 + 1]], "FP64")
def test_numbers_of_json(files: list[list[Any]], datatype: str) -> None:
    cells = [cell for each in files for cell in each]
    lines = ["".join(json.dumps({"x": cell}) + "\n" for cell in each).encode() for each in files]
    rows = job(lines, "jsonl", RowFormat.JSON_LINES, TensorSpec("x", datatype, [-1]))
    if rows is None:
        # A column of no type: all cells are null, or beyond 64 bits.
        assert all(cell is None or (isinstance(cell, int) and not -(2**63) <= cell < 2**64) for cell in cells)
        return

    assert all(row["x"] is None or alike(row["x"], cell) for row, cell in zip(rows, cells, strict=True))
    check_numbers(rows, cells, datatype, exact_errors=False)


KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | WHOLES.filter(lambda each: -(2**63) <= each < 2**63),
    pa.uint64(): WHOLES.filter(lambda each: 0 <= each < 2**64),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): FLOATS,
    pa.float32(): st.floats(width=32),
    pa.float16(): st.floats(width=16),
    pa.decimal128(20, 3): st.decimals(-(10**16), 10**16, places=3),
    pa.decimal128(38, 0): st.decimals(-(10**37), 10**37, places=0),
    pa.decimal256(60, 2): st.decimals(-(10**50), 10**50, places=2),
    pa.null(): st.none(),
}
COLUMNS = st.sampled_from([*KINDS]).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.none() | KINDS[kind], max_size=4))
)


@FEW
@given(st.lists(COLUMNS, min_size=1, max_size=3), DATATYPES, st.booleans())
@example([(pa.float64(), []), (pa.decimal128(20, 3), [Decimal("13004476193439.731")])], "FP64", False)
def test_numbers_of_parquet_files_of_several_types(
    files: list[tuple[pa.DataType, list[Any]]], datatype: str, lists: bool
) -> None:
    cells = [cell for _, each in files for cell in each]
    columns = [
        pa.array([[cell] for cell in each], pa.list_(kind)) if lists else pa.array(each, kind) for kind, each in files
    ]
    spec = TensorSpec("x", datatype, [-1, -1], pad_axis=1) if lists else TensorSpec("x", datatype, [-1])
    rows = job([pa.table({"x": each}) for each in columns], "parquet", RowFormat.PARQUET, spec)
    if rows is None:
        assert lists
        return

    flat = [{**row, **{name: row[name] and row[name][0] for name in ("x", "y")}} for row in rows] if lists else rows
    assert all(row["x"] is None or alike(row["x"], cell) for row, cell in zip(flat, cells, strict=True))
    assert all(row["shoal_error"] or row["x"] is not None for row in rows)
    # Beside a file of floats the results have a column of doubles, which cannot hold every integer and decimal.
    kinds = {kind for kind, _ in files}
    exact = any(map(pa.types.is_integer, kinds)) or any(map(pa.types.is_decimal, kinds))
    doubles = exact and any(map(pa.types.is_floating, kinds))
    check_numbers(flat, cells, datatype, exact_errors=not lists and not doubles)


@FEW
@given(st.lists(st.lists(st.tuples(TEXTS, TEXTS), max_size=4), min_size=1, max_size=3))
def test_texts_of_csv(files: list[list[tuple[str, str]]]) -> None:
    written = [io.StringIO() for _ in files]
    for text, cells in zip(written, files, strict=True):
        csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("x", "z"), *cells])
    rows = job([text.getvalue().encode() for text in written], "csv", RowFormat.CSV, TEXT)

    wanted = [{"x": one, "z": other, "y": one, "shoal_error": None} for cells in files for one, other in cells]
    assert rows == wanted


VALUES = st.recursive(
    st.none() | st.booleans() | WHOLES | FLOATS.filter(math.isfinite) | TEXTS,
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from("abc"), each, max_size=2),
    max_leaves=4,
)


def same(one: Any, other: Any) -> bool:
    """Return whether two values of JSON are the same; missing keys are null."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(same(one.get(name), other.get(name)) for name in {*one, *other})
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


@FEW
@given(st.lists(st.lists(st.tuples(TEXTS | st.none(), VALUES), min_size=1, max_size=4), min_size=1, max_size=3))
def test_texts_and_nested_values_of_json(files: list[list[tuple[str | None, Any]]]) -> None:
    lines = ["".join(json.dumps({"x": x, "z": z}) + "\n" for x, z in each).encode() for each in files]
    rows = job(lines, "jsonl", RowFormat.JSON_LINES, TEXT)
    if rows is None:
        return  # a column of objects without keys, or of no type

    for row, (x, z) in zip(rows, [pair for each in files for pair in each], strict=True):
        assert row["shoal_error"] or row["x"] == row["y"] == x
        assert same(row["z"], z) or (row["z"] is None and row["shoal_error"])


@pytest.mark.parametrize(
    ("where", "rows"),
    [("id > 1.5", [0, 2]), (f"id == {2**53 + 1}", [0]), (f"id in [{2**53}, 1]", [1, 2]), ("id < 2.5", [1])],
)
def test_rows_are_selected_by_the_values_of_their_files(where: str, rows: list[int], tmp_path: Path) -> None:
    ids = [2**53 + 1, 1, 2**53]
    (tmp_path / "csv").mkdir()
    (tmp_path / "json").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("x,id\n" + "".join(f"a,{each}\n" for each in ids))
    (tmp_path / "json" / "a.jsonl").write_text("".join(f'{{"x":"a","id":{each}}}\n' for each in ids))
    for name, form in (("csv", RowFormat.CSV), ("json", RowFormat.JSON_LINES)):
        found = scored(tmp_path / name, form, TEXT, where=where)
        assert [int(row["id"]) for row in found] == [ids[row] for row in rows]
