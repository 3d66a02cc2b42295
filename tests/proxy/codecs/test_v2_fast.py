"""V2's fast path: which requests and responses use it, with the same results as without it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from shoal_proxy.codecs.v2 import V2
from shoal_proxy.codecs.v2_fast import V2Fast
from shoal_proxy.codecs.v2_response import ALL_BINARY, PLAIN, ResponseStyle, encode_response
from shoal_schema.wire.datatypes import Array
from tests.fakes import tensor
from tests.proxy.signatures import call, document, signature

MODEL = signature()
ROW = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}


def test_one_row_of_numbers_takes_the_quick_way() -> None:
    decoded = V2Fast(MODEL).row({"inputs": [ROW]})

    assert decoded is not None
    assert decoded.rows == 1
    assert decoded.style is PLAIN
    assert decoded.inputs["x"].tolist() == [[1.0, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"inputs": [ROW], "id": "7"},
        {"input": [ROW]},
        {"inputs": ROW},
        {"inputs": []},
        {"inputs": [ROW, ROW]},
        {"inputs": [[]]},
        {"inputs": [{**ROW, "parameters": {}}]},
        {"inputs": [{**ROW, "name": "y"}]},
        {"inputs": [{**ROW, "datatype": "FP64"}]},
        {"inputs": [{**ROW, "shape": [2, 4]}]},
        {"inputs": [{**ROW, "shape": [1, 4, 1]}]},
        {"inputs": [{**ROW, "data": [1.0, 2.0, 3.0]}]},
        {"inputs": [{**ROW, "data": [[1.0, 2.0, 3.0, 4.0]]}]},
        {"inputs": [{**ROW, "data": [1.0, 2.0, 3.0, "4"]}]},
        {"inputs": [{**ROW, "data": [1.0, 2.0, 3.0, True]}]},
        {"inputs": [{**ROW, "data": [1.0, 2.0, 3.0, 1e300]}]},
    ],
)
def test_any_other_document_is_left_to_the_thorough_way(document: Any) -> None:
    assert V2Fast(MODEL).row(document) is None


@pytest.mark.parametrize(
    "inputs",
    [
        [tensor("x", "BYTES", [-1, 4])],
        [tensor("x", "BF16", [-1, 4])],
        [tensor("x", "FP32", [-1, -1])],
        [tensor("x", "FP32", [-1, 4]), tensor("z", "FP32", [-1, 4])],
    ],
)
def test_only_models_with_one_input_of_a_fixed_number_of_numbers_have_such_a_row(inputs: list[Any]) -> None:
    assert V2Fast(signature(inputs)).row({"inputs": [ROW]}) is None


def binary(rows: int = 1, **more: Any) -> tuple[bytes, bytes]:
    """Return header and tail of a binary request."""
    entry = {"name": "x", "datatype": "FP32", "shape": [rows, 4], "parameters": {"binary_data_size": 16 * rows}}
    tail = np.arange(4 * rows, dtype=np.float32).tobytes()
    return orjson.dumps({"inputs": [entry], **more}), tail


def decoded(codec: V2, header: bytes, tail: bytes) -> Any:
    return codec.decode(call(header + tail, inference_header_content_length=str(len(header))), MODEL)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_binary_request_like_one_before_is_read_like_it_with_its_own_numbers(rows: int) -> None:
    header, tail = binary(rows)
    fast, codec = V2Fast(MODEL), V2()
    assert fast.binary(header, memoryview(tail)) is None
    first = decoded(codec, header, tail)
    fast.remember(header, orjson.loads(header)["inputs"], first)

    again = fast.binary(header, memoryview(tail[::-1]))

    assert again is not None
    assert (again.rows, again.style, again.parameters, again.tensors) == (
        first.rows, first.style, first.parameters, first.tensors,
    )  # fmt: skip
    assert again.inputs["x"].tobytes() == tail[::-1]
    assert fast.binary(header, memoryview(tail + b"\0")) is None, "that many bytes were not announced"


@pytest.mark.parametrize("length", [100, 10_000])
def test_a_header_of_many_kilobytes_is_not_kept(length: int) -> None:
    header, tail = binary(parameters={"p": "x" * length})
    fast = V2Fast(MODEL)
    fast.remember(header, orjson.loads(header)["inputs"], decoded(V2(), header, tail))

    assert (fast.binary(header, memoryview(tail)) is None) is (length > 5000)


def test_a_header_with_an_id_of_its_own_is_not_kept() -> None:
    header, tail = binary(id="7")
    fast = V2Fast(MODEL)
    fast.remember(header, orjson.loads(header)["inputs"], decoded(V2(), header, tail))

    assert fast.binary(header, memoryview(tail)) is None


def test_headers_without_end_cost_bounded_memory() -> None:
    fast, codec = V2Fast(MODEL), V2()
    for number in range(2000):
        header, tail = binary(parameters={"p": number})
        fast.remember(header, orjson.loads(header)["inputs"], decoded(codec, header, tail))
    known = [number for number in range(2000) if fast.binary(binary(parameters={"p": number})[0], memoryview(tail))]

    assert 0 < len(known) <= 500
    assert known[-1] == 1999


@pytest.mark.parametrize("style", [PLAIN, ALL_BINARY], ids=["JSON", "binary"])
@pytest.mark.parametrize("shape", [(1, 4), (3, 4), (0, 4)])
def test_a_response_of_one_output_of_numbers_takes_the_quick_way_and_is_the_same(
    style: ResponseStyle, shape: tuple[int, ...]
) -> None:
    outputs = {"y": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)}
    fast = V2Fast(MODEL)

    for _ in range(2):
        quick = fast.encode_response(style, outputs, MODEL)
        thorough = encode_response(style, outputs, MODEL)
        assert quick is not None
        assert (quick.status, quick.lines) == (thorough.status, thorough.lines)
        assert b"".join(quick.body) == b"".join(thorough.body)


TWO: Mapping[str, Array] = {"y": np.ones((1, 4), np.float32), "z": np.ones(1, np.float32)}


@pytest.mark.parametrize(
    ("style", "outputs"),
    [
        (PLAIN, TWO),
        (ALL_BINARY, TWO),
        (ResponseStyle(id="7"), {"y": TWO["y"]}),
        (ResponseStyle(outputs={"y": True}), {"y": TWO["y"]}),
        (PLAIN, {}),
    ],
)
def test_any_other_response_is_left_to_the_thorough_way(style: ResponseStyle, outputs: Mapping[str, Array]) -> None:
    assert V2Fast(MODEL).encode_response(style, outputs, MODEL) is None


def test_a_response_to_another_signature_is_left_to_the_thorough_way() -> None:
    assert V2Fast(MODEL).encode_response(PLAIN, {"y": TWO["y"]}, signature()) is None


@pytest.mark.parametrize(
    "output", [tensor("y", "BF16", [-1, 4]), tensor("y", "BYTES", [-1, 4]), tensor("y", "FP32", [4, -1], batch_dim=1)]
)
def test_texts_and_what_numpy_does_not_have_are_left_to_the_thorough_way(output: Any) -> None:
    model = signature(outputs=[output])
    array = {"BF16": np.zeros((1, 4), np.uint16), "BYTES": np.array([[b""] * 4], object)}
    outputs = {"y": array.get(output["datatype"], np.zeros((1, 4), np.float32))}

    assert V2Fast(model).encode_response(PLAIN, outputs, model) is None


def test_two_outputs_get_responses_whole() -> None:
    model = signature(outputs=[tensor("y", "FP32", [-1, 4]), tensor("z", "FP32", [-1])])
    codec = V2()
    asked = codec.decode(call({"inputs": [ROW]}), model)

    answer = document(codec.encode(asked, TWO, {}, model))

    assert [(each["name"], each["data"]) for each in answer["outputs"]] == [("y", [1, 1, 1, 1]), ("z", [1])]
