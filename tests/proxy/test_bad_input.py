"""Bad requests over real connections: a clear error in the client's protocol, and nothing else disturbed."""

import httpx
import orjson
import pytest

from shoal_proxy.codecs.v2 import V2
from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, RawConnection, answer_to, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor

X = {"name": "x", "datatype": "FP32", "shape": [1, 4]}


@pytest.mark.parametrize(
    ("path", "content", "status", "words"),
    [
        pytest.param(V2_PATH, b"{", 400, "malformed JSON", id="v2-malformed"),
        pytest.param(V1_PATH, b"{", 400, "malformed JSON", id="v1-malformed"),
        pytest.param(V2_PATH, b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,NaN]}]}', 400,
                     "malformed JSON", id="v2-nan"),
        pytest.param(V2_PATH, b'{"inputs":[{"name":"z","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}', 400,
                     "unknown input 'z'", id="v2-name"),
        pytest.param(V2_PATH, b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1,4],"data":[1,2,3,4]}]}', 400,
                     "is FP32, not 'INT8'", id="v2-datatype"),
        pytest.param(V2_PATH, b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,5],"data":[1,2,3,4,5]}]}', 400,
                     "[-1, 4]", id="v2-shape"),
        pytest.param(V2_PATH, b'{"inputs":[{"name":"x","datatype":"FP32","shape":[2,4],"data":[[1,2],[1]]}]}', 400,
                     "ragged", id="v2-ragged"),
        pytest.param(V1_PATH, b'{"instances":[[1,2,3,4],[1,2]]}', 400, "ragged", id="v1-ragged"),
        pytest.param(V1_PATH, b'{"rows":[]}', 400, "either", id="v1-neither"),
        pytest.param("/v2/models/other/infer", b"{}", 404, "unknown model 'other'", id="v2-model"),
        pytest.param("/v2/models/double/versions/9/infer", b"{}", 404, "unknown version '9'", id="v2-version"),
        pytest.param("/v2/nowhere", b"{}", 404, "no such path", id="path"),
        pytest.param("/v2/models/double", b"{}", 405, "Method Not Allowed", id="v2-method"),
    ],
)  # fmt: skip
def test_the_error_is_clear_and_has_the_protocols_shape(
    client: httpx.Client, path: str, content: bytes, status: int, words: str
) -> None:
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == status
    assert words in answer.json()["error"]
    assert answer_to(client.post(V2_PATH, json=v2_body([row(1)])))  # the same connection goes on


@pytest.mark.parametrize(
    ("path", "content", "kind"),
    [
        (TORCHSERVE_PATH, b"[1, 2]", "BadRequestException"),
        ("/predictions/other", b"[1, 2, 3, 4]", "ModelNotFoundException"),
    ],
)
def test_torchserve_clients_get_torchserves_error_object(
    client: httpx.Client, path: str, content: bytes, kind: str
) -> None:
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.json()["code"] == answer.status_code
    assert answer.json()["type"] == kind
    assert answer.json()["message"]


def test_a_get_on_an_infer_path_is_405_with_allow(client: httpx.Client) -> None:
    answer = client.get(V2_PATH)
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_another_method_on_a_v1_infer_path_is_405_with_allow(client: httpx.Client, method: str) -> None:
    for path in (V1_PATH, "/v1/models/other:predict"):
        answer = client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("shape", [[True, 4], [1.0, 4], [1, 4.0], [True, 4.0]])
def test_a_shape_of_no_sizes_is_rejected_each_time(client: httpx.Client, shape: list[float]) -> None:
    tensor = {**X, "shape": shape}
    binary = orjson.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 16}}]}).decode()
    in_json = orjson.dumps({"inputs": [{**tensor, "data": [1, 2, 3, 4]}]}).decode()
    for _ in range(3):
        answer = client.post(
            V2_PATH,
            content=binary.encode() + bytes(16),
            headers={"inference-header-content-length": str(len(binary))},
        )
        assert (answer.status_code, "shape must be a list of sizes" in answer.text) == (400, True)
        answer = client.post(V2_PATH, content=in_json.encode(), headers={"content-type": "application/json"})
        assert (answer.status_code, "shape must be a list of sizes" in answer.text) == (400, True)


