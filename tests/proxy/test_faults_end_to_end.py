"""Models that fail, memory that runs out, runtimes that die: what clients get, and what the runtime is asked."""

from collections.abc import Mapping
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from shoal_proxy.batching.recovery import MAX_TRIES
from shoal_schema.resource.traffic import BatchingPolicy
from tests import plain
from tests.calls import V2_PATH, ConcurrentClients, RawConnection, answer_to, concurrent_clients, row, v2_body
from tests.fakes import Array, FakeRuntime, RunningProxy, Seen, double, running_proxy, write_answer

POISON = 666.0


def poisoned(inputs: Mapping[str, Array]) -> dict[str, Array]:
    if (inputs["x"] >= POISON).any():
        raise ValueError("indigestible")
    return double(inputs)


def doubled(value: float) -> list[float]:
    return [2 * x for x in row(value)]


def ask_together(running: RunningProxy, group: ConcurrentClients, values: list[float]) -> list[httpx.Response]:
    """Ask for all ``values`` while the runtime is held, so that they leave in one batch; return the answers."""
    running.hold()
    before = len(running.runtime.seen)
    first = group.ask(0)
    running.until(lambda: len(running.runtime.seen) == before + 1)
    asked = [group.ask(value) for value in values]
    scheduler = running.proxy.scheduler
    running.until(lambda: scheduler.queue.rows + scheduler.in_flight_rows == 1 + len(values))
    running.release()
    assert first.result().status_code == 200
    return [answer.result() for answer in asked]


@pytest.mark.parametrize("culprits", [[7], [0], [15], [3, 12], [4, 5]], ids=str)
def test_only_the_failing_requests_of_a_failed_batch_get_the_error(culprits: list[int]) -> None:
    with running_proxy(lambda: FakeRuntime(model=poisoned)) as running, concurrent_clients(running.url) as group:
        values = [POISON + number if number in culprits else float(number) for number in range(16)]

        answers = ask_together(running, group, values)

        for number, answer in enumerate(answers):
            if number in culprits:
                assert answer.status_code == 500
                assert answer.json()["error"] == "indigestible"
                assert "server-timing" not in answer.headers
            else:
                assert answer_to(answer) == doubled(number)
        assert len(running.runtime.seen) <= 2 + 2 * 4 * len(culprits)


def test_the_class_of_a_failing_request_is_charged_for_isolating_it() -> None:
    settings: dict[str, Any] = {"fair_share_header": "x-api-key", "max_batch_size": 4}
    with (
        running_proxy(lambda: FakeRuntime(model=poisoned), **settings) as running,
        concurrent_clients(running.url) as group,
    ):
        running.hold()
        answers = [group.ask(0, headers={"x-api-key": "good"})]
        running.until(lambda: len(running.runtime.seen) == 1)
        waiting = [("bad", POISON), *[("good", 1.0)] * 3, *[("bad", 2.0)] * 24, *[("good", 1.0)] * 16]
        for number, (who, value) in enumerate(waiting):
            answers.append(group.ask(value, headers={"x-api-key": who}))
            running.until(lambda: sum(seen.rows for seen in running.runtime.seen) + queued(running) == 2 + number)  # noqa: B023
        running.release()
        assert [answer.result().status_code for answer in answers].count(500) == 1
    shares = [sorted(seen.inputs["x"][:, 0].tolist()) for seen in running.runtime.seen if seen.rows == 4]
    assert [1.0] * 4 in shares, "one batch for the others alone; without a charge they share each"


def queued(running: RunningProxy) -> int:
    return running.proxy.scheduler.queue.rows


def ok(outputs: Mapping[str, Array]) -> tuple[int, dict[str, str], bytes]:
    return 200, *write_answer(outputs, {}, binary=True)


@pytest.mark.parametrize("status", [400, 500])
def test_a_payload_that_fails_again_and_again_travels_alone(status: int) -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if (seen.inputs["x"] >= POISON).any():
            return status, {}, orjson.dumps({"error": "indigestible"})
        return ok(double(seen.inputs))

    with running_proxy(lambda: FakeRuntime(respond=respond)) as running, concurrent_clients(running.url) as group:
        values = [1.0, POISON, 2.0, 3.0]
        for _ in range(2):
            assert [answer.status_code for answer in ask_together(running, group, values)] == [200, status, 200, 200]
        retries, before = running.proxy.metrics.retries, len(running.runtime.seen)

        statuses = [answer.status_code for answer in ask_together(running, group, values)]

        assert statuses == [200, status, 200, 200]
        assert running.proxy.metrics.retries == retries, "other batches were not retried"
        assert sorted(seen.rows for seen in running.runtime.seen[before:]) == [1, 1, 3]


