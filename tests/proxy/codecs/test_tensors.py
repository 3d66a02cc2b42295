from typing import Any

import hypothesis.strategies as st
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from shoal_proxy.codecs.base import HttpResponse, InferCall
from shoal_proxy.codecs.tensors import from_binary, from_json, text, to_binary, to_canonical, to_wire, widen_bf16
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.errors import InvalidRequest
from shoal_proxy.model.signature import InputSpec, ModelSignature
from shoal_proxy.model.sizes import byte_size
from shoal_schema.wire.datatypes import DATATYPES, DTYPES, Array
from shoal_schema.wire.elements import bytes_array
from tests.fakes import tensor
from tests.proxy.signatures import call, document, header_length, signature

JSON_TYPES = sorted(set(DTYPES) - {"BF16"})
shapes = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)


def arrays(datatype: str, *, words: bool) -> st.SearchStrategy[Array]:
    """Return arrays of a datatype; ``words``: what JSON can hold (text, finite numbers)."""
    if datatype == "BYTES":
        element: st.SearchStrategy[bytes] = st.text(max_size=5).map(str.encode) if words else st.binary(max_size=5)
        return shapes.flatmap(
            lambda shape: st.lists(element, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
                lambda elements: bytes_array(elements, shape)
            )
        )
    elements = {"allow_nan": False, "allow_infinity": False} if words and DTYPES[datatype].kind == "f" else {}
    return hnp.arrays(DTYPES[datatype], shapes, elements=elements or None)


def echo_model(datatype: str, ndim: int, batch_dim: int = 0) -> ModelSignature:
    shape = [-1] * ndim
    return signature(
        [tensor("x", datatype, shape, batch_dim=batch_dim)], [tensor("y", datatype, shape, batch_dim=batch_dim)]
    )


def same(left: Array, right: Array) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and to_binary(left) == to_binary(right)


def echoed(model: ModelSignature, request: InferCall) -> tuple[Array, HttpResponse]:
    """Decode a request, and encode its input as the output; the second time, what is usual is known already."""
    codec = V2()
    decoded = codec.decode(request, model)
    reply = codec.encode(decoded, {"y": decoded.inputs["x"]}, {}, model)
    again = codec.decode(request, model)
    assert same(again.inputs["x"], decoded.inputs["x"])
    assert (again.rows, again.style, again.parameters) == (decoded.rows, decoded.style, decoded.parameters)
    usual = codec.encode(again, {"y": again.inputs["x"]}, {}, model)
    assert (b"".join(usual.body), usual.lines) == (b"".join(reply.body), reply.lines)
    return decoded.inputs["x"], reply


def binary_call(array: Array, datatype: str, batch_dim: int = 0, **parameters: Any) -> InferCall:
    """Return the V2 request for a canonical array."""
    wire = np.ascontiguousarray(np.moveaxis(array, 0, batch_dim))
    data = bytes(to_binary(wire))
    entry = {
        "name": "x",
        "datatype": datatype,
        "shape": list(wire.shape),
        "parameters": {"binary_data_size": len(data)},
    }
    header = orjson.dumps({"inputs": [entry], "parameters": parameters})
    return call(header + data, inference_header_content_length=str(len(header)))


@pytest.mark.parametrize("datatype", sorted(DTYPES))
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_binary_tensors_survive_the_way_in_and_out(datatype: str, data: st.DataObject) -> None:
    array = data.draw(arrays(datatype, words=False))
    batch_dim = data.draw(st.integers(0, array.ndim - 1))
    model = echo_model(datatype, array.ndim, batch_dim)

    decoded, reply = echoed(model, binary_call(array, datatype, batch_dim, binary_data_output=True))

    assert same(decoded, array)
    spec = model.outputs["y"]
    (output,) = document(reply)["outputs"]
    assert output["datatype"] == datatype
    tail = memoryview(b"".join(reply.body))[header_length(reply) :]
    assert output["parameters"]["binary_data_size"] == len(tail)
    assert same(to_canonical(spec, from_binary(spec, tail, output["shape"])), array)


