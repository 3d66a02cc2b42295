"""Both clients against a real server; what is proved for one is proved for the other."""

import asyncio
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

import shoal
from tests.client.fake_server import Answer, FakeServer, json_answer, metadata, running, tensor, v2


class Blocking:
    """Calls the blocking client."""

    def __call__(self, url: str, method: str, *arguments: Any, **options: Any) -> Any:
        call = {key: options.pop(key) for key in ("request_id",) if key in options}
        with shoal.Client(url, **options) as client:
            return getattr(client, method)(*arguments, **call)


class Awaiting:
    """Calls the asyncio client."""

    def __call__(self, url: str, method: str, *arguments: Any, **options: Any) -> Any:
        call = {key: options.pop(key) for key in ("request_id",) if key in options}

        async def run() -> Any:
            async with shoal.AsyncClient(url, **options) as client:
                return await getattr(client, method)(*arguments, **call)

        return asyncio.run(run())


Ask = Callable[..., Any]


@pytest.fixture(params=[Blocking(), Awaiting()], ids=["Client", "AsyncClient"])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with running(v2()) as started:
        yield started


def test_one_item_is_answered(server: FakeServer, ask: Ask) -> None:
    answer = ask(server.url, "predict", [1, 2, 3])

    assert answer.tolist() == [2, 3, 4]


def test_a_batch_is_one_call(server: FakeServer, ask: Ask) -> None:
    answer = ask(server.url, "predict_batch", np.zeros((5, 3)), model="adder")

    assert answer.shape == (5, 3)
    assert [call.path for call in server.calls] == ["/v2/models/adder", "/v2/models/adder/infer"]


def test_pictures_go_as_bytes_and_labels_come_as_text(ask: Ask) -> None:
    model = metadata(
        [tensor("image", "BYTES", [-1], content_type="image/jpeg")],
        [tensor("label", "BYTES", [-1, 1]), tensor("bytes", "INT64", [-1])],
    )

    def look(inputs: Any) -> Any:
        images = inputs["image"]
        labels = np.array([[b"a cat"]] * len(images), dtype=object)
        sizes = np.array([len(image) for image in images])
        return {"label": ("BYTES", labels), "bytes": ("INT64", sizes)}

    with running(v2(model, look)) as server:
        answer = ask(server.url, "predict_batch", [b"\xff\xd8\xff", b"\xff"])

    assert answer["label"].tolist() == [["a cat"], ["a cat"]]
    assert answer["bytes"].tolist() == [3, 1]


def test_headers_and_options_reach_the_server(server: FakeServer, ask: Ask) -> None:
    ask(
        server.url,
        "predict",
        [1, 2, 3],
        headers={"Authorization": "Bearer secret"},
        timeout_s=2.0,
        request_id="r-7",
    )

    last = server.calls[-1].headers
    assert last["authorization"] == "Bearer secret"
    assert 1600 < int(last["x-request-timeout-ms"]) <= 1800
    assert last["x-request-id"] == "r-7"
    assert server.calls[0].headers["authorization"] == "Bearer secret"


def test_a_call_that_is_given_no_name_has_one_of_its_own(server: FakeServer, ask: Ask) -> None:
    ask(server.url, "predict", [1, 2, 3])
    ask(server.url, "predict", [1, 2, 3])

    first, second = [call.headers["x-request-id"] for call in server.calls if call.path.endswith("/infer")]
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first != second


def test_signature_is_the_servers_metadata(server: FakeServer, ask: Ask) -> None:
    signature = ask(server.url, "signature")

    assert signature.name == "adder"
    assert signature.max_batch_size == 32


def test_overloaded_server_is_retried_after_retry_after(ask: Ask) -> None:
    healthy, refusals = v2(), [503, 503]

    def busy(call: Any) -> Answer | None:
        if call.path.endswith("/infer") and refusals:
            headers = {"Retry-After": "0", "X-Shoal-Executed": "no"}
            return json_answer({"error": "queue is full"}, refusals.pop(), **headers)
        return healthy(call)

    with running(busy) as server:
        assert ask(server.url, "predict", [1, 2, 3], retries=2).tolist() == [2, 3, 4]
    assert not refusals


def test_the_servers_error_is_raised(ask: Ask) -> None:
    with (
        running(lambda _: json_answer({"error": "no such model"}, 404)) as server,
        pytest.raises(shoal.NotFound, match="no such model"),
    ):
        ask(server.url, "signature", model="dog")


def test_a_server_that_hangs_up_is_a_failed_connection(ask: Ask) -> None:
    with running(lambda _: None) as server, pytest.raises(shoal.ConnectionFailed, match="broke"):
        ask(server.url, "signature", model="adder")


def test_truncated_response_is_a_failed_connection(ask: Ask) -> None:
    cut = Answer(200, b"{}", {"Content-Length": "99", "Connection": "close"})

    with running(lambda _: cut) as server, pytest.raises(shoal.ConnectionFailed, match="broke"):
        ask(server.url, "signature", model="adder")


