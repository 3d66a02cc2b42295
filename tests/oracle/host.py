"""Serve several models in one process: ``python -m tests.oracle.host DIRECTORY``, controlled by lines of JSON.

Each line on standard input is ``{"name", "path"}``; each is answered by one of ``{"name", "port", "grpc"}``, or
``{"name", "refused"}``. The runtime's and the proxy's own parts, joined by unix sockets as in a pod; what they share is
the process, so that libraries are imported once. The end of the input ends it.
"""

import asyncio
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from shoal_proxy.server import Proxy
from shoal_runtime.errors import LoadError
from shoal_runtime.execution.executor import Executor
from shoal_runtime.execution.pipeline import StageThreads
from shoal_runtime.http.listening import Connections, open_socket
from shoal_runtime.http.server import App
from shoal_runtime.loading import load_model
from shoal_runtime.readiness import Readiness
from shoal_runtime.settings import Settings
from shoal_runtime.startup.starting import StartedModel, serve_model
from shoal_runtime.storage.fetching import fetch_model
from shoal_schema.fields.addresses import Address
from tests.fakes import proxy_settings

BODY_BYTES: Final = 2**26
THREADS: Final = 2


class Host:
    """The models of one process, which share the device's thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._executor = Executor()
        self._pool = ThreadPoolExecutor(THREADS)
        self._proxies: list[tuple[Proxy, asyncio.Task[None]]] = []
        self._connections: list[Connections] = []

    async def serve(self, name: str, path: str) -> dict[str, Any]:
        """Serve a model; return where, or why not."""
        given = {"SHOAL_MODEL_URI": path, "SHOAL_MODEL_NAME": "m", "SHOAL_MODEL_ALLOW_PICKLE": "true"}
        more = {"SHOAL_RUNTIME_DEVICE": "CPU", "SHOAL_RUNTIME_THREADS": "1"}
        settings = Settings.from_env({**given, **more, "SHOAL_MODEL_CACHE_DIR": str(self._directory / "cache")})
        try:
            started = await self._executor.call(lambda: _load(settings), watched=False)
        except LoadError as error:
            return {"name": name, "refused": str(error)}
        readiness = Readiness()
        app = App(readiness, max_body_bytes=BODY_BYTES)
        address = Address(path=str(self._directory / f"{len(self._proxies)}.sock"))
        connections = Connections(app, open_socket(address), lambda: None)
        await connections.listen()
        app.serve(serve_model(started, "1", StageThreads(self._executor, self._pool, THREADS), print))
        readiness.ready()
        proxy = Proxy(proxy_settings("m", address, grpc_port=0))
        self._connections.append(connections)
        self._proxies.append((proxy, asyncio.create_task(proxy.run())))
        async with asyncio.timeout(30):
            await proxy.link.started.wait()
        assert proxy.grpc is not None
        return {"name": name, "port": proxy.socket.getsockname()[1], "grpc": str(proxy.grpc.address)}

    async def stop(self) -> None:
        """Stop all of them."""
        for proxy, _ in self._proxies:
            proxy.stop()
            proxy.stop()
        await asyncio.gather(*(task for _, task in self._proxies))
        for connections in self._connections:
            await connections.close()


def _load(settings: Settings) -> StartedModel:
    """Load a model as the runtime does, without warm-up: what it measures is of no use here."""
    model = load_model(fetch_model(settings, Readiness()), settings)
    return StartedModel(model, model.machine.place(model.graphs))


async def run(directory: Path) -> None:
    """Serve what the input names until it ends."""
    host, loop = Host(directory), asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        sys.stdout.write(json.dumps(await host.serve(**json.loads(line))) + "\n")
        sys.stdout.flush()
    await host.stop()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
    os._exit(0)
