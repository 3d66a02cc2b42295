"""Asynchronous requests to a service at zero: accepted by the activator, run by a pod."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from shoal_proxy.activator.asynchronous import accepts_later_result, result_id
from shoal_schema.interfaces.activator import ActivatorAsynchronous, ActivatorService, ActivatorTable
from tests import plain
from tests.calls import row, v2_body
from tests.fakes import RunningProxy
from tests.proxy.activator.running import NAME, PATIENCE_S, RunningActivator, responding, running_activator
from tests.proxy.asynchronous.requests import ASYNC, asynchronous_proxy, doubled, outputs
from tests.proxy.asynchronous.requests import result as result_of

PATH = "/v2/models/double/infer"
LIMITS = ActivatorAsynchronous(60.0, 60.0)
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nx-shoal-executed: no\r\ncontent-length: 0\r\n\r\n"
FORBIDDEN = (
    b'HTTP/1.1 401 Unauthorized\r\ncontent-type: application/json\r\nwww-authenticate: Bearer\r\n'
    b'content-length: 16\r\n\r\n{"error": "key"}'
)  # fmt: skip


@pytest.fixture
def activator() -> Iterator[RunningActivator]:
    with running_activator() as running:
        running.pods(asynchronous=LIMITS)
        yield running


def address(proxy: RunningProxy) -> str:
    return "{}:{}".format(*proxy.address)


def submit(activator: RunningActivator, value: float = 1.0, headers: dict[str, str] | None = None) -> httpx.Response:
    body = v2_body([row(value)])
    return plain.post(activator.url + PATH, json=body, headers={**ASYNC, **(headers or {})}, timeout=PATIENCE_S)


def accept(activator: RunningActivator, value: float = 1.0, headers: dict[str, str] | None = None) -> str:
    """Send an asynchronous request; return the location of its result."""
    response = submit(activator, value, headers)
    assert response.status_code == 202, response.text
    assert response.headers["preference-applied"] == "respond-async"
    assert int(response.headers["retry-after"]) >= 1
    location = response.headers["location"]
    assert location.startswith("/v2/models/double/results/")
    assert response.json() == {"id": location.rpartition("/")[2], "status": "waiting", "location": location}
    return location


def get(activator: RunningActivator, location: str) -> httpx.Response:
    return plain.get(activator.url + location, timeout=PATIENCE_S)


def ended(activator: RunningActivator, location: str) -> httpx.Response:
    """Return the result at the activator, once there is one."""
    until_s = time.monotonic() + PATIENCE_S
    while (response := get(activator, location)).status_code == 202:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return response


def test_an_asynchronous_request_gets_202_at_once_and_its_result_from_a_pod(activator: RunningActivator) -> None:
    location = accept(activator, 3.0)
    activator.until_waiting(1)
    assert get(activator, location).status_code == 202

    with asynchronous_proxy() as proxy:
        activator.pods(address(proxy), asynchronous=LIMITS)
        assert outputs(result_of(proxy.url, location)) == doubled(3.0)
        # The activator forwards requests for the result from now on.
        assert outputs(ended(activator, location)) == doubled(3.0)
    assert activator.news().waiting == {}


@pytest.mark.parametrize("number", range(3))
def test_no_request_for_a_result_gets_404_during_the_hand_over(activator: RunningActivator, number: int) -> None:
    locations = [accept(activator, float(each)) for each in range(40)]
    with asynchronous_proxy() as proxy, ThreadPoolExecutor(16) as pool:

        def follow(location: str) -> set[int]:
            seen: set[int] = set()
            until_s = time.monotonic() + PATIENCE_S
            while 200 not in seen:
                assert time.monotonic() < until_s
                # Both are endpoints of the service.
                seen |= {
                    plain.get(url + location, timeout=PATIENCE_S).status_code for url in (activator.url, proxy.url)
                }
            return seen

        followed = [pool.submit(follow, location) for location in locations]
        activator.pods(address(proxy), asynchronous=LIMITS, forwards=2)
        assert {status for each in followed for status in each.result()} <= {200, 202}
        for value, location in enumerate(locations):
            assert outputs(get(activator, location)) == doubled(float(value))
        assert proxy.call(lambda: sum(seen.rows for seen in proxy.runtime.seen)) == len(locations)


def test_the_pod_gets_the_id_the_preference_and_the_time_left(activator: RunningActivator) -> None:
    location = accept(activator, headers={"x-request-timeout-ms": "30000", "x-shoal-async-id": "f" * 32})
    answer = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"
    with responding(answer) as (pod, seen):
        activator.pods(pod, asynchronous=LIMITS)
        activator.until(lambda _: bool(seen))
        head = seen[0].partition(b"\r\n\r\n")[0].decode().lower()
    headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
    assert headers["x-shoal-async-id"] == location.rpartition("/")[2] != "f" * 32
    assert headers["prefer"] == "respond-async"
    assert 0 < int(headers["x-request-timeout-ms"]) <= 30000


def test_the_services_time_is_sent_to_the_pod_without_one_of_the_client(activator: RunningActivator) -> None:
    accept(activator)
    with responding(b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n") as (pod, seen):
        activator.pods(pod, asynchronous=LIMITS)
        activator.until(lambda _: bool(seen))
        (line,) = [line for line in seen[0].decode().split("\r\n") if line.startswith("x-request-timeout-ms")]
    assert 0 < int(line.split()[1]) <= 60_000


def test_an_error_of_the_pod_becomes_the_result(activator: RunningActivator) -> None:
    location = accept(activator)
    with responding(FORBIDDEN) as (pod, _):
        activator.pods(pod, asynchronous=LIMITS)
        response = ended(activator, location)
    assert (response.status_code, response.json()) == (401, {"error": "key"})
    assert response.headers["www-authenticate"] == "Bearer"
    assert get(activator, location).status_code == 401


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"inputs": []}, {}, 400),
        (v2_body([row(1.0)]), {"x-shoal-callback": "https://example.com/"}, 400),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}, {}, 400),
    ],
)
def test_a_request_that_the_pod_rejects_has_its_error_as_the_result_at_the_pod(
    activator: RunningActivator, body: Any, headers: dict[str, str], status: int
) -> None:
    accepted = plain.post(activator.url + PATH, json=body, headers={**ASYNC, **headers}, timeout=PATIENCE_S)
    assert accepted.status_code == 202
    with asynchronous_proxy() as proxy:
        activator.pods(address(proxy), asynchronous=LIMITS)
        # Clients reach pods alone as soon as one is ready.
        response = result_of(proxy.url, accepted.headers["location"])
        assert (response.status_code, response.headers["x-shoal-executed"]) == (status, "no")
        assert ended(activator, accepted.headers["location"]).content == response.content
        assert plain.delete(proxy.url + accepted.headers["location"], timeout=PATIENCE_S).status_code == 204


def test_a_pod_that_starts_too_late_reports_the_missing_result(activator: RunningActivator) -> None:
    location = accept(activator, headers={"x-request-timeout-ms": "10"})
    ended(activator, location)
    with asynchronous_proxy() as proxy:
        response = result_of(proxy.url, location)
    assert (response.status_code, response.headers["x-shoal-executed"]) == (504, "maybe")
    assert "no replica was ready in time" in response.json()["error"]


def test_a_pod_that_rejects_the_request_is_followed_by_another(activator: RunningActivator) -> None:
    location = accept(activator, 2.0)
    with responding(REFUSAL) as (pod, seen), asynchronous_proxy() as proxy:
        activator.pods(pod, asynchronous=LIMITS)
        activator.until(lambda _: bool(seen))
        assert get(activator, location).status_code == 202
        activator.pods(address(proxy), asynchronous=LIMITS)
        assert outputs(result_of(proxy.url, location)) == doubled(2.0)


def test_without_a_pod_in_time_the_result_is_an_error(activator: RunningActivator) -> None:
    location = accept(activator, headers={"x-request-timeout-ms": "50"})
    response = ended(activator, location)
    assert (response.status_code, response.headers["x-shoal-executed"]) == (503, "no")
    assert "no pod of this service was ready in time" in response.json()["error"]
    assert activator.news().waiting == {}


def test_a_result_without_a_pod_expires() -> None:
    with running_activator() as activator:
        activator.pods(asynchronous=ActivatorAsynchronous(0.05, 0.3))
        location = accept(activator)
        assert ended(activator, location).status_code == 503
        until_s = time.monotonic() + PATIENCE_S
        # The deadline in an id is in whole seconds, until which an unknown request may be held elsewhere.
        while get(activator, location).status_code != 404:
            assert time.monotonic() < until_s
            time.sleep(0.01)


def test_a_pod_that_breaks_the_connection_may_have_the_request(activator: RunningActivator) -> None:
    location = accept(activator)
    with responding(None) as (pod, _):
        activator.pods(pod, asynchronous=LIMITS)
        response = ended(activator, location)
    assert (response.status_code, response.headers["x-shoal-executed"]) == (503, "maybe")


def test_a_pod_that_has_the_request_already_counts_as_its_acceptance(activator: RunningActivator) -> None:
    location = accept(activator)
    with responding(b"HTTP/1.1 409 Conflict\r\ncontent-length: 0\r\n\r\n") as (pod, seen):
        activator.pods(pod, asynchronous=LIMITS)
        activator.until(lambda _: bool(seen))
        activator.until_waiting(0)
        activator.pods(asynchronous=LIMITS)
    assert get(activator, location).status_code == 202


def test_deleting_a_waiting_request_cancels_it(activator: RunningActivator) -> None:
    location, other = accept(activator, 1.0), accept(activator, 2.0)
    response = plain.delete(activator.url + location, timeout=PATIENCE_S)
    assert (response.status_code, response.content) == (204, b"")
    activator.until_waiting(1)
    with asynchronous_proxy() as proxy:
        activator.pods(address(proxy), asynchronous=LIMITS)
        assert outputs(result_of(proxy.url, other)) == doubled(2.0)
        assert proxy.call(lambda: sum(seen.rows for seen in proxy.runtime.seen)) == 1
        assert plain.delete(activator.url + other, timeout=PATIENCE_S).status_code == 204
        assert plain.get(proxy.url + other.replace("results/", "results/x"), timeout=PATIENCE_S).status_code == 404


def test_deleting_an_error_removes_it(activator: RunningActivator) -> None:
    location = accept(activator, headers={"x-request-timeout-ms": "10"})
    ended(activator, location)
    assert plain.delete(activator.url + location, timeout=PATIENCE_S).status_code == 204
    assert plain.delete(activator.url + location, timeout=PATIENCE_S).status_code == 404


def test_unknown_results_start_no_pod(activator: RunningActivator) -> None:
    for unknown in ("f" * 32 + "-12345678", "0" * 32, "x"):
        assert get(activator, f"/v2/models/double/results/{unknown}").status_code == 404
    assert activator.news().waiting == {}


def test_a_client_that_disconnects_after_acceptance_cancels_nothing(activator: RunningActivator) -> None:
    with plain.Client() as client:
        response = client.post(activator.url + PATH, json=v2_body([row(4.0)]), headers=ASYNC)
    location = response.headers["location"]
    activator.until_waiting(1)
    with asynchronous_proxy() as proxy:
        activator.pods(address(proxy), asynchronous=LIMITS)
        assert outputs(result_of(proxy.url, location)) == doubled(4.0)


def test_requests_beyond_the_limit_are_rejected_also_while_results_are_kept() -> None:
    with running_activator(SHOAL_ACTIVATOR_SERVICE_MAX_REQUESTS="2") as activator:
        activator.pods(asynchronous=LIMITS)
        first, _ = accept(activator, headers={"x-request-timeout-ms": "10"}), accept(activator)
        ended(activator, first)
        refused = submit(activator)
        assert (refused.status_code, refused.headers["x-shoal-executed"]) == (503, "no")
        assert plain.delete(activator.url + first, timeout=PATIENCE_S).status_code == 204
        accept(activator)


def test_a_service_without_the_section_holds_the_client(activator: RunningActivator) -> None:
    activator.pods()
    with ThreadPoolExecutor(1) as pool, asynchronous_proxy() as proxy:
        call = pool.submit(submit, activator)
        activator.until_waiting(1)
        activator.pods(address(proxy))
        # The pod has the section, and responds itself.
        assert call.result().status_code == 202


def test_ready_pods_accept_requests_themselves(activator: RunningActivator) -> None:
    with asynchronous_proxy() as proxy:
        activator.pods(address(proxy), asynchronous=LIMITS)
        location = submit(activator, 5.0).headers["location"]
        assert "-" in location.rpartition("/")[2]
        assert outputs(ended(activator, location)) == doubled(5.0)


def test_a_large_timeout_reaches_the_pod_whole() -> None:
    with running_activator() as activator:
        day_s = 86_400.0
        activator.pods(asynchronous=ActivatorAsynchronous(day_s, 60.0))
        location = accept(activator)
        with asynchronous_proxy(asynchronous__timeout_seconds=int(day_s)) as proxy:
            proxy.hold()
            activator.pods(address(proxy), asynchronous=ActivatorAsynchronous(day_s, 60.0))
            activator.until_waiting(0)

            def left_s() -> float:
                assert proxy.proxy.asynchronous is not None
                job = proxy.proxy.asynchronous.table.find(location.rpartition("/")[2])
                return job.deadline_s - job.accepted_s if job else 0.0

            proxy.until(lambda: left_s() > 0)
            assert day_s - 60 < proxy.call(left_s) <= day_s
            proxy.release()


def publish(activator: RunningActivator, peers: tuple[str, ...], port: int, **more: Any) -> None:
    """Publish a table with other activators."""
    operator = activator.operator
    with operator._changed:
        operator._count += 1
        service = ActivatorService(NAME, port, asynchronous=LIMITS, **more)
        operator._table = ActivatorTable(f"e:{operator._count}", (service,), peers)
        operator._changed.notify_all()
        version = operator._table.version
    activator.until(lambda news: news.version == version)


def test_an_activator_finds_requests_of_others() -> None:
    with running_activator() as first, running_activator(SHOAL_ACTIVATOR_LISTEN_HOST="127.0.0.2") as second:
        # Both listen on the port of the service, as pods do.
        for each in (first, second):
            publish(each, ("127.0.0.1", "127.0.0.2", "127.0.0.3"), first.port)
        url = f"http://127.0.0.2:{first.port}"
        location = accept(first, headers={"x-request-timeout-ms": "300"})
        assert plain.get(url + location, timeout=PATIENCE_S).status_code == 202
        ended(first, location)
        got = plain.get(url + location, timeout=PATIENCE_S)
        assert (got.status_code, got.headers["x-shoal-executed"]) == (503, "no")
        other = accept(first)
        assert plain.delete(url + other, timeout=PATIENCE_S).status_code == 204
        first.until_waiting(0)
        assert plain.get(f"{url}/v2/models/double/results/{'f' * 32}-12345678", timeout=PATIENCE_S).status_code == 404


def test_a_draining_activator_waits_for_the_hand_over(activator: RunningActivator) -> None:
    location = accept(activator, 6.0)
    activator.process.terminate()
    with asynchronous_proxy() as proxy:
        # Its admin port closes with the process, as soon as the pod has the request.
        pods = (address(proxy),)
        activator.operator.publish(ActivatorService(NAME, activator.port, addresses=pods, asynchronous=LIMITS))
        assert outputs(result_of(proxy.url, location)) == doubled(6.0)
        activator.process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("path", "query", "headers", "expected"),
    [
        (PATH, b"", [(b"prefer", b"respond-async")], True),
        (PATH, b"", [(b"prefer", b"wait=10, Respond-Async; x=y")], True),
        (PATH, b"", [(b"prefer", b"wait=1"), (b"prefer", b"respond-async")], True),
        (PATH, b"", [(b"prefer", b"respond-async=never"), (b"prefer", b"respond-async")], False),
        (PATH, b"a=b&async=true", [], True),
        ("/v2/models/double/versions/1/infer", b"async=true", [], True),
        ("/invocations", b"async=true", [], True),
        (PATH, b"", [(b"prefer", b"respond-asynchronous")], False),
        (PATH, b"async=false&xasync=true", [], False),
        (PATH, b"", [], False),
        ("/v2/models/double", b"async=true", [], False),
        ("/v1/models/double:predict", b"async=true", [], False),
        ("/predictions/double", b"async=true", [], False),
    ],
)
def test_which_requests_are_asynchronous(
    path: str, query: bytes, headers: list[tuple[bytes, bytes]], expected: bool
) -> None:
    assert accepts_later_result("POST", path, query, headers) is expected
    assert not accepts_later_result("GET", path, query, headers)


def test_the_id_of_a_path() -> None:
    assert result_id("/v2/models/double/results/0123abcd") == "0123abcd"
    for path in ("/v2/models/double/results/", "/v2/models/double/results/a/b", "/v2/models/double", "/results/a"):
        assert result_id(path) == ""
