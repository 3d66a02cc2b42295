"""One connection to the runtime: until when an answer is waited for."""

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

import pytest

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.dispatch.runtime_connection import MAX_HEAD_BYTES, ResponseMemory, RuntimeConnection, RuntimeResponse
from shoal_proxy.dispatch.upstream import Upstream
from shoal_proxy.errors import ModelFailed, NotExecuted, RuntimeLost
from shoal_schema.fields.addresses import Address

ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def with_runtime(folder: Path, answers: int, ask: Callable[[RuntimeConnection], Awaitable[None]]) -> None:
    """Connect to a runtime that answers so many requests and no more."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        left = answers

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal left
            while await reader.readline():
                if await reader.readuntil(b"\r\n\r\n") and left:
                    left -= 1
                    writer.write(ANSWER)
            writer.close()

        server = await asyncio.start_unix_server(serve, str(folder / "s"))
        lost = asyncio.Event()
        _, connection = await loop.create_unix_connection(
            lambda: RuntimeConnection(lambda _: lost.set()), str(folder / "s")
        )
        async with asyncio.timeout(20):
            await ask(connection)
            connection.close()
            await lost.wait()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_a_response_that_does_not_come_is_abandoned_at_its_deadline_and_with_it_the_connection(tmp_path: Path) -> None:
    async def ask(connection: RuntimeConnection) -> None:
        due_s = time.monotonic() + 0.02
        with pytest.raises(TimeoutError):
            await connection.exchange(ASK, deadline_s=due_s)
        assert time.monotonic() >= due_s
        assert not connection.usable
        with pytest.raises(NotExecuted):
            await connection.exchange(ASK)

    with_runtime(tmp_path, 0, ask)


def test_the_time_of_one_exchange_is_not_the_next_ones(tmp_path: Path) -> None:
    async def ask(connection: RuntimeConnection) -> None:
        assert (await connection.exchange(ASK, deadline_s=time.monotonic() + 0.5)).body == b"ok"
        due_s = time.monotonic() + 0.8
        with pytest.raises(TimeoutError):
            await connection.exchange(ASK, deadline_s=due_s)
        assert time.monotonic() >= due_s

    with_runtime(tmp_path, 1, ask)


def test_one_without_a_time_waits_beyond_that_of_the_one_before(tmp_path: Path) -> None:
    async def ask(connection: RuntimeConnection) -> None:
        await connection.exchange(ASK, deadline_s=time.monotonic() + 0.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.8):
                await connection.exchange(ASK)

    with_runtime(tmp_path, 1, ask)


@pytest.mark.parametrize(
    "unasked",
    [
        ANSWER,
        ANSWER[:20],
        b"x",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10000000000000\r\n\r\n",
    ],
    ids=["answer", "half", "garbage", "continue", "endless"],
)
@pytest.mark.parametrize("together", [True, False])
def test_an_unexpected_response_closes_the_connection(tmp_path: Path, unasked: bytes, together: bool) -> None:
    async def run() -> None:
        loop, lost, go = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWER + unasked if together else ANSWER)
            await go.wait()
            if not together:
                writer.write(unasked)
            await reader.read()
            writer.close()

        server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
        _, connection = await loop.create_unix_connection(
            lambda: RuntimeConnection(lambda _: lost.set()), str(tmp_path / "s")
        )
        async with asyncio.timeout(20):
            assert (await connection.exchange(ASK)).body == b"ok"
            go.set()
            await lost.wait()
        assert not connection.usable
        assert connection.announced  # by us: the runtime is not away
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def answer_of(folder: Path, pieces: Iterable[bytes], room: ResponseMemory | None) -> RuntimeResponse:
    """Return the answer of a server that sends these pieces, for as long as they are taken."""

    async def run() -> RuntimeResponse:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            with suppress(ConnectionError):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
            writer.close()

        server = await asyncio.start_unix_server(serve, str(folder / "s"))
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: RuntimeConnection(lambda _: None, room), str(folder / "s")
        )
        try:
            async with asyncio.timeout(20):
                return await connection.exchange(ASK)
        finally:
            connection.close()
            server.close()
            await server.wait_closed()

    return asyncio.run(run())


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        chain([HEAD, b"x: "], repeat(bytes(1024).replace(b"\0", b"y"))),
        chain([HEAD], repeat(b"x: y\r\n")),
        repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
        chain([HEAD, b"\r\n2\r\nok\r\n0\r\n"], repeat(b"x: y\r\n")),
        chain([HEAD, b"\r\n2"], repeat(b";x=y")),
    ],
    ids=["line", "lines", "continue", "trailers", "extension"],
)
def test_a_head_without_end_is_not_accepted(tmp_path: Path, pieces: Iterable[bytes]) -> None:
    room = ResponseMemory(1 << 20)
    with pytest.raises(ModelFailed, match=str(MAX_HEAD_BYTES)):
        answer_of(tmp_path, pieces, room)
    assert room.used_bytes == 0


def test_a_body_in_the_smallest_chunks_is_accepted(tmp_path: Path) -> None:
    count = MAX_HEAD_BYTES
    body = chain([HEAD, b"\r\n"], repeat(b"1\r\nx\r\n", count), [b"0\r\n\r\n"])
    assert answer_of(tmp_path, body, ResponseMemory(1 << 20)).body == b"x" * count


@pytest.mark.parametrize("announced", [True, False])
def test_an_abandoned_response_leaves_nothing(tmp_path: Path, announced: bool) -> None:
    size = 8 << 20

    async def run() -> int:
        sent, lost = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * size)
            writer.write(head if announced else HEAD + b"\r\n%x\r\n" % (2 * size))
            writer.write(bytes(size))
            await writer.drain()
            sent.set()
            await reader.read()
            writer.close()

        room = ResponseMemory(4 * size)
        server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
        _, connection = await asyncio.get_running_loop().create_unix_connection(
            lambda: RuntimeConnection(lambda _: lost.set(), room), str(tmp_path / "s")
        )
        asking = asyncio.create_task(connection.exchange(ASK))
        await sent.wait()
        while room.used_bytes < size:  # noqa: ASYNC110 (a room has no event)
            await asyncio.sleep(0.01)
        before = tracemalloc.get_traced_memory()[0]
        asking.cancel()
        await lost.wait()
        gone = before - tracemalloc.get_traced_memory()[0]
        assert room.used_bytes == 0
        server.close()
        await server.wait_closed()
        return gone

    gc.disable()
    tracemalloc.start()
    try:
        assert asyncio.run(run()) > 0.9 * size
    finally:
        tracemalloc.stop()
        gc.enable()


def test_no_batch_follows_on_other_connections_of_a_runtime_that_ends(tmp_path: Path) -> None:
    async def run() -> None:
        accepted: list[asyncio.StreamWriter] = []
        begun, go_on = asyncio.Semaphore(0), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(writer)
            with suppress(asyncio.IncompleteReadError):
                while b"/ready" in await reader.readuntil(b"\r\n\r\n"):
                    begun.release()
                    await go_on.wait()
                    writer.write(ANSWER)
            writer.close()

        server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
        upstream = Upstream(Address(path=str(tmp_path / "s")), "m", on_lost=lambda: None)
        ready = [asyncio.create_task(upstream.model_ready((), NEVER_S)) for _ in range(3)]
        for _ in ready:
            await begun.acquire()
        go_on.set()
        await asyncio.gather(*ready)
        assert len(accepted) == 3
        with pytest.raises(RuntimeLost):
            await upstream.infer(b"{}", [], (), NEVER_S)

        assert (await upstream.model_ready((), NEVER_S)).status == 200
        assert len(accepted) == 4, "the idle connections were closed"
        upstream.close()
        for each in accepted:
            each.close()
            with suppress(ConnectionError):
                await each.wait_closed()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
