"""Values of named columns: flags among numbers, and texts of a column that is called as base64 is."""

import pytest

from shoal_proxy.codecs.invocations import Invocations
from shoal_proxy.codecs.v1 import V1
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import InvalidRequest
from shoal_proxy.rpc.inference_pb2 import ModelInferRequest
from shoal_proxy.rpc.messages import GrpcV2
from tests.fakes import tensor
from tests.proxy.codecs.routes import MIXED, ROUTES, STRICT, WHOLE, Record, Route, column
from tests.proxy.signatures import call, signature

NAMELESS = signature([tensor("x", "FP32", [-1, 2])])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_flags_are_numbers_in_columns_with_names(route: Route, order: list[str]) -> None:
    for model in (WHOLE, STRICT):
        found = route([{"a": True, "b": 7}, {"a": False, "b": True}], order, model).inputs["input-0"]
        assert found.tolist() == [[1, 7], [0, 1]]
    rows: list[Record] = [{"size": True, "count": False, "town": "x", "flag": True, "born": "2024-01-31"}]
    inputs = route(rows, sorted(rows[0]), MIXED).inputs
    assert (inputs["size"].tolist(), inputs["count"].tolist(), inputs["flag"].tolist()) == ([1], [0], [True])


def test_flags_are_no_numbers_without_names() -> None:
    number, table = signature([tensor("x", "FP32", [-1])]), {"data": [[True, 1]]}
    bodies = [{"instances": [[True, 1]]}, {"inputs": [[True, 1]]}, {"dataframe_split": table}]
    bodies.append({"dataframe_split": {"columns": [0, 1], **table}})
    for body in bodies:
        with pytest.raises(InvalidRequest, match="only numbers"):
            Invocations(1 << 20).decode(call(body), STRICT)
    for body in ({"instances": [True]}, {"inputs": [True]}, {"dataframe_split": {"data": [[True]]}}):
        with pytest.raises(InvalidRequest, match="only numbers"):
            Invocations(1 << 20).decode(call(body), number)
    for kind, model in (("; header=absent", STRICT), ("", NAMELESS)):
        with pytest.raises(InvalidRequest, match="cannot be 'true'"):
            Invocations(1 << 20).decode(call(b"5,true\n", content_type=f"text/csv{kind}"), model)
    whole = {"name": "input-0", "datatype": "FP32", "shape": [1, 2], "data": [True, 1]}
    for one in (whole, {**whole, "datatype": "BOOL", "data": [True, False]}):
        with pytest.raises(InvalidRequest, match="FP32"):
            V2().decode(call({"inputs": [one]}), STRICT)


def test_columns_of_booleans_are_numbers_in_v2_and_grpc() -> None:
    given = [column("b", "BOOL", [True, False]), column("a", "FP32", [5, 6])]
    assert V2().decode(call({"inputs": given}), STRICT).inputs["input-0"].tolist() == [[5, 1], [6, 0]]
    inputs = [
        {"name": "b", "datatype": "BOOL", "shape": [1], "contents": {"bool_contents": [True]}},
        {"name": "a", "datatype": "INT64", "shape": [1], "contents": {"int64_contents": [5]}},
    ]
    message = ModelInferRequest(model_name="m", inputs=inputs).SerializeToString()
    assert GrpcV2("m", "1").decode(call(message), STRICT).inputs["input-0"].tolist() == [[5, 1]]
    with pytest.raises(InvalidRequest, match="flag"):
        V2().decode(call({"inputs": [column("flag", "INT64", [1])]}), signature([tensor("flag", "BOOL", [-1])]))


@pytest.mark.parametrize("route", ROUTES)
def test_a_column_called_b64_holds_texts(route: Route) -> None:
    alone = signature([tensor("b64", "BYTES", [-1], content_type="text/plain")])
    assert route([{"b64": "aGk="}, {"b64": "hi"}], ["b64"], alone).inputs["b64"].tolist() == [b"aGk=", b"hi"]
    other = signature([tensor("b64", "BYTES", [-1]), tensor("n", "INT64", [-1])])
    assert route([{"b64": "aGk=", "n": 1}], ["n", "b64"], other).inputs["b64"].tolist() == [b"aGk="]


def test_bytes_of_an_input_called_b64_may_still_be_base64() -> None:
    alone = signature([tensor("b64", "BYTES", [-1])])
    assert V1().decode(call({"instances": [{"b64": {"b64": "aGk="}}]}), alone).inputs["b64"].tolist() == [b"hi"]
    text = signature([tensor("text", "BYTES", [-1])])
    assert V1().decode(call({"instances": [{"b64": "aGk="}]}), text).inputs["text"].tolist() == [b"hi"]
