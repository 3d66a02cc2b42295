"""Columns are matched with a model's inputs by name; by position only without names."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.inputs import make_rows
from shoal_runtime.offline.mapping import check_extra, check_kinds, mapped_columns, required_columns
from shoal_runtime.offline.schemas import PARTITION, SPELLED
from shoal_runtime.offline.windows import Window
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.resource.model import ExtraColumns

NAMED = TensorSpec("input-0", "FP64", [-1, 3], columns=["a", "b", "c"])
UNNAMED = TensorSpec("input-0", "FP64", [-1, 3])
WHEN = TensorSpec("t", "BYTES", [-1], logical_type="datetime")
COUNTED = TensorSpec("t", "BYTES", [-1], logical_type="datetime", unit="s")


def schema_of(*names: str, kind: pa.DataType | None = None) -> pa.Schema:
    return pa.schema([(name, kind or pa.float64()) for name in names])


@pytest.mark.parametrize("names", [("a", "b", "c"), ("c", "id", "b", "a"), ("input-0", "c", "b", "a")])
def test_the_columns_of_one_tensor_are_found_by_name_in_any_order(names: tuple[str, ...]) -> None:
    assert mapped_columns([NAMED], {}, schema_of(*names)) == {"input-0": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("asked", "found"),
    [("c,b,a", "abc"), ("a,b,c", "abc"), ("x,y,z", "xyz"), ("a,y,z", "ayz"), ("a, y, c", "ayc")],
)
def test_listed_columns_are_matched_by_name_or_else_by_position(asked: str, found: str) -> None:
    assert mapped_columns([NAMED], {"input-0": asked}, schema_of(*"abcxyz")) == {"input-0": list(found)}


@pytest.mark.parametrize("asked", ["b,a,z", "c,y,z", "x,y,a"])
def test_a_model_column_at_the_place_of_another_is_rejected(asked: str) -> None:
    with pytest.raises(InvalidSettings, match="is at position"):
        mapped_columns([NAMED], {"input-0": asked}, schema_of(*"abcxyz"))


def test_unnamed_columns_must_be_listed() -> None:
    assert mapped_columns([UNNAMED], {"input-0": "c,b,a"}, schema_of("a", "b", "c")) == {"input-0": ["c", "b", "a"]}
    with pytest.raises(InvalidSettings, match="the model has no column names"):
        mapped_columns([UNNAMED], {}, schema_of("a", "b", "c"))


@pytest.mark.parametrize(
    ("schema", "missing"),
    [
        (schema_of("a", "c"), "no column b,"),
        (schema_of("x"), "no column a, b, c,"),
        (schema_of("input-0"), "no column a, b, c,"),
        (schema_of(*(f"f{number}" for number in range(5000))), "f7 and 4992 more"),
    ],
)
def test_missing_columns_are_named_briefly(schema: pa.Schema, missing: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        mapped_columns([NAMED], {}, schema)
    assert missing in str(refused.value)
    assert len(str(refused.value)) < 400


def test_a_column_of_lists_is_the_tensor_itself() -> None:
    lists = pa.list_(pa.float64(), 3)

    assert mapped_columns([NAMED], {}, schema_of("input-0", kind=lists)) == {"input-0": ["input-0"]}
    assert mapped_columns([NAMED], {}, schema_of("features", kind=lists)) == {"input-0": ["features"]}


@pytest.mark.parametrize("spec", [TensorSpec("x", "FP32", [-1]), TensorSpec("x", "BOOL", [-1]), WHEN])
def test_a_number_or_date_is_not_matched_without_its_name(spec: TensorSpec) -> None:
    with pytest.raises(InvalidSettings, match=f"input {spec.name}"):
        mapped_columns([spec], {}, schema_of("other"))


def test_a_column_whose_name_has_a_comma_is_one() -> None:
    spec = TensorSpec("x", "FP32", [-1])

    assert mapped_columns([spec], {"x": "größe, m"}, schema_of("größe, m")) == {"x": ["größe, m"]}


def test_partitions_are_columns_but_not_columns_of_files() -> None:
    schema = pa.schema([("text", pa.string()), pa.field("day", pa.string(), metadata=PARTITION)])
    specs = [TensorSpec("review", "BYTES", [-1])]
    columns = mapped_columns(specs, {}, schema)

    assert columns == {"review": ["text"]}
    assert required_columns(specs, {"review": ["text"], "other": ["day"]}, schema) == ["text"]
    check_extra(ExtraColumns.REJECT, schema, ["text"])


def test_extra_columns_are_ignored_or_rejected_by_name() -> None:
    schema = schema_of("id", "a", "b", "c", *(f"f{number}" for number in range(20)))
    for policy in (ExtraColumns.AUTO, ExtraColumns.IGNORE):
        check_extra(policy, schema, ["a", "b", "c"])
    with pytest.raises(InvalidSettings) as refused:
        check_extra(ExtraColumns.REJECT, schema, ["a", "b", "c"])
    assert "id, f0, f1" in str(refused.value)
    assert "f19" not in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "kind", "good"),
    [
        (WHEN, pa.timestamp("ns", "Europe/Berlin"), True),
        (WHEN, pa.date32(), True),
        (WHEN, pa.date64(), True),
        (WHEN, pa.string(), True),
        (WHEN, pa.dictionary(pa.int32(), pa.string()), True),
        (WHEN, pa.int64(), False),
        (WHEN, pa.bool_(), False),
        (COUNTED, pa.int64(), True),
        (COUNTED, pa.float64(), True),
        (TensorSpec("t", "BYTES", [-1]), pa.timestamp("us"), True),
        (TensorSpec("t", "BYTES", [-1]), pa.string_view(), True),
        (TensorSpec("t", "BYTES", [-1]), pa.int64(), False),
        (TensorSpec("t", "FP64", [-1]), pa.bool_(), True),
        (TensorSpec("t", "INT64", [-1, 1]), pa.bool_(), True),
        (TensorSpec("t", "INT64", [-1]), pa.list_(pa.bool_()), False),
        (TensorSpec("t", "FP64", [-1, 2]), pa.list_(pa.bool_()), False),
        (TensorSpec("t", "FP64", [-1]), pa.string(), False),
        (TensorSpec("t", "FP64", [-1]), pa.dictionary(pa.int8(), pa.float64()), True),
        (TensorSpec("t", "FP64", [-1]), pa.dictionary(pa.int8(), pa.string()), False),
        (TensorSpec("t", "FP64", [-1]), pa.timestamp("us"), False),
        (TensorSpec("t", "BOOL", [-1]), pa.int64(), False),
        (TensorSpec("t", "BOOL", [-1]), pa.bool_(), True),
        (TensorSpec("t", "FP64", [-1, 2, 3]), pa.fixed_shape_tensor(pa.float32(), [2, 3]), True),
        (TensorSpec("t", "FP64", [-1, 2, 3]), pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0]), False),
        (TensorSpec("t", "FP16", [-1, -1]), pa.list_view(pa.float16()), True),
    ],
)
def test_a_column_is_accepted_or_rejected_by_its_type(spec: TensorSpec, kind: pa.DataType, good: bool) -> None:
    schema = pa.schema([("t", kind)])
    if good:
        check_kinds([spec], {"t": ["t"]}, schema)
        return
    with pytest.raises(InvalidSettings, match="the column t "):
        check_kinds([spec], {"t": ["t"]}, schema)


@pytest.mark.parametrize("datatype", ["FP64", "INT8", "BOOL"])
def test_text_that_may_spell_numbers_is_accepted(datatype: str) -> None:
    schema: Any = pa.schema([pa.field("t", pa.string(), metadata=SPELLED)])

    check_kinds([TensorSpec("t", datatype, [-1])], {"t": ["t"]}, schema)


def test_booleans_are_numbers_in_named_columns_only() -> None:
    table = pa.table({"n": [True, False], "b": [0.5, None], "a": [None, True]})
    named = [TensorSpec("x", "FP64", [-1, 2], columns=("a", "b"), nullable=True), TensorSpec("n", "INT64", [-1])]
    columns = mapped_columns(named, {}, table.schema)
    check_kinds(named, columns, table.schema)

    values = make_rows(Window(table), named, columns).values
    np.testing.assert_array_equal(values["x"], [[np.nan, 0.5], [1, np.nan]])
    assert values["n"].tolist() == [1, 0]
    with pytest.raises(InvalidSettings, match="the column a holds bool"):
        check_kinds([TensorSpec("x", "FP64", [-1, 2])], {"x": ["a", "b"]}, table.schema)
