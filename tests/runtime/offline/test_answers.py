"""Answers as they are written: of any signature, in the order of the rows, null where a row failed."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.offline.answers import Answers, answer_schema, answer_type, kept_columns, told
from shoal_runtime.offline.errors import WrongSettings
from shoal_schema.wire.datatypes import DTYPES, float32_to_bfloat16

NOTHING = pa.schema([])


def table_of(answers: Answers, *specs: TensorSpec) -> pa.Table:
    return answers.table(pa.table({}), answer_schema(NOTHING, {}, specs))


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
def test_an_output_is_a_column_of_this_type(spec: TensorSpec, kind: Any) -> None:
    assert answer_type(spec) == kind


@pytest.mark.parametrize("datatype", [name for name in DTYPES if name != "BYTES"])
@pytest.mark.parametrize("shape", [[-1], [-1, 2], [-1, 2, 3], [-1, -1], [2, -1]])
def test_numbers_come_out_as_they_went_in(datatype: str, shape: list[int]) -> None:
    dim = 1 if shape == [2, -1] else 0
    spec = TensorSpec("y", datatype, shape, batch_dim=dim)
    sizes = [4 if axis == dim else 2 if size == -1 else size for axis, size in enumerate(shape)]
    numbers = (np.arange(np.prod(sizes)).reshape(sizes) % 2).astype(np.float32)
    wire = float32_to_bfloat16(numbers) if datatype == "BF16" else numbers.astype(DTYPES[datatype])
    answers = Answers(5, [spec], {}, {})
    answers.add(np.array([4, 0, 3, 1, 2]), {"y": wire}, {1: "bad"})

    found = table_of(answers, spec)
    assert answers.complete
    assert found.column("shoal_error").to_pylist() == ["bad", None, None, None, None]
    rows = found.column("y").to_pylist()
    wanted = np.moveaxis(numbers, dim, 0)
    assert rows[0] is None
    assert [rows[row] for row in (4, 3, 1, 2)] == [each.tolist() for each in wanted]
    assert found.schema == table_of(Answers(0, [spec], {}, {}), spec).schema


def test_all_failed_has_the_same_schema() -> None:
    specs = [TensorSpec("y", "FP32", [-1, 3]), TensorSpec("name", "BYTES", [-1])]
    answers = Answers(2, specs, {0: "null"}, {})
    answers.fail(np.array([1]), "memory")

    found = table_of(answers, *specs)
    assert found.to_pylist() == [
        {"y": None, "name": None, "shoal_error": "null"},
        {"y": None, "name": None, "shoal_error": "memory"},
    ]
    assert found.schema == answer_schema(NOTHING, {}, specs)


def test_texts_that_are_none_are_errors_of_their_rows() -> None:
    spec = TensorSpec("name", "BYTES", [-1])
    answers = Answers(2, [spec], {}, {})
    answers.add(np.array([0, 1]), {"name": np.array([b"\xff", b"ok"], dtype=object)}, {})

    assert table_of(answers, spec).to_pylist() == [
        {"name": None, "shoal_error": "name is no text: declare its content_type, application/octet-stream"},
        {"name": "ok", "shoal_error": None},
    ]


def test_an_output_is_cut_back_to_the_length_of_its_own_row() -> None:
    spec = TensorSpec("tags", "INT64", [-1, -1], unpad_axis=1, unpad_input="ids")
    answers = Answers(2, [spec], {}, {"ids": [1, 3]})
    answers.add(np.array([0, 1]), {"tags": np.array([[7, 0, 0], [1, 2, 3]])}, {})

    assert table_of(answers, spec).column("tags").to_pylist() == [[7], [1, 2, 3]]


@given(st.integers(1, 20), st.data())
def test_batches_in_any_order_make_the_rows_in_order(rows: int, data: st.DataObject) -> None:
    spec = TensorSpec("y", "INT64", [-1])
    order = data.draw(st.permutations(range(rows)))
    size = data.draw(st.integers(1, rows))
    bad = data.draw(st.sets(st.integers(0, rows - 1)))
    answers = Answers(rows, [spec], {}, {})
    for at in range(0, rows, size):
        chosen = np.array(order[at : at + size])
        errors = {place: "bad" for place, row in enumerate(chosen) if row in bad}
        answers.add(chosen, {"y": np.array([row * 10 for row in chosen if row not in bad], dtype=np.int64)}, errors)

    assert answers.complete
    assert table_of(answers, spec).column("y").to_pylist() == [None if row in bad else row * 10 for row in range(rows)]


COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("photo", pa.binary()), ("y", pa.float32())])
Y = TensorSpec("y", "FP32", [-1])


def test_all_but_the_bytes_that_the_model_read_are_kept() -> None:
    assert told(kept_columns(COLUMNS, None, {"image": ["photo"]}, [])) == ["id", "text", "y"]
    assert told(kept_columns(COLUMNS, None, {"image": ["text"]}, [])) == ["id", "text", "photo", "y"]
    assert told(kept_columns(COLUMNS, ("-",), {}, [Y])) == []
    assert told(kept_columns(COLUMNS, ("text", "id", "id"), {}, [Y])) == ["text", "id"]


def test_a_column_with_the_name_of_an_output_is_kept_under_another() -> None:
    kept = kept_columns(COLUMNS, ("id", "truth=y"), {}, [Y])

    assert kept == {"id": "id", "truth": "y"}
    assert told(kept) == ["id", "truth=y"]
    assert answer_schema(COLUMNS, kept, [Y]).names == ["id", "truth", "y", "shoal_error"]
    odd = pa.schema([("a=b", pa.int64())])
    assert kept_columns(odd, ("a=b",), {}, [Y]) == {"a=b": "a=b"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            None,
            "y is both a column of the input and of the answers: give it another name, as in --keep id,text,input_y=y",
        ),
        (("y",), "as in --keep input_y=y"),
        (("shoal_error=id",), "shoal_error is both"),
        (("none",), "there is no column none to keep: the input has id, text, photo, y"),
    ],
)
def test_columns_that_cannot_be_kept_are_named(asked: Any, said: str) -> None:
    with pytest.raises(WrongSettings) as raised:
        kept_columns(COLUMNS, asked, {"image": ["photo"]}, [Y])
    assert said in str(raised.value)
