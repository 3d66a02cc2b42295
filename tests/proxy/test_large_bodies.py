"""Bodies that are read straight into place: arriving in any pieces, abandoned, pipelined, mixed with small ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson
import pytest

from shoal_proxy.body import LARGE_BYTES
from tests.calls import V2_PATH, RawConnection
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
    with RawConnection(wide.address) as caller:
        whole = request(1)
        caller.send(whole[:first])
        wide.call(lambda: None)  # a turn of its loop, in which the first piece is read by itself
        caller.send(whole[first:])
        assert is_answer_to(1, caller.response())


def test_large_and_small_requests_take_turns_on_one_connection(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as caller:
        for seed in range(3):
            caller.send(request(seed))
            assert is_answer_to(seed, caller.response())
            caller.send(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert caller.response()[2] == b'{"live":true}'
            caller.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}" % V2_PATH.encode())
            assert caller.response()[0] == 400


def test_pipelined_large_requests_are_answered_in_order(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as caller:
        caller.send(request(1), request(2), request(3))
        assert [is_answer_to(seed, caller.response()) for seed in (1, 2, 3)] == [True] * 3


def test_large_rows_of_several_callers_share_a_batch_and_keep_apart(wide: RunningProxy) -> None:
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


def test_a_caller_that_hangs_up_inside_a_large_body_leaves_nothing_held(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as caller:
        caller.send(request(4)[:-10])
        wide.until(lambda: wide.proxy.inference._reading_bytes > 0)
    wide.until(lambda: wide.proxy.inference._reading_bytes == 0)
    assert wide.runtime.seen == []


def test_a_large_body_that_stops_coming_is_given_up_in_time(wide: RunningProxy) -> None:
    with RawConnection(wide.address) as caller:
        caller.send(request(5)[:-10])
        assert caller.response()[0] == 408
        assert caller.closed()
    assert wide.proxy.inference._reading_bytes == 0


def test_a_large_body_that_does_not_fit_is_refused_from_its_headers() -> None:
    with running_proxy(queue_max_bytes=1 << 20, max_body_bytes=1 << 20) as running:
        head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" % V2_PATH.encode()
        with RawConnection(running.address) as first, RawConnection(running.address) as second:
            first.send(head, bytes(100_000))
            running.until(lambda: running.proxy.inference._reading_bytes > 0)
            second.send(head)
            assert second.response()[0] == 503
