"""Responses in gzip and deflate: for clients that accept them, from a size on, where the service asks for it."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, RawConnection, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.test_access_log import logged

UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress, "deflate": zlib.decompress}
MANY = [row(number) for number in range(200)]
LARGE: dict[str, Any] = {
    V2_PATH: v2_body(MANY),
    V1_PATH: {"instances": MANY},
    "/invocations": {"instances": MANY},
}


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(compression_min_bytes=1024, proxy__docs=True, max_batch_size=1024) as proxy:
        yield proxy


def raw(running: RunningProxy, path: str, document: Any, accepted: str | None) -> httpx.Response:
    """Return the response with its body as it came."""
    with plain.Client(headers={}) as client:
        client.headers.pop("accept-encoding")
        headers = {} if accepted is None else {"accept-encoding": accepted}
        content = None if document is None else orjson.dumps(document)
        method = "GET" if content is None else "POST"
        request = client.build_request(
            method, running.url + path, content=content, headers={"content-type": "application/json", **headers}
        )
        response = client.send(request, stream=True)
        response._content = b"".join(response.iter_raw())
        return response


@pytest.mark.parametrize("coding", UNPACK)
@pytest.mark.parametrize("path", LARGE)
def test_large_responses_are_compressed_if_accepted(running: RunningProxy, path: str, coding: str) -> None:
    plain_answer = raw(running, path, LARGE[path], None)
    answer = raw(running, path, LARGE[path], coding)
    assert (answer.headers["content-encoding"], answer.headers["vary"]) == (coding, "accept-encoding")
    assert len(answer.content) == int(answer.headers["content-length"]) < len(plain_answer.content)
    assert UNPACK[coding](answer.content) == plain_answer.content
    assert plain_answer.headers["vary"] == "accept-encoding", "or a cache would give one's answer to the other"
    assert "content-encoding" not in plain_answer.headers


@pytest.mark.parametrize("accepted", [None, "", "identity", "br", "gzip;q=0", "*;q=0", "gzip;q=0.1, identity"])
def test_no_others_get_compressed_responses(running: RunningProxy, accepted: str | None) -> None:
    for path, document in (*LARGE.items(), ("/docs", None)):
        answer = raw(running, path, document, accepted)
        assert answer.status_code == 200
        assert "content-encoding" not in answer.headers


def test_small_responses_and_errors_stay_as_they_are(running: RunningProxy) -> None:
    for path, document in ((V2_PATH, v2_body([row(1)])), (TORCHSERVE_PATH, row(1)), (V2_PATH, {}), ("/v2", None)):
        assert "content-encoding" not in raw(running, path, document, "gzip").headers


def test_pages_are_compressed_too(running: RunningProxy) -> None:
    answer = raw(running, "/docs", None, "gzip, deflate")
    assert answer.headers["content-encoding"] == "gzip"
    assert gzip.decompress(answer.content) == raw(running, "/docs", None, None).content
    assert "accept-encoding" in raw(running, "/docs", None, "gzip;q=0").headers["vary"].lower()


def test_the_json_part_of_a_binary_response_is_measured_before_it_is_compressed(running: RunningProxy) -> None:
    numbers = np.zeros((1000, 4), np.float32)
    item = {"name": "x", "datatype": "FP32", "shape": [1000, 4], "parameters": {"binary_data_size": numbers.nbytes}}
    head = orjson.dumps({"inputs": [item], "parameters": {"binary_data_output": True}})
    answer = plain.post(
        running.url + V2_PATH, content=gzip.compress(head + numbers.tobytes()),
        headers={"content-encoding": "gzip", "inference-header-content-length": str(len(head))},
    )  # fmt: skip
    assert answer.headers["content-encoding"] == "gzip"
    start = int(answer.headers["inference-header-content-length"])
    assert orjson.loads(answer.content[:start])["outputs"][0]["parameters"]["binary_data_size"] == numbers.nbytes
    assert answer.content[start:] == numbers.tobytes()


def test_pipelined_responses_keep_their_order(running: RunningProxy) -> None:
    def request(document: Any, accepted: bytes) -> bytes:
        body = orjson.dumps(document)
        lines = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAccept-Encoding: %s\r\n"
        return lines % (V2_PATH.encode(), accepted) + b"Content-Length: %d\r\n\r\n" % len(body) + body

    with RawConnection(running.address) as client:
        wanted = [(v2_body(MANY, id=f"{number}"), b"gzip") for number in range(3)]
        wanted += [(v2_body([row(1)], id="3"), b"gzip"), (v2_body(MANY, id="4"), b"identity")]
        client.send(*(request(*each) for each in wanted))
        for number in range(5):
            _, headers, body = client.response()
            packed = headers.get("content-encoding") == "gzip"
            assert packed == (number < 3)
            assert orjson.loads(gzip.decompress(body) if packed else body)["id"] == f"{number}"


def test_a_disconnecting_client_affects_no_other(running: RunningProxy) -> None:
    body = orjson.dumps(v2_body([row(number) for number in range(20_000)]))
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n"
    for _ in range(3):
        with RawConnection(running.address) as client:
            client.send(head % V2_PATH.encode(), b"Content-Length: %d\r\n\r\n" % len(body), body)
            running.until(lambda: running.proxy.scheduler.settled)
    assert raw(running, V2_PATH, LARGE[V2_PATH], "gzip").headers["content-encoding"] == "gzip"
    running.until(lambda: running.proxy.dispatcher.settled)


def test_the_access_log_has_the_bytes_that_were_sent(capfd: pytest.CaptureFixture[str]) -> None:
    with running_proxy(compression_min_bytes=1024, access_log_percent=100, max_batch_size=1024) as running:
        answer = raw(running, V2_PATH, LARGE[V2_PATH], "gzip")
        [line] = logged(running)
    assert (line["status"], line["bytes_out"], line["rows"]) == (200, len(answer.content), len(MANY))


def test_it_is_off_unless_requested() -> None:
    with running_proxy(max_batch_size=1024) as running:
        answer = raw(running, V2_PATH, LARGE[V2_PATH], "gzip")
        assert answer.status_code == 200
        assert {"vary", "content-encoding"}.isdisjoint(answer.headers)


def test_a_drain_waits_for_responses_that_are_being_compressed() -> None:
    with running_proxy(compression_min_bytes=1024, max_batch_size=1024) as running:
        running.hold()
        body = orjson.dumps(v2_body([row(number) for number in range(1000)]))
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n"
        with RawConnection(running.address) as client:
            client.send(head % V2_PATH.encode(), b"Content-Length: %d\r\n\r\n" % len(body), body)
            running.until(lambda: running.runtime.running == 1)
            running.call(running.proxy.stop)
            running.until(lambda: running.proxy.dispatcher.phase == "draining")
            running.release()
            status, headers, packed = client.response()
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert len(orjson.loads(gzip.decompress(packed))["outputs"][0]["data"]) == 4000
