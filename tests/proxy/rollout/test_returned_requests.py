"""Requests that a candidate did not run return to the stable version while their deadline allows."""

import asyncio
import time
from collections import Counter

import httpx
import pytest

from shoal_proxy.rollout.canary import reserve_s
from tests import plain
from tests.calls import V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.proxy.rollout.replicas import (
    CANDIDATE,
    STABLE,
    HostileCandidate,
    both,
    candidate,
    read_body,
    report,
    send_plan,
    with_hostile,
)


def outcomes(responses: list[httpx.Response]) -> Counter[tuple[int, str, str]]:
    """Count status, whether the model may have run, and revision."""
    return Counter(
        (each.status_code, each.headers.get("x-shoal-executed", ""), each.headers["x-shoal-revision"])
        for each in responses
    )


@pytest.mark.parametrize("coalesce", [False, True])
def test_requests_that_wait_at_a_candidate_return_when_its_runtime_is_lost(*, coalesce: bool) -> None:
    with (
        both(plan={"weight": 1.0}, coalesce_identical=coalesce) as (running, other),
        concurrent_clients(running.url) as group,
    ):
        other.hold()
        first = group.ask(0)
        other.until(lambda: other.runtime.running == 1)
        waiting = [group.ask(value) for value in range(1, 6)]
        other.until_waiting(5)
        begun_s = time.monotonic()
        other.call(other.runtime.stop)
        responses = [each.result() for each in waiting]
        assert time.monotonic() - begun_s < 10
        assert [answer_to(each) for each in responses] == [[2 * each for each in row(value)] for value in range(1, 6)]
        assert outcomes(responses) == {(200, "", STABLE): 5}
        # The model may have run the first one.
        assert outcomes([first.result()]) == {(503, "maybe", CANDIDATE): 1}
        assert report(running).returned_requests == 5
        assert report(running).candidate_failed_rows == 1
        # Later requests do not go there.
        assert outcomes([plain.post(running.url + V2_PATH, json=v2_body([row(9)]), timeout=20)]) == {
            (200, "", STABLE): 1
        }


def test_an_idempotent_request_returns_when_the_candidates_runtime_is_lost() -> None:
    with both(plan={"weight": 1.0}, idempotent=True) as (running, other), concurrent_clients(running.url) as group:
        other.hold()
        asked = group.ask(1)
        other.until(lambda: other.runtime.running == 1)
        begun_s = time.monotonic()
        other.call(other.runtime.stop)
        assert outcomes([asked.result()]) == {(200, "", STABLE): 1}
        assert time.monotonic() - begun_s < 10


def test_a_request_that_has_not_begun_at_a_hung_candidate_returns_before_its_deadline() -> None:
    with both(plan={"weight": 1.0}) as (running, other), concurrent_clients(running.url) as group:
        other.hold()
        hung = group.ask(0, headers={"x-request-timeout-ms": "20000"})
        other.until(lambda: other.runtime.running == 1)
        waiting = [group.ask(value, headers={"x-request-timeout-ms": "3000"}) for value in range(1, 5)]
        responses = [each.result() for each in waiting]
        assert outcomes(responses) == {(200, "", STABLE): 4}
        assert [answer_to(each) for each in responses] == [[2 * each for each in row(value)] for value in range(1, 5)]
        other.release()
        assert outcomes([hung.result()]) == {(200, "", CANDIDATE): 1}


def test_a_request_that_runs_at_the_candidate_keeps_its_whole_deadline() -> None:
    with both(plan={"weight": 1.0}) as (running, other), concurrent_clients(running.url) as group:
        other.hold()
        asked = group.ask(1, headers={"x-request-timeout-ms": "400"})
        assert outcomes([asked.result()]) == {(504, "maybe", CANDIDATE): 1}
        assert running.runtime.seen == []
        other.release()


def test_batches_for_comparison_do_not_wait_for_a_lost_runtime() -> None:
    with both(plan={"shadow": 1.0}) as (running, other), concurrent_clients(other.url) as group:
        other.hold()
        direct = group.ask(0)
        other.until(lambda: other.runtime.running == 1)
        assert plain.post(running.url + V2_PATH, json=v2_body([row(1)])).status_code == 200
        other.until_waiting(1)
        other.call(other.runtime.stop)
        rollout = running.proxy.rollout
        assert rollout is not None
        running.until(lambda: rollout.report().dropped_batches == 1)
        assert rollout.report().shadow_failed_rows == 0
        assert direct.result().status_code == 503


def test_requests_of_clients_still_wait_for_their_own_runtime() -> None:
    with (
        both(plan={"weight": 0.0}, drain_timeout_seconds=0.2) as (running, _),
        concurrent_clients(running.url) as group,
    ):
        running.hold()
        running_one = group.ask(0)
        running.until(lambda: running.runtime.running == 1)
        waiting = group.ask(1)
        running.until_waiting(1)
        running.call(running.runtime.stop)
        assert running_one.result().status_code == 503
        assert running.proxy.scheduler.queue.requests == 1
        send_plan(running)
        running.call(running.proxy.stop)
        assert waiting.result().status_code == 503


def test_the_candidate_gets_the_reserve_of_requests_that_may_return() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await read_body(reader, head)
        writer.write(b"HTTP/1.1 503 No\r\nx-shoal-executed: no\r\n%bcontent-length: 0\r\n\r\n" % hostile.lines)

    hostile = HostileCandidate(refuse)
    with with_hostile(hostile, plan={"weight": 1.0}) as running:
        headers = {"x-request-timeout-ms": "5000"}
        answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(1)]), headers=headers))
    (head,) = hostile.heads
    given_ms = float(head.partition(b"x-shoal-return-ms: ")[2].partition(b"\r\n")[0])
    assert 400 <= given_ms <= 2500


def test_the_reserve_is_the_time_here_and_at_most_half_of_the_rest() -> None:
    assert reserve_s(10.0, 0.1) == pytest.approx(1.2)
    assert reserve_s(0.1, 0.1) == pytest.approx(0.05)


def test_an_invalid_reserve_is_refused() -> None:
    with candidate() as other:
        headers = {"x-shoal-forwarded": "1", "x-shoal-return-ms": "soon"}
        response = plain.post(other.url + V2_PATH, json=v2_body([row(1)]), headers=headers)
        assert response.status_code == 400
        assert "x-shoal-return-ms" in response.text
