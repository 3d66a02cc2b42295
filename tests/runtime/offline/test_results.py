"""Results as they are written: for any signature, in row order, null where a row failed."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.results import NO_TEXT, WindowResults, keep_options, kept_columns, result_schema, result_type
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.wire.datatypes import DTYPES, float32_to_bfloat16

NOTHING = pa.schema([])


def table_of(results: WindowResults, *specs: TensorSpec) -> pa.Table:
    return results.table(pa.table({}), result_schema(NOTHING, {}, specs))


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (TensorSpec("y", "FP32", [-1]), pa.float32()),
        (TensorSpec("y", "FP16", [-1]), pa.float32()),
        (TensorSpec("y", "BOOL", [-1]), pa.bool_()),
        (TensorSpec("y", "UINT64", [-1]), pa.uint64()),
        (TensorSpec("y", "INT64", [-1, 3]), pa.list_(pa.int64(), 3)),
        (TensorSpec("y", "FP64", [-1, -1, 2]), pa.list_(pa.list_(pa.float64(), 2))),
        (TensorSpec("y", "BYTES", [-1]), pa.string()),
        (TensorSpec("y", "BYTES", [-1], content_type="text/plain"), pa.string()),
        (TensorSpec("y", "BYTES", [-1], content_type="image/png"), pa.binary()),
        (TensorSpec("y", "BYTES", [-1, 5]), pa.list_(pa.string(), 5)),
        (TensorSpec("y", "FP32", [-1, 8, 4], unpad_axis=1, unpad_input="x"), pa.list_(pa.list_(pa.float32(), 4))),
        (TensorSpec("y", "FP32", [8, -1], batch_dim=1), pa.list_(pa.float32(), 8)),
    ],
)
def test_an_output_has_this_column_type(spec: TensorSpec, kind: Any) -> None:
    assert result_type(spec) == kind


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
@pytest.mark.parametrize("shape", [[-1], [-1, 2], [-1, 2, 3], [-1, -1], [2, -1]])
def test_numbers_are_unchanged(datatype: str, shape: list[int]) -> None:
    dim = 1 if shape == [2, -1] else 0
    spec = TensorSpec("y", datatype, shape, batch_dim=dim)
    sizes = [4 if axis == dim else 2 if size == -1 else size for axis, size in enumerate(shape)]
    numbers = (np.arange(np.prod(sizes)).reshape(sizes) % 2).astype(np.float32)
    wire = float32_to_bfloat16(numbers) if datatype == "BF16" else numbers.astype(DTYPES[datatype])
    results = WindowResults(5, [spec], {}, {})
    results.add(np.array([4, 0, 3, 1, 2]), {"y": wire}, {1: "bad"})

    found = table_of(results, spec)
    assert results.complete
    assert found.column("shoal_error").to_pylist() == ["bad", None, None, None, None]
    rows = found.column("y").to_pylist()
    wanted = np.moveaxis(numbers, dim, 0)
    assert rows[0] is None
    assert [rows[row] for row in (4, 3, 1, 2)] == [each.tolist() for each in wanted]
    assert found.schema == table_of(WindowResults(0, [spec], {}, {}), spec).schema


def test_all_failed_has_the_same_schema() -> None:
    specs = [TensorSpec("y", "FP32", [-1, 3]), TensorSpec("name", "BYTES", [-1])]
    results = WindowResults(2, specs, {0: "null"}, {})
    results.fail(np.array([1]), "memory")

    found = table_of(results, *specs)
    assert found.to_pylist() == [
        {"y": None, "name": None, "shoal_error": "null"},
        {"y": None, "name": None, "shoal_error": "memory"},
    ]
    assert found.schema == result_schema(NOTHING, {}, specs)


def test_invalid_utf8_is_an_error_of_its_row() -> None:
    spec = TensorSpec("name", "BYTES", [-1])
    results = WindowResults(2, [spec], {}, {})
    results.add(np.array([0, 1]), {"name": np.array([b"\xff", b"ok"], dtype=object)}, {})

    assert table_of(results, spec).to_pylist() == [
        {"name": None, "shoal_error": f"name {NO_TEXT}"},
        {"name": "ok", "shoal_error": None},
    ]


def test_an_output_is_unpadded_to_the_length_of_its_row() -> None:
    spec = TensorSpec("tags", "INT64", [-1, -1], unpad_axis=1, unpad_input="ids")
    results = WindowResults(2, [spec], {}, {"ids": [1, 3]})
    results.add(np.array([0, 1]), {"tags": np.array([[7, 0, 0], [1, 2, 3]])}, {})

    assert table_of(results, spec).column("tags").to_pylist() == [[7], [1, 2, 3]]


@given(st.integers(1, 20), st.data())
def test_batches_in_any_order_make_the_rows_in_order(rows: int, data: st.DataObject) -> None:
    spec = TensorSpec("y", "INT64", [-1])
    order = data.draw(st.permutations(range(rows)))
    size = data.draw(st.integers(1, rows))
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    results = WindowResults(rows, [spec], {}, {})
    for at in range(0, rows, size):
        chosen = np.array(order[at : at + size])
        errors = {place: "bad" for place, row in enumerate(chosen) if row in bad}
        results.add(chosen, {"y": np.array([row * 10 for row in chosen if row not in bad], dtype=np.int64)}, errors)

    assert results.complete
    assert table_of(results, spec).column("y").to_pylist() == [None if row in bad else row * 10 for row in range(rows)]


COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("photo", pa.binary()), ("y", pa.float32())])
Y = TensorSpec("y", "FP32", [-1])


def test_all_columns_but_the_bytes_read_by_the_model_are_kept() -> None:
    assert keep_options(kept_columns(COLUMNS, None, {"image": ["photo"]}, [])) == ["id", "text", "y"]
    assert keep_options(kept_columns(COLUMNS, None, {"image": ["text"]}, [])) == ["id", "text", "photo", "y"]
    assert keep_options(kept_columns(COLUMNS, ("-",), {}, [Y])) == []
    assert keep_options(kept_columns(COLUMNS, ("text", "id", "id"), {}, [Y])) == ["text", "id"]


def test_a_column_with_the_name_of_an_output_is_renamed() -> None:
    kept = kept_columns(COLUMNS, ("id", "truth=y"), {}, [Y])

    assert kept == {"id": "id", "truth": "y"}
    assert keep_options(kept) == ["id", "truth=y"]
    assert result_schema(COLUMNS, kept, [Y]).names == ["id", "truth", "y", "shoal_error"]
    odd = pa.schema([("a=b", pa.int64())])
    assert kept_columns(odd, ("a=b",), {}, [Y]) == {"a=b": "a=b"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            None,
            "--keep id,text,input_y=y",
        ),
        (("y",), "--keep input_y=y"),
        (("shoal_error=id",), "shoal_error is both"),
        (("none",), "no column none to keep"),
    ],
)
def test_columns_that_cannot_be_kept_are_rejected(asked: Any, message: str) -> None:
    with pytest.raises(InvalidSettings) as raised:
        kept_columns(COLUMNS, asked, {"image": ["photo"]}, [Y])
    assert message in str(raised.value)