def test_a_memory_that_is_too_small_halves_batches_and_the_limit_is_published() -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if seen.rows > 4:
            return 500, {}, orjson.dumps({"error": "CUDA out of memory", "code": "OUT_OF_MEMORY"})
        return ok(double(seen.inputs))

    with running_proxy(lambda: FakeRuntime(respond=respond)) as running, concurrent_clients(running.url) as group:
        answers = ask_together(running, group, [float(number) for number in range(1, 17)])
        assert [answer_to(answer) for answer in answers] == [doubled(number) for number in range(1, 17)]
        before = len(running.runtime.seen)

        answers = ask_together(running, group, [float(number) for number in range(1, 17)])

        assert {answer.status_code for answer in answers} == {200}
        assert max(seen.rows for seen in running.runtime.seen[before:]) <= 4
        assert "shoal_proxy_batch_rows_limit 4.0" in plain.get(running.admin_url + "/metrics").text
        assert "ran out of memory with more than 4 rows" in plain.get(running.admin_url + "/v1/explain").text


def test_a_row_that_does_not_fit_at_all_gets_the_error_and_no_loop() -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        return 500, {}, orjson.dumps({"error": "CUDA out of memory", "code": "OUT_OF_MEMORY"})

    with running_proxy(lambda: FakeRuntime(respond=respond)) as running:
        answer = plain.post(running.url + V2_PATH, json=v2_body([row(1), row(2)]))
        assert answer.status_code == 500
        assert [seen.rows for seen in running.runtime.seen] in ([2, 1], [2, 1, 1])


def test_one_row_that_does_not_fit_leaves_the_limit_and_its_neighbours_alone() -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if (seen.inputs["x"] >= POISON).any():
            return 500, {}, orjson.dumps({"error": "CUDA out of memory", "code": "OUT_OF_MEMORY"})
        return ok(double(seen.inputs))

    with running_proxy(lambda: FakeRuntime(respond=respond)) as running, concurrent_clients(running.url) as group:
        answers = ask_together(running, group, [1.0] * 7 + [POISON] + [1.0] * 8)
        assert [answer.status_code for answer in answers] == [200] * 7 + [500] + [200] * 8
        before = len(running.runtime.seen)

        answers = ask_together(running, group, [1.0] * 16)

        assert {answer.status_code for answer in answers} == {200}
        assert [seen.rows for seen in running.runtime.seen[before:]] == [1, 16]
        assert "shoal_proxy_batch_rows_limit 32.0" in plain.get(running.admin_url + "/metrics").text


def test_ever_new_poison_payloads_fail_no_other_request() -> None:
    with running_proxy(lambda: FakeRuntime(model=poisoned)) as running, concurrent_clients(running.url) as group:
        for turn in range(12):
            values = [float(number) for number in range(16)]
            values[turn], values[(turn + 7) % 16] = POISON + 2 * turn, POISON + 2 * turn + 1

            answers = ask_together(running, group, values)

            assert [answer.status_code == 500 for answer in answers] == [value >= POISON for value in values]


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_batch_whose_runtime_dies_is_run_twice_only_if_that_is_allowed(*, idempotent: bool) -> None:
    hang_up_on = [1, 2]

    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes] | None:
        if hang_up_on and hang_up_on.pop():
            return None
        return ok(double(seen.inputs))

    with running_proxy(lambda: FakeRuntime(respond=respond), idempotent=idempotent) as running:
        hang_up_on.pop()
        answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)]))
        assert answer.status_code == (200 if idempotent else 503)
        assert len(running.runtime.seen) == (2 if idempotent else 1)

        running.until(lambda: running.proxy.link.ready)
        hang_up_on[:] = [1, 2]
        before = len(running.runtime.seen)
        answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)]))
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert len(running.runtime.seen) == before + (2 if idempotent else 1), "once more, and never a third time"


