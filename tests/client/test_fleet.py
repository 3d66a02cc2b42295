"""The asyncio client and several addresses of one model."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest

import shoal
from tests.client.fake_server import Answer, Call, FakeServer, Handler, running, v2


def telling(wait_s: float, asked: list[Call]) -> Handler:
    """Return the handler of a server that says how long it would take."""
    answering = v2()

    def handle(call: Call) -> Answer | None:
        asked.append(call)
        answer = answering(call)
        assert answer is not None
        told = {"endpoint-load-metrics": f"TEXT named_metrics.expected_wait_seconds={wait_s}"}
        return Answer(answer.status, answer.body, {**answer.headers, **told})

    return handle


def predict(urls: list[str], times: int, **options: Any) -> list[list[float]]:
    """Ask so many times, one after another."""

    async def run() -> list[list[float]]:
        async with shoal.AsyncClient(urls, "adder", **options) as client:
            return [(await client.predict([number, 0, 0])).tolist() for number in range(times)]

    return asyncio.run(run())


def test_calls_go_where_the_wait_is_shorter_and_every_answer_is_its_own() -> None:
    slow, quick = list[Call](), list[Call]()
    with ExitStack() as stack:
        servers: list[FakeServer] = [
            stack.enter_context(running(telling(w, a))) for w, a in ((0.4, slow), (0.01, quick))
        ]
        answers = predict([each.url for each in servers], 20)
    assert answers == [[number + 1, 1, 1] for number in range(20)]
    assert len(slow) <= 3
    assert len(quick) >= 18
    assert quick[0].headers["endpoint-load-metrics-format"] == "TEXT"


def test_one_address_that_nobody_listens_at_costs_a_try_and_no_more() -> None:
    asked: list[Call] = []
    with running(telling(0.01, asked)) as server:
        with running(v2()) as gone:
            nobody = gone.url
        answers = predict([nobody, server.url], 10, retries=1)
    assert answers == [[number + 1, 1, 1] for number in range(10)]


def test_addresses_of_which_one_is_none_are_refused_at_once() -> None:
    for urls in ([], ["http://a:1", "ftp://b"], ["http://a:1/x", "http://a:2/y"]):
        with pytest.raises(shoal.ConnectionFailed):
            shoal.AsyncClient(urls)


def test_one_address_in_a_list_asks_for_nothing_more() -> None:
    asked: list[Call] = []
    with running(telling(0.01, asked)) as server:
        predict([server.url], 1)
    assert all("endpoint-load-metrics-format" not in call.headers for call in asked)
