from typing import Any

import numpy as np
import orjson
import pytest

from shoal_proxy.codecs.base import DecodedRequest
from shoal_proxy.codecs.torchserve import TorchServe
from shoal_proxy.errors import (
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    ModelFailed,
    ProxyError,
    RequestTimeout,
    RowsFailed,
    UnsupportedMediaType,
)
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.row_errors import RowError
from tests.fakes import tensor
from tests.proxy.signatures import call, document, signature

ROWS = signature([tensor("x", "FP32", [-1, 2])], [tensor("y", "FP32", [-1, 2])])
IMAGES = signature([tensor("image", "BYTES", [-1], content_type="image/jpeg,image/png")])
TEXTS = signature([tensor("t", "BYTES", [-1], content_type="text/plain")])
VALUES = signature([tensor("item", "BYTES", [-1], content_type="application/json")])
JPEG = b"\xff\xd8\r\n--not-the-boundary\r\n\xff"


def decode(body: Any, model: ModelSignature, **headers: str) -> DecodedRequest:
    return TorchServe().decode(call(body, **headers), model)


def form(*parts: tuple[str, bytes], end: bytes = b"--B--\r\n") -> bytes:
    """Return a multipart form with boundary B, as curl -F writes it; a part is its extra header and its data."""
    written = b""
    for number, (header, data) in enumerate(parts):
        extra = header.encode() + b"\r\n" if header else b""
        disposition = b'Content-Disposition: form-data; name="part%d"; filename="f"\r\n' % number
        written += b"--B\r\n" + disposition + extra + b"\r\n" + data + b"\r\n"
    return written + end


@pytest.mark.parametrize(
    ("body", "model", "media_type", "value"),
    [
        pytest.param([1, 2], ROWS, "application/json", [1, 2], id="JSON is one row"),
        pytest.param([1, 2], ROWS, "", [1, 2], id="curl -T rows.json"),
        pytest.param([1, 2], ROWS, "application/x-www-form-urlencoded", [1, 2], id="curl -d"),
        pytest.param({"x": [1, 2]}, ROWS, "application/json", [1, 2], id="JSON by name"),
        pytest.param(JPEG, IMAGES, "", JPEG, id="curl -T cat.jpg"),
        pytest.param(JPEG, IMAGES, "application/x-www-form-urlencoded", JPEG, id="curl --data-binary @cat.jpg"),
        pytest.param(JPEG, IMAGES, "image/jpeg", JPEG, id="an image that says so"),
        pytest.param(b"hello", TEXTS, "", b"hello", id="curl -T hello.txt"),
        pytest.param(b"hello", TEXTS, "application/x-www-form-urlencoded", b"hello", id="curl -d hello"),
        pytest.param({"q": 1}, VALUES, "", b'{"q":1}', id="a JSON value without a type"),
        pytest.param(form(("Content-Type: image/jpeg", JPEG)), IMAGES, "multipart/form-data; boundary=B", JPEG,
                     id="curl -F data=@cat.jpg"),
        pytest.param(form(("content-type:  IMAGE/PNG; x=y", b"1")), IMAGES, 'multipart/form-data; boundary="B"', b"1",
                     id="a quoted boundary"),
        pytest.param(form(("", b"hello")), TEXTS, "multipart/form-data; boundary=B", b"hello", id="curl -F text=hello"),
        pytest.param(form(("", b"[1, 2]")), ROWS, "multipart/form-data; boundary=B", [1, 2], id="JSON in a field"),
        pytest.param(form(("Content-Type: application/json", b"[1, 2]")), ROWS, "multipart/form-data; boundary=B",
                     [1, 2], id="JSON in a part"),
    ],
)  # fmt: skip
def test_a_body_is_one_row(body: Any, model: ModelSignature, media_type: str, value: Any) -> None:
    decoded = decode(body, model, **({"content_type": media_type} if media_type else {}))

    (array,) = decoded.inputs.values()
    assert array.tolist() == [value]
    assert decoded.rows == 1


