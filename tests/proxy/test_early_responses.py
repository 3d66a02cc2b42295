"""Responses to requests that never run, delayed while the event loop is busy with such requests."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.http.early_responses import BUSY_S, INTERVAL_S, LONGEST_S, EarlyResponses, ResponsePace
from shoal_proxy.http.header_cache import InferRoute, RequestHead
from shoal_schema.interfaces.headers import FORWARDED
from tests.calls import V2_PATH, RawConnection, row, v2_body
from tests.fakes import RunningProxy, running_proxy

IDLE_S, LONG_S = 0.0, 2 * BUSY_S
RESPONSE = HttpResponse(503, [b"busy"])
CLIENTS = 200


@pytest.fixture
def full() -> Iterator[RunningProxy]:
    """Run a proxy whose runtime holds its batches, and whose queue of one row is full."""
    with running_proxy(max_rows=1, max_batch_size=1) as running, ExitStack() as connections:
        running.hold()
        scheduler = running.proxy.scheduler
        for sent in range(1, 10):
            connections.enter_context(RawConnection(running.address)).send(infer())
            running.until(partial(holds_rows, running, sent))
            if scheduler.queue.rows:
                break
        yield running
        running.release()


def holds_rows(running: RunningProxy, rows: int) -> bool:
    """Return whether so many rows wait or run."""
    scheduler = running.proxy.scheduler
    return scheduler.queue.rows + scheduler.in_flight_rows == rows


def infer(body: bytes | None = None) -> bytes:
    """Return an infer request, by default a valid one of one row."""
    given = orjson.dumps(v2_body([row(1)])) if body is None else body
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (V2_PATH.encode(), len(given), given)


def head(*names: str) -> RequestHead:
    """Return the head of a request with these headers."""
    return RequestHead(InferRoute("v2", V2()), {name.encode(): b"1" for name in names}, keep_alive=True)


def keep_loop_busy() -> None:
    """Block the event loop for longer than an iteration may last."""
    until_s = time.monotonic() + LONG_S
    while time.monotonic() < until_s:
        pass


@given(st.lists(st.floats(0, 0.1), max_size=50))
def test_nothing_is_delayed_on_a_loop_that_is_not_busy(gaps_s: Sequence[float]) -> None:
    pace, now_s = ResponsePace(), 5.0
    for gap_s in gaps_s:
        now_s += gap_s
        assert pace.delay_s(now_s, IDLE_S) == 0


@given(st.lists(st.tuples(st.floats(0, 0.01), st.sampled_from([IDLE_S, LONG_S])), min_size=1, max_size=600))
def test_delayed_responses_are_apart_and_none_waits_long(arrivals: Sequence[tuple[float, float]]) -> None:
    pace, now_s = ResponsePace(), 5.0
    sent: list[tuple[float, float]] = []
    for gap_s, iteration_s in arrivals:
        now_s += gap_s
        delay_s = pace.delay_s(now_s, iteration_s)
        assert 0 <= delay_s <= LONGEST_S + 1e-9
        assert delay_s or iteration_s == IDLE_S
        if delay_s:
            sent.append((now_s + delay_s, delay_s))

    for (earlier_s, _), (later_s, delay_s) in pairwise(sent):
        # Except those that are delayed for the longest time.
        assert later_s - earlier_s >= INTERVAL_S - 1e-9 or delay_s > LONGEST_S - 1e-9


def test_a_response_is_delayed_after_a_long_iteration_alone() -> None:
    async def main() -> list[int]:
        early, sent, counts = EarlyResponses(), list[HttpResponse](), list[int]()
        for busy in (False, False, True):
            if busy:
                keep_loop_busy()
            early.send(sent.append, RESPONSE, head())
            counts.append(len(sent))
        await asyncio.sleep(2 * LONG_S)
        counts.append(len(sent))
        keep_loop_busy()
        early.send(sent.append, RESPONSE, head())
        return [*counts, len(sent)]

    assert asyncio.run(main()) == [1, 2, 2, 3, 4]


def test_the_request_of_a_peer_is_never_delayed() -> None:
    async def main() -> int:
        early, sent = EarlyResponses(), list[HttpResponse]()
        early.send(sent.append, RESPONSE, head())
        keep_loop_busy()
        early.send(sent.append, RESPONSE, head(FORWARDED))
        return len(sent)

    assert asyncio.run(main()) == 2


@pytest.mark.parametrize(("body", "status"), [(None, 503), (b"{}", 400)], ids=["full", "invalid"])
def test_each_client_of_a_burst_gets_its_response(full: RunningProxy, body: bytes | None, status: int) -> None:
    with ExitStack() as opened:
        clients = [opened.enter_context(RawConnection(full.address)) for _ in range(CLIENTS)]
        burst(full, clients, body)

        assert [client.response()[0] for client in clients] == [status] * CLIENTS
    full.until(lambda: not full.proxy.inference.reading_bytes)


def test_clients_that_disconnect_before_their_response_leave_nothing(full: RunningProxy) -> None:
    with ExitStack() as opened:
        burst(full, [opened.enter_context(RawConnection(full.address)) for _ in range(CLIENTS)], None)
    with RawConnection(full.address) as client:
        client.send(infer())

        assert client.response()[0] == 503


def burst(running: RunningProxy, clients: Sequence[RawConnection], body: bytes | None) -> None:
    """Send a request of each client, all of which the proxy reads in one iteration of its loop."""

    def send_all() -> None:
        for client in clients:
            client.send(infer(body))
        keep_loop_busy()

    running.call(send_all)