def test_what_decoding_does_not_foresee_is_that_requests_error(
    running: RunningProxy, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    class Breaks:
        def decode(self, call: object, signature: object) -> object:
            raise ZeroDivisionError("unexpected")

        error = V2().error

    route = running.proxy.inference.routes[V2_PATH.encode()]
    codec = route.codec
    object.__setattr__(route, "codec", Breaks())
    for _ in range(3):
        answer = client.post(V2_PATH, json=v2_body([row(1)]))
        assert answer.status_code == 500
        assert "ZeroDivisionError: unexpected" in answer.json()["error"]
    object.__setattr__(route, "codec", codec)
    assert answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
    assert caplog.text.count("event=decoding_failed") == 1


@pytest.mark.parametrize(
    ("length", "size", "body", "words"),
    [
        pytest.param(b"100000", 16, b"\0" * 16, "Inference-Header-Content-Length", id="header-past-the-end"),
        pytest.param(b"-1", 16, b"\0" * 16, "Inference-Header-Content-Length", id="header-negative"),
        pytest.param(b"x", 16, b"\0" * 16, "Inference-Header-Content-Length", id="header-no-number"),
        pytest.param(None, 1 << 40, b"\0" * 16, "binary_data_size", id="size-past-the-end"),
        pytest.param(None, 8, b"\0" * 16, "16 bytes, not 8", id="size-too-small"),
        pytest.param(None, 16, b"\0" * 20, "20 bytes follow", id="bytes-left-over"),
        pytest.param(None, -16, b"\0" * 16, "binary_data_size", id="size-negative"),
    ],
)
def test_a_lying_length_is_rejected(
    client: httpx.Client, length: bytes | None, size: int, body: bytes, words: str
) -> None:
    head = httpx.Request("POST", "http://x", json={"inputs": [{**X, "parameters": {"binary_data_size": size}}]}).content
    answer = client.post(
        V2_PATH,
        content=head + body,
        headers={"inference-header-content-length": (length or str(len(head)).encode()).decode()},
    )
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_a_body_over_the_limit_gets_a_response_before_it_is_sent() -> None:
    with running_proxy(max_body_bytes=1024) as running, RawConnection(running.address) as caller:
        caller.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" % V2_PATH.encode(), b"x" * 100)
        status, headers, body = caller.response()
        assert status == 413
        assert headers["connection"] == "close"
        assert b"over the limit of 1024 bytes" in body
        assert caller.closed()


def test_bodies_that_are_not_read_to_their_end_are_logged_once_for_many(caplog: pytest.LogCaptureFixture) -> None:
    with running_proxy(max_body_bytes=1024) as running:
        for _ in range(3):
            with RawConnection(running.address) as caller:
                caller.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" % V2_PATH.encode())
                assert caller.response()[0] == 413

    logged = [record.getMessage() for record in caplog.records if "event=request_refused" in record.getMessage()]
    assert logged == ["event=request_refused unlogged=0 last='the body is over the limit of 1024 bytes'"]


def test_a_chunked_body_over_the_limit_is_stopped() -> None:
    with running_proxy(max_body_bytes=1024) as running, RawConnection(running.address) as caller:
        caller.send(b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % V2_PATH.encode())
        caller.send(b"800\r\n", b"x" * 0x800, b"\r\n")
        status, _, _ = caller.response()
        assert status == 413
        running.until(lambda: running.proxy.inference.reading_bytes == 0)


def test_bodies_being_read_count_against_the_byte_bound() -> None:
    with running_proxy(queue__max_bytes=4096) as running:
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n" % V2_PATH.encode()
        with RawConnection(running.address) as slow, RawConnection(running.address) as second:
            slow.send(head, b"{" * 2000)
            running.until(lambda: running.proxy.inference.reading_bytes == 2000)
            second.send(head, b"{" * 2900)
            status, headers, _ = second.response()
            assert status == 503
            assert int(headers["retry-after"]) >= 1
        running.until(lambda: running.proxy.inference.reading_bytes == 0)


def test_a_request_that_never_ends_is_cut_off() -> None:
    with running_proxy(body_timeout_s=0.05, head_timeout_s=0.05) as running:
        with RawConnection(running.address) as caller:
            caller.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" % V2_PATH.encode())
            assert caller.response()[0] == 408
        with RawConnection(running.address) as caller:
            caller.send(b"POST /v2 HTTP/1.1\r\nHost")
            assert caller.response()[0] == 408
            assert caller.closed()


def test_input_that_is_not_http_gets_400_and_the_next_client_is_served(
    running: RunningProxy, client: httpx.Client
) -> None:
    with RawConnection(running.address) as caller:
        caller.send(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert caller.response()[0] == 400
    assert answer_to(client.post(V2_PATH, json=v2_body([row(1)])))


@pytest.mark.parametrize(("media_type", "status"), [("image/jpeg", 200), ("image/gif", 415), ("text/plain", 415)])
def test_media_types_that_the_model_does_not_accept_are_415(media_type: str, status: int) -> None:
    def make() -> FakeRuntime:
        return FakeRuntime(
            inputs=[tensor("x", "BYTES", [-1], content_type="image/jpeg,image/png")],
            outputs=[tensor("y", "BYTES", [-1])],
            model=lambda inputs: {"y": inputs["x"]},
        )

    with running_proxy(make) as running, plain.Client(base_url=running.url) as client:
        answer = client.post(V1_PATH, content=b"\xff\xd8\xff", headers={"content-type": media_type})
        assert answer.status_code == status
        if status == 415:
            assert "image/jpeg or image/png" in answer.json()["error"]


def test_raw_bodies_are_415_for_a_model_of_tensors(client: httpx.Client) -> None:
    answer = client.post(V1_PATH, content=b"\xff\xd8\xff", headers={"content-type": "image/jpeg"})
    assert answer.status_code == 415


@pytest.mark.parametrize("value", ["0", "-5", "soon", "nan", "inf"])
def test_a_senseless_timeout_is_rejected(client: httpx.Client, value: str) -> None:
    answer = client.post(V2_PATH, json=v2_body([row(1)]), headers={"x-request-timeout-ms": value})
    assert answer.status_code == 400
    assert "x-request-timeout-ms" in answer.json()["error"]
