"""``shoal serve``: a runtime and a proxy, started, watched and stopped in order."""

import asyncio
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import orjson

from shoal.client import AsyncClient
from shoal.colours import Style, styled
from shoal.errors import ShoalError
from shoal.folder import own_folder
from shoal.outlet import Outlet, lines_lost
from shoal.processes import Process, Supervisor
from shoal.serving.fields import MachineError
from shoal.serving.hints import first_requests
from shoal.serving.supervision import Exit, exit_message, was_drained
from shoal_schema.ending import INTERRUPTED

MODULES = {"runtime": "shoal_runtime", "proxy": "shoal_proxy"}
SOCKET = "runtime.sock"
# Hosts that mean every interface, with an address of this machine that reaches them.
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
POLL_INTERVAL_S = 0.1
FIRST_USERS_PORT = 1024
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
# What was said last waits this long for whoever reads it slowly.
READERS_PATIENCE_S = 2.0
# A start may take this long, and a step of a longer one, before it is said what is waited for.
PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Launch:
    """What to serve and where.

    Attributes:
        name: the model's name, the same for both processes.
        settings: environment variables of both processes.
        host: address that the proxy listens on; its ports follow.
        quiet: do not tell what happens.
        json: tell what happens for programs, an object a line.
        files: what lies beside the model, one of which may be an item to send.
        output: where it is told.
        log: where both processes' logs go.
    """

    name: str
    settings: Mapping[str, str]
    host: str
    port: int
    admin_port: int
    quiet: bool = False
    json: bool = False
    files: tuple[str, ...] = ()
    output: Outlet = field(kw_only=True)
    log: Outlet = field(kw_only=True)

    def say(self, line: str, *styles: Style, **facts: object) -> None:
        """Tell what happens: the line to a person, the line and what it tells to a program."""
        if not self.quiet:
            told = orjson.dumps({"message": line, **facts}).decode()
            text = told if self.json else styled(line, *styles, stream=sys.stdout) if styles else line
            self.output.write(f"{text}\n".encode(errors="replace"))

    def close(self) -> None:
        """Wait a while until all that was told is read."""
        for each in (self.output, self.log):
            each.close(READERS_PATIENCE_S)

    @property
    def url(self) -> str:
        """Where callers on this machine reach the server."""
        return f"http://{_address(_reachable(self.host), self.port)}"

    @property
    def admin_url(self) -> str:
        """Where the proxy answers /readyz and /metrics."""
        return f"http://{_address(_reachable(self.host), self.admin_port)}"

    def environment(self, folder: str) -> dict[str, str]:
        """Return the environment of both processes, whose socket lies in ``folder``."""
        runtime = f"unix:{folder}/{SOCKET}"
        return {
            # What a handler prints is seen when it prints it, not when a buffer is full.
            "PYTHONUNBUFFERED": "1",
            **self.settings,
            "SHOAL_MODEL_NAME": self.name,
            "SHOAL_RUNTIME_LISTEN": runtime,
            "SHOAL_PROXY_RUNTIME": runtime,
            "SHOAL_PROXY_LISTEN": _address(self.host, self.port),
            "SHOAL_PROXY_ADMIN_LISTEN": _address(self.host, self.admin_port),
        }


def outlets(*, json: bool) -> tuple[Outlet, Outlet]:
    """Return where to tell what happens, and where both processes' logs go."""

    def lost(count: int) -> str:
        line = lines_lost(count)
        return orjson.dumps({"message": line, "lines_lost": count}).decode() if json else line

    return Outlet(STANDARD_OUTPUT, lost=lost), Outlet(STANDARD_ERROR)


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on ``port`` of ``host``."""
    try:
        _try_port(host, port)
    except OSError:
        return False
    return True


@contextmanager
def claimed(port: int) -> Iterator[bool]:
    """Claim ``port`` for as long as this lasts, and say whether no other ``shoal serve`` has.

    A port is free until the proxy listens, seconds later; of two servers started together both would take it. An
    abstract socket (Linux) belongs to the same network as the port, and goes with whoever has it.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            if sys.platform == "linux":
                claim.bind(f"\0shoal-serve-{port}")
        except OSError:
            yield False
        else:
            yield True


def find_port(host: str, port: int, *, option: str) -> int:
    """Return ``port`` if it is free, or any free port for 0.

    Raises:
        MachineError: the port is taken, or the host is not an address of this machine.
    """
    try:
        return _try_port(host, port)
    except OSError as error:
        raise MachineError(_cannot_listen(error, host, port, option)) from error


def _cannot_listen(error: OSError, host: str, port: int, option: str) -> str:
    """Return why nobody can listen there; the error's own text has it twice, with numbers."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use: stop what listens there, or choose another with {option}"
    if error.errno == errno.EACCES and port < FIRST_USERS_PORT:
        return f"port {port} of {host} is the superuser's: choose one from {FIRST_USERS_PORT} on with {option}"
    # A name that leads nowhere has a negative number and a text of its own.
    why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
    return f"cannot listen on port {port} of {host}: {why or error}"


def _try_port(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
        return int(listener.getsockname()[1])


async def serve(launch: Launch) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP; return the exit status of the command.

    0 after a stop that SIGTERM, SIGHUP or ``POST /drain`` asked for, 130 after Ctrl-C or when a second signal
    killed them, 1 when a process cannot work.
    """
    with own_folder() as folder:
        server = Server(launch, folder)
        return await server.run()