@pytest.mark.parametrize(
    ("body", "media_type", "message"),
    [
        pytest.param(b"x", "multipart/form-data", "without a boundary", id="no boundary"),
        pytest.param(b"", "multipart/form-data; boundary=B", "has no part", id="nothing"),
        pytest.param(b"rubbish", "multipart/form-data; boundary=B", "malformed multipart", id="no form"),
        pytest.param(b"x", "multipart/form-data; boundary=" + "B" * 257, "Boundary length 257", id="endless boundary"),
        pytest.param(b"--B--\r\n", "multipart/form-data; boundary=B", "multipart", id="an end without a part"),
        pytest.param(form(("", b"x"), end=b"")[:-3], "multipart/form-data; boundary=B", "has no part", id="cut short"),
        pytest.param(form(("", b"")), "multipart/form-data; boundary=B", "body is empty", id="an empty part"),
        pytest.param(b"", "image/jpeg", "the body is empty", id="an empty image"),
    ],
)
def test_a_broken_form_is_rejected(body: bytes, media_type: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode(body, IMAGES, content_type=media_type)


TWO = signature(
    [
        tensor("left", "BYTES", [-1, 1], content_type="image/*"),
        tensor("right", "BYTES", [-1, 1]),
        tensor("k", "INT64", [-1, 1], optional=True),
    ],
    [tensor("y", "FP32", [-1])],
)


def named(**parts: bytes) -> bytes:
    """Return a form with parts of these names."""
    written = [
        b'--B\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n' % (n.encode(), d) for n, d in parts.items()
    ]
    return b"".join(written) + b"--B--\r\n"


def test_the_parts_of_a_form_are_inputs_by_name() -> None:
    decoded = decode(named(right=b"\x00R", k=b"3", left=JPEG), TWO, content_type="multipart/form-data; boundary=B")

    assert decoded.rows == 1
    assert {name: array.tolist() for name, array in decoded.inputs.items()} == {
        "left": [[JPEG]],
        "right": [[b"\x00R"]],
        "k": [[3]],
    }


@pytest.mark.parametrize(
    ("body", "model", "message"),
    [
        (named(data=b"1", mask=b"2"), IMAGES, "part 'data'"),
        (named(left=b"1", right=b"2", mask=b"3"), TWO, "part 'mask'"),
        (named(left=b"1"), TWO, "right"),
        (named(left=b"1", right=b"2", k=b"three"), TWO, "JSON"),
        (named(left=b"1", right=b"2").replace(b"--B--", b"") + named(left=b"3"), TWO, "two parts named 'left'"),
        (named(a=b"1", b=b"2"), VALUES, "part 'a'"),
    ],
)
def test_a_part_too_many_or_too_few_is_rejected_and_named(body: bytes, model: ModelSignature, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode(body, model, content_type="multipart/form-data; boundary=B")


def test_a_part_of_another_type_is_rejected() -> None:
    with pytest.raises(UnsupportedMediaType, match="image/gif"):
        decode(form(("Content-Type: image/gif", b"GIF")), IMAGES, content_type="multipart/form-data; boundary=B")


def test_the_response_is_the_one_rows_value() -> None:
    reply = TorchServe().encode(decode([1, 2], ROWS), {"y": np.array([[1.5, 2]])}, {}, ROWS)

    assert document(reply) == [1.5, 2.0]


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        pytest.param(InvalidRequest("m"), 400, "BadRequestException", id="400"),
        pytest.param(UnsupportedMediaType("m"), 415, "UnsupportedMediaTypeException", id="415"),
        pytest.param(RequestTimeout("m"), 408, "RequestTimeoutException", id="408"),
        pytest.param(ModelFailed("m"), 500, "InternalServerException", id="500"),
        pytest.param(Draining("m"), 503, "ServiceUnavailableException", id="503"),
        pytest.param(DeadlineExceeded("m"), 504, "RequestTimeoutException", id="504"),
        pytest.param(RowsFailed([RowError(0, 499, "m")]), 499, "BadRequestException", id="a status without a name"),
        pytest.param(RowsFailed([RowError(0, 599, "m")]), 599, "InternalServerException", id="another"),
    ],
)
def test_errors_have_torchserves_shape(error: ProxyError, code: int, kind: str) -> None:
    reply = TorchServe().error(error)

    assert reply.status == code
    assert document(reply) == {"code": code, "type": kind, "message": "m"}


HEADED = signature(
    [
        tensor("body", "BYTES", [-1], content_type="*/*"),
        tensor("headers", "BYTES", [-1], content_type="application/json", optional=True, carries="request_headers"),
    ],
    [
        tensor("body", "BYTES", [-1]),
        tensor("head", "BYTES", [-1], content_type="application/json", carries="response_head"),
    ],
)


@pytest.mark.parametrize("media_type", ["application/json", "image/png", "multipart/form-data; boundary=B", ""])
def test_a_model_that_is_given_headers_gets_the_body_as_it_came(media_type: str) -> None:
    decoded = decode(b"{not even JSON", HEADED, content_type=media_type, x_who="ann\xe9")

    assert decoded.inputs["body"].tolist() == [b"{not even JSON"]
    assert orjson.loads(decoded.inputs["headers"].item(0)) == {"content-type": media_type, "x-who": "ann\xe9"}
    assert decoded.rows == 1


def answered(body: bytes, head: Any) -> Any:
    outputs = {"body": np.array([body], object), "head": np.array([orjson.dumps(head)], object)}
    return TorchServe().encode(DecodedRequest({}, 1), outputs, {}, HEADED)


def test_a_response_goes_out_under_the_head_that_the_model_gave_it() -> None:
    reply = answered(b"<p>", {"status": 201, "headers": {"content-type": "text/html", "x-row": "7"}})

    assert (reply.status, reply.content_type, b"".join(reply.body)) == (201, b"text/html", b"<p>")
    assert reply.lines == b"x-row: 7\r\n"


def test_headers_of_the_connection_cannot_be_set_by_the_model() -> None:
    headers = {"Content-Length": "1", "connection": "close", "x-shoal-executed": "no", "Transfer-Encoding": "chunked"}
    reply = answered(b"abc", {"status": 200, "headers": headers})

    assert reply.lines == b""
    assert reply.content_type == b"application/octet-stream"


@pytest.mark.parametrize(
    "head",
    [
        {"status": 204, "headers": {}},
        {"status": 99, "headers": {}},
        {"status": True, "headers": {}},
        {"status": 200, "headers": {"a": "b\r\nc: d"}},
        {"status": 200, "headers": {"a b": "c"}},
        {"status": 200, "headers": {"a": 1}},
        {"status": 200},
        [],
    ],
)
def test_a_head_that_cannot_be_written_is_rejected(head: Any) -> None:
    with pytest.raises(ValueError, match=r"status|header|head"):
        answered(b"", head)
