import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from shoal.pool import MAX_CONNECTIONS, ConnectionPool

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Counting:
    """A server that answers each request, once ``gate`` is open, and counts its connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.open = 0
        self.waiting = 0
        self.full, self.empty = asyncio.Event(), asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.waiting += 1
                if self.waiting == MAX_CONNECTIONS:
                    self.full.set()
                await self.gate.wait()
                self.waiting -= 1
                writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            pass
        finally:
            self.open -= 1
            if not self.open:
                self.empty.set()
            writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Counting, httpx.AsyncClient]]:
    counting = Counting()
    server = await asyncio.start_server(counting.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, httpx.AsyncClient(base_url=url, transport=ConnectionPool(httpx.create_ssl_context())) as client:
        yield counting, client


def test_repeated_requests_keep_their_connections() -> None:
    async def run() -> int:
        async with serving() as (counting, client):
            for _ in range(4):
                answers = await asyncio.gather(*[client.get("/") for _ in range(40)])
                assert [answer.text for answer in answers] == ["ok"] * 40
            return counting.connections

    assert asyncio.run(run()) == 40


def test_a_call_that_is_cancelled_gives_its_place_to_the_next() -> None:
    async def run() -> None:
        async with serving() as (counting, client):
            counting.gate.clear()
            calls = [asyncio.create_task(client.get("/")) for _ in range(MAX_CONNECTIONS + 5)]
            await counting.full.wait()
            assert counting.open == MAX_CONNECTIONS
            for call in calls[:MAX_CONNECTIONS]:
                call.cancel()
            counting.gate.set()
            assert [answer.status_code for answer in await asyncio.gather(*calls[MAX_CONNECTIONS:])] == [200] * 5

    asyncio.run(run())


def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with serving() as (counting, client):
            await asyncio.gather(*[client.get("/") for _ in range(10)])
            monkeypatch.setattr("shoal.pool.IDLE_S", 0.0)
            await client.get("/")
            await counting.empty.wait()

    asyncio.run(run())
