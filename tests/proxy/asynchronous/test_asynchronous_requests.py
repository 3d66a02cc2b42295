"""Asynchronous requests to a real proxy: acceptance, results, deletion and limits."""

import time
from collections.abc import Iterator

import pytest

from shoal_schema.interfaces.metrics import AsyncOutcome
from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, concurrent_clients, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.asynchronous.requests import ASYNC, accept, asynchronous_proxy, doubled, outputs, requests_of, result


@pytest.fixture
def running() -> Iterator[RunningProxy]:
    with asynchronous_proxy() as proxy:
        yield proxy


def test_the_result_is_the_response_that_a_waiting_client_would_get(running: RunningProxy) -> None:
    location = accept(running.url, 3.0)
    response = result(running.url, location)
    synchronous = plain.post(running.url + V2_PATH, json=v2_body([row(3.0)], id="mine"))
    assert response.content == synchronous.content
    assert response.headers["content-type"] == synchronous.headers["content-type"]
    assert outputs(result(running.url, location)) == doubled(3.0)


def test_a_query_requests_the_result_later(running: RunningProxy) -> None:
    response = plain.post(f"{running.url}{V2_PATH}?async=true", json=v2_body([row(2.0)]))
    assert response.status_code == 202
    assert outputs(result(running.url, response.headers["location"])) == doubled(2.0)


def test_invocations_may_be_asynchronous(running: RunningProxy) -> None:
    body = {"instances": [row(1.0)]}
    response = plain.post(f"{running.url}/invocations", json=body, headers=ASYNC)
    assert response.status_code == 202
    synchronous = plain.post(f"{running.url}/invocations", json=body)
    assert result(running.url, response.headers["location"]).json() == synchronous.json()


@pytest.mark.parametrize("path", [V1_PATH, TORCHSERVE_PATH])
def test_other_protocols_ignore_the_preference_and_refuse_the_query(running: RunningProxy, path: str) -> None:
    body = {"instances": [row(1.0)]} if path == V1_PATH else [row(1.0)]
    assert plain.post(running.url + path, json=body, headers=ASYNC).status_code != 202
    refused = plain.post(f"{running.url}{path}?async=true", json=body)
    assert refused.status_code == 400
    assert "/invocations" in refused.text


def test_a_service_without_the_field_ignores_the_preference_and_refuses_the_query() -> None:
    with running_proxy() as running:
        body = v2_body([row(1.0)])
        assert plain.post(running.url + V2_PATH, json=body, headers=ASYNC).status_code == 200
        refused = plain.post(f"{running.url}{V2_PATH}?async=true", json=body)
        assert refused.status_code == 400
        assert "asynchronous" in refused.json()["error"]
        assert plain.get(f"{running.url}/v2/models/double/results/abc").status_code == 404


def test_an_invalid_request_gets_its_error_at_once(running: RunningProxy) -> None:
    response = plain.post(running.url + V2_PATH, json={"inputs": []}, headers=ASYNC)
    assert response.status_code == 400
    assert running.call(lambda: len(requests_of(running).table)) == 0


def test_an_error_of_the_model_is_the_result(running: RunningProxy) -> None:
    running.runtime.respond = lambda seen: (500, {}, b'{"error": "broken"}')
    response = result(running.url, accept(running.url))
    assert response.status_code == 500
    assert "broken" in response.json()["error"]
    assert response.headers["x-shoal-executed"] == "maybe"


def test_rows_that_crash_the_runtime_twice_do_not_run_again(running: RunningProxy) -> None:
    running.runtime.respond = lambda seen: None
    results = []
    for _ in range(3):
        running.until(lambda: running.proxy.link.ready)
        results.append(result(running.url, accept(running.url)))
    assert [response.status_code for response in results] == [503, 503, 500]
    assert [response.headers["x-shoal-executed"] for response in results] == ["maybe", "maybe", "no"]
    assert len(running.runtime.seen) == 2


def test_a_disconnect_after_acceptance_cancels_nothing(running: RunningProxy) -> None:
    running.hold()
    with plain.Client() as client:
        response = client.post(running.url + V2_PATH, json=v2_body([row(5.0)]), headers=ASYNC)
    running.until(lambda: running.runtime.running >= 1)
    location = response.headers["location"]
    waiting = plain.get(running.url + location)
    assert (waiting.status_code, waiting.json()["status"]) == (202, "running")
    running.release()
    assert outputs(result(running.url, location)) == doubled(5.0)


def test_deleting_a_waiting_request_cancels_it(running: RunningProxy) -> None:
    running.hold()
    first = accept(running.url, 1.0)
    running.until(lambda: running.runtime.running >= 1)
    others = [accept(running.url, float(number)) for number in range(2, 30)]
    last = others.pop()
    assert plain.get(running.url + last).json()["status"] == "waiting"
    assert plain.delete(running.url + last).status_code == 204
    assert plain.get(running.url + last).status_code == 404
    assert plain.delete(running.url + first).status_code == 204  # it runs, for no one
    running.release()
    for number, location in enumerate(others, 2):
        assert outputs(result(running.url, location)) == doubled(float(number))
    assert plain.get(running.url + first).status_code == 404
    assert sum(seen.rows for seen in running.runtime.seen) == 1 + len(others)


def test_deleting_a_result_frees_its_place() -> None:
    with asynchronous_proxy(asynchronous__max_requests=1) as running:
        location = accept(running.url)
        assert result(running.url, location).status_code == 200
        refused = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=ASYNC)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert plain.delete(running.url + location).status_code == 204
        assert result(running.url, accept(running.url)).status_code == 200
        assert running.call(lambda: requests_of(running).table.held_bytes) > 0


