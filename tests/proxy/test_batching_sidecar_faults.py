"""One test for each fault that reading KServe's batcher shows: what a batching sidecar must not do.

The numbers are those of the list: a failed result reported as success, one blocked loop, waiting while idle,
no batch cap, models mixed, headers lost, no bound and no cancel,
time-outs in the wrong unit, polling and logging per request.
"""

import asyncio
import logging
import time

import httpx
import pytest

from tests import plain
from tests.calls import V1_PATH, V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy


@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        (500, b'{"error": "CUDA fell over", "code": "FORWARD_FAILED"}', 500, "CUDA fell over"),
        (400, b'{"error": "no such thing"}', 400, "no such thing"),
        (503, b'{"error": "stopping", "code": "STOPPING"}', 503, "stopping"),
        (502, b"<html>bad gateway</html>", 500, "bad gateway"),
        (200, b"not json", 500, "violates the protocol"),
        (200, b"[]", 500, "violates the protocol"),
        (200, b'{"outputs": []}', 500, "no outputs"),
    ],
)
def test_1_a_failed_batch_is_never_a_success(status: int, body: bytes, expected: int, words: str) -> None:
    runtime = lambda: FakeRuntime(respond=lambda seen: (status, {}, body))  # noqa: E731
    with running_proxy(runtime) as running, plain.Client(base_url=running.url) as client:
        for path, request in ((V2_PATH, v2_body([row(1)])), (V1_PATH, {"instances": [row(1)]})):
            answer = client.post(path, json=request)
            assert answer.status_code == expected
            assert words in answer.json()["error"]


def test_2_requests_are_accepted_while_a_batch_runs(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        assert plain.get(running.url + "/v2/health/live").status_code == 200
        second = group.ask(1)
        running.until_waiting(1)
        running.release()
        assert answer_to(first.result())[0] == 0
        assert answer_to(second.result())[0] == 2


def test_3_an_idle_runtime_gets_a_request_without_any_window(running: RunningProxy) -> None:
    with plain.Client(base_url=running.url) as client:
        answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
    assert running.proxy.settings.batching.max_delay_milliseconds == 0
    assert running.proxy.metrics.queue_seconds.total < 1.0


def test_4_a_large_request_behind_a_queue_does_not_burst_the_batch() -> None:
    with running_proxy(max_batch_size=32, max_rows=1000) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            small = [group.ask(number) for number in range(31)]
            running.until_waiting(31)
            large = group.post(V2_PATH, json=v2_body([row(number) for number in range(100)]))
            running.until(lambda: sum(seen.rows for seen in running.runtime.seen) >= 33)
            running.release()
            assert len(answer_to(large.result())) == 400
            for answer in [first, *small]:
                answer_to(answer.result())
        assert max(seen.rows for seen in running.runtime.seen) == 32


def test_5_a_path_of_another_model_is_not_found(running: RunningProxy, client: httpx.Client) -> None:
    answer = client.post("/v1/models/other:predict", json={"instances": [row(1)]})
    assert answer.status_code == 404
    assert "unknown model 'other'" in answer.json()["error"]
    assert running.runtime.seen == []


def test_6_headers_go_through_both_ways(running: RunningProxy, client: httpx.Client) -> None:
    answer = client.post(V2_PATH, json=v2_body([row(1)], id="42"), headers={"x-request-id": "r-7"})
    assert answer.headers["x-request-id"] == "r-7"
    assert answer.json()["id"] == "42"
    assert running.runtime.seen[0].headers["x-request-id"] == "r-7"


def test_7_a_full_queue_rejects_at_once_with_a_retry_after() -> None:
    with running_proxy(max_batch_size=2, max_rows=2) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            running_batches = [group.ask(0)]
            running.until(lambda: len(running.runtime.seen) == 1)
            running_batches += [group.ask(1), group.ask(2)]
            running.until(lambda: len(running.runtime.seen) == 2)
            waiting = [group.post(V2_PATH, json=v2_body([row(3), row(4), row(5)]))]
            running.until(lambda: running.proxy.scheduler.queue.rows == 3)
            for path, body in ((V2_PATH, v2_body([row(6)])), (V1_PATH, {"instances": [row(6)]})):
                refused = plain.post(running.url + path, json=body)
                assert refused.status_code == 503
                assert 1 <= int(refused.headers["retry-after"]) <= 60
                assert "queue is full" in refused.json()["error"]
            running.release()
            for answer in running_batches + waiting:
                assert answer.result().status_code == 200
        assert running.proxy.metrics.rejections["queue_rows"] == 2


def test_7_a_client_that_disconnects_leaves_the_queue(running: RunningProxy) -> None:
    running.hold()

    async def ask_and_leave() -> None:
        async with plain.AsyncClient(base_url=running.url) as client:
            task = asyncio.create_task(client.post(V2_PATH, json=v2_body([row(13)])))
            while running.proxy.scheduler.queue.requests == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            task.cancel()

    with concurrent_clients(running.url) as group:
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        asyncio.run(ask_and_leave())
        running.until_waiting(0)
        second = group.ask(2)
        running.until_waiting(1)
        running.release()
        answer_to(first.result())
        answer_to(second.result())
    assert [seen.inputs["x"][0][0] for seen in running.runtime.seen] == [0, 2]
    assert running.proxy.metrics.rejections["cancelled"] == 1


def test_8_a_deadline_is_kept_in_the_queue_and_at_the_runtime(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        started_s = time.monotonic()
        at_runtime = group.ask(0, headers={"x-request-timeout-ms": "150"})
        running.until(lambda: len(running.runtime.seen) == 1)
        in_queue = group.post(V2_PATH, json=v2_body([row(1)], parameters={"timeout": 100_000}))
        assert at_runtime.result().status_code == 504
        assert in_queue.result().status_code == 504
        assert 0.1 <= time.monotonic() - started_s < 10
        assert running.proxy.scheduler.queue.requests == 0
        running.release()
    assert len(running.runtime.seen) == 1
    assert running.proxy.metrics.rejections["deadline"] == 2


def test_9_nothing_is_logged_for_a_request(
    running: RunningProxy, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="shoal_proxy")
    caplog.set_level(logging.DEBUG, logger="uvicorn")
    answer_to(client.post(V2_PATH, json=v2_body([row(1)])))
    assert [record for record in caplog.records if record.name.startswith(("shoal", "uvicorn"))] == []


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_wrong_number_of_rows_is_an_error_and_never_a_mis_split_response(rows: int) -> None:
    runtime = lambda: FakeRuntime(model=lambda inputs: {"y": inputs["x"][:1].repeat(rows, axis=0)})  # noqa: E731
    with running_proxy(runtime) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.post(V2_PATH, json=v2_body([row(0), row(0)]))
            running.until(lambda: len(running.runtime.seen) == 1)
            answers = [first, group.ask(1), group.ask(2)]
            running.until_waiting(2)
            running.release()
            for value, answer in enumerate(answers):
                if value and rows == 1:  # alone, each of them gets the one row that is its own
                    assert answer.result().json()["outputs"][0]["data"][0] == value
                    continue
                assert answer.result().status_code == 500
                sent = 1 if value else 2
                assert f"returned {rows} rows of 'y', expected {sent}" in answer.result().json()["error"]
