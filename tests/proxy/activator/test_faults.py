"""Faulty clients, pods and tables: each affects itself only, and gets a clear error."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from shoal_schema.interfaces.activator import ActivatorService
from tests import plain
from tests.calls import RawConnection, row, v2_body
from tests.fakes import running_proxy
from tests.ports import free_port
from tests.proxy.activator.running import NAME, PATIENCE_S, RunningActivator, responding, running_activator

pytestmark = pytest.mark.integration
HEAD = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: a\r\n"
WELL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def running() -> Iterator[RunningActivator]:
    with running_activator() as made:
        yield made


@pytest.fixture
def activator(running: RunningActivator) -> RunningActivator:
    running.pods()
    return running


@contextmanager
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """Accept connections without a response, as a frozen pod; yield its address and the connections."""
    taken: list[socket.socket] = []

    def serve() -> None:
        with ExitStack() as stack:
            while True:
                try:
                    taken.append(stack.enter_context(server.accept()[0]))
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", taken
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


def sent(
    activator: RunningActivator, *lines: bytes, body: bytes = b"{}", path: str = "/v2/models/double/infer"
) -> tuple[int, dict[str, str], bytes]:
    """Return the response to one request with these header lines."""
    head = b"POST %b HTTP/1.1\r\nhost: a\r\n" % path.encode()
    with RawConnection(("127.0.0.1", activator.port)) as client:
        client.send(head, *(line + b"\r\n" for line in lines), b"content-length: %d\r\n\r\n" % len(body), body)
        return client.response()


# Silent pods.


def test_a_frozen_pod_ends_in_504_at_the_deadline_and_its_connection_is_closed(
    activator: RunningActivator,
) -> None:
    with silent() as (pod, taken):
        activator.pods(pod)
        status, headers, body = sent(activator, b"x-request-timeout-ms: 200")

        assert (status, headers["x-shoal-executed"]) == (504, "maybe"), body
        taken[0].settimeout(PATIENCE_S)
        while taken[0].recv(65536):
            pass  # until it is closed
    assert activator.news().waiting == {}


def test_without_a_deadline_the_services_timeout_applies(activator: RunningActivator) -> None:
    with silent() as (pod, _):
        activator.pods(pod, timeout_s=0.2)

        assert sent(activator)[0] == 504


def test_a_body_that_a_frozen_pod_does_not_read_ends_in_504(activator: RunningActivator) -> None:
    with silent() as (pod, _):
        activator.pods(pod)

        assert sent(activator, b"x-request-timeout-ms: 300", body=bytes(2**24))[0] == 504


def test_a_frozen_pod_that_left_the_table_frees_its_slots(activator: RunningActivator) -> None:
    with silent() as (pod, taken), responding(WELL) as (other, _), ThreadPoolExecutor(2) as pool:
        activator.pods(pod, forwards=2)
        calls = [pool.submit(sent, activator, b"x-request-timeout-ms: 1500") for _ in range(2)]
        activator.until(lambda _: len(taken) == 2)
        activator.pods(other, forwards=2)

        assert sent(activator)[0] == 200
        assert [call.result()[0] for call in calls] == [504, 504]


def test_an_unresponsive_pod_gets_one_request_at_a_time_until_it_responds(activator: RunningActivator) -> None:
    with silent() as (pod, taken), ThreadPoolExecutor(4) as pool:
        activator.pods(pod, forwards=4)
        assert sent(activator, b"x-request-timeout-ms: 100")[0] == 504
        before = len(taken)
        first = pool.submit(sent, activator, b"x-request-timeout-ms: 1500")
        activator.until(lambda _: len(taken) == before + 1)
        # Their deadlines pass before the first one's, which frees the pod.
        calls = [pool.submit(sent, activator, b"x-request-timeout-ms: 400") for _ in range(3)]
        answers = [call.result() for call in calls]
        connections = len(taken)
        assert first.result()[0] == 504

    assert [status for status, _, _ in answers] == [503] * 3
    assert connections == before + 1
    assert all(b"busy" in body for _, _, body in answers)


def test_a_pod_that_closes_within_its_response_cuts_the_clients_response() -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"
    with running_activator() as activator, responding(half) as (pod, _):
        activator.pods(pod)
        with pytest.raises(httpx.RemoteProtocolError):
            plain.get(f"{activator.url}/v2/models/double", timeout=PATIENCE_S)


# Requests.


@pytest.mark.parametrize("line", [b"", b"expect: 100-continue\r\n"])
@pytest.mark.parametrize("ready", [True, False])
def test_an_announced_body_over_the_limit_is_rejected_at_once_and_starts_no_pod(
    activator: RunningActivator, line: bytes, ready: bool
) -> None:
    with responding(WELL) as (pod, seen):
        activator.pods(*([pod] if ready else []), max_body_bytes=1000)
        before = activator.news()
        began_s = time.monotonic()
        with RawConnection(("127.0.0.1", activator.port)) as client:
            client.send(HEAD, line, b"content-length: 1001\r\n\r\n")
            status, headers, body = client.response()

        assert (status, headers["x-shoal-executed"]) == (413, "no")
        assert time.monotonic() - began_s < 1.5
        assert b"1000 bytes" in body
        assert (seen, activator.news()) == ([], before)


def test_a_slow_body_does_not_count_against_the_deadline(activator: RunningActivator) -> None:
    with responding(WELL) as (pod, _):
        activator.pods(pod)
        with RawConnection(("127.0.0.1", activator.port)) as client:
            client.send(HEAD, b"x-request-timeout-ms: 1000\r\ncontent-length: 2\r\n\r\n{")
            activator.until_waiting(1)
            threading.Event().wait(1.1)  # what is under test is time that passes
            client.send(b"}")

            assert client.response()[0] == 200


def test_a_request_that_all_pods_rejected_gets_that_as_the_cause(activator: RunningActivator) -> None:
    activator.pods(f"127.0.0.1:{free_port()}", start_s=30.0)
    status, headers, body = sent(activator, b"x-request-timeout-ms: 400")

    assert (status, headers["x-shoal-executed"], headers["retry-after"]) == (503, "no", "1")
    assert b"rejected" in body
    assert b"zero replicas" not in body


def test_two_host_headers_get_the_same_error_as_from_a_proxy(activator: RunningActivator) -> None:
    with running_proxy() as proxy:
        activator.pods("{}:{}".format(*proxy.address))
        answers = []
        for address in (("127.0.0.1", activator.port), proxy.address):
            with RawConnection(address) as client:
                client.send(HEAD, b"host: b\r\ncontent-length: 2\r\n\r\n{}")
                status, headers, body = client.response()
            answers.append((status, headers["x-shoal-executed"], body))

    assert answers[0] == answers[1]
    assert answers[0][:2] == (400, "no")


@pytest.mark.parametrize("value", [b"0", b"-1", b"nan", b"inf", b"soon"])
def test_an_invalid_timeout_is_rejected_as_by_a_proxy(activator: RunningActivator, value: bytes) -> None:
    with running_proxy() as proxy:
        activator.pods("{}:{}".format(*proxy.address))
        status, _, body = sent(
            activator, b"x-request-timeout-ms: " + value, body=json.dumps(v2_body([row(1.0)])).encode()
        )

    assert status == 400
    assert b"not '%b'" % value in body


def test_hop_by_hop_headers_are_not_forwarded_in_either_direction(activator: RunningActivator) -> None:
    answer = b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\nx-own: 1\r\ncontent-length: 2\r\n\r\n{}"
    with responding(answer) as (pod, seen):
        activator.pods(pod)
        _, headers, _ = sent(
            activator, b"connection: close, X-Secret", b"connection: x-two", b"x-secret: 1", b"x-two: 1", b"x-a: 1"
        )

    assert b"x-secret" not in seen[0]
    assert b"x-two" not in seen[0]
    assert b"x-a: 1" in seen[0]
    assert "x-hop" not in headers
    assert headers["x-own"] == "1"


# Responses of pods.


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 999 N\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 600 N\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nx-a: \x01\r\ncontent-length: 2\r\n\r\n{}",
        b"\x00\x01\x02garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconte",
        None,
    ],
)
def test_an_invalid_response_is_reported_without_its_bytes(activator: RunningActivator, answer: bytes | None) -> None:
    with responding(answer) as (pod, _):
        activator.pods(pod)
        status, headers, body = sent(activator)

    assert (status, headers["x-shoal-executed"]) == (503, "maybe")
    assert not any(mark in body for mark in (b"Error", b"bytearray", b"garbage", b"\\x"))


@pytest.mark.parametrize("status", [204, 304])
def test_a_response_without_a_body_may_have_a_content_length(activator: RunningActivator, status: int) -> None:
    with responding(b"HTTP/1.1 %d X\r\netag: x\r\ncontent-length: 2\r\n\r\n" % status) as (pod, _):
        activator.pods(pod)

        assert plain.get(f"{activator.url}/v2/models/double", timeout=PATIENCE_S).status_code == status


# Tables of the operator.


def test_only_invalid_addresses_are_skipped(activator: RunningActivator) -> None:
    bad = ("nohost", "a:b:c", "localhost:80", "127.0.0.1:99999", "127.0.0.1", "127.0.0.1:0", "http://127.0.0.1:1/")
    elsewhere = ("169.254.169.254:80", "[fe80::1]:80", "[::ffff:169.254.169.254]:80", "224.0.0.1:80", "0.0.0.0:80")
    with responding(WELL) as (pod, seen):
        activator.pods(*bad, *elsewhere, f"/x@{pod}", pod)

        assert sent(activator)[0] == 200
    assert len(seen) == 1


def test_a_service_without_a_valid_address_holds_its_requests(activator: RunningActivator) -> None:
    activator.pods("nohost", "a:b:c")
    status, headers, _ = sent(activator, b"x-request-timeout-ms: 100")

    assert (status, headers["x-shoal-executed"]) == (503, "no")


def test_a_port_stays_with_its_service_and_a_second_one_is_rejected(activator: RunningActivator) -> None:
    with responding(WELL, times=2) as (pod, seen), responding(WELL) as (other, unseen):
        mine = ActivatorService(NAME, activator.port, addresses=(pod,))
        version = activator.operator.publish(ActivatorService("default/a", activator.port, addresses=(other,)), mine)
        activator.until(lambda news: news.version == version and list(news.refused) == ["default/a"])

        assert sent(activator)[0] == 200
    assert (len(seen), unseen) == (1, [])


def test_the_first_of_two_ports_of_a_service_counts(activator: RunningActivator) -> None:
    with responding(WELL) as (pod, _):
        mine = ActivatorService(NAME, activator.port, addresses=(pod,))
        version = activator.operator.publish(mine, ActivatorService(NAME, free_port()))
        activator.until(lambda news: news.version == version and list(news.refused) == [NAME])

        assert sent(activator)[0] == 200


def test_services_over_the_limit_are_rejected_and_known_ones_stay() -> None:
    with running_activator(SHOAL_ACTIVATOR_MAX_SERVICES="2") as activator, responding(WELL) as (pod, _):
        others = [ActivatorService(f"default/a{count}", free_port()) for count in range(3)]
        version = activator.operator.publish(*others, ActivatorService(NAME, activator.port, addresses=(pod,)))
        activator.until(lambda news: news.version == version)

        assert activator.news().refused.keys() == {"default/a1", "default/a2"}
        assert sent(activator)[0] == 200


# Processes that are killed.


def test_a_killed_activator_affects_its_own_clients_only() -> None:
    with (
        running_activator() as one,
        running_activator() as other,
        ThreadPoolExecutor(6) as pool,
        responding(WELL, times=9) as (pod, seen),
    ):
        lost = [pool.submit(sent, one) for _ in range(3)]
        kept = [pool.submit(sent, other) for _ in range(3)]
        one.until_waiting(3)
        other.until_waiting(3)
        os.kill(one.process.pid, signal.SIGKILL)
        for call in lost:
            with pytest.raises((AssertionError, OSError)):
                call.result()
        other.pods(pod)

        assert [call.result()[0] for call in kept] == [200, 200, 200]
    assert len(seen) == 3
