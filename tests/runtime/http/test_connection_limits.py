"""What a stranger may do to the runtime where it listens on a network."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from shoal_runtime.http.connection_limits import ConnectionBounds
from shoal_runtime.http.listening import Connections, open_socket
from shoal_schema.fields.addresses import Address
from tests.runtime.http.test_body import LARGE, LIMIT_BYTES, Echo

UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@asynccontextmanager
async def listening(**bounds: Any) -> AsyncIterator[tuple[Connections, int]]:
    app: Any = Echo()
    listener = open_socket(Address(host="127.0.0.1", port=0))
    port = listener.getsockname()[1]
    connections = Connections(app, listener, on_empty=lambda: None, bounds=ConnectionBounds(LIMIT_BYTES, **bounds))
    await connections.listen()
    try:
        yield connections, port
    finally:
        await connections.close()


def talk(*pieces: bytes, wait_s: float = 0.0, **bounds: Any) -> bytes:
    """Send the pieces and read until the other side closes."""

    async def run() -> bytes:
        async with listening(**bounds) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(wait_s)
            async with asyncio.timeout(20):
                data = await reader.read()
            writer.close()
            return data

    return asyncio.run(run())


def statuses(data: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", data)]


def post(body: bytes, headers: bytes = b"") -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (headers, len(body), body)


@pytest.mark.parametrize("body", [CLOSE, LARGE])
def test_the_body_of_an_upgrade_is_a_body(body: bytes) -> None:
    answers = talk(post(body, UPGRADE), CLOSE)
    assert answers.count(body) == 1
    assert statuses(answers.replace(body, b"")) == [200, 200]


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param(b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, id="gzip, chunked"),
        pytest.param(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, id="chunked in HTTP/1.0"),
        pytest.param(b"POST / HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}", 400, id="a signed length"),
        pytest.param(b"CONNECT x:1 HTTP/1.1\r\n\r\n", 501, id="CONNECT"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", 505, id="HTTP/2.0"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 2000 + b"\r\n", 431, id="many headers"),
        pytest.param(b"GET / HTTP/1.1\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", 431, id="a long header"),
    ],
)
def test_what_is_no_request_is_rejected_with_all_behind_it(asked: bytes, status: int) -> None:
    assert statuses(talk(asked + CLOSE * 2)) == [status]


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nA: ", b"GET / HTTP/1.1\r\n"])
def test_a_head_without_end_is_cut_off(start: bytes) -> None:
    piece = b"a: b\r\n" * 100 if start.endswith(b"\n") else b"a" * 600
    assert statuses(talk(start, *[piece] * 100)) == [431]


def test_chunk_extensions_without_end_are_cut_off() -> None:
    asked = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;"
    assert statuses(talk(asked, *[b"a" * 4096] * 50))[-1] == 400


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        pytest.param(b"", [], id="silence"),
        pytest.param(b"GET / HT", [408], id="half a head"),
        pytest.param(post(LARGE)[:-1], [408], id="most of a large body"),
    ],
)
def test_what_does_not_come_is_not_waited_for(asked: bytes, status: list[int]) -> None:
    assert statuses(talk(asked, head_timeout_s=0.1, transfer_timeout_s=0.1)) == status


def test_a_body_that_comes_at_the_rate_may_take_longer() -> None:
    whole = post(LARGE).replace(b"Host: x", b"Connection: close")
    pieces = [whole[start : start + 20_000] for start in range(0, len(whole), 20_000)]
    answers = talk(*pieces, wait_s=0.03, transfer_timeout_s=0.15, min_bytes_per_s=20_000)
    assert answers.endswith(LARGE)


def test_a_response_that_is_not_read_is_dropped() -> None:
    async def run() -> None:
        async with listening(transfer_timeout_s=0.2, idle_timeout_s=0.2) as (connections, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            with suppress(ConnectionError):
                for _ in range(100):
                    writer.write(post(LARGE))
                    await asyncio.sleep(0)
            async with asyncio.timeout(20):
                while len(connections):  # noqa: ASYNC110 (uvicorn's set has no event)
                    await asyncio.sleep(0.01)
            writer.close()

    asyncio.run(run())


def test_silent_clients_make_room_and_one_with_a_request_stays() -> None:
    async def run() -> None:
        async with listening(max_connections=4) as (connections, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(3):
                writer.write(post(b"mine"))
                async with asyncio.timeout(20):
                    assert b"200 OK" in await reader.readuntil(b"mine")
                others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
                async with asyncio.timeout(20):
                    while len(connections) > 4:  # noqa: ASYNC110 (uvicorn's set has no event)
                        await asyncio.sleep(0.01)
                for _, other in others:
                    other.close()
            writer.close()

    asyncio.run(run())