def test_a_client_whose_new_rows_crash_the_runtime_each_time_is_rejected_and_others_are_served() -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes] | None:
        return None if (seen.inputs["x"] >= POISON).any() else ok(double(seen.inputs))

    with running_proxy(lambda: FakeRuntime(respond=respond), queue__fair_share_header="X-Team") as running:

        def ask(value: float, team: str) -> httpx.Response:
            running.until(lambda: running.proxy.link.ready)
            return plain.post(running.url + V2_PATH, json=v2_body([row(value)]), headers={"x-team": team})

        lost = [ask(POISON + 10 * number, "a") for number in range(3)]
        assert [(answer.status_code, answer.headers["x-shoal-executed"]) for answer in lost] == [(503, "maybe")] * 3
        assert ask(1, "b").status_code == 200

        rejected = ask(POISON + 100, "a")

        assert (rejected.status_code, rejected.headers["x-shoal-executed"]) == (429, "no")
        assert int(rejected.headers["retry-after"]) > 60
        assert ask(1, "b").status_code == 200
        assert len(running.runtime.seen) == 5


def test_a_model_that_always_fails_is_not_hammered() -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        return 500, {}, orjson.dumps({"error": "broken"})

    with running_proxy(lambda: FakeRuntime(respond=respond)) as running, concurrent_clients(running.url) as group:
        for _ in range(4):
            answers = [group.ask(float(number)) for number in range(50)]
            assert {answer.result().status_code for answer in answers} == {500}
        assert len(running.runtime.seen) <= 200 + MAX_TRIES
        assert running.proxy.metrics.retries <= MAX_TRIES
    assert running.proxy.scheduler.settled


def test_a_disconnected_poison_request_fails_no_other() -> None:
    with running_proxy(
        lambda: FakeRuntime(model=poisoned), policy=BatchingPolicy.FIXED, max_delay_milliseconds=59_000.0
    ) as running:
        running.proxy.scheduler.batcher.set_model(2)
        running.hold()
        body = orjson.dumps(v2_body([row(POISON)]))
        with concurrent_clients(running.url) as group, RawConnection(running.address) as leaver:
            leaver.send(b"POST %s HTTP/1.1\r\nhost: x\r\n" % V2_PATH.encode())
            leaver.send(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body), body)
            running.until_waiting(1)
            innocent = group.ask(1)
            running.until(lambda: len(running.runtime.seen) == 1)
            leaver.socket.close()
            running.until(lambda: running.proxy.metrics.rejections["cancelled"] == 1)
            running.release()
            assert answer_to(innocent.result()) == doubled(1)
        assert [seen.rows for seen in running.runtime.seen] == [2, 1]


def test_a_request_cut_in_two_that_fails_leaves_nothing_behind() -> None:
    with running_proxy(lambda: FakeRuntime(model=poisoned), max_batch_size=4, coalesce_identical=True) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            values = [POISON, *np.arange(9.0).tolist()]
            large = group.post(V2_PATH, json=v2_body([row(value) for value in values]))
            running.until(lambda: len(running.runtime.seen) == 2)
            small = group.ask(5)
            running.until_waiting(2)
            running.release()
            assert first.result().status_code == 200
            assert large.result().status_code == 500
            assert answer_to(small.result()) == doubled(5)
        scheduler = running.proxy.scheduler
        running.until(lambda: scheduler.settled)
        assert (scheduler.queue.rows, scheduler.queue.size_bytes, scheduler.queue.groups) == (0, 0, {})


def test_a_drain_does_not_wait_for_an_abandoned_batch() -> None:
    with running_proxy(idempotent=True, drain_timeout_seconds=60.0) as running:

        def die(seen: Seen) -> None:
            running.runtime.ready = False

        running.runtime.respond = die
        body = orjson.dumps(v2_body([row(1)]))
        with RawConnection(running.address) as client:
            client.send(b"POST %s HTTP/1.1\r\nhost: x\r\n" % V2_PATH.encode())
            client.send(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body), body)
            running.until(lambda: not running.proxy.link.ready and running.proxy.metrics.retries == 1)
            assert not running.proxy.scheduler.settled
        answer = plain.post(running.admin_url + "/drain", headers={"x-shoal-admin": "1"}, timeout=20)
        assert answer.json() == {"drained": True}
