import asyncio
from random import Random

import httpx

from shoal.benching.steps import Outcome
from shoal.loading import Load
from shoal.wire.messages import Request
from tests.client.fake_server import Answer as Reply
from tests.client.fake_server import Call, Handler, running

TIMING = 'queue;dur=0.35, batch;dur=0.21, runtime;dur=4.62, rows;desc="12", padding;desc="0%"'


def ask(handler: Handler, requests: int = 3) -> list[Outcome]:
    async def run(url: str) -> list[Outcome]:
        load = Load(httpx.URL(url), Request("POST", "/v2/models/x/infer", {"a": "b"}, b"body"), 5.0)
        try:
            return await load.alone(requests, 10.0, Random(1))
        finally:
            load.close()

    with running(handler) as server:
        answers = asyncio.run(run(server.url))
        assert {call.body for call in server.calls} == {b"body"}
    return answers


def test_what_the_server_tells_of_the_time_is_kept() -> None:
    answers = ask(lambda _: Reply(200, b"{}", {"Server-Timing": TIMING}))

    assert [each.status for each in answers] == [200] * 3
    assert answers[0].parts_ms == {"queue": 0.35, "batch": 0.21, "runtime": 4.62}
    assert answers[0].rows == 12
    assert 0 < answers[0].latency_ms < 5000


def test_refusals_and_broken_connections_are_answers_too() -> None:
    assert [each.status for each in ask(lambda _: Reply(503, b"full"))] == [503] * 3
    assert [each.status for each in ask(lambda _: None)] == [0] * 3


def test_requests_leave_at_the_rate_that_was_asked_for() -> None:
    async def offer(url: str) -> int:
        load = Load(httpx.URL(url), Request("GET", "/x"), 5.0)
        try:
            run = await load.at(50, 1.0, Random(1))
        finally:
            load.close()
        assert 0 <= run.busy <= 1
        assert all(0 <= each.due_s < run.seconds == 1.0 for each in run.outcomes)
        return len(run.outcomes)

    seen: list[Call] = []

    def count(call: Call) -> Reply:
        seen.append(call)
        return Reply(200, b"{}")

    with running(count) as server:
        sent = asyncio.run(offer(server.url))

    assert sent == 50
    assert len(seen) <= sent
