"""The waiting room as a process, with real proxies behind it."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from shoal_schema.waiting import RoomService
from tests import plain
from tests.calls import RawConnection, answer_to, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.ports import free_port
from tests.proxy.waiting.running import NAME, PATIENCE_S, Room, running_room, saying

pytestmark = pytest.mark.integration
PATH = "/v2/models/double/infer"


@pytest.fixture
def room() -> Iterator[Room]:
    with running_room() as running:
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


SOON = {"x-request-timeout-ms": "50"}


def infer(room: Room, value: float = 1.0, headers: dict[str, str] | None = None) -> httpx.Response:
    return plain.post(room.url + PATH, json=v2_body([row(value)]), headers=headers, timeout=PATIENCE_S)


def address(proxy: RunningProxy) -> str:
    return "{}:{}".format(*proxy.address)


def waiting(room: Room, pool: ThreadPoolExecutor, count: int = 1) -> list[Future[httpx.Response]]:
    """Return so many calls, in the order in which the room holds them."""
    calls = []
    for number in range(count):
        calls.append(pool.submit(infer, room, float(number)))
        room.until_waiting(number + 1)
    return calls


def test_requests_wait_for_a_proxy_that_comes_late_and_each_caller_gets_its_own_answer(
    room: Room, pool: ThreadPoolExecutor
) -> None:
    calls = waiting(room, pool, 8)

    with running_proxy() as proxy:
        room.pods(address(proxy))
        answers = [call.result() for call in calls]

    assert [answer_to(answer) for answer in answers] == [[2 * value for value in row(float(n))] for n in range(8)]
    assert {answer.headers["connection"] for answer in answers} == {"close"}
    assert room.news().waiting == {}


def test_the_first_who_came_is_the_first_who_is_forwarded(room: Room, pool: ThreadPoolExecutor) -> None:
    calls = waiting(room, pool, 4)

    with running_proxy(max_batch_size=1) as proxy:
        room.pods(address(proxy), forwards=1)
        for call in calls:
            call.result()
        order = [seen.inputs["x"][0][0] for seen in proxy.runtime.seen]

    assert order == sorted(order)


def test_a_large_body_arrives_as_it_was_sent_and_the_deadline_is_reduced(room: Room, pool: ThreadPoolExecutor) -> None:
    body = bytes(range(256)) * 8192
    answer = b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nx-own: 1\r\n\r\nok"
    call = pool.submit(
        plain.post,
        f"{room.url}/any/path?q=%20a",
        content=body,
        headers={"x-request-timeout-ms": "15000"},
        timeout=PATIENCE_S,
    )
    room.until_waiting(1)
    with saying(answer) as (pod, seen):
        room.pods(pod)
        got = call.result()

    head, _, passed = seen[0].partition(b"\r\n\r\n")
    assert passed == body
    text = head.decode()
    assert (got.status_code, got.content, got.headers["x-own"]) == (201, b"ok", "1")
    assert text.startswith("POST /any/path?q=%20a HTTP/1.1\r\n")
    left_ms = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("x-request-timeout-ms"))
    assert 0 < left_ms < 15000
    assert f"content-length: {len(body)}" in text.lower()


def test_a_long_answer_is_streamed_on(room: Room) -> None:
    chunks = b"".join(b"5\r\nabcde\r\n" for _ in range(50000))
    with saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n") as (pod, _):
        room.pods(pod)
        assert plain.get(f"{room.url}/v2/models/double", timeout=PATIENCE_S).text == "abcde" * 50000


def test_past_its_deadline_a_request_is_refused_in_its_protocol_and_says_that_nothing_ran(room: Room) -> None:
    room.pods(start_s=9.0)
    v2 = infer(room, headers=SOON)
    torchserve = plain.post(f"{room.url}/predictions/double", content=b"x", headers=SOON, timeout=PATIENCE_S)

    assert (v2.status_code, v2.headers["x-shoal-executed"], v2.headers["retry-after"]) == (503, "no", "9")
    assert "no pod of this service was ready in time" in v2.json()["error"]
    assert (torchserve.status_code, torchserve.json()["code"]) == (503, 503)


def test_who_asks_whether_somebody_is_here_is_answered_and_wakes_nobody(room: Room) -> None:
    before = room.news()
    for path in ("/v2/health/live", "/v2/health/ready", "/ping"):
        assert plain.get(room.url + path, timeout=PATIENCE_S).status_code == 200

    assert room.news() == before


def test_metadata_is_asked_of_a_pod(room: Room, pool: ThreadPoolExecutor) -> None:
    call = pool.submit(plain.get, f"{room.url}/v2/models/double", timeout=PATIENCE_S)
    room.until_waiting(1)
    with running_proxy() as proxy:
        room.pods(address(proxy))
        assert call.result().json()["name"] == "double"


def test_a_caller_who_leaves_is_forgotten_and_the_model_never_sees_its_request(
    room: Room, pool: ThreadPoolExecutor
) -> None:
    with RawConnection(("127.0.0.1", room.port)) as caller:
        caller.send(b"POST /v2/models/double/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx")
        room.until_waiting(1)
    room.until_waiting(0)
    (call,) = waiting(room, pool)
    with running_proxy() as proxy:
        room.pods(address(proxy))
        call.result()
        assert proxy.call(lambda: len(proxy.runtime.seen)) == 1


def test_a_caller_who_leaves_amid_its_body_is_forgotten(room: Room) -> None:
    with RawConnection(("127.0.0.1", room.port)) as caller:
        caller.send(b"POST /v2/models/double/infer HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nx")
        room.until_waiting(1)
    room.until_waiting(0)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /v2/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\nZZ\r\n", 400),
        (b"POST /v2/x HTTP/1.1\r\nhost: a\r\ncontent-length: 1001\r\n\r\n" + 1001 * b"x", 413),
        (b"POST /v2/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"3e9\r\n" + 1001 * b"x", 413),
        (b"nonsense\r\n\r\n", 400),
    ],
)
def test_what_is_no_whole_request_is_refused_and_never_forwarded(room: Room, request_bytes: bytes, status: int) -> None:
    with saying(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as (pod, seen):
        room.pods(pod, max_body_bytes=1000)
        with RawConnection(("127.0.0.1", room.port)) as caller:
            caller.send(request_bytes)
            got, headers, _ = caller.response()

        assert (got, headers["x-shoal-executed"]) == (status, "no")
        assert seen == []
    assert room.news().waiting == {}


def test_more_than_the_room_holds_is_refused_and_who_waits_is_answered(pool: ThreadPoolExecutor) -> None:
    with running_room(SHOAL_WAITING_SERVICE_MAX_REQUESTS="2") as room:
        calls = waiting(room, pool, 2)
        refused = infer(room)
        with running_proxy() as proxy:
            room.pods(address(proxy))
            assert [call.result().status_code for call in calls] == [200, 200]

    assert (refused.status_code, refused.headers["x-shoal-executed"]) == (503, "no")
    assert "2 requests wait for this service" in refused.json()["error"]
    assert int(refused.headers["retry-after"]) >= 1


def test_a_pod_that_refuses_the_connection_is_passed_by(room: Room) -> None:
    with running_proxy() as proxy:
        room.pods(f"127.0.0.1:{free_port()}", address(proxy))
        assert [answer_to(infer(room, value))[0] for value in (1.0, 2.0, 3.0)] == [2.0, 4.0, 6.0]


def test_who_is_refused_by_a_pod_that_goes_waits_for_the_next_one(room: Room, pool: ThreadPoolExecutor) -> None:
    refusal = b"HTTP/1.1 503 Service Unavailable\r\nx-shoal-executed: no\r\ncontent-length: 0\r\n\r\n"
    (call,) = waiting(room, pool)
    with saying(refusal) as (pod, seen), running_proxy() as proxy:
        room.pods(pod)
        room.until(lambda _: bool(seen))
        room.until_waiting(1)
        room.pods(address(proxy))
        assert answer_to(call.result()) == [2 * value for value in row(0.0)]


def test_who_was_at_a_pod_that_died_is_told_that_it_may_have_run(room: Room) -> None:
    with saying(None) as (pod, _):
        room.pods(pod)
        answer = infer(room)

    assert (answer.status_code, answer.headers["x-shoal-executed"]) == (503, "maybe")


def test_when_the_room_is_killed_callers_see_a_connection_that_broke_and_nothing_ran(
    room: Room, pool: ThreadPoolExecutor
) -> None:
    calls = waiting(room, pool, 3)
    room.process.send_signal(signal.SIGKILL)

    for call in calls:
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
            call.result()


def test_a_room_that_is_told_to_stop_answers_those_who_wait_and_takes_no_more(
    room: Room, pool: ThreadPoolExecutor
) -> None:
    calls = waiting(room, pool, 2)
    room.process.send_signal(signal.SIGTERM)
    with running_proxy() as proxy:
        # It may be gone before it could be asked whether it has heard.
        room.operator.tell(RoomService(NAME, room.port, addresses=(address(proxy),)))
        assert [call.result().status_code for call in calls] == [200, 200]

    assert room.process.wait(PATIENCE_S) == 0


def test_while_the_operator_is_away_a_room_goes_by_what_it_was_told_last(room: Room) -> None:
    with running_proxy() as proxy:
        room.pods(address(proxy))
        room.operator.close()
        assert infer(room).status_code == 200


def test_a_service_that_is_no_more_has_no_port_and_who_waited_is_told(room: Room, pool: ThreadPoolExecutor) -> None:
    (call,) = waiting(room, pool)
    version = room.operator.tell()
    room.until(lambda news: news.version == version)

    answer = call.result()
    assert (answer.status_code, answer.headers["x-shoal-executed"]) == (503, "no")
    assert "was deleted or is stopped" in answer.json()["error"]
    assert "retry-after" not in answer.headers
    with pytest.raises(httpx.ConnectError):
        infer(room)


def test_a_port_that_is_taken_is_told_and_keeps_nobody_elses_from_being_open(room: Room) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        other = RoomService("default/other", taken.getsockname()[1])
        version = room.operator.tell(RoomService(NAME, room.port), other)
        room.until(lambda news: news.version == version)
        assert list(room.news().refused) == ["default/other"]
        assert "Address already in use" in room.news().refused["default/other"]
        assert plain.get(f"{room.admin_url}/readyz", timeout=PATIENCE_S).status_code == 200
        assert plain.get(f"{room.url}/ping", timeout=PATIENCE_S).status_code == 200
    room.until(lambda news: not news.refused)


def test_metrics_count_what_was_refused_and_why(room: Room) -> None:
    infer(room, headers=SOON)

    text = plain.get(f"{room.admin_url}/metrics", timeout=PATIENCE_S).text
    assert 'shoal_proxy_rejections_total{reason="deadline"} 1.0' in text
    assert "shoal_proxy_queue_requests 0.0" in text