def test_a_silent_server_is_a_missed_deadline(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        # Long enough to connect in on a busy machine: a connection that takes longer is a failed one.
        with pytest.raises(shoal.DeadlineExceeded, match=r"within 0\.3 s"):
            ask(url, "signature", model="adder", timeout_s=0.3)


@contextmanager
def dribbling(first: bytes, then: bytes) -> Iterator[str]:
    """Answer each connection with ``first``, and then with ``then`` repeatedly until it closes."""
    stop = threading.Event()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError), listener, listener.accept()[0] as caller:
            caller.sendall(first)
            while not stop.wait(0.02):
                caller.sendall(then)

    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)
    thread = threading.Thread(target=serve, args=(listener,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        thread.join()


ENDLESS = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n"


@pytest.mark.parametrize(
    ("first", "then"), [(ENDLESS, b"x"), (b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n")], ids=["body", "head"]
)
def test_response_byte_by_byte_misses_the_deadline(first: bytes, then: bytes, ask: Ask) -> None:
    """Each of its reads is quick enough."""
    with dribbling(first, then) as url:
        began_s = time.monotonic()
        with pytest.raises(shoal.DeadlineExceeded, match=r"within 0\.5 s"):
            ask(url, "signature", model="adder", timeout_s=0.5)
        assert 0.4 < time.monotonic() - began_s < 5


def test_a_server_that_takes_no_request_is_a_missed_deadline(ask: Ask) -> None:
    model = json_answer(metadata([tensor("x", "FP32", [-1, -1])], [tensor("y", "FP32", [-1, -1])]))
    asked: list[socket.socket] = []

    def tell_the_signature_only(listener: socket.socket) -> None:
        caller, _ = listener.accept()
        caller.recv(65536)
        caller.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(model.body) + model.body)
        asked.append(caller)

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        thread = threading.Thread(target=tell_the_signature_only, args=(deaf,))
        thread.start()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        began_s = time.monotonic()
        with pytest.raises(shoal.DeadlineExceeded, match=r"within 1 s"):
            ask(url, "predict", np.zeros(8_000_000, "f4"), model="adder", timeout_s=1)
        assert time.monotonic() - began_s < 5
        thread.join()
        asked[0].close()


def test_retries_are_part_of_the_time(ask: Ask) -> None:
    healthy = v2()

    def busy(call: Any) -> Answer | None:
        if not call.path.endswith("/infer"):
            return healthy(call)
        headers = {"Retry-After": "0", "X-Shoal-Executed": "no"}
        return json_answer({"error": "queue is full"}, 503, **headers)

    with running(busy) as server:
        with pytest.raises((shoal.Overloaded, shoal.DeadlineExceeded)):
            ask(server.url, "predict", [1, 2, 3], retries=10_000, timeout_s=0.5)
        timeouts_ms = [
            int(call.headers["x-request-timeout-ms"]) for call in server.calls if call.path.endswith("/infer")
        ]
        assert timeouts_ms == sorted(timeouts_ms, reverse=True)
        assert timeouts_ms[0] <= 450


def test_request_is_not_retried_after_a_closed_connection(ask: Ask) -> None:
    healthy = v2()

    def hangs_up(call: Any) -> Answer | None:
        return None if call.path.endswith("/infer") else healthy(call)

    with running(hangs_up) as server, pytest.raises(shoal.ConnectionFailed, match="broke") as caught:
        ask(server.url, "predict", [1, 2, 3], retries=5)
    assert caught.value.may_have_run
    assert sum(call.path.endswith("/infer") for call in server.calls) == 1

    with running(hangs_up) as server, pytest.raises(shoal.ConnectionFailed, match="broke"):
        ask(server.url, "predict", [1, 2, 3], retries=2, retry_executed=True)
    assert sum(call.path.endswith("/infer") for call in server.calls) == 3


def test_connection_is_retried_until_the_server_listens(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, "http://{}:{}".format(*address), "predict", [1, 2, 3], retries=99, timeout_s=20)
        with suppress(TimeoutError):
            answer.result(0.05)
        with running(v2(), address):
            assert answer.result(20).tolist() == [2, 3, 4]


def test_a_server_that_is_not_there_is_a_failed_connection_and_not_ready(ask: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"127.0.0.1:{listener.getsockname()[1]}"

    assert ask(url, "ready") is False
    with pytest.raises(shoal.ConnectionFailed, match="cannot reach http://127"):
        ask(url, "predict", [1])


def test_a_server_that_is_there_is_ready(server: FakeServer, ask: Ask) -> None:
    assert ask(server.url, "ready") is True


@pytest.mark.parametrize("url", ["", "ftp://host", "http://", "http://host:port", "http://[::1"])
def test_an_address_that_is_none_is_refused_at_once(url: str, ask: Ask) -> None:
    with pytest.raises(shoal.ConnectionFailed, match="is not the address of a server"):
        ask(url, "ready")


def test_a_client_is_shared_between_threads(server: FakeServer) -> None:
    with shoal.Client(server.url) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: client.predict([n, n, n]).tolist(), range(40)))

    assert answers == [[n + 1.0] * 3 for n in range(40)]
