"""Large bodies over a real socket, read straight into place."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_runtime.http.body import BODY, LARGE_BYTES, large_body
from shoal_runtime.http.listening import Connections, open_socket
from shoal_schema.fields.addresses import Address
from shoal_schema.wire.body import ALIGNMENT_BYTES, Body

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

LARGE = bytes(range(256)) * 1000
LIMIT_BYTES = 1 << 20


class Echo:
    """Answers with the body it got, and remembers how each request ended."""

    max_body_bytes = LIMIT_BYTES
    infer_targets: frozenset[bytes] = frozenset()

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.ended = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        large: Body | None = scope[BODY]
        message = await receive()
        self.ends.append(f"{message['type']} {'in place' if large is not None else 'by the way'}")
        self.ended.set()
        body = message.get("body", b"") if large is None else bytes(large.view)
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def request(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


def talk(path: Path, *exchanges: tuple[list[bytes], bytes | None]) -> list[str]:
    """Send each exchange's pieces and check its answer, hang up where there is none; return how requests ended."""

    async def run() -> list[str]:
        app: Any = Echo()
        connections = Connections(app, open_socket(Address(path=str(path / "s"))), on_empty=lambda: None)
        await connections.listen()
        reader, writer = await asyncio.open_unix_connection(str(path / "s"))
        for pieces, expected in exchanges:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if expected is not None:
                assert await answer(reader) == expected
        writer.close()
        async with asyncio.timeout(10):
            while len(app.ends) < len(exchanges):
                app.ended.clear()
                await app.ended.wait()
        await connections.close()
        ends: list[str] = app.ends
        return ends

    return asyncio.run(run())


@pytest.mark.parametrize("first", [1, 60, 1000, LARGE_BYTES, 100_000])
def test_a_large_body_is_read_into_place_however_it_is_cut(tmp_path: Path, first: int) -> None:
    whole = request(LARGE)
    assert talk(tmp_path, ([whole[:first], whole[first:]], LARGE)) == ["http.request in place"]


def test_large_and_small_requests_take_turns(tmp_path: Path) -> None:
    large, small = ([request(LARGE)], LARGE), ([request(b"small")], b"small")
    ends = ["http.request in place", "http.request by the way"]
    assert talk(tmp_path, large, small, large, small) == ends * 2


def test_a_client_that_disconnects_inside_a_large_body_is_noticed(tmp_path: Path) -> None:
    assert talk(tmp_path, ([request(LARGE)[:-1]], None)) == ["http.disconnect in place"]


@pytest.mark.parametrize("json_bytes", [0, 1, 63, 64, 147])
def test_tensors_behind_the_json_start_aligned(json_bytes: int) -> None:
    view = Body(1000, aligned_at=json_bytes).view
    assert len(view) == 1000
    assert np.frombuffer(view, np.uint8).ctypes.data % ALIGNMENT_BYTES == -json_bytes % ALIGNMENT_BYTES


@pytest.mark.parametrize("announced", [b"0", b"%d" % LARGE_BYTES, b"%d" % (LIMIT_BYTES + 1), b"9" * 30])
def test_no_room_is_made_for_a_body_that_is_small_or_too_large(announced: bytes) -> None:
    assert large_body({b"content-length": announced}, LIMIT_BYTES) is None