def test_a_body_that_never_fits_is_too_large() -> None:
    with asynchronous_proxy(asynchronous__max_bytes=100) as running:
        response = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)] * 9), headers=ASYNC)
        assert response.status_code == 413


def test_a_result_that_does_not_fit_becomes_an_error() -> None:
    with asynchronous_proxy(asynchronous__max_bytes=160) as running:
        running.hold()
        location = accept(running.url)
        running.until(lambda: running.runtime.running >= 1)
        running.release()
        response = result(running.url, location)
        assert response.status_code in (404, 500)
        assert running.call(lambda: requests_of(running).table.held_bytes) <= 160


def test_more_requests_wait_than_the_scheduler_holds() -> None:
    with asynchronous_proxy(max_rows=4) as running:
        running.hold()
        locations = [accept(running.url, float(number)) for number in range(40)]
        with concurrent_clients(running.url) as clients:
            synchronous = clients.ask(100.0)
            running.until(lambda: running.proxy.scheduler.queue.requests > 0)
            assert running.call(lambda: requests_of(running).table.waiting) > 20
            running.release()
            assert synchronous.result().status_code == 200
        for number, location in enumerate(locations):
            assert outputs(result(running.url, location)) == doubled(float(number))


def test_priorities_order_waiting_requests() -> None:
    with asynchronous_proxy(max_batch_size=1, priority_ageing_milliseconds=60_000.0) as running:
        running.hold()
        accept(running.url, 1.0)
        running.until(lambda: running.runtime.running >= 1)
        locations = [
            accept(running.url, float(number), headers={"x-shoal-priority": "9" if number < 10 else "0"})
            for number in range(2, 16)
        ]
        running.release()
        for location in locations:
            assert result(running.url, location).status_code == 200
        order = [float(seen.inputs["x"][0][0]) for seen in running.runtime.seen]
        # Those that had joined the scheduler's queue keep their place.
        assert set(order[-7:]) <= set(range(2, 10))


def test_waiting_rows_count_as_load(running: RunningProxy) -> None:
    running.hold()
    for number in range(30):
        accept(running.url, float(number))
    load = plain.get(f"{running.admin_url}/v1/load").json()
    assert load["queued_rows"] + load["running_rows"] == 30
    assert "shoal_proxy_async_waiting_requests" in plain.get(f"{running.admin_url}/metrics").text
    running.release()


def test_a_waiting_request_ends_at_its_deadline(running: RunningProxy) -> None:
    running.hold()
    accept(running.url, 1.0)
    running.until(lambda: running.runtime.running >= 1)
    locations = [accept(running.url, float(number)) for number in range(20)]
    running.call(requests_of(running).tick, time.monotonic() + 61)
    response = plain.get(running.url + locations[-1])
    assert response.status_code == 504
    assert response.headers["x-shoal-executed"] == "no"
    running.release()


def test_a_result_expires(running: RunningProxy) -> None:
    location = accept(running.url)
    assert result(running.url, location).status_code == 200
    running.call(requests_of(running).tick, time.monotonic() + 3599)
    assert plain.get(running.url + location).status_code == 200
    running.call(requests_of(running).tick, time.monotonic() + 3601)
    gone = plain.get(running.url + location)
    assert gone.status_code == 404
    assert "memory" in gone.json()["error"]
    assert running.call(lambda: len(requests_of(running).table)) == 0


def test_a_result_expires_in_time_also_between_two_checks(running: RunningProxy) -> None:
    location = accept(running.url)
    assert result(running.url, location).status_code == 200
    requests, job_id = requests_of(running), location.rpartition("/")[2]

    def expired() -> bool:
        """Return whether the job expires in an iteration of the event loop in which no check runs."""
        job = requests.find(job_id, "")
        assert job is not None
        job.ended_s -= requests.result_s
        return requests.find(job_id, "") is None

    assert running.call(expired)
    assert plain.get(running.url + location).status_code == 404


def test_a_callback_needs_webhooks(running: RunningProxy) -> None:
    headers = {**ASYNC, "x-shoal-callback": "https://example.com/"}
    response = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=headers)
    assert response.status_code == 400
    assert "asynchronous.webhooks" in response.json()["error"]


def test_an_id_is_accepted_once(running: RunningProxy) -> None:
    given = "0123456789abcdef" * 2
    headers = {**ASYNC, "x-shoal-async-id": given}
    body = v2_body([row(1.0)])
    first = plain.post(running.url + V2_PATH, json=body, headers=headers)
    assert (first.status_code, first.headers["location"]) == (202, f"/v2/models/double/results/{given}")
    assert plain.post(running.url + V2_PATH, json=body, headers=headers).status_code == 409
    assert result(running.url, first.headers["location"]).status_code == 200
    headers["x-shoal-async-id"] = "../../admin"
    assert plain.post(running.url + V2_PATH, json=body, headers=headers).status_code == 400


def test_a_drain_finishes_accepted_requests() -> None:
    with asynchronous_proxy() as running:
        running.hold()
        for number in range(20):
            accept(running.url, float(number))
        running.until(lambda: running.runtime.running >= 1)
        running.call(running.proxy.stop)
        running.until(lambda: running.proxy.dispatcher.phase == "draining")
        running.release()
    assert sum(seen.rows for seen in running.runtime.seen) == 20


def test_the_time_of_a_drain_ends_the_rest() -> None:
    with asynchronous_proxy(drain_timeout_seconds=0.2) as running:
        running.hold()
        for number in range(20):
            accept(running.url, float(number))
        running.until(lambda: running.runtime.running >= 1)
        running.call(running.proxy.stop)
    lost = running.proxy.metrics.async_requests
    assert lost[AsyncOutcome.LOST] + lost[AsyncOutcome.FINISHED] == 20
    assert lost[AsyncOutcome.LOST] >= 12
