"""Requests with Content-Encoding, in every protocol: the limits of plain ones, and no delay for other requests."""

import gzip
import random
import resource
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import orjson
import pytest

from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, RawConnection, answer_to, row, v2_body
from tests.fakes import RunningProxy, running_proxy

PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress}
MAX_BYTES = 8 << 20
DOUBLED = [2 * value for value in row(1)]
JSON = {"content-type": "application/json"}


def v2_binary(rows: int, *, width: int = 4, seed: int = 0) -> tuple[dict[str, str], bytes, bytes]:
    """Return the headers and the body of a binary V2 request, and the data of its answer."""
    numbers = np.random.default_rng(seed).random((rows, width), np.float32)
    data = numbers.tobytes()
    item = {"name": "x", "datatype": "FP32", "shape": [rows, width], "parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [item], "parameters": {"binary_data_output": True}})
    return {"inference-header-content-length": str(len(head))}, head + data, (numbers * 2).tobytes()


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(max_body_bytes=MAX_BYTES, queue__max_bytes=2 * MAX_BYTES, max_batch_size=1024) as proxy:
        yield proxy


def post(running: RunningProxy, path: str, body: bytes, coding: str, **headers: str) -> Any:
    return plain.post(running.url + path, content=body, headers={**JSON, **headers, "content-encoding": coding})


REQUESTS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    V2_PATH: (v2_body([row(1)]), lambda body: body["outputs"][0]["data"]),
    V1_PATH: ({"instances": [row(1)]}, lambda body: body["predictions"][0]),
    TORCHSERVE_PATH: (row(1), lambda body: body),
    "/invocations": ({"instances": [row(1)]}, lambda body: body["predictions"][0]),
}


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZip"])
@pytest.mark.parametrize("path", REQUESTS)
def test_every_protocol_accepts_compressed_bodies(running: RunningProxy, path: str, coding: str) -> None:
    document, found = REQUESTS[path]
    answer = post(running, path, PACK[coding.lower()](orjson.dumps(document)), coding)
    assert answer.status_code == 200, answer.text
    assert found(answer.json()) == DOUBLED


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("rows", [1, 3000, 60_000])
def test_binary_tensors_are_unpacked_whole(running: RunningProxy, coding: str, rows: int) -> None:
    headers, body, expected = v2_binary(rows)
    answer = post(running, V2_PATH, PACK[coding](body), coding, **headers)
    assert answer.status_code == 200, answer.text
    assert answer.content[int(answer.headers["inference-header-content-length"]) :] == expected


def test_a_table_as_csv_is_unpacked(running: RunningProxy) -> None:
    body = gzip.compress(b"1,1.25,1.5,1.75\n")
    answer = post(running, "/invocations", body, "gzip", **{"content-type": "text/csv"})
    assert answer.json()["predictions"] == [DOUBLED]


def test_a_connection_takes_turns_of_plain_and_compressed_bodies(running: RunningProxy) -> None:
    body = orjson.dumps(v2_body([row(1)]))
    with plain.Client() as client:
        for coding in ("identity", "gzip", "identity", "gzip", "deflate", "identity"):
            packed = PACK[coding](body) if coding in PACK else body
            answer = client.post(running.url + V2_PATH, content=packed, headers={**JSON, "content-encoding": coding})
            assert answer_to(answer) == DOUBLED


def test_a_compressed_body_may_come_in_chunks_and_single_bytes(running: RunningProxy) -> None:
    packed = gzip.compress(orjson.dumps(v2_body([row(1)])))
    head = (
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
        % V2_PATH.encode()
    )
    with RawConnection(running.address) as client:
        client.send(head, b"Transfer-Encoding: chunked\r\n\r\n")
        for byte in packed:
            client.send(b"1\r\n%c\r\n" % byte)
        client.send(b"0\r\n\r\n")
        assert client.response()[0] == 200


def test_pipelined_requests_get_responses_in_their_order(running: RunningProxy) -> None:
    def request(value: float, coding: str) -> bytes:
        body = orjson.dumps(v2_body([row(value)]))
        packed = PACK[coding](body) if coding in PACK else body
        lines = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Encoding: %s\r\n"
        length = b"Content-Length: %d\r\n\r\n" % len(packed)
        return lines % (V2_PATH.encode(), coding.encode()) + length + packed

    with RawConnection(running.address) as client:
        client.send(*(request(value, coding) for value, coding in enumerate(["gzip", "identity", "deflate", "gzip"])))
        body = [orjson.loads(client.response()[2])["outputs"][0]["data"][0] for _ in range(4)]
    assert body == [0, 2, 4, 6]


@cache
def packed_zeros(coding: str) -> bytes:
    return PACK[coding](bytes(16 * MAX_BYTES))


