"""Every error answer says whether the request was certainly not executed: `x-shoal-executed: no`, else `maybe`."""

from collections.abc import Mapping

import httpx
import orjson
import pytest

from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, RawConnection, answer_to, concurrent_clients, row, v2_body
from tests.fakes import Array, FakeRuntime, RunningProxy, Seen, double, running_proxy, write_answer

MAYBE = "may have been executed"


def said(answer: httpx.Response) -> tuple[int, str]:
    """Return status and header, once the sentence has been held to them."""
    executed = answer.headers["x-shoal-executed"]
    body = answer.json()
    sentence = body.get("error") or body["message"]
    assert (MAYBE in sentence) == (executed == "maybe" and answer.status_code in (503, 504)), sentence
    return answer.status_code, executed


def test_a_response_needs_no_header_for_it(client: httpx.Client) -> None:
    assert "x-shoal-executed" not in client.post(V2_PATH, json=v2_body([row(1)])).headers


@pytest.mark.parametrize("path", [V2_PATH, V1_PATH, TORCHSERVE_PATH, "/v2/models/other/infer", "/v2/nowhere"])
def test_what_is_rejected_before_queueing_was_not_executed(client: httpx.Client, path: str) -> None:
    answer = client.post(path, content=b"{", headers={"content-type": "application/json"})
    assert said(answer)[1] == "no"


def test_nor_was_a_body_over_the_limit() -> None:
    with running_proxy(max_body_bytes=1024) as running, RawConnection(running.address) as caller:
        caller.send(b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\n" % V2_PATH.encode())
        status, headers, _ = caller.response()
        assert (status, headers["x-shoal-executed"]) == (413, "no")


def test_nor_what_came_before_the_runtime_was_ready() -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False) as running:
        assert said(plain.post(running.url + V2_PATH, json=v2_body([row(1)]))) == (503, "no")
        assert said(plain.get(running.url + "/v2/models/double")) == (503, "no")


def test_nor_what_found_the_queue_full_or_waited_there_in_vain() -> None:
    with running_proxy(max_batch_size=1, max_rows=2) as running, concurrent_clients(running.url) as group:
        running.hold()
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        ahead = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 2)
        late = group.ask(1, headers={"x-request-timeout-ms": "300"})
        other = group.ask(2)
        running.until_waiting(2)
        assert said(group.ask(3).result()) == (503, "no")
        assert said(late.result()) == (504, "no")
        running.release()
        assert {answer.result().status_code for answer in (first, ahead, other)} == {200}


def test_whose_deadline_passed_at_the_runtime_may_have_been_executed(running: RunningProxy) -> None:
    running.hold()
    headers = {"x-request-timeout-ms": "50"}
    assert said(plain.post(running.url + V2_PATH, json=v2_body([row(1)]), headers=headers)) == (504, "maybe")
    running.release()


@pytest.mark.parametrize("coalesce", [False, True])
def test_whose_runtime_dies_may_have_been_executed(*, coalesce: bool) -> None:
    with running_proxy(coalesce_identical=coalesce) as running:
        running.runtime.respond = lambda seen: None
        assert said(plain.post(running.url + V2_PATH, json=v2_body([row(1)]))) == (503, "maybe")


@pytest.mark.parametrize("coalesce", [False, True])
def test_rows_that_ended_the_runtime_alone_twice_are_not_executed_again(*, coalesce: bool) -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes] | None:
        return None if 13 in seen.inputs["x"] else (200, *write_answer(double(seen.inputs), {}, binary=True))

    with running_proxy(lambda: FakeRuntime(respond=respond), coalesce_identical=coalesce) as running:

        def post(value: float) -> httpx.Response:
            running.until(lambda: running.proxy.link.ready)
            return plain.post(running.url + V2_PATH, json=v2_body([row(value)]))

        assert [said(post(13)) for _ in range(4)] == [(503, "maybe")] * 2 + [(500, "no")] * 2
        assert len(running.runtime.seen) == 2
        assert post(1).status_code == 200
        assert "of the runtime" in post(13).json()["error"]


