"""Attacks below the request: connections, heads, and bodies that do not come."""

import asyncio
import re
from contextlib import suppress

from benchmarks.soak.neighbours import MODEL, v2
from benchmarks.soak.target import Target, at_once, hang_up, post

V2_PATH = f"/v2/models/{MODEL}/infer"
STATUS_LINE = re.compile(rb"HTTP/1\.1 \d{3} ")
HEAD = f"POST {V2_PATH} HTTP/1.1\r\nhost: localhost\r\n"


async def silent(target: Target) -> None:
    """Open connections and never say a word."""

    async def one() -> None:
        while not target.over:
            await hold(target, b"")

    await at_once(600, one)


async def dripping(target: Target) -> None:
    """Send a head and a body one byte at a time."""

    async def one() -> None:
        while not target.over:
            await drip(target, (HEAD + "content-length: 100000\r\n\r\n").encode() + b" " * 100)

    await at_once(200, one)


async def declared(target: Target) -> None:
    """Announce large bodies and send none of them."""

    async def one() -> None:
        while not target.over:
            await hold(target, (HEAD + "content-length: 67000000\r\n\r\n").encode())

    await at_once(16, one)


async def huge_heads(target: Target) -> None:
    """Send headers without an end."""

    async def one() -> None:
        line = b"x-%08d: " % target.random.randrange(10**8) + b"a" * 60_000 + b"\r\n"
        while not target.over:
            await endless(target, HEAD.encode(), line)

    await at_once(8, one)


async def unread(target: Target) -> None:
    """Ask for answers and read none of them."""
    request = post(V2_PATH, v2([1] * 16)[2]) * 2000

    async def one() -> None:
        while not target.over:
            await hold(target, request)

    await at_once(8, one)


async def pipelined(target: Target) -> None:
    """Send thousands of requests behind one another."""
    requests = post(V2_PATH, v2([1] * 4)[2]) * 4000

    async def one() -> None:
        while not target.over:
            await target.say(requests)

    await at_once(4, one)


async def smuggling(target: Target) -> None:
    """Hide a request in the body of another."""
    inner = post(V2_PATH, v2([9] * 4)[2])
    disguises = (
        ("connection: Upgrade", "upgrade: h2c"),
        ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAARAAAAAAAIAAAAA"),
        ("connection: upgrade", "upgrade: websocket"),
        ("transfer-encoding: chunked",),
        ("transfer-encoding: gzip, chunked",),
        ("content-length: 0",),
        ("content-length: +5",),
    )

    async def one() -> None:
        while not target.over:
            path = target.random.choice((V2_PATH, "/v2", "/ping", "/nowhere"))
            head, end, body = post(path, inner, *target.random.choice(disguises)).partition(b"\r\n\r\n")
            answer = await target.say(head + end, body, more_s=0.2)
            target.count["smuggled"] += len(STATUS_LINE.findall(answer)) > 1

    await at_once(4, one)


async def hold(target: Target, data: bytes) -> None:
    """Send ``data`` and wait, without reading, until the server hangs up or the attack is over."""
    connection = await target.connect()
    if connection is None:
        return
    reader, writer = connection
    reader._limit = 1  # type: ignore[attr-defined]  # asyncio stops reading beyond twice this
    with suppress(OSError, TimeoutError):
        writer.write(data)
        await asyncio.wait_for(closed(reader, writer), target.left_s)
        target.count["hung up on"] += 1
    await hang_up(writer)


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Return when the other side has closed, whatever it has sent before."""
    while not reader.at_eof() and not writer.is_closing():  # noqa: ASYNC110 (there is no event for it)
        await asyncio.sleep(0.25)


async def drip(target: Target, data: bytes) -> None:
    """Send ``data`` a byte at a time until the server hangs up or the attack is over."""
    connection = await target.connect()
    if connection is None:
        return
    reader, writer = connection
    with suppress(OSError):
        for byte in data:
            if target.over or reader.at_eof():
                break
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.5)
    await hang_up(writer)
    target.count["dripped"] += 1


async def endless(target: Target, start: bytes, line: bytes) -> None:
    """Send ``start`` and then ``line`` again and again until the server hangs up or the attack is over."""
    connection = await target.connect()
    if connection is None:
        return
    reader, writer = connection
    with suppress(OSError, TimeoutError):
        writer.write(start)
        while not target.over and not reader.at_eof():
            writer.write(line)
            await asyncio.wait_for(writer.drain(), max(0.1, target.left_s))
            target.count["header bytes"] += len(line)
    await hang_up(writer)
