"""Asynchronous requests of both clients and of the command, to real proxies and to servers that do otherwise."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson
import pytest

import shoal
from shoal.__main__ import main
from tests.calls import row
from tests.client.fake_server import Answer, Call, json_answer, running, v2
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.asynchronous.requests import asynchronous_proxy, doubled

Do = Callable[[Any], Any]


class Blocking:
    """The blocking client."""

    def submit(self, url: str, item: Any, **options: Any) -> str:
        with shoal.Client(url) as client:
            return client.submit(item, **options).id

    def result(self, url: str, job_id: str, **options: Any) -> Any:
        with shoal.Client(url) as client:
            return client.job(job_id).result(**options)

    def cancel(self, url: str, job_id: str) -> None:
        with shoal.Client(url) as client:
            client.job(job_id).cancel()


class Awaiting:
    """The asyncio client."""

    def submit(self, url: str, item: Any, **options: Any) -> str:
        async def run() -> str:
            async with shoal.AsyncClient(url) as client:
                return (await client.submit(item, **options)).id

        return asyncio.run(run())

    def result(self, url: str, job_id: str, **options: Any) -> Any:
        async def run() -> Any:
            async with shoal.AsyncClient(url) as client:
                return await client.job(job_id).result(**options)

        return asyncio.run(run())

    def cancel(self, url: str, job_id: str) -> None:
        async def run() -> None:
            async with shoal.AsyncClient(url) as client:
                await client.job(job_id).cancel()

        asyncio.run(run())


@pytest.fixture(params=[Blocking(), Awaiting()], ids=["Client", "AsyncClient"])
def client(request: pytest.FixtureRequest) -> Blocking | Awaiting:
    chosen: Blocking | Awaiting = request.param
    return chosen


@pytest.fixture
def proxy() -> Iterator[RunningProxy]:
    with asynchronous_proxy() as started:
        yield started


def test_a_result_is_fetched_later_by_another_client(proxy: RunningProxy, client: Blocking) -> None:
    job_id = client.submit(proxy.url, row(3.0))
    assert client.result(proxy.url, job_id).tolist() == doubled(3.0)
    assert client.result(proxy.url, f"/v2/models/double/results/{job_id}").tolist() == doubled(3.0)


def test_a_result_is_waited_for(proxy: RunningProxy, client: Blocking) -> None:
    proxy.hold()
    job_id = client.submit(proxy.url, row(4.0))
    with pytest.raises(shoal.DeadlineExceeded) as caught:
        client.result(proxy.url, job_id, timeout_s=0.1)
    assert caught.value.may_have_run
    proxy.release()
    assert client.result(proxy.url, job_id, timeout_s=20.0).tolist() == doubled(4.0)


def test_a_cancelled_request_is_unknown(proxy: RunningProxy, client: Blocking) -> None:
    proxy.hold()
    job_id = client.submit(proxy.url, row(4.0))
    client.cancel(proxy.url, job_id)
    for again in (client.cancel, client.result):
        with pytest.raises(shoal.NotFound):
            again(proxy.url, job_id)
    proxy.release()


def test_the_models_error_is_raised_with_the_result(proxy: RunningProxy, client: Blocking) -> None:
    proxy.runtime.respond = lambda seen: (500, {}, b'{"error": "broken"}')
    job_id = client.submit(proxy.url, row(1.0))
    with pytest.raises(shoal.ServerFailed, match="broken") as caught:
        client.result(proxy.url, job_id)
    assert caught.value.may_have_run


def test_the_time_and_the_callback_reach_the_server(client: Blocking) -> None:
    calls = []

    def accept(call: Call) -> Answer | None:
        if "/infer" not in call.path:
            return v2()(call)
        calls.append(call)
        return json_answer({}, 202, Location="/v2/models/adder/results/0123")

    with running(accept) as server:
        assert client.submit(server.url, [1, 2, 3], within_s=90.0, callback="https://example.com/") == "0123"
        assert client.submit(server.url, [1, 2, 3]) == "0123"
    assert calls[0].path == "/v2/models/adder/infer?async=true"
    assert calls[0].headers["x-request-timeout-ms"] == "90000"
    assert calls[0].headers["x-shoal-callback"] == "https://example.com/"
    # The time for the acceptance is not the time for the result.
    assert "x-request-timeout-ms" not in calls[1].headers
    assert "x-shoal-callback" not in calls[1].headers


def test_a_service_without_asynchronous_requests_rejects_them(client: Blocking) -> None:
    with running_proxy() as started, pytest.raises(shoal.InvalidInput, match="asynchronous"):
        client.submit(started.url, row(1.0))


@pytest.mark.parametrize("answer", [Answer(200, b"{}"), Answer(202, b"{}"), Answer(202, b"", {"Location": "/"})])
def test_a_server_that_runs_the_request_at_once_or_names_no_result_is_an_error(
    answer: Answer, client: Blocking
) -> None:
    with running(lambda call: answer if "/infer" in call.path else v2()(call)) as server:
        with pytest.raises(shoal.ServerFailed) as caught:
            client.submit(server.url, [1, 2, 3])
        assert caught.value.may_have_run


def predict(capsys: pytest.CaptureFixture[str], url: str, *arguments: str) -> str:
    assert main(["predict", url, "--data", "[1, 2, 3, 4]", *arguments]) == 0
    return capsys.readouterr().out.strip()


def test_the_command_prints_the_location_or_waits(proxy: RunningProxy, capsys: pytest.CaptureFixture[str]) -> None:
    location = predict(capsys, proxy.url, "--async")
    with shoal.Client(proxy.url) as client:
        assert np.array_equal(client.job(location).result(), [2, 4, 6, 8])
    answer = predict(capsys, proxy.url, "--async", "--wait", "20", "--json")
    assert orjson.loads(answer) == [2.0, 4.0, 6.0, 8.0]
    assert "/results/" in predict(capsys, proxy.url, "--async", "--json")


@pytest.mark.parametrize("given", [["--wait", "5"], ["--callback", "https://example.com/"]])
def test_options_of_asynchronous_requests_need_the_flag(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "http://127.0.0.1:1", "--data", "1", *given]) == 2
    assert "--async" in capsys.readouterr().err
