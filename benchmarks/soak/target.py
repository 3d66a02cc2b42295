"""What an attack is given: where the server is, a source of chance, and until when."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from urllib.parse import urlsplit

READ_BYTES = 65536


@dataclass(slots=True)
class Target:
    """The server under attack; ``count`` records what the attacker sent and received."""

    url: str
    runtime_pid: Callable[[], int]
    random: Random
    until_s: float
    count: Counter[str] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        """Return whether the time of the attack is over."""
        return time.monotonic() >= self.until_s

    @property
    def left_s(self) -> float:
        """Return how long the attack still lasts."""
        return max(0.0, self.until_s - time.monotonic())

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Open a connection; None when the server takes no more of them."""
        address = urlsplit(self.url)
        try:
            return await asyncio.wait_for(asyncio.open_connection(address.hostname, address.port), 5)
        except (OSError, TimeoutError):
            self.count["connections refused"] += 1
            await asyncio.sleep(0.05)
            return None

    async def say(self, *pieces: bytes, listen_s: float = 5.0, more_s: float = 0.0) -> bytes:
        """Send ``pieces`` on a connection of their own; return what comes back first, and then for ``more_s``."""
        connection = await self.connect()
        if connection is None:
            return b""
        reader, writer = connection
        answer = b""
        with suppress(OSError, TimeoutError):
            for piece in pieces:
                writer.write(piece)
                await asyncio.wait_for(writer.drain(), listen_s)
                await asyncio.sleep(0.01 * (len(pieces) - 1))  # so that each piece is a segment of its own
            answer = await asyncio.wait_for(reader.read(READ_BYTES), listen_s)
            while more_s and (more := await asyncio.wait_for(reader.read(READ_BYTES), more_s)):
                answer += more
        await hang_up(writer)
        self.count[status(answer)] += 1
        return answer


Attack = Callable[[Target], Awaitable[None]]


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection without waiting for the other side."""
    writer.transport.abort()
    await asyncio.sleep(0)


def status(answer: bytes) -> str:
    """Return the status that an answer begins with, in words."""
    first = answer.partition(b"\r\n")[0].split(b" ")
    return first[1].decode("latin-1") if len(first) > 1 else "no answer"


def post(path: str, body: bytes, *headers: str) -> bytes:
    """Return a whole HTTP request."""
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def at_once(count: int, one: Callable[[], Coroutine[None, None, None]]) -> None:
    """Run ``one`` so many times side by side."""
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
