"""What one request asks for beside its rows (a time-out, parameters, headers) is never an error of its neighbours."""

import itertools
from typing import Any

import orjson
import pytest

from tests import plain
from tests.calls import V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, Seen, double, running_proxy, write_answer

Answer = tuple[int, dict[str, str], bytes]
POISON = 666.0


def ok(seen: Seen) -> Answer:
    return 200, *write_answer(double(seen.inputs), {}, binary=True)


def refuse(status: int, message: str = "no") -> Answer:
    return status, {}, orjson.dumps({"error": message})


def like_ours(seen: Seen) -> Answer:
    """Refuse a time-out as our runtime does."""
    text = seen.headers["x-request-timeout-ms"]
    return ok(seen) if text.isdigit() and len(text) <= 15 else refuse(400, "x-request-timeout-ms must be a number")


def asked(running: RunningProxy) -> list[dict[str, Any]]:
    return [seen.document for seen in running.runtime.seen]


@pytest.mark.parametrize("timeout", [2**63 - 1, 2**64 - 1, 1e300, 1.7976931348623157e308])
def test_an_endless_timeout_affects_no_other_request(timeout: float) -> None:
    with running_proxy(lambda: FakeRuntime(respond=like_ours)) as running, concurrent_clients(running.url) as group:
        running.hold()
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        greedy = [
            group.post(V2_PATH, json=v2_body([row(value)], parameters={"timeout": timeout})) for value in range(4)
        ]
        neighbours = [group.ask(value) for value in range(12)]
        running.until_waiting(16)
        running.release()

        assert {answer.result().status_code for answer in (first, *greedy, *neighbours)} == {200}
        assert running.proxy.metrics.retries == 0


@pytest.mark.parametrize("timeout", [5e-324, 1e-300])
def test_a_timeout_too_short_to_count_is_still_one(timeout: float) -> None:
    with running_proxy() as running:
        running.hold()
        answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)], parameters={"timeout": timeout}))
        assert answer.status_code == 504


def test_what_a_runtime_rejects_is_found_however_often_it_comes() -> None:
    """A budget of tries would run out, and give the refusal to all requests of the batch."""

    def respond(seen: Seen) -> Answer:
        return refuse(400, "indigestible") if (seen.inputs["x"] >= POISON).any() else ok(seen)

    serial = itertools.count()
    with running_proxy(lambda: FakeRuntime(respond=respond)) as running, concurrent_clients(running.url) as group:
        for _ in range(12):
            running.hold()
            before = len(running.runtime.seen)
            first = group.ask(0)
            running.until(lambda before=before: len(running.runtime.seen) == before + 1)  # type: ignore[misc]
            values = [float(value) for value in range(15)]
            culprits = [group.ask(POISON + next(serial)) for _ in range(4)]
            innocents = [group.ask(value) for value in values]
            running.until_waiting(19)
            running.release()
            assert first.result().status_code == 200
            assert {answer.result().status_code for answer in culprits} == {400}
            assert [answer_to(answer.result()) for answer in innocents] == [[2 * x for x in row(v)] for v in values]


@pytest.mark.parametrize(("said", "given"), [(400, 400), (413, 413), (415, 415), (422, 422), (431, 431), (404, 500)])
def test_a_foreign_runtimes_rejection_keeps_its_status_and_is_the_failing_requests_alone(said: int, given: int) -> None:
    def respond(seen: Seen) -> Answer:
        return refuse(said, "indigestible") if (seen.inputs["x"] >= POISON).any() else ok(seen)

    with running_proxy(lambda: FakeRuntime(respond=respond)) as running, concurrent_clients(running.url) as group:
        running.hold()
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        culprit, innocents = group.ask(POISON), [group.ask(value) for value in range(7)]
        running.until_waiting(8)
        running.release()
        assert first.result().status_code == 200
        assert culprit.result().status_code == given
        assert "indigestible" in culprit.result().json()["error"]
        assert {answer.result().status_code for answer in innocents} == {200}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("where", ["request", "input", "output"])
def test_parameters_are_rejected_before_queueing_exactly_when_they_are_too_deep_for_a_batch(where: str) -> None:
    statuses = set()
    with running_proxy() as running:
        for depth in range(240, 258):
            body = v2_body([row(1)])
            if where == "request":
                body["parameters"] = {"deep": nested(depth)}
            elif where == "input":
                body["inputs"][0]["parameters"] = {"deep": nested(depth)}
            else:
                body["outputs"] = [{"name": "y", "parameters": {"deep": nested(depth)}}]
            before = len(running.runtime.seen)
            answer = plain.post(running.url + V2_PATH, json=body)
            statuses.add(answer.status_code)
            assert (answer.status_code == 200) == (len(running.runtime.seen) > before)
    assert statuses == {200, 400}


def test_an_overlong_trace_is_released_and_not_to_the_runtime() -> None:
    with running_proxy() as running, concurrent_clients(running.url) as group:
        running.hold()
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        long = group.ask(1, headers={"x-request-id": "i" * 9000, "traceparent": "t"})
        short = group.ask(2, headers={"x-request-id": "mine"})
        running.until_waiting(2)
        running.release()
        assert first.result().status_code == short.result().status_code == 200
        assert long.result().headers["x-request-id"] == "i" * 9000
        requests = orjson.loads(asked(running)[1]["parameters"]["requests"])
        assert sorted(requests, key=str) == [{"rows": 1, "traceparent": "t"}, {"rows": 1, "x-request-id": "mine"}]
