"""The asyncio client and several addresses of one model."""

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import pytest

import shoal
from tests.client.fake_server import Answer, Call, FakeServer, Handler, json_answer, running, v2


def telling(wait_s: float, asked: list[Call]) -> Handler:
    """Return the handler of a server that says how long it would take."""
    answering = v2()

    def handle(call: Call) -> Answer | None:
        asked.append(call)
        answer = answering(call)
        assert answer is not None
        report = {"endpoint-load-metrics": f"TEXT named_metrics.expected_wait_seconds={wait_s}"}
        return Answer(answer.status, answer.body, {**answer.headers, **report})

    return handle


def predict(urls: list[str], times: int, **options: Any) -> list[list[float]]:
    """Ask so many times, one after another."""

    async def run() -> list[list[float]]:
        async with shoal.AsyncClient(urls, "adder", **options) as client:
            return [(await client.predict([number, 0, 0])).tolist() for number in range(times)]

    return asyncio.run(run())


def test_requests_go_to_the_shorter_wait_and_get_their_own_results() -> None:
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


def test_address_without_a_listener_costs_one_try() -> None:
    asked: list[Call] = []
    with running(telling(0.01, asked)) as server:
        with running(v2()) as gone:
            unreachable = gone.url
        answers = predict([unreachable, server.url], 10, retries=1)
    assert answers == [[number + 1, 1, 1] for number in range(10)]


def outcomes(urls: list[str], times: int, at_once: int = 1, **options: Any) -> tuple[int, list[shoal.ShoalError]]:
    """Ask so many times, several at once; return how many were answered, and the errors of the others."""
    failed: list[shoal.ShoalError] = []

    async def run() -> None:
        async with shoal.AsyncClient(urls, "adder", **options) as client:
            left = iter(range(times))

            async def caller() -> None:
                for number in left:
                    try:
                        assert (await client.predict([number, 0, 0])).tolist() == [number + 1, 1, 1]
                    except shoal.ShoalError as error:
                        failed.append(error)

            await asyncio.gather(*[caller() for _ in range(at_once)])

    asyncio.run(run())
    return times - len(failed), failed


def answering(status: int, asked: list[Call], **headers: str) -> Handler:
    """Return the handler of a server that knows the model, and answers inference with this status."""
    knowing = v2()

    def handle(call: Call) -> Answer | None:
        if not call.path.endswith("/infer"):
            return knowing(call)
        asked.append(call)
        return json_answer({"error": "not now"}, status, **{name.replace("_", "-"): of for name, of in headers.items()})

    return handle


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("report", [{}, {"endpoint_load_metrics": "TEXT named_metrics.expected_wait_seconds=0.0"}])
def test_an_address_that_refuses_at_once_costs_no_call_though_nothing_is_sent_again(
    at_once: int, report: dict[str, str]
) -> None:
    well, refusing = list[Call](), list[Call]()
    no = {"x_shoal_executed": "no", "retry_after": "7", **report}
    with running(answering(503, refusing, **no)) as full, running(telling(0.05, well)) as server:
        begun_s = time.monotonic()
        ok, failed = outcomes([full.url, server.url], 60, at_once)
    assert (ok, failed) == (60, [])
    assert time.monotonic() - begun_s < 7
    assert 1 <= len(refusing) < 30


@pytest.mark.parametrize("status", [500, 503, 307, 204])
@pytest.mark.parametrize("report", [{}, {"endpoint_load_metrics": "TEXT named_metrics.expected_wait_seconds=0.0"}])
def test_failing_address_is_rarely_used(status: int, report: dict[str, str]) -> None:
    well, failing = list[Call](), list[Call]()
    with running(answering(status, failing, **report)) as bad, running(telling(0.05, well)) as server:
        ok, failed = outcomes([bad.url, server.url], 60)
    assert ok >= 55
    assert len(failed) == len(failing) <= 5


def test_address_with_invalid_reports_is_rarely_used() -> None:
    for nonsense in (float("nan"), -1e9):
        well, odd = list[Call](), list[Call]()
        with running(telling(nonsense, odd)) as first, running(telling(0.05, well)) as second:
            assert outcomes([first.url, second.url], 60)[0] == 60
        assert len(odd) <= 6


def test_if_every_address_rejects_few_are_tried() -> None:
    asked: list[Call] = []
    with ExitStack() as stack:
        refusing = answering(503, asked, x_shoal_executed="no", retry_after="1")
        urls = [stack.enter_context(running(refusing)).url for _ in range(6)]
        ok, failed = outcomes(urls, 50)
    assert ok == 0
    assert all(isinstance(error, shoal.Overloaded) and not error.may_have_run for error in failed)
    assert len(asked) <= 50 + 6 * 8


def test_one_that_cannot_be_reached_costs_no_call() -> None:
    asked: list[Call] = []
    with running(telling(0.01, asked)) as server:
        with running(v2()) as gone:
            unreachable = gone.url
        assert outcomes([unreachable, server.url], 20)[0] == 20


def test_addresses_of_which_one_is_none_are_refused_at_once() -> None:
    for urls in ([], ["http://a:1", "ftp://b"], ["http://a:1/x", "http://a:2/y"]):
        with pytest.raises(shoal.ConnectionFailed):
            shoal.AsyncClient(urls)


def test_one_address_in_a_list_asks_for_nothing_more() -> None:
    asked: list[Call] = []
    with running(telling(0.01, asked)) as server:
        predict([server.url], 1)
    assert all("endpoint-load-metrics-format" not in call.headers for call in asked)
