"""Infer requests on a real connection: the short way, and the same answers as through ASGI."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from shoal_runtime.http.body import LARGE_BYTES
from shoal_runtime.http.listening import Connections, open_socket
from shoal_runtime.http.server import App, HttpResponse, ServedModel
from shoal_runtime.readiness import Readiness
from shoal_schema.fields.addresses import Address
from tests.runtime.fakes import Adder, Bench, infer_body

TARGET = b"/v2/models/adder/infer"
LIMIT_BYTES = 1 << 20


class Watched:
    """The application, which records its ASGI requests."""

    max_body_bytes = LIMIT_BYTES

    def __init__(self, app: App) -> None:
        self._app = app
        self.infer_targets = app.infer_targets
        self.paths: list[str] = []

    async def __call__(self, scope: dict[str, Any], *ways: Any) -> None:
        self.paths.append(scope["path"])
        await self._app(scope, *ways)

    async def infer(
        self, headers: Mapping[bytes, bytes], body: bytes | memoryview, arrived_s: float, target: str
    ) -> HttpResponse:
        return await self._app.infer(headers, body, arrived_s, target)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def served(talk: Talk, *, model: Any = None, max_batch_size: int = 8192) -> list[str]:
    """Serve a model during the requests; return the paths that went through ASGI."""

    async def run(bench: Bench) -> list[str]:
        readiness = Readiness()
        app = App(readiness, max_body_bytes=LIMIT_BYTES)
        app.serve(ServedModel("adder", "1", "shoal_handler", bench.pipeline))
        readiness.ready()
        watched: Any = Watched(app)
        empty = asyncio.Event()
        listener = open_socket(Address(host="127.0.0.1", port=0))
        port = listener.getsockname()[1]
        connections = Connections(watched, listener, on_empty=empty.set)
        await connections.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(20):
            await talk(reader, writer)
            writer.close()
            await empty.wait()
        await connections.close()
        paths: list[str] = watched.paths
        return paths

    with Bench(model or Adder(), max_batch_size=max_batch_size) as bench:
        return asyncio.run(run(bench))


def asked(body: bytes, headers: Mapping[str, str], *more: bytes, target: bytes = TARGET) -> bytes:
    lines = [b"POST %b HTTP/1.1" % target, b"Host: x", *more]
    lines += [f"{name}: {value}".encode() for name, value in headers.items()]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", b""]) + body


def chunked(body: bytes, headers: Mapping[str, str]) -> bytes:
    lines = [b"POST %b HTTP/1.1" % TARGET, b"Host: x", b"Transfer-Encoding: chunked"]
    lines += [f"{name}: {value}".encode() for name, value in headers.items()]
    return b"\r\n".join([*lines, b"", b"%x" % len(body), body, b"0", b"", b""])


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes], bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status, *lines = head.rstrip().split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines)
    return int(status.split()[1]), headers, await reader.readexactly(int(headers[b"content-length"]))


def numbers(headers: Mapping[bytes, bytes], body: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(body[int(headers[b"inference-header-content-length"]) :], np.float32)


def without_times(body: bytes) -> bytes:
    return re.sub(rb'"(queue|preprocess|forward|postprocess)_us":\d+', b"", body)


@pytest.mark.parametrize("rows", [1, 3, LARGE_BYTES // 8, LARGE_BYTES // 8 + 100])
def test_a_batch_is_run_without_asgi_as_it_would_be_with_it(rows: int) -> None:
    array = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    body, headers = infer_body("x", array, "FP32")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(asked(body, headers))
        short = await answered(reader)
        writer.write(chunked(body, headers))
        long = await answered(reader)
        assert short[0] == long[0] == 200
        assert (numbers(short[1], short[2]) == array.reshape(-1) + 1).all()
        length = int(short[1][b"inference-header-content-length"])
        assert short[2][length:] == long[2][int(long[1][b"inference-header-content-length"]) :]
        assert without_times(short[2][:length]) == without_times(
            long[2][: int(long[1][b"inference-header-content-length"])]
        )
        assert list(short[1]) == list(long[1])

    assert served(talk) == ["/v2/models/adder/infer"], "the first went the short way, the chunked one did not"


@pytest.mark.parametrize("cut", [1, 60, 200, 20_000])
def test_a_batch_may_come_in_pieces(cut: int) -> None:
    array = np.arange(6000, dtype=np.float32).reshape(3000, 2)
    body, headers = infer_body("x", array, "FP32")
    whole = asked(body, headers)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (whole[:cut], whole[cut:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        status, names, answer = await answered(reader)
        assert status == 200
        assert (numbers(names, answer) == array.reshape(-1) + 1).all()

    assert served(talk) == []


def test_errors_have_the_same_format() -> None:
    bodies: list[tuple[bytes, dict[str, str]]] = [
        (b"{", {}),
        (b"{}", {"Inference-Header-Content-Length": "x"}),
        (b"{}", {"Content-Encoding": "gzip"}),
        (b"{}", {"x-shoal-timeout-ms": "soon"}),
    ]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for body, headers in bodies:
            writer.write(asked(body, headers) + chunked(body, headers))
            short, long = await answered(reader), await answered(reader)
            assert short == long
            assert short[0] == 400
            assert short[1][b"x-shoal-executed"] == b"no"

    assert len(served(talk)) == len(bodies)


def test_requests_in_a_pipeline_get_responses_in_order() -> None:
    count = 5

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number in range(count):
            writer.write(asked(*infer_body("x", np.full((1, 2), number, np.float32), "FP32")))
        for number in range(count):
            _, headers, body = await answered(reader)
            assert numbers(headers, body).tolist() == [number + 1] * 2

    served(talk)


def test_other_requests_go_through_asgi_and_in_order() -> None:
    body, headers = infer_body("x", np.zeros((1, 2), np.float32), "FP32")
    page = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(page + asked(body, headers) + page + asked(b"", {}, target=b"/v2/models/other/infer"))
        answers = [await answered(reader) for _ in range(4)]
        assert [status for status, _, _ in answers] == [200, 200, 200, 404]
        assert answers[0][2] == answers[2][2] == orjson.dumps({"live": True})
        writer.write(asked(body, headers, b"Expect: 100-continue"))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 Continue")
        assert (await answered(reader))[0] == 200

    served(talk)


def test_a_body_that_is_announced_too_long_is_rejected_before_it_comes() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (TARGET, LIMIT_BYTES + 1))
        assert (await answered(reader))[0] == 413
        assert await reader.read() == b""

    served(talk)


def test_a_client_that_closes_after_its_response_gets_notice() -> None:
    body, headers = infer_body("x", np.zeros((1, 2), np.float32), "FP32")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(asked(body, headers, b"Connection: close"))
        status, names, _ = await answered(reader)
        assert (status, names[b"connection"]) == (200, b"close")
        assert await reader.read() == b""

    assert served(talk) == []


def test_what_is_no_request_behind_a_batch_waits_for_its_response() -> None:
    body, headers = infer_body("x", np.zeros((1, 2), np.float32), "FP32")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(asked(body, headers) + b"nonsense\r\n\r\n")
        status, names, _ = await answered(reader)
        assert (status, names[b"connection"]) == (200, b"close")
        assert await reader.read() == b""

    served(talk)


def test_a_fault_of_the_runtime_itself_is_a_response(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        max_body_bytes = LIMIT_BYTES
        infer_targets = frozenset((TARGET,))

    body, headers = infer_body("x", np.zeros((1, 2), np.float32), "FP32")

    async def run() -> tuple[int, dict[bytes, bytes], bytes]:
        readiness = Readiness()
        app = App(readiness, max_body_bytes=LIMIT_BYTES)
        broken: Any = Broken()
        app.serve(ServedModel("adder", "1", "shoal_handler", broken))
        readiness.ready()
        listener = open_socket(Address(host="127.0.0.1", port=0))
        port = listener.getsockname()[1]
        connections = Connections(app, listener, on_empty=lambda: None)
        await connections.listen()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked(body, headers))
        answer = await answered(reader)
        writer.close()
        await connections.close()
        return answer

    status, names, answer = asyncio.run(run())

    assert (status, names[b"x-shoal-executed"]) == (500, b"maybe")
    assert orjson.loads(answer)["code"] == "FORWARD_FAILED"
    assert "event=request_failed_inside_the_runtime" in caplog.text
    assert "AttributeError" in caplog.text


def test_a_client_that_disconnects_affects_no_other_client() -> None:
    body, headers = infer_body("x", np.zeros((1, 2), np.float32), "FP32")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(asked(body, headers))
        await writer.drain()
        writer.transport.abort()

    assert served(talk) == []
