"""A pod that stops within its response, and a client that reads slowly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shoal_proxy.activator.forwarding import ForwardedRequest, Forwarder, PodTimeoutError
from shoal_proxy.errors import RuntimeLost

REQUEST = ForwardedRequest("POST", b"/v2/x", [(b"host", b"a"), (b"content-length", b"0")], b"")


@asynccontextmanager
async def responding(*pieces: bytes) -> AsyncIterator[str]:
    """Send this to each client, and then nothing more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await ended.wait()


async def forwarded(forwarder: Forwarder, pod: str, sent: list[dict[str, object]], slowness_s: float = 0.0) -> bool:
    async def send(message: dict[str, object]) -> None:
        await asyncio.sleep(slowness_s)
        sent.append(message)

    try:
        return await forwarder.forward(pod, REQUEST, 0.2, send)
    finally:
        await forwarder.close()


def test_a_pod_that_stops_within_its_response_times_out() -> None:
    async def run() -> list[dict[str, object]]:
        sent: list[dict[str, object]] = []
        async with responding(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", b"abc") as pod:
            with pytest.raises(PodTimeoutError):
                await forwarded(Forwarder(max_pause_s=0.1), pod, sent)
        return sent

    assert [message.get("body") for message in asyncio.run(run())] == [None, b"abc"]


def test_half_a_response_head_times_out() -> None:
    async def run() -> None:
        async with responding(b"HTTP/1.1 200 OK\r\nx-a") as pod:
            with pytest.raises(PodTimeoutError):
                await forwarded(Forwarder(), pod, [])

    asyncio.run(run())


def test_a_slow_client_does_not_count_against_the_pod() -> None:
    async def run() -> bool:
        async with responding(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n", b"abc") as pod:
            return await forwarded(Forwarder(max_pause_s=0.1), pod, [], slowness_s=0.3)

    assert asyncio.run(run())


def test_an_invalid_status_is_a_lost_pod() -> None:
    async def run() -> None:
        async with responding(b"HTTP/1.1 999 N\r\ncontent-length: 0\r\n\r\n") as pod:
            with pytest.raises(RuntimeLost):
                await forwarded(Forwarder(), pod, [])

    asyncio.run(run())