@pytest.mark.parametrize("datatype", JSON_TYPES)
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "flat"])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_json_tensors_survive_the_way_in_and_out(datatype: str, data: st.DataObject, *, nested: bool) -> None:
    array = data.draw(arrays(datatype, words=True))
    model = echo_model(datatype, array.ndim)
    values = array.tolist() if nested else array.ravel().tolist()
    if datatype == "BYTES":
        values = orjson.loads(orjson.dumps(values, default=bytes.decode))
    entry = {"name": "x", "datatype": datatype, "shape": list(array.shape), "data": values}

    decoded, reply = echoed(model, call({"inputs": [entry]}))

    assert same(decoded, array)
    (output,) = document(reply)["outputs"]
    again, _ = echoed(model, call({"inputs": [{**output, "name": "x"}]}))
    assert same(again, array)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        pytest.param("INT64", [-(2**63), 2**63 - 1, 0], id="int64 extremes"),
        pytest.param("UINT64", [2**64 - 1, 2**63 + 1, 1], id="uint64 above 2^63 beside small ones"),
        pytest.param("INT8", [-128, 127], id="int8"),
        pytest.param("UINT8", [0, 255], id="uint8"),
        pytest.param("FP64", [2**63, -0.0, 5e-324], id="integers are numbers"),
        pytest.param("BOOL", [True, False], id="booleans"),
        pytest.param("BYTES", ["", "é\u0000", "𝄞"], id="texts"),
    ],
)
def test_extreme_values_are_exact(datatype: str, values: list[Any]) -> None:
    array = from_json(echo_model(datatype, 1).inputs["x"], orjson.loads(orjson.dumps(values)))

    assert array.dtype == DTYPES[datatype]
    assert array.tolist() == [value.encode() if isinstance(value, str) else value for value in values]


