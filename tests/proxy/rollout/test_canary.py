"""A share of the requests goes to a candidate; each client gets one response, and no row runs twice."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal_proxy.batching.pending import PLAIN_KEY
from tests import plain
from tests.calls import V1_PATH, V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.certificates import Mounted
from tests.fakes import FakeRuntime, RunningProxy, Seen, tensor
from tests.proxy.access.test_keys_between_peers import ALICE, guarded
from tests.proxy.rollout.replicas import (
    CANDIDATE,
    STABLE,
    HostileCandidate,
    at,
    both,
    candidate,
    read_body,
    report,
    send_plan,
    stable,
    until_report,
    until_usable,
    with_hostile,
)
from tests.proxy.test_tls import TRUST, caller, files

CLIENTS, REQUESTS = 16, 50


def ask(running: RunningProxy, value: float = 1, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """Send a request of one row."""
    return plain.post(running.url + V2_PATH, json=v2_body([row(value)]), headers=headers, timeout=20)


def revisions(responses: list[httpx.Response]) -> list[str]:
    """Return the revisions that served the requests."""
    return [each.headers["x-shoal-revision"] for each in responses]


def under_load(running: RunningProxy, clients: int = CLIENTS, requests: int = REQUESTS) -> list[httpx.Response]:
    """Send requests on kept connections; check that each successful response is that of its own row."""

    def run(client: int) -> list[httpx.Response]:
        responses = []
        with plain.Client(base_url=running.url, timeout=20) as session:
            for number in range(requests):
                value = 1000 * client + number
                responses.append(session.post(V2_PATH, json=v2_body([row(value)])))
                if responses[-1].status_code == 200:
                    assert answer_to(responses[-1]) == [2 * each for each in row(value)]
        return responses

    with ThreadPoolExecutor(clients) as pool:
        return [response for responses in pool.map(run, range(clients)) for response in responses]


def rows_run(*replicas: RunningProxy) -> list[float]:
    """Return the first number of each row that ran anywhere."""
    return [float(first) for each in replicas for seen in each.runtime.seen for first in seen.inputs["x"][:, 0]]


@pytest.mark.parametrize("weight", [0.05, 0.25, 0.5, 1.0])
def test_the_share_is_exact_under_load_and_no_row_is_lost_or_runs_twice(weight: float) -> None:
    with both(plan={"weight": weight}) as (running, other):
        responses = under_load(running)
        assert {each.status_code for each in responses} == {200}
        total = len(responses)
        assert abs(revisions(responses).count(CANDIDATE) - weight * total) <= 0.01 * total
        assert len(rows_run(running, other)) == total
        assert len(set(rows_run(running, other))) == total
        seen = report(running)
        assert seen.candidate_requests == revisions(responses).count(CANDIDATE)
        assert seen.served_rows == revisions(responses).count(STABLE)
        assert seen.failed_rows == seen.candidate_failed_rows == 0


def test_without_a_plan_no_response_names_a_revision() -> None:
    with candidate() as other, stable(at(other)) as running:
        assert "x-shoal-revision" not in ask(running).headers
        assert report(running).candidate == ""
        send_plan(running, candidate=CANDIDATE, weight=1.0)
        until_usable(running)
        assert revisions([ask(running)]) == [CANDIDATE]
        send_plan(running)
        assert "x-shoal-revision" not in ask(running).headers
        # A client of the candidate itself is served by it.
        assert revisions([ask(other)]) == [CANDIDATE]
        assert other.proxy.rollout is not None
        assert other.proxy.rollout.report().served_rows == 2


def test_every_protocol_is_split_and_keeps_its_form() -> None:
    with both(plan={"weight": 1.0}) as (running, other):
        answer = plain.post(running.url + V1_PATH, json={"instances": [row(1), row(2)]})
        assert answer.json() == {"predictions": [[2 * each for each in row(value)] for value in (1, 2)]}
        assert len(other.runtime.seen) == 1


def test_a_client_stays_with_its_revision() -> None:
    with both(plan={"weight": 0.3, "sticky_header": "X-User"}) as (running, _):
        assigned = {
            name: revisions([ask(running, headers={"x-user": name}) for _ in range(3)]) for name in map(str, range(40))
        }
        assert all(len(set(each)) == 1 for each in assigned.values())
        chosen = {name for name, each in assigned.items() if each[0] == CANDIDATE}
        assert 4 <= len(chosen) <= 22
        send_plan(running, candidate=CANDIDATE, weight=0.6, sticky_header="x-user")
        later = {name for name in assigned if revisions([ask(running, headers={"x-user": name})]) == [CANDIDATE]}
        assert chosen <= later
        # Another header: heads that were cached before are read again.
        send_plan(running, candidate=CANDIDATE, weight=1.0, sticky_header="x-other")
        assert revisions([ask(running, headers={"x-user": "1"})]) == [CANDIDATE]


def test_requests_that_cannot_be_forwarded_stay_here() -> None:
    def runtime() -> FakeRuntime:
        inputs = [tensor("x", "FP32", [-1, -1], pad_axis=1, pad_value=0)]
        return FakeRuntime(inputs=inputs, outputs=[tensor("y", "FP32", [-1, -1], unpad_axis=1, unpad_input="x")])

    with (
        candidate(runtime) as other,
        stable(at(other), make_runtime=runtime) as running,
    ):
        send_plan(running, candidate=CANDIDATE, weight=1.0)
        until_usable(running)
        ragged = plain.post(running.url + V1_PATH, json={"instances": [[1.0], [4.0, 5.0]]})
        assert ragged.json() == {"predictions": [[2.0], [8.0, 10.0]]}
        forwarded = plain.post(running.url + V1_PATH, json={"instances": [[1.0]]}, headers={"x-shoal-forwarded": "1"})
        assert revisions([ragged, forwarded]) == [STABLE, STABLE]
        assert report(running).returned_requests == 0
        even = plain.post(running.url + V1_PATH, json={"instances": [[1.0, 2.0], [4.0, 5.0]]})
        assert even.json() == {"predictions": [[2.0, 4.0], [8.0, 10.0]]}
        assert revisions([even]) == [CANDIDATE]


def test_a_candidate_of_another_revision_gets_nothing() -> None:
    with candidate(process__revision="cccc") as other, stable(at(other)) as running:
        send_plan(running, candidate=CANDIDATE, weight=1.0)
        rollout = running.proxy.rollout
        assert rollout is not None
        running.until(lambda: any(link.ready for link in rollout._pods.replicas.links))
        assert revisions([ask(running)]) == [STABLE]
        assert report(running).ready_candidates == 0


@pytest.mark.parametrize("allow", [False, True])
def test_a_changed_output_gets_rows_only_if_that_is_allowed(*, allow: bool) -> None:
    def other_output() -> FakeRuntime:
        return FakeRuntime(outputs=[tensor("y", "FP32", [-1, 4]), tensor("z", "FP32", [-1])])

    with candidate(other_output) as other, stable(at(other)) as running:
        send_plan(running, candidate=CANDIDATE, weight=1.0, allow_signature_change=allow)
        found = until_report(running, lambda seen: seen.output_change != "")
        assert "`z`" in found.output_change
        assert found.input_change == ""
        assert revisions([ask(running)]) == [CANDIDATE if allow else STABLE]


def test_changed_inputs_get_no_rows_in_any_case() -> None:
    def other_input() -> FakeRuntime:
        return FakeRuntime(inputs=[tensor("x", "FP32", [-1, 5])])

    with candidate(other_input) as other, stable(at(other)) as running:
        send_plan(running, candidate=CANDIDATE, weight=1.0, shadow=1.0, allow_signature_change=True)
        assert "[-1, 5]" in until_report(running, lambda seen: seen.input_change != "").input_change
        assert revisions([ask(running)]) == [STABLE]
        assert report(running).returned_requests == 1
        assert not other.runtime.seen


# Candidates that fail.


def test_a_candidate_that_fails_returns_its_error_and_is_avoided() -> None:
    def failing() -> FakeRuntime:
        return FakeRuntime(respond=lambda seen: (500, {"x-shoal-executed": "maybe"}, b'{"error": "boom"}'))

    with both(failing, plan={"weight": 0.5}) as (running, _):
        responses = under_load(running, 4, 50)
        failed = [each for each in responses if each.status_code != 200]
        assert 1 <= len(failed) <= 10
        assert {each.headers["x-shoal-executed"] for each in failed} == {"maybe"}
        seen = report(running)
        assert seen.candidate_failed_rows == seen.candidate_rows == len(failed)
        assert seen.returned_requests >= 80


def test_rows_of_an_idempotent_model_that_fail_at_the_candidate_run_here() -> None:
    def failing() -> FakeRuntime:
        return FakeRuntime(respond=lambda seen: None)  # it hangs up

    with both(failing, plan={"weight": 0.5}, idempotent=True) as (running, _):
        responses = under_load(running, 4, 50)
        assert {each.status_code for each in responses} == {200}
        assert set(revisions(responses)) == {STABLE}
        seen = report(running)
        assert seen.candidate_failed_rows >= 1
        assert seen.returned_requests >= seen.candidate_requests
        assert seen.served_rows == len(responses)


def test_a_killed_candidate_loses_only_what_it_had() -> None:
    with both(plan={"weight": 0.5}) as (running, other):
        other.hold()
        with concurrent_clients(running.url) as group:
            lost = [group.ask(value) for value in range(6)]
            queue = other.proxy.scheduler.queue
            other.until(lambda: sum(seen.rows for seen in other.runtime.seen) + queue.requests == 3)

            def kill() -> None:
                for each in list(other.proxy.front_limits.members):
                    each.transport.abort()

            other.call(other.proxy.socket.close)
            other.call(kill)
            statuses = [each.result().status_code for each in lost]
        assert sorted(set(statuses)) == [200, 503]
        assert statuses.count(503) == 3
        responses = under_load(running, 4, 25)
        assert statuses.count(503) + sum(each.status_code != 200 for each in responses) <= 3
        assert set(revisions(responses)) == {STABLE}
        assert report(running).returned_requests == 50


def test_a_hung_candidate_loses_few_requests() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await reader.read()

    hostile = HostileCandidate(hang)
    with (
        with_hostile(hostile, plan={"weight": 0.5}) as running,
        concurrent_clients(running.url) as group,
    ):
        hung = [group.ask(value, headers={"x-request-timeout-ms": "6000"}) for value in range(4)]
        running.until(lambda: len(hostile.heads) == 2)
        # Its oldest request is there for too long: no further request is sent to it.
        rollout = running.proxy.rollout
        assert rollout is not None
        running.until(lambda: rollout._pods.choose(1, PLAIN_KEY, 1e9, time.monotonic()) is None)
        assert {each.status_code for each in under_load(running, 4, 25)} == {200}
        assert sorted(each.result().status_code for each in hung) == [200, 200, 504, 504]
        assert [each.result().headers.get("x-shoal-executed") for each in hung].count("maybe") == 2
        assert report(running).candidate_failed_rows == 2
        assert len(hostile.heads) == 2


@pytest.mark.parametrize("status", [503, 429, 400, 401])
def test_a_request_that_the_candidate_rejects_is_served_here(status: int) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await read_body(reader, head)
        lines = b"x-shoal-executed: no\r\n%bcontent-length: 0\r\n\r\n" % hostile.lines
        writer.write(b"HTTP/1.1 %d No\r\n%b" % (status, lines))

    hostile = HostileCandidate(refuse)
    with with_hostile(hostile, plan={"weight": 1.0}) as running:
        assert [each.status_code for each in (ask(running), ask(running))] == [200, 200]
        seen = report(running)
        assert seen.returned_requests == 2
        assert seen.candidate_failed_rows == (1 if status == 400 else 0) * len(hostile.heads)


GARBAGE = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
    b"HTTP/1.1 299 Odd\r\ncontent-length: 0\r\n\r\n",
    b"\x00\x01\x02\r\n\r\n",
    b"",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_of_a_candidate_is_one_error_and_not_delivered(garbage: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await read_body(reader, head)
        writer.write(garbage)
        if not garbage:
            writer.close()

    hostile = HostileCandidate(answer)
    with with_hostile(hostile, plan={"weight": 1.0}) as running:
        first = ask(running)
        assert first.status_code in (500, 503)
        assert first.headers["x-shoal-executed"] == "maybe"
        assert answer_to(ask(running)) == [2 * each for each in row(1)]  # the candidate is avoided
        seen = report(running)
        assert (seen.candidate_requests, seen.candidate_failed_rows) == (1, 1)


def test_a_client_that_disconnects_cancels_its_request_at_the_candidate() -> None:
    with both(plan={"weight": 1.0}) as (running, other):
        other.hold()
        with pytest.raises(httpx.ReadTimeout):
            plain.post(running.url + V2_PATH, json=v2_body([row(1)]), timeout=0.3)
        running.until(lambda: running.proxy.dispatcher.settled)
        other.release()
        assert running.proxy.metrics.rejections == {"cancelled": 1}
        assert not running.runtime.seen


def test_a_drain_waits_for_the_candidate() -> None:
    with (
        both(plan={"weight": 1.0}, drain_delay_seconds=0.0) as (running, other),
        concurrent_clients(running.url) as group,
    ):
        other.hold()
        given = group.ask(1)
        other.until(lambda: other.runtime.running == 1)
        running.call(running.proxy.stop)
        other.release()
        assert answer_to(given.result()) == [2 * each for each in row(1)]


def test_a_row_that_the_candidate_rejects_has_failed() -> None:
    def failing(seen: Seen) -> dict[str, Any]:
        return {"errors": '[{"row": 0, "status": 422, "message": "not this one"}]'}

    def runtime() -> FakeRuntime:
        return FakeRuntime(model=lambda inputs: {"y": inputs["x"][1:] * 2}, answer_parameters=failing)

    with both(runtime, plan={"weight": 1.0}) as (running, _):
        response = plain.post(running.url + V2_PATH, json=v2_body([row(1), row(2)]))
        assert response.status_code == 422
        assert report(running).candidate_failed_rows == 1


def test_the_candidate_authenticates_the_client_itself(tmp_path: Path) -> None:
    with (
        candidate(**guarded(tmp_path / "b")) as other,
        stable(at(other), **guarded(tmp_path / "a")) as running,
    ):
        send_plan(running, candidate=CANDIDATE, weight=1.0)
        key = {"x-api-key": ALICE}
        # Until a client has sent its key, the candidate's metadata cannot be read.
        assert revisions([ask(running, headers=key)]) == [STABLE]
        until_usable(running)
        assert revisions([ask(running, headers=key)]) == [CANDIDATE]
        assert ask(running).status_code == 401
        assert other.proxy.access_control is not None
        assert other.proxy.access_control.requests["alice", 200] == 1


def test_revisions_know_one_another_by_their_certificate(tmp_path: Path) -> None:
    mounted = Mounted(tmp_path, TRUST.issue("cat.default.svc"))
    with candidate(**files(mounted)) as other, stable(at(other), **files(mounted)) as running:
        send_plan(running, candidate=CANDIDATE, weight=1.0)
        until_usable(running)
        with caller(running) as client:
            response = client.post(V2_PATH, json=v2_body([row(1)]))
        assert revisions([response]) == [CANDIDATE]


def test_metrics_and_access_log_name_the_revision(caplog: pytest.LogCaptureFixture) -> None:
    with both(plan={"weight": 0.5}, access_log_percent=100.0) as (running, _):
        responses = [ask(running) for _ in range(4)]
        text = plain.get(running.admin_url + "/metrics").text
        for role in ("stable", "candidate"):
            assert f'shoal_proxy_rollout_rows_total{{role="{role}"}} 2.0' in text
        assert "shoal_proxy_rollout_compared_rows_total{" not in text
        log = running.proxy.inference.access_log
        assert log is not None
        assert [each.revision.decode() for each in log.take()] == revisions(responses)
