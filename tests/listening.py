"""Servers of tests that run on an event loop of their own, beside the one that calls them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def listening(serve: Serve) -> Iterator[str]:
    """Serve connections on a thread with its own event loop; give the address."""
    started: Future[tuple[str, Callable[[], object]]] = Future()

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
        started.set_result((address, lambda: loop.call_soon_threadsafe(stop.set)))
        await stop.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()), name=serve.__qualname__)
    thread.start()
    address, stop = started.result(20)
    try:
        yield address
    finally:
        stop()
        thread.join(20)
