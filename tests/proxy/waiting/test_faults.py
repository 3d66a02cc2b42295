"""Callers, pods and tables that break the rules: each hurts itself, and is told what happened."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from shoal_schema.waiting import RoomService
from tests import plain
from tests.calls import RawConnection, row, v2_body
from tests.fakes import running_proxy
from tests.ports import free_port
from tests.proxy.waiting.running import NAME, PATIENCE_S, Room, running_room, saying

pytestmark = pytest.mark.integration
HEAD = b"POST /v2/models/double/infer HTTP/1.1\r\nhost: a\r\n"
WELL = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def running() -> Iterator[Room]:
    with running_room() as made:
        yield made


@pytest.fixture
def room(running: Room) -> Room:
    running.pods()
    return running


@contextmanager
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """Take connections and say nothing: a pod that is frozen; yield its address, and the connections."""
    taken: list[socket.socket] = []

    def serve() -> None:
        with ExitStack() as stack:
            while True:
                try:
                    taken.append(stack.enter_context(server.accept()[0]))
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", taken
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE_S)


def asked(
    room: Room, *lines: bytes, body: bytes = b"{}", path: str = "/v2/models/double/infer"
) -> tuple[int, dict[str, str], bytes]:
    """Return the answer to one request with these header lines."""
    head = b"POST %b HTTP/1.1\r\nhost: a\r\n" % path.encode()
    with RawConnection(("127.0.0.1", room.port)) as caller:
        caller.send(head, *(line + b"\r\n" for line in lines), b"content-length: %d\r\n\r\n" % len(body), body)
        return caller.response()


# Pods that say nothing.


def test_at_a_pod_that_freezes_the_caller_is_told_at_its_deadline_and_the_connection_to_the_pod_ends(
    room: Room,
) -> None:
    with silent() as (pod, taken):
        room.pods(pod)
        status, headers, body = asked(room, b"x-request-timeout-ms: 200")

        assert (status, headers["x-shoal-executed"]) == (504, "maybe"), body
        taken[0].settimeout(PATIENCE_S)
        while taken[0].recv(65536):
            pass  # until it is closed
    assert room.news().waiting == {}


def test_who_names_no_time_is_told_after_the_time_of_the_service(room: Room) -> None:
    with silent() as (pod, _):
        room.pods(pod, timeout_s=0.2)

        assert asked(room)[0] == 504


def test_a_body_that_a_frozen_pod_does_not_take_is_told_at_the_deadline_too(room: Room) -> None:
    with silent() as (pod, _):
        room.pods(pod)

        assert asked(room, b"x-request-timeout-ms: 300", body=bytes(2**24))[0] == 504


def test_also_when_the_frozen_pod_has_left_the_table_and_its_turns_are_given_back(room: Room) -> None:
    with silent() as (pod, taken), saying(WELL) as (other, _), ThreadPoolExecutor(2) as pool:
        room.pods(pod, forwards=2)
        calls = [pool.submit(asked, room, b"x-request-timeout-ms: 1500") for _ in range(2)]
        room.until(lambda _: len(taken) == 2)
        room.pods(other, forwards=2)

        assert asked(room)[0] == 200
        assert [call.result()[0] for call in calls] == [504, 504]


def test_a_pod_that_was_silent_is_given_one_request_at_a_time_until_it_answers(room: Room) -> None:
    with silent() as (pod, taken), ThreadPoolExecutor(4) as pool:
        room.pods(pod, forwards=4)
        assert asked(room, b"x-request-timeout-ms: 100")[0] == 504
        calls = [pool.submit(asked, room, b"x-request-timeout-ms: 1200") for _ in range(4)]
        answers = [call.result() for call in calls]

    assert sorted(status for status, _, _ in answers) == [503, 503, 503, 504]
    assert len(taken) == 2
    busy = next(body for status, _, body in answers if status == 503)
    assert b"busy" in busy


def test_a_pod_that_goes_amid_its_answer_cuts_the_callers_answer() -> None:
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"
    with running_room() as room, saying(half) as (pod, _):
        room.pods(pod)
        with pytest.raises(httpx.RemoteProtocolError):
            plain.get(f"{room.url}/v2/models/double", timeout=PATIENCE_S)


# What callers send.


@pytest.mark.parametrize("line", [b"", b"expect: 100-continue\r\n"])
@pytest.mark.parametrize("ready", [True, False])
def test_a_body_that_is_announced_too_large_is_refused_at_once_and_wakes_nobody(
    room: Room, line: bytes, ready: bool
) -> None:
    with saying(WELL) as (pod, seen):
        room.pods(*([pod] if ready else []), max_body_bytes=1000)
        before = room.news()
        began_s = time.monotonic()
        with RawConnection(("127.0.0.1", room.port)) as caller:
            caller.send(HEAD, line, b"content-length: 1001\r\n\r\n")
            status, headers, body = caller.response()

        assert (status, headers["x-shoal-executed"]) == (413, "no")
        assert time.monotonic() - began_s < 1.5
        assert b"1000 bytes" in body
        assert (seen, room.news()) == ([], before)


def test_a_body_that_comes_slower_than_the_time_is_taken_as_a_proxy_takes_it(room: Room) -> None:
    with saying(WELL) as (pod, _):
        room.pods(pod)
        with RawConnection(("127.0.0.1", room.port)) as caller:
            caller.send(HEAD, b"x-request-timeout-ms: 1000\r\ncontent-length: 2\r\n\r\n{")
            room.until_waiting(1)
            threading.Event().wait(1.1)  # what is under test is time that passes
            caller.send(b"}")

            assert caller.response()[0] == 200


def test_who_is_refused_throughout_is_told_so_and_not_that_the_service_sleeps(room: Room) -> None:
    room.pods(f"127.0.0.1:{free_port()}", start_s=30.0)
    status, headers, body = asked(room, b"x-request-timeout-ms: 400")

    assert (status, headers["x-shoal-executed"], headers["retry-after"]) == (503, "no", "1")
    assert b"refused" in body
    assert b"sleeps" not in body


def test_two_hosts_are_refused_by_the_room_and_by_a_proxy_in_the_same_words(room: Room) -> None:
    with running_proxy() as proxy:
        room.pods("{}:{}".format(*proxy.address))
        answers = []
        for address in (("127.0.0.1", room.port), proxy.address):
            with RawConnection(address) as caller:
                caller.send(HEAD, b"host: b\r\ncontent-length: 2\r\n\r\n{}")
                status, headers, body = caller.response()
            answers.append((status, headers["x-shoal-executed"], body))

    assert answers[0] == answers[1]
    assert answers[0][:2] == (400, "no")


@pytest.mark.parametrize("value", [b"0", b"-1", b"nan", b"inf", b"soon"])
def test_a_time_that_makes_no_sense_is_refused_as_a_proxy_refuses_it(room: Room, value: bytes) -> None:
    with running_proxy() as proxy:
        room.pods("{}:{}".format(*proxy.address))
        status, _, body = asked(room, b"x-request-timeout-ms: " + value, body=json.dumps(v2_body([row(1.0)])).encode())

    assert status == 400
    assert b"not '%b'" % value in body


def test_headers_of_the_connection_alone_are_not_passed_on_in_either_direction(room: Room) -> None:
    answer = b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\nx-own: 1\r\ncontent-length: 2\r\n\r\n{}"
    with saying(answer) as (pod, seen):
        room.pods(pod)
        _, headers, _ = asked(
            room, b"connection: close, X-Secret", b"connection: x-two", b"x-secret: 1", b"x-two: 1", b"x-a: 1"
        )

    assert b"x-secret" not in seen[0]
    assert b"x-two" not in seen[0]
    assert b"x-a: 1" in seen[0]
    assert "x-hop" not in headers
    assert headers["x-own"] == "1"


# What pods answer.


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 999 N\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 600 N\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nx-a: \x01\r\ncontent-length: 2\r\n\r\n{}",
        b"\x00\x01\x02garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconte",
        None,
    ],
)
def test_what_is_no_answer_is_told_in_words_without_the_pods_bytes(room: Room, answer: bytes | None) -> None:
    with saying(answer) as (pod, _):
        room.pods(pod)
        status, headers, body = asked(room)

    assert (status, headers["x-shoal-executed"]) == (503, "maybe")
    assert not any(mark in body for mark in (b"Error", b"bytearray", b"garbage", b"\\x"))


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body_may_tell_a_length(room: Room, status: int) -> None:
    with saying(b"HTTP/1.1 %d X\r\netag: x\r\ncontent-length: 2\r\n\r\n" % status) as (pod, _):
        room.pods(pod)

        assert plain.get(f"{room.url}/v2/models/double", timeout=PATIENCE_S).status_code == status


# What the operator says.


def test_an_address_that_is_none_is_passed_by_and_nothing_else(room: Room) -> None:
    bad = ("nohost", "a:b:c", "localhost:80", "127.0.0.1:99999", "127.0.0.1", "127.0.0.1:0", "http://127.0.0.1:1/")
    elsewhere = ("169.254.169.254:80", "[fe80::1]:80", "[::ffff:169.254.169.254]:80", "224.0.0.1:80", "0.0.0.0:80")
    with saying(WELL) as (pod, seen):
        room.pods(*bad, *elsewhere, f"/x@{pod}", pod)

        assert asked(room)[0] == 200
    assert len(seen) == 1


def test_who_has_no_address_that_is_one_waits_for_one(room: Room) -> None:
    room.pods("nohost", "a:b:c")
    status, headers, _ = asked(room, b"x-request-timeout-ms: 100")

    assert (status, headers["x-shoal-executed"]) == (503, "no")


def test_of_two_services_at_one_port_the_one_that_has_it_keeps_it_and_the_other_is_refused(room: Room) -> None:
    with saying(WELL, times=2) as (pod, seen), saying(WELL) as (other, unseen):
        mine = RoomService(NAME, room.port, addresses=(pod,))
        version = room.operator.tell(RoomService("default/a", room.port, addresses=(other,)), mine)
        room.until(lambda news: news.version == version and list(news.refused) == ["default/a"])

        assert asked(room)[0] == 200
    assert (len(seen), unseen) == (1, [])


def test_of_one_service_at_two_ports_the_first_counts(room: Room) -> None:
    with saying(WELL) as (pod, _):
        mine = RoomService(NAME, room.port, addresses=(pod,))
        version = room.operator.tell(mine, RoomService(NAME, free_port()))
        room.until(lambda news: news.version == version and list(news.refused) == [NAME])

        assert asked(room)[0] == 200


def test_a_room_takes_no_more_services_than_it_may_and_keeps_those_that_it_has() -> None:
    with running_room(SHOAL_WAITING_MAX_SERVICES="2") as room, saying(WELL) as (pod, _):
        others = [RoomService(f"default/a{count}", free_port()) for count in range(3)]
        version = room.operator.tell(*others, RoomService(NAME, room.port, addresses=(pod,)))
        room.until(lambda news: news.version == version)

        assert room.news().refused.keys() == {"default/a1", "default/a2"}
        assert asked(room)[0] == 200


# What is left when processes die or stop.


def test_a_room_that_is_killed_while_it_holds_hurts_its_own_callers_and_no_other_room() -> None:
    with (
        running_room() as one,
        running_room() as other,
        ThreadPoolExecutor(6) as pool,
        saying(WELL, times=9) as (pod, seen),
    ):
        lost = [pool.submit(asked, one) for _ in range(3)]
        kept = [pool.submit(asked, other) for _ in range(3)]
        one.until_waiting(3)
        other.until_waiting(3)
        os.kill(one.process.pid, signal.SIGKILL)
        for call in lost:
            with pytest.raises((AssertionError, OSError)):
                call.result()
        other.pods(pod)

        assert [call.result()[0] for call in kept] == [200, 200, 200]
    assert len(seen) == 3