@pytest.mark.parametrize(
    ("status", "word", "given", "sent"),
    [
        pytest.param(503, {"x-shoal-executed": "no"}, (503, "no"), 2, id="it did not: sent once more"),
        pytest.param(503, {"x-shoal-executed": "maybe"}, (503, "maybe"), 1, id="who knows"),
        pytest.param(503, {}, (503, "maybe"), 1, id="a foreign runtime says nothing"),
        pytest.param(429, {}, (503, "maybe"), 1, id="nor when it is overloaded"),
        pytest.param(500, {}, (500, "maybe"), 1, id="the model failed"),
        pytest.param(500, {"x-shoal-executed": "no"}, (500, "no"), 1, id="before forward"),
        pytest.param(400, {"x-shoal-executed": "no"}, (400, "no"), 1, id="refused"),
        pytest.param(400, {}, (400, "maybe"), 1, id="refused by a foreign one"),
        pytest.param(504, {"x-shoal-executed": "no"}, (504, "no"), 1, id="too late"),
    ],
)
def test_the_runtimes_own_word_is_passed_on(
    status: int, word: dict[str, str], given: tuple[int, str], sent: int
) -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        return status, word, orjson.dumps({"error": "no", "code": ""})

    with running_proxy(lambda: FakeRuntime(respond=respond)) as running:
        assert said(plain.post(running.url + V2_PATH, json=v2_body([row(1)]))) == given
        assert len(running.runtime.seen) == sent


def test_what_failed_once_and_then_was_not_executed_may_have_been_all_the_same() -> None:
    words = [{"x-shoal-executed": "no"}, {"x-shoal-executed": "maybe"}]

    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        return 503, words.pop(), orjson.dumps({"error": "no", "code": "DEVICE_LOST"})

    with running_proxy(lambda: FakeRuntime(respond=respond), idempotent=True) as running:
        assert said(plain.post(running.url + V2_PATH, json=v2_body([row(1)]))) == (503, "maybe")
        assert not words


def test_of_a_request_in_two_batches_one_may_have_been_executed() -> None:
    def respond(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if seen.inputs["x"][0, 0] < 2:
            return 200, *write_answer(double(seen.inputs), {}, binary=True)
        return 503, {"x-shoal-executed": "no"}, orjson.dumps({"error": "stopping"})

    with running_proxy(lambda: FakeRuntime(respond=respond), max_batch_size=2) as running:
        body = v2_body([row(value) for value in range(4)])
        assert said(plain.post(running.url + V2_PATH, json=body)) == (503, "maybe")


def test_rows_that_failed_on_their_own_were_perhaps_executed_with_the_others() -> None:
    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": inputs["x"][1:] * 2}

    def errors(seen: Seen) -> dict[str, str]:
        return {"errors": orjson.dumps([{"row": 0, "status": 400, "message": "no"}]).decode()}

    with running_proxy(lambda: FakeRuntime(model=model, answer_parameters=errors)) as running:
        assert said(plain.post(running.url + V2_PATH, json=v2_body([row(1), row(2)]))) == (400, "maybe")


def test_when_the_drains_time_is_up_only_what_still_waits_was_not_executed() -> None:
    with running_proxy(drain_timeout_seconds=0.2) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            second = group.ask(1)
            running.until_waiting(1)
            running.call(running.proxy.stop)
            assert said(first.result()) == (503, "maybe")
            assert said(second.result()) == (503, "no")


def test_a_held_request_gets_its_response_in_the_end(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        waiting = group.ask(1)
        running.until_waiting(1)
        address = running.proxy.settings.process.runtime
        running.call(running.runtime.stop)
        assert said(first.result()) == (503, "maybe")
        running.release()
        running.call(running.runtime.start, address)
        assert answer_to(waiting.result())[0] == 2
