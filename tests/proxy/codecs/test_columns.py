"""Columns by name: the same rows are the same inputs on every route, in any order of columns and any form."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.codecs.invocations import Invocations
from shoal_proxy.codecs.torchserve import TorchServe
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.rpc.inference_pb2 import ModelInferRequest
from shoal_proxy.rpc.messages import FIELDS, GrpcV2
from shoal_schema.wire.columns import NULL, encode_columns
from tests.fakes import tensor
from tests.proxy.codecs.routes import (
    MIXED,
    ROUTES,
    STRICT,
    WHOLE,
    WIDE,
    Record,
    Route,
    column,
    csv_text,
    grpc_message,
    plain,
    records_of,
    split,
    v1_columns,
    v1_rows,
    v2_binary,
    v2_json,
)
from tests.proxy.signatures import call, signature

NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)
OF_WIDE = st.fixed_dictionaries(dict.fromkeys("abc", st.none() | NUMBERS))
OF_MIXED = st.fixed_dictionaries(
    {
        "size": st.none() | NUMBERS,
        "count": st.integers(-(2**63), 2**63 - 1),
        "town": st.none() | TEXTS,
        "flag": st.booleans(),
        "born": st.none() | st.integers(0, 10**13) | st.datetimes().map(lambda each: each.isoformat()),
    }
)


@pytest.mark.parametrize(
    ("model", "row"),
    [pytest.param(WIDE, OF_WIDE, id="one tensor"), pytest.param(MIXED, OF_MIXED, id="an input for each column")],
)
def test_the_same_rows_are_the_same_inputs_on_every_route(
    model: ModelSignature, row: st.SearchStrategy[Record]
) -> None:
    @given(st.lists(row, min_size=1, max_size=4), st.data())
    def check(records: list[Record], data: st.DataObject) -> None:
        decoded = [route(records, data.draw(st.permutations(sorted(records[0]))), model) for route in ROUTES]
        for one, other in pairwise(decoded):
            assert one.rows == other.rows == len(records)
            assert plain(one) == plain(other)

    check()


def test_values_lie_where_the_model_has_their_columns() -> None:
    records: list[Record] = [{"a": 1, "b": None, "c": 3.5}, {"a": 4, "b": 5, "c": 6}]
    for route in ROUTES:
        for names in (["a", "b", "c"], ["c", "a", "b"]):
            found = route(records, names, WIDE).inputs["input-0"]
            np.testing.assert_array_equal(found, [[1, np.nan, 3.5], [4, 5, 6]])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["b", "a"], ["column 'c' is missing"]),
        (["a"], ["columns 'b', 'c' are missing"]),
        (["a", "b", "C"], ["column 'c' is missing", "'C'"]),
    ],
)
def test_a_missing_column_is_named(route: Route, names: list[str], said: list[str]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        route([dict.fromkeys(["a", "b", "c", "C"], 1)], names, WIDE)
    for part in said:
        assert part in raised.value.message


REJECTING = {v1_rows, v1_columns, v2_json, v2_binary, grpc_message}


@pytest.mark.parametrize("route", ROUTES)
def test_columns_that_the_model_does_not_have_are_ignored_in_tables_and_rejected_elsewhere(route: Route) -> None:
    records: list[Record] = [{"id": 7, "a": 1.0, "b": 2.0, "c": 3.0}]
    if route in REJECTING:
        with pytest.raises(InvalidRequest) as raised:
            route(records, ["id", "a", "b", "c"], WIDE)
        assert raised.value.message.startswith("unknown column 'id'")
    else:
        assert route(records, ["id", "a", "b", "c"], WIDE).inputs["input-0"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("route", [each for each in ROUTES if each not in (v2_binary, grpc_message)])
@pytest.mark.parametrize(
    ("model", "record", "said"),
    [
        pytest.param(STRICT, {"a": 1.5, "b": None}, "does not accept null", id="null in a tensor"),
        pytest.param(MIXED, {"count": None}, "'count' does not accept null", id="null for a whole number"),
        pytest.param(MIXED, {"flag": None}, "'flag' does not accept null", id="null for a flag"),
        pytest.param(WHOLE, {"a": 1.5, "b": 1}, "INT64", id="a fraction"),
        pytest.param(WHOLE, {"a": 2.0**53 + 2, "b": 1}, "INT64", id="a float that is not exact"),
        pytest.param(WHOLE, {"a": 2**63, "b": 1}, "INT64", id="a number beyond 64 bits"),
        pytest.param(STRICT, {"a": "x", "b": 1}, "FP32", id="a text for a number"),
        pytest.param(STRICT, {"a": 1e39, "b": 1}, "FP32", id="a number that would be infinite"),
        pytest.param(MIXED, {"flag": 1}, "BOOL", id="a number for a flag"),
        pytest.param(WHOLE, {"a": 2.0**53, "b": 1}, "INT64", id="a float that may have been rounded"),
    ],
)
def test_values_that_an_input_does_not_accept_are_rejected_on_every_route(
    route: Route, model: ModelSignature, record: Record, said: str
) -> None:
    whole = {"size": 1.5, "count": 1, "town": "x", "flag": True, "born": "2024-01-31"}
    given = {**whole, **record} if model is MIXED else record
    with pytest.raises(InvalidRequest, match=said):
        route([given], sorted(given), model)


@pytest.mark.parametrize("route", [v1_rows, v1_columns, split, records_of, csv_text, v2_json])
def test_whole_numbers_may_be_written_as_floats(route: Route) -> None:
    found = route([{"a": 1.0, "b": -1e3}, {"a": 2.0**53 - 1, "b": 3}], ["b", "a"], WHOLE).inputs["input-0"]
    assert found.dtype == np.int64
    assert found.tolist() == [[1, -1000], [2**53 - 1, 3]]


@pytest.mark.parametrize("route", [v1_rows, v1_columns, split, records_of, v2_json])
def test_dates_are_texts_or_numbers_where_the_model_states_what_they_count(route: Route) -> None:
    records = [{"born": born} for born in ("2024-01-31", 7, 7.0, None)]
    found = route(records, ["born"], date("unit", nullable=True)).inputs["born"].tolist()
    assert found == [b"2024-01-31", b"7", b"7", NULL]
    for wrong in (7, True, 1.5, None):
        with pytest.raises(InvalidRequest, match=r"ISO 8601|does not accept null"):
            route([{"born": wrong}], ["born"], date())
    with pytest.raises(InvalidRequest, match="ms since 1970"):
        route([{"born": 1.5}], ["born"], date("unit"))


@pytest.mark.parametrize("text", ["20240101", "5", "-5", "2024"])
def test_a_json_text_of_digits_is_no_number_of_a_unit(text: str) -> None:
    with pytest.raises(InvalidRequest, match="datetime"):
        V1().decode(call({"instances": [{"born": text}]}), date("unit"))


def date(*with_unit: str, nullable: bool = False) -> ModelSignature:
    unit = {"unit": "ms"} if with_unit else {}
    return signature([tensor("born", "BYTES", [-1], logical_type="datetime", nullable=nullable, **unit)])


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([{"a": 1, "b": 2, "c": 3}, {"a": 4, "c": 6}], [[1, 2, 3], [4, np.nan, 6]]),
        ([{"c": 3}, {"b": 5, "a": 4}], [[np.nan, np.nan, 3], [4, 5, np.nan]]),
    ],
)
def test_a_key_that_some_rows_do_not_have_is_null(records: list[Record], found: Any) -> None:
    for body in ({"instances": records}, {"dataframe_records": records}):
        array = Invocations(1 << 20).decode(call(body), WIDE).inputs["input-0"]
        np.testing.assert_array_equal(array, found)
    strict = [{"a": 1, "b": 2}, {"b": 2}]
    with pytest.raises(InvalidRequest, match="instance 1 has no 'a'"):
        V1().decode(call({"instances": strict}), STRICT)


def test_numbers_of_v2_columns_may_have_another_datatype_where_they_are_exact() -> None:
    given = [column("b", "INT8", [3]), column("c", "FP32", [0.5]), column("a", "UINT64", [2**60])]
    assert V2().decode(call({"inputs": given}), WIDE).inputs["input-0"].tolist() == [[2.0**60, 3, 0.5]]
    given = [column("b", "FP64", [3.0]), column("a", "UINT8", [7])]
    assert V2().decode(call({"inputs": given}), WHOLE).inputs["input-0"].tolist() == [[7, 3]]
    given = [column("a", "FP64", [0.5, None]), column("b", "FP64", [3, 4]), column("c", "INT64", [1, 2])]
    found = V2().decode(call({"inputs": given}), WIDE).inputs["input-0"]
    np.testing.assert_array_equal(found, [[0.5, 3, 1], [np.nan, 4, 2]])
    [born] = V2().decode(call({"inputs": [column("born", "INT64", [7])]}), date("unit")).inputs.values()
    assert born.tolist() == [b"7"]


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        (STRICT, [column("a", "FP64", [1e300]), column("b", "FP32", [1])], "cannot represent"),
        (WHOLE, [column("a", "FP64", [0.5]), column("b", "INT64", [1])], "cannot represent"),
        (WHOLE, [column("a", "FP64", [1e300]), column("b", "INT64", [1])], "cannot represent"),
        (WHOLE, [column("a", "UINT64", [2**63]), column("b", "INT64", [1])], "cannot represent"),
        (WHOLE, [column("a", "FP64", [2.0**53]), column("b", "INT64", [1])], "cannot represent"),
        (WHOLE, [column("a", "FP32", [2.0**24]), column("b", "INT64", [1])], "cannot represent"),
        (WHOLE, [column("a", "FP16", [2.0**11]), column("b", "INT64", [1])], "cannot represent"),
        (STRICT, [column("a", "BYTES", ["1"]), column("b", "FP32", [1])], "'a' is FP32, not 'BYTES'"),
        (STRICT, [column("a", "FP32", [1]), column("a", "FP32", [1])], "given twice|missing"),
        (STRICT, [column("a", "FP32", [1]), column("b", "FP32", [1, 2])], "number of rows"),
        (STRICT, [column("a", "FP32", [1]), {**column("b", "FP32", [1]), "parameters": {"k": 1}}], "parameters"),
        (STRICT, [column("a", "FP32", [1]), {**column("input-0", "FP32", [1, 2]), "shape": [1, 2]}], "given twice"),
        (STRICT, [{**column("a", "FP32", [1]), "shape": [1, 1, 1]}, column("b", "FP32", [1])], "shape"),
    ],
)
def test_v2_columns_that_do_not_fit_are_rejected(model: ModelSignature, given: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        V2().decode(call({"inputs": given}), model)


def test_v2_columns_are_rounded_as_json_numbers_are() -> None:
    columns = [column("a", "FP64", [0.1]), column("b", "INT64", [2**24 + 1])]

    [found] = V2().decode(call({"inputs": columns}), STRICT).inputs.values()
    [same] = V1().decode(call({"instances": [{"a": 0.1, "b": 2**24 + 1}]}), STRICT).inputs.values()

    assert found.tolist() == same.tolist()


def test_one_setting_decides_about_other_columns_on_every_route() -> None:
    rows = {"instances": [{"a": 1, "b": 2, "id": "x"}]}
    tensors = {"inputs": [column("id", "BYTES", ["x"]), column("b", "FP32", [2]), column("a", "FP32", [1])]}
    message = ModelInferRequest(
        model_name="m",
        inputs=[{"name": name, "datatype": "FP32", "shape": [1]} for name in ("b", "id", "a")],
        raw_input_contents=[np.float32(value).tobytes() for value in (2, 7, 1)],
    ).SerializeToString()
    ignoring = [
        V1(ignore_extra=True).decode(call(rows), STRICT),
        V1(ignore_extra=True).decode(call({"inputs": {"id": ["x"], "a": [1], "b": [2]}}), STRICT),
        V2(ignore_extra=True).decode(call(tensors), STRICT),
        GrpcV2("m", "1", ignore_extra=True).decode(call(message), STRICT),
        TorchServe(ignore_extra=True).decode(call(rows["instances"][0], content_type="application/json"), STRICT),
        Invocations(1 << 20).decode(call(rows), STRICT),
    ]
    assert [each.inputs["input-0"].tolist() for each in ignoring] == [[[1, 2]]] * len(ignoring)
    for body in (rows, {"dataframe_records": rows["instances"]}):
        with pytest.raises(InvalidRequest, match="unknown column 'id'"):
            Invocations(1 << 20, ignore_extra=False).decode(call(body), STRICT)


OWN = signature([tensor("x", "FP32", [-1, 2], columns=encode_columns(["x", "y"]))])


def test_a_column_may_have_the_name_of_its_input() -> None:
    whole = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    decoded = [
        V1().decode(call({"instances": [{"y": 2, "x": 1}]}), OWN),
        V1().decode(call({"instances": [{"x": [1, 2]}]}), OWN),
        V1().decode(call({"inputs": {"y": [2], "x": [1]}}), OWN),
        V1().decode(call({"inputs": {"x": [[1, 2]]}}), OWN),
        V2().decode(call({"inputs": [column("y", "FP32", [2]), column("x", "FP32", [1])]}), OWN),
        V2().decode(call({"inputs": [whole]}), OWN),
        Invocations(1 << 20).decode(call(b"y,x\n2,1\n", content_type="text/csv"), OWN),
    ]
    assert [each.inputs["x"].tolist() for each in decoded] == [[[1, 2]]] * len(decoded)
    for body in ({"instances": [{"x": 1}]}, {"inputs": {"x": [1]}}):
        with pytest.raises(InvalidRequest, match="column 'y' is missing"):
            V1().decode(call(body), OWN)
    with pytest.raises(InvalidRequest, match="column 'y' is missing"):
        V2().decode(call({"inputs": [column("x", "FP32", [1])]}), OWN)


def test_no_sentence_lists_all_columns_of_a_wide_model() -> None:
    names = [f"c{number}" for number in range(5000)]
    model = signature([tensor("x", "FP32", [-1, 5000], columns=encode_columns(names))])
    for route in ROUTES:
        for record in ({"c7": 1.0}, {f"d{number}": 1.0 for number in range(100)}, dict.fromkeys([*names, "e"], 1.0)):
            said = refusal(route, record, model)
            assert len(said) < 400
            assert "more" in said or "'e'" in said or (not said and "e" in record and route not in REJECTING)


def refusal(route: Route, record: Record, model: ModelSignature) -> str:
    """Return why a row is refused; empty if it is not."""
    try:
        route([record], list(record), model)
    except InvalidRequest as error:
        return error.message
    return ""


def test_typed_contents_of_grpc_are_columns_too() -> None:
    inputs = [
        {"name": name, "datatype": kind, "shape": [1], "contents": {FIELDS[kind]: [value]}}
        for name, kind, value in (("c", "FP32", 0.5), ("a", "INT64", 7), ("b", "UINT32", 3))
    ]
    message = ModelInferRequest(model_name="m", inputs=inputs)
    decoded = GrpcV2("m", "1").decode(call(message.SerializeToString()), WIDE)
    assert decoded.inputs["input-0"].tolist() == [[7, 3, 0.5]]
