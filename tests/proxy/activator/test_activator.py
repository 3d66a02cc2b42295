"""The activator as a process, with real proxies behind it."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from shoal_schema.interfaces.activator import ActivatorService
from tests import plain
from tests.calls import RawConnection, answer_to, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.ports import free_port
from tests.proxy.activator.running import NAME, PATIENCE_S, RunningActivator, responding, running_activator

pytestmark = pytest.mark.integration
PATH = "/v2/models/double/infer"


@pytest.fixture
def activator() -> Iterator[RunningActivator]:
    with running_activator() as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


SOON = {"x-request-timeout-ms": "50"}


def infer(activator: RunningActivator, value: float = 1.0, headers: dict[str, str] | None = None) -> httpx.Response:
    return plain.post(activator.url + PATH, json=v2_body([row(value)]), headers=headers, timeout=PATIENCE_S)


def address(proxy: RunningProxy) -> str:
    return "{}:{}".format(*proxy.address)


def waiting(activator: RunningActivator, pool: ThreadPoolExecutor, count: int = 1) -> list[Future[httpx.Response]]:
    """Return this many calls, in the order in which the activator holds them."""
    calls = []
    for number in range(count):
        calls.append(pool.submit(infer, activator, float(number)))
        activator.until_waiting(number + 1)
    return calls


def test_held_requests_get_their_own_responses_once_a_proxy_is_ready(
    activator: RunningActivator, pool: ThreadPoolExecutor
) -> None:
    calls = waiting(activator, pool, 8)

    with running_proxy() as proxy:
        activator.pods(address(proxy))
        answers = [call.result() for call in calls]

    assert [answer_to(answer) for answer in answers] == [[2 * value for value in row(float(n))] for n in range(8)]
    assert {answer.headers["connection"] for answer in answers} == {"close"}
    assert activator.news().waiting == {}


def test_requests_are_forwarded_in_order_of_arrival(activator: RunningActivator, pool: ThreadPoolExecutor) -> None:
    calls = waiting(activator, pool, 4)

    with running_proxy(max_batch_size=1) as proxy:
        activator.pods(address(proxy), forwards=1)
        for call in calls:
            call.result()
        order = [seen.inputs["x"][0][0] for seen in proxy.runtime.seen]

    assert order == sorted(order)


def test_a_large_body_arrives_as_it_was_sent_and_the_deadline_is_reduced(
    activator: RunningActivator, pool: ThreadPoolExecutor
) -> None:
    body = bytes(range(256)) * 8192
    answer = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nx-own: 1\r\n\r\nok"
    call = pool.submit(
        plain.post,
        f"{activator.url}/any/path?q=%20a",
        content=body,
        headers={"x-request-timeout-ms": "15000"},
        timeout=PATIENCE_S,
    )
    activator.until_waiting(1)
    with responding(answer) as (pod, seen):
        activator.pods(pod)
        got = call.result()

    head, _, passed = seen[0].partition(b"\r\n\r\n")
    assert passed == body
    text = head.decode()
    assert (got.status_code, got.content, got.headers["x-own"]) == (201, b"ok", "1")
    assert text.startswith("POST /any/path?q=%20a HTTP/1.1\r\n")
    left_ms = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("x-request-timeout-ms"))
    assert 0 < left_ms < 15000
    assert f"content-length: {len(body)}" in text.lower()


def test_a_long_response_is_streamed_on(activator: RunningActivator) -> None:
    chunks = b"".join(b"5\r\nabcde\r\n" for _ in range(50000))
    with responding(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n") as (pod, _):
        activator.pods(pod)
        assert plain.get(f"{activator.url}/v2/models/double", timeout=PATIENCE_S).text == "abcde" * 50000


def test_past_its_deadline_a_request_is_rejected_in_its_protocol_as_not_executed(activator: RunningActivator) -> None:
    activator.pods(start_s=9.0)
    v2 = infer(activator, headers=SOON)
    torchserve = plain.post(f"{activator.url}/predictions/double", content=b"x", headers=SOON, timeout=PATIENCE_S)

    assert (v2.status_code, v2.headers["x-shoal-executed"], v2.headers["retry-after"]) == (503, "no", "9")
    assert "no pod of this service was ready in time" in v2.json()["error"]
    assert (torchserve.status_code, torchserve.json()["code"]) == (503, 503)


def test_liveness_requests_get_a_response_and_start_no_pod(activator: RunningActivator) -> None:
    before = activator.news()
    for path in ("/v2/health/live", "/v2/health/ready", "/ping"):
        assert plain.get(activator.url + path, timeout=PATIENCE_S).status_code == 200

    assert activator.news() == before


def test_metadata_requests_are_forwarded_to_a_pod(activator: RunningActivator, pool: ThreadPoolExecutor) -> None:
    call = pool.submit(plain.get, f"{activator.url}/v2/models/double", timeout=PATIENCE_S)
    activator.until_waiting(1)
    with running_proxy() as proxy:
        activator.pods(address(proxy))
        assert call.result().json()["name"] == "double"


def test_a_request_of_a_client_that_disconnects_is_not_forwarded(
    activator: RunningActivator, pool: ThreadPoolExecutor
) -> None:
    with RawConnection(("127.0.0.1", activator.port)) as client:
        client.send(b"POST /v2/models/double/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx")
        activator.until_waiting(1)
    activator.until_waiting(0)
    (call,) = waiting(activator, pool)
    with running_proxy() as proxy:
        activator.pods(address(proxy))
        call.result()
        assert proxy.call(lambda: len(proxy.runtime.seen)) == 1


def test_a_client_that_disconnects_within_its_body_is_removed(activator: RunningActivator) -> None:
    with RawConnection(("127.0.0.1", activator.port)) as client:
        client.send(b"POST /v2/models/double/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nx")
        activator.until_waiting(1)
    activator.until_waiting(0)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v2/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\nZZ\r\n", 400),
        (b"POST /v2/x HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n" + 1001 * b"x", 413),
        (b"POST /v2/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"3e9\r\n" + 1001 * b"x", 413),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_a_malformed_request_is_rejected_and_not_forwarded(
    activator: RunningActivator, request_bytes: bytes, status: int
) -> None:
    with responding(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as (pod, seen):
        activator.pods(pod, max_body_bytes=1000)
        with RawConnection(("127.0.0.1", activator.port)) as client:
            client.send(request_bytes)
            got, headers, _ = client.response()

        assert (got, headers["x-shoal-executed"]) == (status, "no")
        assert seen == []
    assert activator.news().waiting == {}


def test_a_request_over_the_limit_is_rejected_and_held_ones_get_their_responses(pool: ThreadPoolExecutor) -> None:
    with running_activator(SHOAL_ACTIVATOR_SERVICE_MAX_REQUESTS="2") as activator:
        calls = waiting(activator, pool, 2)
        refused = infer(activator)
        with running_proxy() as proxy:
            activator.pods(address(proxy))
            assert [call.result().status_code for call in calls] == [200, 200]

    assert (refused.status_code, refused.headers["x-shoal-executed"]) == (503, "no")
    assert "2 requests wait for this service" in refused.json()["error"]
    assert int(refused.headers["retry-after"]) >= 1


def test_a_pod_that_rejects_the_connection_is_skipped(activator: RunningActivator) -> None:
    with running_proxy() as proxy:
        activator.pods(f"127.0.0.1:{free_port()}", address(proxy))
        assert [answer_to(infer(activator, value))[0] for value in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]


def test_a_request_that_a_stopping_pod_rejected_waits_for_the_next_pod(
    activator: RunningActivator, pool: ThreadPoolExecutor
) -> None:
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nx-shoal-executed: no\r\ncontent-length: 0\r\n\r\n"
    (call,) = waiting(activator, pool)
    with responding(refusal) as (pod, seen), running_proxy() as proxy:
        activator.pods(pod)
        activator.until(lambda _: bool(seen))
        activator.until_waiting(1)
        activator.pods(address(proxy))
        assert answer_to(call.result()) == [2 * value for value in row(0.0)]


def test_a_request_at_a_pod_that_died_may_have_run(activator: RunningActivator) -> None:
    with responding(None) as (pod, _):
        activator.pods(pod)
        answer = infer(activator)

    assert (answer.status_code, answer.headers["x-shoal-executed"]) == (503, "maybe")


def test_killing_the_activator_closes_its_clients_connections(
    activator: RunningActivator, pool: ThreadPoolExecutor
) -> None:
    calls = waiting(activator, pool, 3)
    activator.process.send_signal(signal.SIGKILL)

    for call in calls:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            call.result()


def test_a_stopping_activator_finishes_its_held_requests(activator: RunningActivator, pool: ThreadPoolExecutor) -> None:
    calls = waiting(activator, pool, 2)
    activator.process.send_signal(signal.SIGTERM)
    with running_proxy() as proxy:
        # It may have exited before its admin port could confirm the table.
        activator.operator.publish(ActivatorService(NAME, activator.port, addresses=(address(proxy),)))
        assert [call.result().status_code for call in calls] == [200, 200]

    assert activator.process.wait(PATIENCE_S) == 0


def test_without_the_operator_the_last_table_stays_in_effect(activator: RunningActivator) -> None:
    with running_proxy() as proxy:
        activator.pods(address(proxy))
        activator.operator.close()
        assert infer(activator).status_code == 200


def test_a_deleted_service_has_no_port_and_its_held_requests_are_rejected(
    activator: RunningActivator, pool: ThreadPoolExecutor
) -> None:
    (call,) = waiting(activator, pool)
    version = activator.operator.publish()
    activator.until(lambda news: news.version == version)

    answer = call.result()
    assert (answer.status_code, answer.headers["x-shoal-executed"]) == (503, "no")
    assert "was deleted or is stopped" in answer.json()["error"]
    assert "retry-after" not in answer.headers
    with pytest.raises(httpx.ConnectError):
        infer(activator)


def test_a_taken_port_is_reported_and_other_ports_are_open(activator: RunningActivator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = ActivatorService("default/other", taken.getsockname()[1])
        version = activator.operator.publish(ActivatorService(NAME, activator.port), other)
        activator.until(lambda news: news.version == version)
        assert list(activator.news().refused) == ["default/other"]
        assert "Address already in use" in activator.news().refused["default/other"]
        assert plain.get(f"{activator.admin_url}/readyz", timeout=PATIENCE_S).status_code == 200
        assert plain.get(f"{activator.url}/ping", timeout=PATIENCE_S).status_code == 200
    activator.until(lambda news: not news.refused)


def test_metrics_count_rejections_by_reason(activator: RunningActivator) -> None:
    infer(activator, headers=SOON)

    text = plain.get(f"{activator.admin_url}/metrics", timeout=PATIENCE_S).text
    assert 'shoal_proxy_rejections_total{reason="deadline"} 1.0' in text
    assert "shoal_proxy_queue_requests 0.0" in text
