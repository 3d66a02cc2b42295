"""Floods of connections beyond the limit: clients are served, and the admin port responds."""

import asyncio
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import orjson
import pytest

from shoal_proxy.http.idle_connections import KEPT_DESCRIPTORS
from shoal_proxy.parts import ADMIN_CONNECTIONS, ADMIN_REQUEST_S
from shoal_proxy.routes.admin import MAX_RECORDINGS
from tests import plain
from tests.calls import V2_PATH, RawConnection
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor
from tests.proxy.test_connections import request, value_of

HALF_A_HEAD = b"POST /v2/models/double/infer HTTP/1.1\r\nHost"
WIDTH = 1_000_000  # 4 MB an answer


@contextmanager
def crowd(
    running: RunningProxy, count: int, sent: bytes = b"", *, admin: bool = False
) -> Iterator[list[RawConnection]]:
    address = running.proxy.admin_socket.getsockname()[:2] if admin else running.address
    with ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(address)) for _ in range(count)]
        for client in clients:
            with suppress(OSError):
                client.send(sent)
        yield clients


def connections(running: RunningProxy) -> int:
    guard = running.proxy.front_limits
    return len(guard.members) + guard.rejected_connections


@pytest.mark.parametrize("sent", [b"", b"\r\n" * 10, HALF_A_HEAD])
def test_silent_clients_make_room_for_others(sent: bytes) -> None:
    with running_proxy(max_connections=20) as running, crowd(running, 60, sent):
        for value in range(5):
            with RawConnection(running.address) as client:
                client.send(request(value))
                assert value_of(client.response()[2]) == value
        assert connections(running) <= 20


def test_clients_that_sent_no_request_go_before_those_that_did() -> None:
    with running_proxy(max_connections=10) as running, crowd(running, 5, request(1)) as old:
        for client in old:
            assert value_of(client.response()[2]) == 1
        with crowd(running, 100):
            for client in old:
                client.send(request(2))
                assert value_of(client.response()[2]) == 2


def test_a_connection_over_the_limit_gets_an_error() -> None:
    with running_proxy(max_connections=3) as running:
        running.hold()
        with crowd(running, 3, request(1)) as busy:
            scheduler = running.proxy.scheduler  # by rows: two of them may share a batch
            running.until(lambda: scheduler.queue.rows + scheduler.in_flight_rows == 3)
            with RawConnection(running.address) as client:
                status, headers, body = client.response()
                assert status == 503
                assert int(headers["retry-after"]) >= 1
                assert "all 3 connections are in use" in orjson.loads(body)["error"]
                assert client.closed()
            assert running.proxy.metrics.rejections["connections"] == 1
            running.release()
            assert [value_of(client.response()[2]) for client in busy] == [1] * 3
            with RawConnection(running.address) as client:
                client.send(request(4))
                assert value_of(client.response()[2]) == 4


def test_an_address_has_as_many_connections_as_is_set() -> None:
    with running_proxy(max_connections_per_address=2) as running:
        with crowd(running, 2, request(1)) as clients:
            for client in clients:
                assert value_of(client.response()[2]) == 1
            with RawConnection(running.address) as client:
                status, _, body = client.response()
                assert (status, b"already has 2 connections" in body) == (503, True)
        running.until(lambda: connections(running) == 0)
        with RawConnection(running.address) as client:
            client.send(request(2))
            assert value_of(client.response()[2]) == 2
    assert running.proxy.front_limits.by_address == {}


def test_silent_clients_leave_descriptors_for_the_admin_port_and_the_runtime() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running_proxy(max_connections=40) as running:
        own = 300 + 80 + 10  # the clients' ends are this process's too
        taken = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + own + 40 + KEPT_DESCRIPTORS, hard))
        try:
            with crowd(running, 300), crowd(running, 80, admin=True):
                for path in ("/readyz", "/healthz", "/metrics"):
                    assert plain.get(running.admin_url + path, timeout=20).status_code == 200
                with RawConnection(running.address) as client:
                    client.send(request(3))
                    assert value_of(client.response()[2]) == 3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


UNFINISHED = b"POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\nabc"
RECORDING = b"GET /v1/trace?seconds=3600 HTTP/1.1\r\nHost: localhost\r\nx-shoal-admin: 1\r\n\r\n"
WAITING = b"GET /readyz?wait_ms=60000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("sent", [UNFINISHED, RECORDING, WAITING, HALF_A_HEAD])
def test_clients_that_fill_the_admin_port_leave_room_for_probes(sent: bytes) -> None:
    with running_proxy() as running, crowd(running, ADMIN_CONNECTIONS + 40, sent, admin=True):
        for path in ("/healthz", "/readyz", "/metrics"):
            assert plain.get(running.admin_url + path, timeout=20).status_code == 200
        assert len(running.proxy.admin_limits.members) <= ADMIN_CONNECTIONS