@pytest.mark.parametrize("coding", PACK)
@pytest.mark.parametrize("announced", [True, False])
def test_a_bomb_is_too_large_and_needs_no_more_memory_than_a_body(
    running: RunningProxy, coding: str, announced: bool
) -> None:
    bomb = packed_zeros(coding)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    content = bomb if announced else iter([bomb])
    answer = plain.post(running.url + V2_PATH, content=content, headers={**JSON, "content-encoding": coding})
    assert answer.status_code == 413
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 6 * MAX_BYTES
    assert running.proxy.inference.reading_bytes == 0


def test_bodies_of_the_limit_pass_and_larger_ones_do_not(running: RunningProxy) -> None:
    spaces = orjson.dumps(v2_body([row(1)]))
    for size_bytes, status in ((MAX_BYTES, 200), (MAX_BYTES + 1, 413)):
        answer = post(running, V2_PATH, gzip.compress(spaces.ljust(size_bytes)), "gzip")
        assert answer.status_code == status


@pytest.mark.parametrize("coding", PACK)
def test_broken_streams_are_the_clients_mistake_in_its_protocol(running: RunningProxy, coding: str) -> None:
    whole = PACK[coding](orjson.dumps(v2_body([row(1)])))
    for body in (whole[:-4], whole[: len(whole) // 2], b"", b"{}", whole + whole[:3], b"\x1f\x8b" + bytes(50)):
        answer = post(running, V2_PATH, body, coding)
        assert answer.status_code == 400, body
        assert coding in answer.json()["error"]
        assert answer.headers["x-shoal-executed"] == "no"
    assert post(running, TORCHSERVE_PATH, b"{}", coding).json()["type"] == "BadRequestException"


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "deflate,gzip", "identity, gzip"])
def test_other_and_stacked_codings_are_unsupported_and_the_known_ones_named(running: RunningProxy, coding: str) -> None:
    answer = post(running, V2_PATH, gzip.compress(b"{}"), coding)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "gzip, deflate")
    assert repr(coding) in answer.json()["error"]


@pytest.mark.parametrize(
    "codings", [("gzip", "identity"), ("identity", "gzip"), ("gzip", "gzip"), ("identity", "identity")]
)
def test_a_second_coding_is_rejected(running: RunningProxy, codings: tuple[str, str]) -> None:
    headers = [("content-encoding", coding) for coding in codings]
    answer = plain.post(running.url + V2_PATH, content=b"{}", headers=headers)
    assert answer.status_code == 400
    assert "Content-Encoding" in answer.json()["error"]


def test_a_client_that_disconnects_leaves_nothing_held(running: RunningProxy) -> None:
    head = (
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n" % V2_PATH.encode()
    )
    with RawConnection(running.address) as client:
        client.send(head, gzip.compress(bytes(MAX_BYTES // 2))[:2000])
        running.until(lambda: running.proxy.inference.reading_bytes > 100_000)
    running.until(lambda: running.proxy.inference.reading_bytes == 0)


def test_unpacked_bytes_count_against_what_all_bodies_may_hold() -> None:
    with running_proxy(max_body_bytes=MAX_BYTES, queue__max_bytes=MAX_BYTES, body_timeout_s=5.0) as running:
        head = (
            b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n"
            % V2_PATH.encode()
        )
        part = gzip.compress(bytes(MAX_BYTES * 3 // 4))[:-8]
        with RawConnection(running.address) as first, RawConnection(running.address) as second:
            first.send(head, part)
            running.until(lambda: running.proxy.inference.reading_bytes > MAX_BYTES // 2)
            second.send(head, part)
            refused = second if _answers(second) else first
            assert refused.response()[0] == 503
            assert running.proxy.inference.reading_bytes <= MAX_BYTES


def _answers(client: RawConnection) -> bool:
    client.socket.settimeout(2)
    try:
        return bool(client.socket.recv(1, 2))  # MSG_PEEK
    except TimeoutError:
        return False


def test_others_do_not_wait_for_large_bodies_that_are_unpacked() -> None:
    noise = random.Random(1).randbytes(1 << 16)
    body = gzip.compress(noise * 300)[:-4]  # cut off, so that it is never parsed
    with running_proxy(max_body_bytes=128 << 20, queue__max_bytes=1 << 30) as running:
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        clients = [RawConnection(running.address) for _ in range(4)]
        for client in clients:
            client.send(head % (V2_PATH.encode(), len(body)), body)
        running.until(lambda: running.proxy.inference.reading_bytes > 1 << 20)
        slowest_s = 0.0
        with plain.Client() as other:
            while running.proxy.inference.reading_bytes:
                began_s = time.monotonic()
                assert other.get(f"{running.url}/v2/health/live").status_code == 200
                slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert slowest_s < 0.25, slowest_s
        for client in clients:
            assert client.response()[0] == 400
            client.socket.close()
