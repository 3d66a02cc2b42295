"""The client connection, against servers of any kind."""

import asyncio
from collections.abc import Sequence

import pytest

from shoal_schema.http.client_connection import (
    READ_BYTES,
    ClientConnection,
    InvalidResponseError,
    ReceivedResponse,
    ResponseTooLargeError,
)

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


def exchange(pieces: Sequence[bytes], requests: int = 1) -> tuple[list[ReceivedResponse], bool]:
    """Send requests to a server that responds to each with ``pieces``, and closes after the last.

    Returns the responses, and whether the connection was usable after them.
    """

    async def run() -> tuple[list[ReceivedResponse], bool]:
        kept = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for left in reversed(range(requests)):
                await reader.readuntil(b"\r\n\r\n")
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if left == 0 and b"content-length" in b"".join(pieces):
                    await kept.wait()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        scratch = memoryview(bytearray(READ_BYTES))
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(scratch, max_head_bytes=1000, max_body_bytes=100_000),
            *server.sockets[0].getsockname()[:2],
        )
        try:
            async with asyncio.timeout(20):
                responses = [await connection.send([REQUEST]) for _ in range(requests)]
            return responses, connection.usable
        finally:
            kept.set()
            connection.close()
            server.close()
            await server.wait_closed()

    return asyncio.run(run())


def test_one_connection_serves_many_exchanges() -> None:
    responses, usable = exchange([OK, b"X-A: b\r\ncontent-length: 4\r\n\r\nbo", b"dy"], requests=3)

    assert [(each.status, each.headers[b"x-a"], each.body) for each in responses] == [(200, b"b", b"body")] * 3
    assert usable


@pytest.mark.parametrize(
    "pieces",
    [
        [OK, b"content-length: 4\r\nconnection: close\r\n\r\nbody"],
        [b"HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nbody"],
        [OK, b"\r\nbo", b"dy"],
    ],
    ids=["announced", "HTTP/1.0", "without a length"],
)
def test_a_response_may_end_the_connection(pieces: list[bytes]) -> None:
    (response,), usable = exchange(pieces)

    assert response.body == b"body"
    assert not usable


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", OK + b"content-length: 4\r\n\r\nbody"],
        [
            OK + b"transfer-encoding: chunked\r\n\r\n",
            *[b"1\r\n%c\r\n" % each for each in b"body"],
            b"0\r\na: b\r\n\r\n",
        ],
    ],
    ids=["interim", "chunks"],
)
def test_a_response_may_come_in_parts(pieces: list[bytes]) -> None:
    (response,), _ = exchange(pieces)

    assert (response.status, response.body) == (200, b"body")


def test_the_body_does_not_count_as_head() -> None:
    (response,), _ = exchange([OK + b"content-length: 100000\r\n\r\n", b"a" * 100_000])

    assert len(response.body) == 100_000


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([OK, *[b"a: b\r\n" * 100] * 10], ResponseTooLargeError),
        ([b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100], ResponseTooLargeError),
        ([OK + b"content-length: 200000\r\n\r\n", b"a" * 200_000], ResponseTooLargeError),
        ([OK + b"transfer-encoding: chunked\r\n\r\n", b"1;" + b"a" * 2000], ResponseTooLargeError),
        ([b"SSH-2.0-OpenSSH\r\n"], InvalidResponseError),
        ([b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"], InvalidResponseError),
        ([OK + b"transfer-encoding: chunked\r\n\r\n", b"4\r\nbod"], ConnectionResetError),
        ([], ConnectionResetError),
    ],
    ids=["head", "interim", "body", "extensions", "not HTTP", "upgrade", "cut off", "nothing"],
)
def test_any_other_response_is_an_error(pieces: list[bytes], error: type[Exception]) -> None:
    with pytest.raises(error):
        exchange(pieces)


def test_nothing_is_sent_on_a_closed_connection() -> None:
    with pytest.raises(ConnectionResetError):
        ClientConnection(memoryview(bytearray(10))).send([REQUEST])
