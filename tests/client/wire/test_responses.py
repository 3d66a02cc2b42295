from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import errors
from shoal.wire.messages import Response
from shoal.wire.responses import batch_result, json_body, partial_results, raise_for_status, single_result
from shoal_schema.wire.row_errors import RowError
from tests.client.wire.signatures import ADDER, JSON, PICTURES, TIME_FIRST, UNBATCHED

HEADER_LENGTH = "inference-header-content-length"


def entry(name: str, datatype: str, shape: list[int], size: Any = None, **more: Any) -> dict[str, Any]:
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": name, "datatype": datatype, "shape": shape} | parameters | more


def answer(entries: list[Any], tail: bytes = b"") -> Response:
    header = orjson.dumps({"outputs": entries})
    return Response(200, {HEADER_LENGTH: str(len(header))}, header + tail)


def test_one_item_loses_its_batch_dimension() -> None:
    values = np.array([[1, 2, 3]], dtype="<f4")

    result = single_result(answer([entry("y", "FP32", [1, 3], 12)], values.tobytes()), ADDER)

    assert result.tolist() == [1, 2, 3]
    assert result.dtype == np.float32


def test_several_outputs_come_by_name_and_text_as_str() -> None:
    tail = b"\3\0\0\0cat\3\0\0\0dog" + np.array([0.75, 0.25], dtype="<f4").tobytes()
    entries = [entry("label", "BYTES", [1, 2], 14), entry("probability", "FP32", [1, 2], 8)]

    result = single_result(answer(entries, tail), PICTURES)

    assert result["label"].tolist() == ["cat", "dog"]
    assert result["probability"].tolist() == [0.75, 0.25]


def test_text_of_one_element_is_a_str_and_json_its_value() -> None:
    response = answer([entry("answer", "BYTES", [1], 12)], b'\x08\0\0\0{"a": 1}')

    assert single_result(response, JSON) == {"a": 1}


def test_bytes_that_are_no_text_stay_bytes() -> None:
    response = answer([entry("other", "BYTES", [1], 6)], b"\2\0\0\0\xff\xfe")

    assert single_result(response, ADDER) == b"\xff\xfe"


def test_outputs_as_json_data_are_read_too() -> None:
    response = Response(200, {}, orjson.dumps({"outputs": [entry("y", "FP32", [1, 3], data=[1, 2, 3])]}))

    assert single_result(response, ADDER).tolist() == [1, 2, 3]


def test_text_as_json_data_is_read_too() -> None:
    outputs = [
        entry("label", "BYTES", [1, 2], data=["cat", "dog"]),
        entry("probability", "FP32", [1, 2], data=[0.5, 0.5]),
    ]

    assert single_result(Response(200, {}, orjson.dumps({"outputs": outputs})), PICTURES)["label"][1] == "dog"


def test_the_batch_dimension_comes_to_the_front() -> None:
    values = np.arange(10, dtype="<f4").reshape(5, 2)

    result = batch_result(answer([entry("y", "FP32", [5, 2], 40)], values.tobytes()), TIME_FIRST, 2)

    assert result.tolist() == values.T.tolist()


def test_a_model_that_does_not_batch_answers_as_it_is() -> None:
    assert single_result(answer([entry("y", "FP32", [2], 8)], b"\0" * 8), UNBATCHED).shape == (2,)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(Response(200, {}, b"<html>"), id="no JSON"),
        pytest.param(Response(200, {}, b"[]"), id="a list"),
        pytest.param(Response(200, {HEADER_LENGTH: "99"}, b"{}"), id="a header longer than the body"),
        pytest.param(Response(200, {HEADER_LENGTH: "-1"}, b"{}"), id="a negative header"),
        pytest.param(Response(200, {HEADER_LENGTH: "x"}, b"{}"), id="a header that is no number"),
        pytest.param(answer([]), id="no outputs"),
        pytest.param(answer([entry("y", "FP32", [1, 3], 13)], b"\0" * 12), id="a lying length"),
        pytest.param(answer([entry("y", "FP32", [1, 3], 12)], b"\0" * 16), id="bytes left over"),
        pytest.param(answer([entry("y", "FP32", [1, 4], 12)], b"\0" * 12), id="another shape"),
        pytest.param(answer([entry("y", "FP32", [-1, -3], 12)], b"\0" * 12), id="a negative shape"),
        pytest.param(answer([entry("y", "FP99", [1, 3], 12)], b"\0" * 12), id="an unknown type"),
        pytest.param(answer([entry("y", "FP32", [2, 3], 24)], b"\0" * 24), id="too many rows"),
        pytest.param(answer([entry("y", "FP32", [], 4)], b"\0" * 4), id="no batch dimension"),
        pytest.param(answer([entry("y", "FP32", [1, 3])]), id="no data"),
        pytest.param(answer([entry("y", "FP32", [1], data=["x"])]), id="text for numbers"),
    ],
)
def test_response_that_violates_the_protocol_is_a_server_failure(response: Response) -> None:
    with pytest.raises(errors.ServerFailed, match="violates the protocol"):
        single_result(response, ADDER)


