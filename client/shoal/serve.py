"""``shoal serve``: a runtime and a proxy for each model, started, watched and stopped in order."""

import asyncio
import signal
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.colours import Style
from shoal.folder import own_directory
from shoal.front import Front
from shoal.pair import PROXY_SOCKET, READERS_PATIENCE_S, Launch, Pair, Teller, tell_of_everywhere, url_of
from shoal.serving.supervision import Exit, exit_message, was_drained
from shoal_schema.ending import INTERRUPTED
from shoal_schema.resource.locations import shown

if TYPE_CHECKING:
    from shoal.pages import Listener

PAGES_SOCKET = "pages.sock"
LOOPBACK = "127.0.0.1"
MakeLaunch = Callable[[Mapping[str, str], Container[str]], Launch]
"""What somebody asked to be registered, in TorchServe's words, beside names that are taken, to a launch; raises
FieldError or MachineError."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A port that several models share.

    Attributes:
        host: address that callers ask at.
        port: of that address.
        management_port: of the loopback, where models are registered; None: nowhere.
        register: makes a launch of what is registered.
        default: the model that is meant where none is named; empty: there is none.
    """

    host: str
    port: int
    management_port: int | None
    register: MakeLaunch
    default: str = ""


async def serve(launches: Sequence[Launch], teller: Teller, shared: Shared | None = None) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; return the exit status of the command.

    0 after a stop that SIGTERM, SIGHUP or ``POST /drain`` asked for, 130 after Ctrl-C or when a second signal
    killed them, 1 when a process cannot work.
    """
    with own_directory() as folder:
        server = Server(launches, teller, shared, folder)
        return await server.run()


class Server:
    """The pairs of processes, and the port that they share, if they do."""

    def __init__(self, launches: Sequence[Launch], teller: Teller, shared: Shared | None, folder: str) -> None:
        self._launches = launches
        self._teller = teller
        self._shared = shared
        self._folder = folder
        self._pairs: dict[str, Pair] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._sockets: dict[str, str] = {}
        self._started = 0
        self._ends: list[tuple[Launch, Exit]] = []
        self._front: Front | None = None
        self._listeners: list[Listener] = []
        self._stop = asyncio.Event()
        self._interrupted = False

    async def run(self) -> int:
        """Serve until a signal comes, a proxy was drained or a process cannot work; then stop all in order."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        # A Ctrl-C that came before these handlers cancels us, and here, while there is nothing to stop: asyncio cancels
        # the start of a process together with what that start then waits for, and would wait for ever.
        await asyncio.sleep(0)
        if self._shared is not None:
            await self._share(self._shared)
        for launch in self._launches:
            self._start(launch)
        telling = asyncio.create_task(self._tell_when_ready())
        await self._stop.wait()
        watches = [telling, *self._watches.values()]
        for watch in watches:
            watch.cancel()
        outcomes = await asyncio.gather(*watches, return_exceptions=True)
        status = await self._end()
        # Last, after all that the other process had to say, and we.
        self._teller.output.drain(READERS_PATIENCE_S)
        for sentence in self._sentences():
            self._teller.log.write(f"shoal: {sentence}\n".encode(errors="replace"))
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return status

    def _sentences(self) -> list[str]:
        """Return why processes ended that should not have, each with its model where there are several."""
        exits = [(launch, exit_) for launch, exit_ in self._ends if not was_drained(exit_)]
        return [f"{launch.name}: " * launch.shared + exit_message(exit_) for launch, exit_ in exits]

    def _start(self, launch: Launch) -> Pair:
        folder = Path(self._folder)
        if launch.shared:
            self._started += 1
            folder /= str(self._started)
            folder.mkdir()
        pair = self._pairs[launch.name] = Pair(launch, str(folder), self._sockets)
        self._sockets[launch.name] = str(folder / PROXY_SOCKET)
        self._watches[launch.name] = asyncio.create_task(self._watch(pair))
        return pair

    async def _watch(self, pair: Pair) -> None:
        """Stop everything when one of those that the command named ends; one registered later goes alone."""
        try:
            ends = [(pair.launch, end) for end in await pair.run()]
            if pair.launch in self._launches:
                self._ends += ends
                return
            pair.end = next((exit_message(end) for _, end in ends), "")
            pair.launch.say(pair.end)
            await self._leave(pair)
        finally:
            if pair.launch in self._launches:
                self._stop.set()

    async def _leave(self, pair: Pair) -> None:
        """Stop one model's processes; its name is free at once."""
        for each in (self._pairs, self._sockets, self._watches):
            each.pop(pair.launch.name, None)
        await pair.stop()

    async def _end(self) -> int:
        """Stop the proxies, which finish what they have accepted, and then the runtimes."""
        exits = [end for _, end in self._ends if not was_drained(end)]
        if self._ends and not exits:
            self._teller.say("stopping: the proxy was drained")
        elif not exits:
            self._teller.say("stopping: the proxy finishes its requests (Ctrl-C again to kill)")
        if self._front is not None:
            self._front.refuse_more()
        # Graphs first, those that call others before these: what they have accepted still asks the models.
        for pair in reversed([each for each in self._pairs.values() if each.launch.graph]):
            await pair.stop()
        await asyncio.gather(*(pair.stop() for pair in self._pairs.values() if not pair.launch.graph))
        for listener in self._listeners:
            await listener.stop()
        if self._front is not None:
            self._front.close()
        if exits:
            return 1
        self._teller.say("stopped")
        return INTERRUPTED if self._interrupted else 0

    def _on_signal(self, number: signal.Signals) -> None:
        self._interrupted = self._interrupted or self._stop.is_set() or number == signal.SIGINT
        if self._stop.is_set():
            for pair in self._pairs.values():
                pair.kill()
        self._stop.set()

    async def _share(self, shared: Shared) -> None:
        """Open the port that models share, and the one where they are registered."""
        from shoal.pages import Pages  # noqa: PLC0415 (a server of HTTP, which one model does not need)

        pages = Pages(self)
        socket = f"{self._folder}/{PAGES_SOCKET}"
        self._listeners.append(await pages.listen(socket))
        if shared.management_port is not None:
            self._listeners.append(await pages.manage(LOOPBACK, shared.management_port))
            self._teller.say(f"models are registered at http://{LOOPBACK}:{shared.management_port}/models")
        self._front = Front(self._sockets, socket, shared.default)
        await self._front.listen(shared.host, shared.port)

    async def _tell_when_ready(self) -> None:
        if self._shared is None:
            return
        for pair in list(self._pairs.values()):
            await pair.ready.wait()
        url = url_of(self._shared.host, self._shared.port)
        self._teller.say(f"listening on {url}", Style.BOLD, url=url)
        tell_of_everywhere(self._shared.host, self._teller)
        self._teller.say("Ctrl-C stops")

    @property
    def sockets(self) -> Mapping[str, str]:
        """Return where each model's proxy is asked, by the model's name."""
        return self._sockets

    @property
    def urls(self) -> Mapping[str, str]:
        """Return where each model came from."""
        return {name: shown(pair.launch.settings.get("SHOAL_MODEL_URI", name)) for name, pair in self._pairs.items()}

    @property
    def counted(self) -> Mapping[str, str]:
        """Return those without which the port is not ready: not one that is only being registered."""
        named = {launch.name for launch in self._launches}
        return {name: self._sockets[name] for name, pair in self._pairs.items() if name in named or pair.ready.is_set()}

    async def register(self, asked: Mapping[str, str]) -> tuple[Launch, str]:
        """Start a model; where that is asked for, wait until it can be asked; return why it cannot, or nothing.

        Raises:
            FieldError, MachineError: it cannot be started as it is asked for.
        """
        assert self._shared is not None
        launch = self._shared.register(asked, self._pairs)
        pair = self._start(launch)
        if asked.get("synchronous", "").lower() == "true":
            ready, watch = asyncio.create_task(pair.ready.wait()), self._watches[launch.name]
            await asyncio.wait((ready, watch), return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
        return launch, pair.end

    async def unregister(self, name: str) -> bool:
        """Stop a model, which finishes what it has accepted; return whether there was one."""
        pair, watch = self._pairs.get(name), self._watches.get(name)
        if pair is None or watch is None or pair.launch in self._launches:
            return False
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await self._leave(pair)
        return True