def test_recordings_are_bounded_and_make_room_when_their_clients_leave() -> None:
    with running_proxy() as running:
        recorder = running.proxy.dispatcher.recorder
        with crowd(running, MAX_RECORDINGS, RECORDING, admin=True) as clients:
            for client in clients:
                assert client.response()[0] == 200
            running.until(lambda: recorder.active)
            with crowd(running, 1, RECORDING, admin=True) as (one_more,):
                assert one_more.response()[0] == 503
        running.until(lambda: not recorder.active)
        with crowd(running, 1, RECORDING, admin=True) as (next_one,):
            assert next_one.response()[0] == 200


def test_an_unfinished_request_of_the_admin_port_ends_soon() -> None:
    with running_proxy() as running:
        timeouts = running.proxy.admin_limits.timeouts
        assert (timeouts.head_s, timeouts.body_s) == (ADMIN_REQUEST_S, ADMIN_REQUEST_S)
        assert running.proxy.front_limits.timeouts.body_s > ADMIN_REQUEST_S


@pytest.mark.parametrize(
    ("sent", "status"), [(b"", None), (b"\r\n", None), (HALF_A_HEAD, 408), (b"GET / HTTP/1.1\r\nA: b\r\n", 408)]
)
@pytest.mark.parametrize("admin", [False, True])
def test_a_connection_without_a_request_is_closed(sent: bytes, status: int | None, admin: bool) -> None:
    with running_proxy(head_timeout_s=0.1) as running, crowd(running, 1, sent, admin=admin) as (client,):
        if status is not None:
            assert client.response()[0] == status
        assert client.closed()


def test_a_head_that_drips_is_cut_off_in_time() -> None:
    with running_proxy(head_timeout_s=0.3) as running, crowd(running, 1) as (client,):
        began_s = time.monotonic()
        with suppress(OSError):
            client.send(b"GET / HTTP/1.1\r\n")
            while time.monotonic() - began_s < 10 and connections(running):
                client.send(b"A: b\r\n")
                running.call(asyncio.sleep, 0.02)
        assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("admin", [False, True])
def test_an_idle_connection_is_closed_and_a_busy_one_is_not(admin: bool) -> None:
    with running_proxy(idle_timeout_s=0.2) as running, crowd(running, 1, admin=admin) as (client,):
        client.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.response()[0] in (200, 404)
        assert client.closed()
    with running_proxy(idle_timeout_s=0.2, head_timeout_s=0.1) as running, crowd(running, 1) as (client,):
        running.hold()
        client.send(request(1))
        running.call(asyncio.sleep, 0.6)
        running.release()
        assert value_of(client.response()[2]) == 1


def echo() -> FakeRuntime:
    x, y = (tensor(name, "FP32", shape) for name, shape in (("x", [-1, 4]), ("y", [-1, WIDTH])))
    return FakeRuntime(inputs=[x], outputs=[y], model=lambda inputs: {"y": np.zeros((len(inputs["x"]), WIDTH), "f4")})


def ask_for_much() -> bytes:
    item = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
    head = orjson.dumps({"inputs": [item], "parameters": {"binary_data_output": True}})
    lines = b"POST %s HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    return lines % (V2_PATH.encode(), len(head), len(head) + 16) + head + bytes(16)


def test_unread_responses_are_dropped() -> None:
    with running_proxy(echo, write_timeout_s=0.3) as running, crowd(running, 5, ask_for_much() * 3):
        running.until(lambda: running.proxy.metrics.requests["v2", 200] >= 5)
        running.until(lambda: connections(running) == 0)


def test_a_response_may_be_read_slowly() -> None:
    with running_proxy(echo, write_timeout_s=0.3, min_bytes_per_s=1_000_000) as running, crowd(running, 1) as (client,):
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.send(ask_for_much())
        taken = 0
        while taken < 4 * WIDTH:
            more = client.socket.recv(200_000)
            assert more, f"closed after {taken} bytes"
            taken += len(more)
            time.sleep(0.02)  # at most 10 MB/s, in 0.4 s and more


def test_a_client_that_closes_behind_an_unread_response_does_not_keep_it() -> None:
    with running_proxy(echo, write_timeout_s=0.2) as running, crowd(running, 1) as (client,):
        client.send(ask_for_much().replace(b"Host: x", b"Connection: close"))
        running.until(lambda: connections(running) == 0)


def test_a_drip_of_requests_for_large_responses_does_not_make_time_stand_still() -> None:
    with running_proxy(echo, write_timeout_s=0.3, body_timeout_s=0.3) as running, crowd(running, 1) as (client,):
        stopped = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not stopped.wait(0.01):
                    client.send(ask_for_much())

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            running.until(lambda: connections(running) == 1)
            running.until(lambda: connections(running) == 0)
        finally:
            stopped.set()
            client.socket.close()
            dripping.join()