@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from([HEADER_LENGTH, "retry-after"]), st.text(max_size=4)),
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["outputs", "error", "errors", "row", "shape"]), inner)
        ),
    ).map(lambda value: orjson.dumps(str(value))),
)
def test_no_response_raises_other_errors(status: int, headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(errors.ShoalError):
        single_result(Response(status, headers, body), ADDER)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, errors.InvalidInput),
        (404, errors.NotFound),
        (405, errors.NotFound),
        (408, errors.DeadlineExceeded),
        (413, errors.TooLarge),
        (415, errors.InvalidInput),
        (429, errors.Overloaded),
        (500, errors.ServerFailed),
        (502, errors.Unavailable),
        (503, errors.Unavailable),
        (504, errors.DeadlineExceeded),
        (302, errors.ServerFailed),
        (418, errors.ServerFailed),
    ],
)
def test_each_status_has_its_error(status: int, expected: type[errors.ShoalError]) -> None:
    body = orjson.dumps({"error": "what went wrong"})

    with pytest.raises(errors.ShoalError, match="what went wrong") as caught:
        raise_for_status(Response(status, {"x-request-id": "r1"}, body))

    assert type(caught.value) is expected
    assert caught.value.status == status
    assert caught.value.request_id == "r1"


def test_a_503_that_says_when_to_come_back_is_overload() -> None:
    with pytest.raises(errors.Overloaded, match="queue is full") as caught:
        raise_for_status(Response(503, {"retry-after": "7"}, b'{"error": "queue is full"}'))

    assert caught.value.retry_after_s == 7


def test_a_retry_after_that_is_a_date_counts_as_a_second() -> None:
    headers = {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}

    with pytest.raises(errors.Overloaded) as caught:
        raise_for_status(Response(503, headers, b""))

    assert caught.value.retry_after_s == 1


def test_failed_rows_are_named() -> None:
    rows = [{"row": 3, "status": 400, "message": "no image"}]
    body = orjson.dumps({"error": "row 3: no image", "errors": rows})

    with pytest.raises(errors.InvalidInput, match="row 3: no image") as caught:
        raise_for_status(Response(400, {}, body))

    assert caught.value.errors == (RowError(3, 400, "no image"),)


@pytest.mark.parametrize("rows", ["all", {"x": ["required"]}, [{"row": "3"}], [{"row": 3, "status": 99}]])
def test_rows_told_in_another_way_leave_the_servers_sentence(rows: object) -> None:
    body = orjson.dumps({"error": "x is required", "errors": rows})

    with pytest.raises(errors.InvalidInput, match=r"^x is required$") as caught:
        raise_for_status(Response(400, {}, body))

    assert caught.value.errors == ()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b'{"code": 500, "type": "X", "message": "boom"}', "boom", id="TorchServe"),
        pytest.param(b"Bad Gateway\nmore", "^Bad Gateway$", id="text"),
        pytest.param(b"", "the server returned 500", id="nothing"),
        pytest.param(b"[1]", r"\[1\]", id="JSON of no known shape"),
        pytest.param(b"\xff\xfe", "\ufffd", id="no text"),
    ],
)
def test_the_message_is_whatever_sentence_there_is(body: bytes, message: str) -> None:
    with pytest.raises(errors.ServerFailed, match=message):
        raise_for_status(Response(500, {}, body))


def test_a_json_answer_is_its_value() -> None:
    assert json_body(Response(200, {}, b'{"a": 1}')) == {"a": 1}
    with pytest.raises(errors.ServerFailed, match="not JSON"):
        json_body(Response(200, {}, b"<html>"))


def failing(entries: list[Any], tail: bytes, failed: Any) -> Response:
    header = orjson.dumps({"outputs": entries, "parameters": {"errors": failed}})
    return Response(200, {HEADER_LENGTH: str(len(header))}, header + tail)


def test_a_part_of_the_rows_may_fail_and_the_others_are_there() -> None:
    listed = '[{"row": 1, "status": 400, "message": "no"}]'
    values = np.array([[1, 2, 3], [4, 5, 6]], dtype="<f4")
    outputs, failed = partial_results(failing([entry("y", "FP32", [2, 3], 24)], values.tobytes(), listed), ADDER, 3)
    assert (outputs["y"].tolist(), failed) == (values.tolist(), (RowError(1, 400, "no"),))
    assert partial_results(failing([], b"", listed.replace("1", "0")), ADDER, 1)[0] == {}
    assert partial_results(answer([entry("y", "FP32", [2, 3], 24)], values.tobytes()), ADDER, 2)[1] == ()


@pytest.mark.parametrize(
    "listed",
    [
        "no JSON",
        "{}",
        7,
        '[{"row": 3, "status": 400, "message": "no"}]',
        '[{"row": 1, "status": 400, "message": "no"}, {"row": 1, "status": 400, "message": "no"}]',
    ],
)
def test_errors_that_are_none_of_the_rows_break_the_protocol(listed: Any) -> None:
    with pytest.raises(errors.ServerFailed, match="violates the protocol"):
        partial_results(failing([entry("y", "FP32", [2, 3], 24)], bytes(24), listed), ADDER, 3)
