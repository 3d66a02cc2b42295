"""``shoal serve``: start, supervise and stop the processes of all models in order."""

import asyncio
import os
import signal
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.colours import Style
from shoal.directory import own_directory
from shoal.discovery import LocalServer, ServedModel, register
from shoal.pair import DRAIN_TIMEOUT_S, PROXY_SOCKET, Launch, Pair, Reporter, url_of, warn_of_everywhere
from shoal.serving.supervision import Exit, exit_message, was_drained
from shoal.shared_port import SharedPort
from shoal_schema.process.exit_status import INTERRUPTED
from shoal_schema.resource.locations import shown

if TYPE_CHECKING:
    from shoal.server_routes import Listener

PAGES_SOCKET = "pages.sock"
LOOPBACK = "127.0.0.1"
MakeLaunch = Callable[[Mapping[str, str], Container[str]], Launch]
"""Returns the launch for a TorchServe query and the taken names; raises FieldError or LocalError."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Settings of a port that several models share."""

    host: str
    port: int
    management_port: int | None
    """Port of the management API on the loopback; None without it."""
    register: MakeLaunch
    default: str = ""
    """The model of requests that name none; may be empty."""


async def serve(launches: Sequence[Launch], reporter: Reporter, shared: Shared | None = None) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; return the exit status of the command.

    The status is 0 after SIGTERM, SIGHUP or ``POST /drain``, 130 after Ctrl-C or a second signal, otherwise 1.
    """
    with own_directory() as directory:
        server = Server(launches, reporter, shared, directory)
        return await server.run()


class Server:
    """The processes of all served models, and the port that the models share."""

    def __init__(self, launches: Sequence[Launch], reporter: Reporter, shared: Shared | None, directory: str) -> None:
        self._launches = launches
        self._reporter = reporter
        self._shared = shared
        self._directory = directory
        self._pairs: dict[str, Pair] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._sockets: dict[str, str] = {}
        self._started = 0
        self._ends: list[tuple[Launch, Exit]] = []
        self._shared_port: SharedPort | None = None
        self._listeners: list[Listener] = []
        self._stop = asyncio.Event()
        self._interrupted = False

    async def run(self) -> int:
        """Serve until a signal, a drained proxy or a final exit; then stop all processes in order."""
        loop = asyncio.get_running_loop()

        def on_signal(number: signal.Signals) -> None:
            self._interrupted = self._interrupted or self._stop.is_set() or number == signal.SIGINT
            if self._stop.is_set():  # the second signal kills
                for pair in self._pairs.values():
                    pair.kill()
            self._stop.set()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, on_signal, number)
        # A Ctrl-C before these handlers cancels this task here, while there are no processes to stop. Later, asyncio
        # would cancel the start of a process together with its cleanup, and hang.
        await asyncio.sleep(0)
        # The shared port listens before the models are ready, and answers 503 meanwhile.
        if self._shared is not None:
            await self._share(self._shared)
        for launch in self._launches:
            self._start(launch)
        announcing = asyncio.create_task(self._announce())
        await self._stop.wait()
        watches = [announcing, *self._watches.values()]
        for watch in watches:
            watch.cancel()
        outcomes = await asyncio.gather(*watches, return_exceptions=True)
        status = await self._end()
        # The causes come last, after all other output.
        self._reporter.output.drain(DRAIN_TIMEOUT_S)
        for launch, exit_ in self._ends:
            if not was_drained(exit_):
                text = f"{launch.name}: " * launch.shared + exit_message(exit_)
                self._reporter.log.write(f"shoal: {text}\n".encode(errors="replace"))
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return status

    def _start(self, launch: Launch) -> Pair:
        directory = Path(self._directory)
        if launch.shared:
            # Each model has its own sockets.
            self._started += 1
            directory /= str(self._started)
            directory.mkdir()
        pair = self._pairs[launch.name] = Pair(launch, str(directory), self._sockets)
        self._sockets[launch.name] = str(directory / PROXY_SOCKET)
        self._watches[launch.name] = asyncio.create_task(self._watch(pair))
        self._register()
        return pair

    def _register(self) -> None:
        """Register the server and its current models, so that other commands find them."""
        launches = [pair.launch for pair in self._pairs.values()]
        shared = self._shared
        url = url_of(shared.host, shared.port) if shared else launches[0].url
        models = tuple(ServedModel(launch.name, launch.admin_url) for launch in launches)
        register(self._directory, LocalServer(os.getpid(), url, models, shared.default if shared else ""))

    async def _watch(self, pair: Pair) -> None:
        """Run a model's processes until the exit of one of them is final.

        The exit stops the whole server, or only the model if it was registered while the server ran.
        """
        try:
            ends = [(pair.launch, end) for end in await pair.run()]
            # The cause is printed at the very end, by `run`.
            if pair.launch in self._launches:
                self._ends += ends
                return
            pair.end = next((exit_message(end) for _, end in ends), "")
            pair.launch.report(pair.end)
            await self._leave(pair)
        finally:
            if pair.launch in self._launches:
                self._stop.set()

    async def _leave(self, pair: Pair) -> None:
        """Remove a model, so that its name can be reused at once, and stop its processes."""
        for each in (self._pairs, self._sockets, self._watches):
            each.pop(pair.launch.name, None)
        self._register()
        await pair.stop()

    async def _end(self) -> int:
        """Stop the proxies, which complete their accepted requests, then the runtimes; return the exit status."""
        exits = [end for _, end in self._ends if not was_drained(end)]
        if self._ends and not exits:
            self._reporter.report("stopping: the proxy was drained")
        elif not exits:
            self._reporter.report("stopping: the proxy finishes its requests (Ctrl-C again to kill)")
        if self._shared_port is not None:
            self._shared_port.stop_accepting()
        # Graphs first, outer ones before inner ones: their accepted requests still need the models.
        for pair in reversed([each for each in self._pairs.values() if each.launch.graph]):
            await pair.stop()
        # Independent models stop concurrently.
        await asyncio.gather(*(pair.stop() for pair in self._pairs.values() if not pair.launch.graph))
        for listener in self._listeners:
            await listener.stop()
        if self._shared_port is not None:
            self._shared_port.close()
        if exits:
            return 1
        self._reporter.report("stopped")
        return INTERRUPTED if self._interrupted else 0

    async def _share(self, shared: Shared) -> None:
        from shoal.server_routes import ServerRoutes  # noqa: PLC0415 (an HTTP server, which one model does not need)

        pages = ServerRoutes(self)
        socket = f"{self._directory}/{PAGES_SOCKET}"
        self._listeners.append(await pages.listen(socket))
        if shared.management_port is not None:
            self._listeners.append(await pages.manage(LOOPBACK, shared.management_port))
            self._reporter.report(f"models are registered at http://{LOOPBACK}:{shared.management_port}/models")
        self._shared_port = SharedPort(self._sockets, socket, shared.default)
        await self._shared_port.listen(shared.host, shared.port)

    async def _announce(self) -> None:
        """Report the shared port once all models are ready."""
        if self._shared is None:
            return
        for pair in list(self._pairs.values()):
            await pair.ready.wait()
        url = url_of(self._shared.host, self._shared.port)
        self._reporter.report(f"listening on {url}", Style.BOLD, url=url)
        warn_of_everywhere(self._shared.host, self._reporter)
        self._reporter.report("Ctrl-C stops")

    @property
    def sockets(self) -> Mapping[str, str]:
        """Path of the socket of each model's proxy, by model."""
        return self._sockets

    @property
    def urls(self) -> Mapping[str, str]:
        """URI of each served model, by name."""
        return {name: shown(pair.launch.settings.get("SHOAL_MODEL_URI", name)) for name, pair in self._pairs.items()}

    @property
    def counted(self) -> Mapping[str, str]:
        """Proxy sockets of the models that count for readiness, by model.

        A model registered while the server runs counts once it is ready; other models always count.
        """
        named = {launch.name for launch in self._launches}
        return {name: self._sockets[name] for name, pair in self._pairs.items() if name in named or pair.ready.is_set()}

    async def register(self, query: Mapping[str, str]) -> tuple[Launch, str]:
        """Start the model that a TorchServe registration request names.

        With ``synchronous=true`` in the query, wait until the model is ready or has ended.

        Returns:
            The model's settings, and the reason for its end, which is empty while it runs.

        Raises:
            FieldError, LocalError: the model cannot be started.
        """
        assert self._shared is not None
        launch = self._shared.register(query, self._pairs)
        pair = self._start(launch)
        if query.get("synchronous", "").lower() == "true":
            # Whichever comes first: readiness, or the end of the model.
            ready, watch = asyncio.create_task(pair.ready.wait()), self._watches[launch.name]
            await asyncio.wait((ready, watch), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        return launch, pair.end

    async def unregister(self, name: str) -> bool:
        """Stop a registered model after its accepted requests; return whether there was a model of this name."""
        pair, watch = self._pairs.get(name), self._watches.get(name)
        if pair is None or watch is None or pair.launch in self._launches:
            return False
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await self._leave(pair)
        return True
