"""Bodies that are read straight into place: arriving in any pieces, abandoned, pipelined, mixed with small ones."""

import asyncio
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import orjson
import pytest

from shoal_proxy.bodies.body import FIRST_BYTES, LARGE_BYTES
from shoal_schema.wire.body import Body
from tests.calls import V2_PATH, RawConnection, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor

WIDTH = 50_000  # 200 KB a row


@pytest.fixture
def wide() -> Iterator[RunningProxy]:
    """Return a proxy whose model takes rows far larger than `LARGE_BYTES`, and gives them back doubled."""

    def runtime() -> FakeRuntime:
        x, y = (tensor(name, "FP32", [-1, WIDTH]) for name in "xy")
        return FakeRuntime(inputs=[x], outputs=[y])

    with running_proxy(runtime, body_timeout_s=1.0) as running:
        yield running


def numbers(seed: int, rows: int = 1) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).random((rows, WIDTH), dtype=np.float32)


def request(seed: int, rows: int = 1) -> bytes:
    data = numbers(seed, rows).tobytes()
    assert len(data) > LARGE_BYTES
    item = {"name": "x", "datatype": "FP32", "shape": [rows, WIDTH], "parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [item], "parameters": {"binary_data_output": True}})
    lines = b"POST %s HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    return lines % (V2_PATH.encode(), len(head), len(head) + len(data)) + head + data


def is_answer_to(seed: int, response: tuple[int, dict[str, str], bytes], rows: int = 1) -> bool:
    status, headers, body = response
    assert status == 200, body[:200]
    data = body[int(headers["inference-header-content-length"]) :]
    return data == (numbers(seed, rows) * 2).tobytes()


@pytest.mark.parametrize("first", [1, 90, 300, LARGE_BYTES, LARGE_BYTES + 1, 150_000])
def test_a_large_body_may_arrive_in_any_two_pieces(wide: RunningProxy, first: int) -> None:
    with RawConnection(wide.address) as client:
        whole = request(1)
        client.send(whole[:first])
        wide.call(lambda: None)  # a turn of its loop, in which the first piece is read by itself
        client.send(whole[first:])
        assert is_answer_to(1, client.response())


def test_large_and_small_requests_take_turns_on_one_connection(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as client:
        for seed in range(3):
            client.send(request(seed))
            assert is_answer_to(seed, client.response())
            client.send(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.response()[2] == b'{"live":true}'
            client.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % V2_PATH.encode())
            assert client.response()[0] == 400


def test_pipelined_large_requests_get_responses_in_order(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as client:
        client.send(request(1), request(2), request(3))
        assert [is_answer_to(seed, client.response()) for seed in (1, 2, 3)] == [True] * 3


def test_large_rows_of_several_clients_share_a_batch_and_keep_apart(wide: RunningProxy) -> None:
    wide.hold()
    with (
        RawConnection(wide.address) as first,
        RawConnection(wide.address) as second,
        RawConnection(wide.address) as third,
    ):
        first.send(request(1))
        wide.until(lambda: len(wide.runtime.seen) == 1)
        second.send(request(2, rows=2))
        third.send(request(3))
        wide.until_waiting(2)
        wide.release()
        assert is_answer_to(1, first.response())
        assert is_answer_to(2, second.response(), rows=2)
        assert is_answer_to(3, third.response())
    assert [seen.rows for seen in wide.runtime.seen] == [1, 3]


def test_a_client_that_disconnects_inside_a_large_body_leaves_nothing_held(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as client:
        client.send(request(4)[:-10])
        wide.until(lambda: wide.proxy.inference.reading_bytes > 0)
    wide.until(lambda: wide.proxy.inference.reading_bytes == 0)
    assert wide.runtime.seen == []


def test_a_large_body_that_stops_coming_is_abandoned_in_time(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as client:
        client.send(request(5)[:-10])
        assert client.response()[0] == 408
        assert client.closed()
    assert wide.proxy.inference.reading_bytes == 0


def announce(size_bytes: int) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (V2_PATH.encode(), size_bytes)


@contextmanager
def silent_callers(running: RunningProxy, count: int, sent: bytes) -> Iterator[list[RawConnection]]:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(running.address)) for _ in range(count)]
        for client in clients:
            client.send(sent)
        yield clients


def test_announced_bodies_that_never_arrive_block_no_other() -> None:
    with running_proxy() as running, silent_callers(running, 20, announce(64 << 20)):
        running.call(asyncio.sleep, 0.05)  # for their heads to be read
        assert running.proxy.inference.reading_bytes == 0
        with RawConnection(running.address) as client:
            client.send(small(1))
            assert client.response()[0] == 200


def test_the_memory_of_a_body_is_accepted_as_it_comes() -> None:
    before = peak_bytes()
    body = Body(8 << 30, FIRST_BYTES)
    assert len(body.rest) == FIRST_BYTES
    for _ in range(3):
        body.add(bytes(FIRST_BYTES))
    assert peak_bytes() - before < 64 << 20
    assert not body.complete


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_the_body_that_holds_most_missing_bytes_is_dropped_for_small_bodies() -> None:
    with running_proxy(queue__max_bytes=1 << 20, max_body_bytes=1 << 20) as running:
        inference = running.proxy.inference
        with silent_callers(running, 3, announce(900_000) + bytes(330_000)) as hogs:
            running.until(lambda: inference.reading_bytes == 990_000)
            for _ in range(3):
                with RawConnection(running.address) as client:
                    client.send(announce(70_000) + bytes(69_000))
                    running.until(lambda: inference.reading_bytes in (990_000 - 330_000 + 69_000,))
                    client.send(bytes(1000))
                    assert client.response()[0] == 400  # no JSON, and not 503
            stopped = [hog for hog in hogs if not still_open(hog)]
            assert len(stopped) == 1
            assert stopped[0].response()[0] == 503
        running.until(lambda: inference.reading_bytes == 0)


def still_open(client: RawConnection) -> bool:
    client.socket.setblocking(False)
    try:
        return client.socket.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return True
    finally:
        client.socket.settimeout(20)


def small(value: float) -> bytes:
    body = orjson.dumps(v2_body([row(value)]))
    return announce(len(body)) + body


def test_a_slow_body_may_take_longer_than_the_time_for_bodies(wide_and_slow: RunningProxy) -> None:
    whole = request(1)
    with RawConnection(wide_and_slow.address) as client:
        began_s = time.monotonic()
        for start in range(0, len(whole), 20_000):  # 400 KB/s and more, where 40 KB/s are asked for
            client.send(whole[start : start + 20_000])
            wide_and_slow.call(asyncio.sleep, 0.05)
        assert time.monotonic() - began_s > 0.3 + 0.05
        assert is_answer_to(1, client.response())


def test_a_body_that_drips_is_abandoned(wide_and_slow: RunningProxy) -> None:
    with RawConnection(wide_and_slow.address) as client:
        client.send(request(1)[:1000])
        stopped = threading.Event()
        dripping = threading.Thread(target=drip, args=(client, stopped))
        dripping.start()
        status, _, body = client.response()
        stopped.set()
        dripping.join()
        assert status == 408
        assert b"40000 bytes per second" in body


def drip(client: RawConnection, stopped: threading.Event) -> None:
    with suppress(OSError):
        while not stopped.wait(0.01):
            client.send(b"x")


@pytest.fixture
def wide_and_slow() -> Iterator[RunningProxy]:
    """Return the wide one, which gives a body that comes slower than 40 KB/s a third of a second."""

    def runtime() -> FakeRuntime:
        x, y = (tensor(name, "FP32", [-1, WIDTH]) for name in "xy")
        return FakeRuntime(inputs=[x], outputs=[y])

    with running_proxy(runtime, body_timeout_s=0.3, min_bytes_per_s=40_000) as running:
        yield running
