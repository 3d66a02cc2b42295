"""Kept connections end after a while, between two requests, so that new replicas get their share."""

import threading
import time
from collections import Counter
from contextlib import ExitStack
from itertools import count

import orjson

from tests.calls import V2_PATH, RawConnection, row, v2_body
from tests.fakes import RunningProxy, running_proxy

BODY = orjson.dumps(v2_body([row(1)]))
HEAD = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % V2_PATH.encode()
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
AGE_S = 0.3


def ask_until_told_to_leave(connection: RawConnection, every_s: float = 0.01) -> int:
    """Ask again and again on one connection; return how many answers came, the last with ``Connection: close``."""
    for answers in count(1):
        connection.send(REQUEST)
        status, headers, _ = connection.response()
        assert status == 200
        if headers.get("connection") == "close":
            return answers
        time.sleep(every_s)
    raise AssertionError


def test_an_aged_connection_is_closed_without_a_lost_request() -> None:
    with running_proxy(process__connection_age_s=AGE_S) as running, RawConnection(running.address) as connection:
        begun_s = time.monotonic()
        assert ask_until_told_to_leave(connection) > 1
        assert AGE_S / 2 <= time.monotonic() - begun_s < AGE_S + 1
        assert connection.closed()


def test_an_age_of_nothing_is_never() -> None:
    with running_proxy(process__connection_age_s=0.0) as running, RawConnection(running.address) as connection:
        connection.send(REQUEST)
        assert "connection" not in connection.response()[1]
        protocol = next(iter(running.proxy.front_limits.members))
        assert protocol._ageing is None


def test_requests_that_were_sent_ahead_are_all_completed_first() -> None:
    with running_proxy(process__connection_age_s=AGE_S) as running, RawConnection(running.address) as connection:
        running.hold()
        connection.send(REQUEST * 3)
        running.until(lambda: running.runtime.running == 1)
        running.until(lambda: next(iter(running.proxy.front_limits.members))._aged)
        running.release()
        answers = [connection.response() for _ in range(3)]
        assert [status for status, _, _ in answers] == [200] * 3
        assert [headers.get("connection") for _, headers, _ in answers] == [None, None, "close"]
        assert connection.closed()


def test_half_a_request_that_came_already_is_waited_for() -> None:
    with running_proxy(process__connection_age_s=AGE_S) as running, RawConnection(running.address) as connection:
        running.hold()
        connection.send(REQUEST + REQUEST[:30])
        running.until(lambda: running.runtime.running == 1)
        running.until(lambda: next(iter(running.proxy.front_limits.members))._aged)
        running.release()
        assert "connection" not in connection.response()[1]
        connection.send(REQUEST[30:])
        status, headers, _ = connection.response()
        assert (status, headers["connection"]) == (200, "close")


def test_a_request_that_crosses_the_last_response_does_not_cut_it_off() -> None:
    with running_proxy(process__connection_age_s=AGE_S) as running, RawConnection(running.address) as connection:
        running.hold()
        connection.send(REQUEST)
        running.until(lambda: next(iter(running.proxy.front_limits.members))._aged)
        running.release()
        running.until(lambda: running.proxy.metrics.requests["v2", 200] == 1)
        connection.send(REQUEST)  # as a client does that has not read the answer yet
        assert connection.response()[0] == 200
        assert connection.closed()


def test_one_replica_that_joins_seven_gets_its_share_of_kept_connections_within_their_age() -> None:
    """Clients reach replicas as a Service hands connections out, in turn, and keep them."""
    age_s, kept = 2.0, 56
    with ExitStack() as stack:
        replicas = [stack.enter_context(running_proxy(process__connection_age_s=age_s)) for _ in range(8)]
        endpoints: list[RunningProxy] = replicas[:7]
        turn, lock, stop = count(), threading.Lock(), threading.Event()
        at: dict[int, RunningProxy] = {}

        def call(number: int) -> None:
            while not stop.is_set():
                with lock:
                    at[number] = endpoints[next(turn) % len(endpoints)]
                with RawConnection(at[number].address) as connection:
                    closing = False
                    while not (closing or stop.is_set()):
                        connection.send(REQUEST)
                        status, headers, _ = connection.response()
                        assert status == 200
                        closing = headers.get("connection") == "close"
                        stop.wait(0.1)

        clients = [threading.Thread(target=call, args=(number,)) for number in range(kept)]
        for client in clients:
            client.start()
        replicas[0].until(lambda: len(at) == kept)
        endpoints.append(replicas[7])
        time.sleep(age_s + 0.3)
        with lock:
            shares = Counter(map(replicas.index, at.values()))
        stop.set()
        for client in clients:
            client.join(20)
    assert shares[7] >= kept / 8 / 2
    assert max(shares.values()) <= 2 * kept / 8