@pytest.mark.parametrize(
    ("datatype", "data", "message"),
    [
        pytest.param("FP32", ["1"], "only numbers", id="a string for a number"),
        pytest.param("FP32", [1.5, "1"], "only numbers", id="a string among numbers"),
        pytest.param("FP32", [True], "only numbers", id="a boolean for a float"),
        pytest.param("FP32", [None], "does not accept null", id="null"),
        pytest.param("FP32", [{}], "only numbers", id="an object"),
        pytest.param("FP32", {"a": 1}, "only numbers", id="an object instead of a list"),
        pytest.param("UINT64", [2.0**64], "only integers of at most 64 bits", id="as orjson reads 2**64"),
        pytest.param("INT64", [-(2.0**63) - 2048], "at most 64 bits", id="as orjson reads -2**63 - 1"),
        pytest.param("INT64", [True, 2], "only integers", id="a boolean among integers"),
        pytest.param("INT64", [1.5], "only integers", id="a fraction for an integer"),
        pytest.param("INT64", [2.0**53 + 2], "only integers, none from 2", id="a float beyond exact integers"),
        pytest.param("INT64", [2**63], "outside the range of INT64", id="above int64"),
        pytest.param("INT64", [1e30], "only integers", id="an integer beyond 64 bits, which JSON reads as float"),
        pytest.param("UINT64", [-1], "outside the range of UINT64", id="below uint64"),
        pytest.param("UINT8", [300], "outside the range of UINT8", id="above uint8"),
        pytest.param("INT8", [-129], "outside the range of INT8", id="below int8"),
        pytest.param("FP16", [70000], "outside the range of FP16", id="above half precision"),
        pytest.param("FP32", [1e39], "outside the range of FP32", id="above single precision"),
        pytest.param("BOOL", [1], "only booleans", id="an integer for a boolean"),
        pytest.param("BOOL", [True, 1], "only booleans", id="an integer among booleans"),
        pytest.param("BYTES", [1], "only strings", id="a number for a string"),
        pytest.param("BYTES", ["a", ["b"]], "only strings", id="a list beside a string"),
        pytest.param("BYTES", [["a"], "b"], "ragged", id="a string beside a list"),
        pytest.param("FP32", [[1, 2], [3]], "ragged", id="ragged rows"),
        pytest.param("FP32", [[1], 2], "ragged", id="a number beside a list"),
        pytest.param("FP32", [1, [2]], "only numbers|ragged", id="a list beside a number"),
        pytest.param("BF16", [1.0], "binary data", id="bfloat16 in JSON"),
    ],
)
def test_json_values_that_do_not_fit_are_rejected(datatype: str, data: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        from_json(echo_model(datatype, 1).inputs["x"], data)

    assert "input 'x'" in caught.value.message


def test_one_long_string_among_many_numbers_costs_no_room_for_each() -> None:
    # numpy would make an array of the longest string's width: 4 MB times 10 000.
    with pytest.raises(InvalidRequest, match="only numbers"):
        from_json(echo_model("FP32", 1).inputs["x"], ["a" * 1_000_000, *[0] * 10_000])


def nested(levels: int, leaf: Any) -> Any:
    value = leaf
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
@pytest.mark.parametrize("levels", [31, 32, 33, 64, 65, 900])
def test_lists_nested_deeper_than_any_array_are_rejected(datatype: str, levels: int) -> None:
    data = nested(levels, "a" if datatype == "BYTES" else 1)
    entry = {"name": "x", "datatype": datatype, "shape": [1], "data": data}

    with pytest.raises(InvalidRequest):
        V2().decode(InferCall({}, b'{"inputs":[%s]}' % dumps_deep(entry)), echo_model(datatype, 1))


def dumps_deep(entry: dict[str, Any]) -> bytes:
    """Write JSON deeper than orjson writes it."""
    import json

    return json.dumps(entry).encode()


@pytest.mark.parametrize(
    ("data", "count", "message"),
    [
        pytest.param(b"\x01\x00", 1, "ends inside an element's length", id="half a length"),
        pytest.param(b"\x05\x00\x00\x00ab", 1, "5 bytes", id="shorter than it says"),
        pytest.param(b"\xff\xff\xff\xffab", 1, "4294967295 bytes", id="4 GiB"),
        pytest.param(b"\x00\x00\x00\x00" * 3, 2, "has 3", id="too many elements"),
        pytest.param(b"", 1, "has 0", id="too few"),
        pytest.param(b"\x00\x00\x00\x00", 2**40, "has 1", id="a shape far beyond the data"),
    ],
)
def test_bytes_elements_that_lie_are_rejected(data: bytes, count: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        from_binary(echo_model("BYTES", 1).inputs["x"], memoryview(data), [count])


def test_any_byte_but_zero_is_true() -> None:
    flags = from_binary(echo_model("BOOL", 1).inputs["x"], memoryview(b"\x00\x01\xff"), [3])

    assert flags.tolist() == [False, True, True]
    assert bytes(to_binary(flags)) == b"\x00\x01\x01"


def test_bfloat16_widens_to_the_same_value() -> None:
    bits = (np.array([1.0, -2.5, 0.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)

    assert widen_bf16(bits).tolist() == [1.0, -2.5, 0.0]


def test_bytes_that_are_no_text_show_as_base64() -> None:
    assert text("é".encode()) == "é"
    assert text(b"\xff\x00") == {"b64": "/wA="}


def test_sizes_count_each_element() -> None:
    assert byte_size(bytes_array([b"abc", b""], (2, 1))) == 4 + 3 + 4
    assert byte_size(np.zeros((2, 3), np.float32)) == 24


def test_every_datatype_but_bfloat16_is_recognized_by_its_dtype() -> None:
    assert {DATATYPES[DTYPES[name]] for name in JSON_TYPES} == set(JSON_TYPES)


def test_the_wire_form_is_contiguous_wherever_the_batch_dimension_is() -> None:
    spec = InputSpec("x", "FP32", (-1, 3, 2), batch_dim=2)
    array = np.arange(24, dtype=np.float32).reshape(4, 3, 2)

    wire = to_wire(spec, array)

    assert wire.shape == (3, 2, 4)
    assert wire.flags.c_contiguous
    assert same(to_canonical(spec, wire), array)


@pytest.mark.parametrize("shape", [[3], [3, 5], [3, 5, 1], [3, 5, 1, 1]])
def test_a_rejected_shape_is_reported_as_sent(shape: list[int]) -> None:
    model = signature([tensor("x", "FP32", [4, 2, -1], batch_dim=2)])
    entry = {"name": "x", "datatype": "FP32", "shape": shape, "data": [1.0] * int(np.prod(shape))}

    with pytest.raises(InvalidRequest) as refused:
        V2().decode(call({"inputs": [entry]}), model)

    assert f"has shape {shape}" in refused.value.message
    assert "[4, 2, -1]" in refused.value.message
