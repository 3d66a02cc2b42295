"""HTTP/1.1 as the inference port speaks it on its short way."""

import orjson

from tests.calls import V2_PATH, RawConnection, row, v2_body
from tests.fakes import RunningProxy, running_proxy


def request(value: float, *headers: bytes, version: bytes = b"1.1", path: str = V2_PATH) -> bytes:
    body = orjson.dumps(v2_body([row(value)]))
    lines = [b"POST %s HTTP/%s" % (path.encode(), version), b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"", body])


def value_of(body: bytes) -> float:
    value: float = orjson.loads(body)["outputs"][0]["data"][0]
    return value / 2


def test_pipelined_requests_get_responses_in_order(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(request(1), request(2), b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n", request(3))
        assert value_of(client.response()[2]) == 1
        assert value_of(client.response()[2]) == 2
        assert client.response()[2] == b'{"live":true}'
        assert value_of(client.response()[2]) == 3


def test_a_head_in_the_header_cache_changes_nothing(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        for value in (1, 2, 3):
            client.send(request(value))
            assert value_of(client.response()[2]) == value
        client.send(request(4), request(5))
        assert [value_of(client.response()[2]) for _ in range(2)] == [4, 5]
        head, _, body = request(6).partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        client.send(body)
        assert value_of(client.response()[2]) == 6
        client.send(request(7, b"X-Request-Timeout-Ms: 0"))
        assert client.response()[0] == 400


def test_nothing_is_learned_from_a_request_that_is_none(running: RunningProxy) -> None:
    broken = request(2).replace(b"Host: x", b"Ho st: x")
    for _ in range(2):
        with RawConnection(running.address) as client:
            client.send(request(1))
            assert value_of(client.response()[2]) == 1
            client.send(broken)
            assert client.response()[0] == 400


def test_a_request_may_arrive_byte_by_byte(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        for byte in request(5):
            client.send(bytes([byte]))
        assert value_of(client.response()[2]) == 5


def test_the_body_is_requested_from_a_client_that_sends_expect(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        head, _, body = request(6, b"Expect: 100-continue").partition(b"\r\n\r\n")
        client.send(head + b"\r\n\r\n")
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert value_of(client.response()[2]) == 6


def test_a_body_over_the_limit_is_not_requested() -> None:
    with running_proxy(max_body_bytes=1024) as running, RawConnection(running.address) as client:
        client.send(b"POST %s HTTP/1.1\r\nContent-Length: 9999\r\nExpect: 100-continue\r\n\r\n" % V2_PATH.encode())
        assert client.response()[0] == 413


def test_connection_close_and_http_1_0_are_honoured(running: RunningProxy) -> None:
    for asked in (request(7, b"Connection: close"), request(7, version=b"1.0")):
        with RawConnection(running.address) as client:
            client.send(asked)
            _, headers, body = client.response()
            assert value_of(body) == 7
            assert headers["connection"] == "close"
            assert client.closed()


def test_a_query_string_does_not_hide_the_route(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(request(8, path=V2_PATH + "?trace=1"))
        assert value_of(client.response()[2]) == 8


def test_a_client_that_disconnects_mid_body_costs_nothing(running: RunningProxy) -> None:
    with RawConnection(running.address) as client:
        client.send(request(9)[:-10])
        running.until(lambda: running.proxy.inference.reading_bytes > 0)
    running.until(lambda: running.proxy.inference.reading_bytes == 0)
    assert running.runtime.seen == []


def test_pipelined_requests_behind_a_hang_up_are_dropped(running: RunningProxy) -> None:
    running.hold()
    with RawConnection(running.address) as client:
        client.send(request(1), request(2), request(3))
        running.until(lambda: len(running.runtime.seen) == 1)
    running.until(lambda: running.proxy.metrics.rejections["cancelled"] == 1)
    running.release()
    running.until(lambda: running.proxy.scheduler.settled)
    assert len(running.runtime.seen) == 1


def test_a_client_that_does_not_read_is_not_read_either() -> None:
    with running_proxy(max_body_bytes=1 << 20) as running, RawConnection(running.address) as client:
        big = orjson.dumps(v2_body([row(number) for number in range(4000)]))
        asked = b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (V2_PATH.encode(), len(big)) + big
        client.socket.settimeout(0.3)
        sent = 0
        try:
            for _ in range(2000):
                client.send(asked)
                sent += 1
        except TimeoutError:
            pass
        assert sent < 400  # 2,000 answers of 70 KB would be 140 MB of our memory