class Server:
    """The two processes, and what is told about them."""

    def __init__(self, launch: Launch, folder: str) -> None:
        self._launch = launch
        self._say = launch.say
        self._environment = launch.environment(folder)
        self._socket = Path(folder, SOCKET)
        self._runtime = Supervisor("runtime", self._start_runtime, self._say)
        self._proxy = Supervisor("proxy", self._start_proxy, self._say)
        self._stop = asyncio.Event()
        self._interrupted = False

    async def run(self) -> int:
        """Serve until a signal comes, the proxy was drained or a process cannot work; then stop both in order."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)
        # A Ctrl-C that came before these handlers cancels us, and here, while there is nothing to stop: asyncio cancels
        # the start of a process together with what that start then waits for, and would wait for ever.
        await asyncio.sleep(0)
        supervisors = [asyncio.create_task(each.run()) for each in (self._runtime, self._proxy)]
        others = [asyncio.create_task(each) for each in (self._stop.wait(), self._announce())]
        await asyncio.wait((*supervisors, *others), return_when=asyncio.FIRST_COMPLETED)
        ends = [supervisor.result() for supervisor in supervisors if supervisor.done()]
        exits = [end for end in ends if not was_drained(end)]
        for other in others:
            if other.done():
                other.result()
        for task in (*supervisors, *others):
            task.cancel()
        await asyncio.gather(*supervisors, *others, return_exceptions=True)
        status = await self._end(exits, drained=len(exits) < len(ends))
        # Last, after all that the other process had to say, and we.
        self._launch.output.drain(READERS_PATIENCE_S)
        for exit_ in exits:
            self._launch.log.write(f"shoal: {exit_message(exit_)}\n".encode(errors="replace"))
        return status

    async def _end(self, exits: list[Exit], *, drained: bool) -> int:
        """Stop the proxy, which finishes what it has accepted, and then the runtime."""
        if drained:
            self._say("stopping: the proxy was drained")
        elif not exits:
            self._say("stopping: the proxy finishes its requests (Ctrl-C again to kill)")
        await self._proxy.stop()
        await self._runtime.stop()
        if exits:
            return 1
        self._say("stopped")
        return INTERRUPTED if self._interrupted else 0

    def _on_signal(self, number: signal.Signals) -> None:
        self._interrupted = self._interrupted or self._stop.is_set() or number == signal.SIGINT
        if self._stop.is_set():
            self._proxy.kill()
            self._runtime.kill()
        self._stop.set()

    async def _start_runtime(self) -> Process:
        # A runtime that was killed leaves its socket behind; nobody else listens in this folder.
        self._socket.unlink(missing_ok=True)
        return await Process.start(MODULES["runtime"], self._environment, log=self._launch.log)

    async def _start_proxy(self) -> Process:
        return await Process.start(MODULES["proxy"], self._environment, log=self._launch.log)

    async def _announce(self) -> None:
        """Tell when the server is ready, the first time with its first request; never returns."""
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            while True:
                await self._runtime.started.wait()
                self._runtime.started.clear()
                started_s = time.monotonic()
                await self._until_ready(http)
                took_s = time.monotonic() - started_s
                self._say(f"ready after {took_s:.1f} s", Style.GREEN, ready_after_s=took_s)
                if not self._runtime.served:
                    self._runtime.served = self._proxy.served = True
                    await self._show_first_requests()

    async def _until_ready(self, http: httpx.AsyncClient) -> None:
        reason, say_s = "", time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = await http.get(f"{self._launch.admin_url}/readyz")
            except httpx.TransportError:
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            if answer.status_code == 200:
                return
            if time.monotonic() >= say_s and (now := _reason(answer)) != reason:
                reason, say_s = now, time.monotonic() + PATIENCE_S
                self._say(f"not ready yet: {reason}", not_ready=reason)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _show_first_requests(self) -> None:
        url = self._launch.url
        admin = self._launch.admin_url
        self._say(f"listening on {url}, metrics on {admin}/metrics", Style.BOLD, url=url, admin_url=admin)
        if port := self._environment.get("SHOAL_PROXY_GRPC_PORT"):
            target = _address(_reachable(self._launch.host), int(port))
            self._say(f"gRPC on {target}", grpc=target)
        if self._launch.host in EVERYWHERE:
            self._say(
                f"{self._launch.host} is every interface: whoever reaches this machine can ask the model, read metrics"
                " and stop the server; --host 127.0.0.1 is for this machine alone"
            )
        try:
            # A transport of our own: no HTTP proxy of the environment stands before this machine.
            transport = httpx.AsyncHTTPTransport()
            async with AsyncClient(url, self._launch.name, transport=transport) as client:
                curl, command = first_requests(url, await client.signature(), self._launch.files)
        except ShoalError as error:
            self._say(f"no example of a request: {error}")
        else:
            self._say(f"try it:\n  {curl}\n  {command}", first_requests=[curl, command])
        self._say("Ctrl-C stops")


def _reason(answer: httpx.Response) -> str:
    """Return why the proxy is not ready: its JSON ``reason``, or its text."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    reason = body.get("reason") if isinstance(body, dict) else None
    return str(reason or answer.text.strip()[:200])


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(host: str) -> str:
    """Return an address of this machine to ask at, for a host that means all of them."""
    return EVERYWHERE.get(host, host)
