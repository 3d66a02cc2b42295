"""One model's runtime and proxy: what they are told, when they are ready, how they ended."""

import asyncio
import os
import shlex
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from shoal.client import AsyncClient
from shoal.colours import Style, styled
from shoal.errors import ShoalError
from shoal.exchange import trust
from shoal.graph_file import Graph
from shoal.keys import key_in
from shoal.outlet import Outlet, lines_lost
from shoal.printing import progress_bar
from shoal.processes import Process, Supervisor
from shoal.serving.fields import MachineError, without_secrets
from shoal.serving.hints import first_requests
from shoal.serving.supervision import Exit
from shoal_schema.graphs.faults import Fault
from shoal_schema.load import PATH as LOAD

MODULES = {"runtime": "shoal_runtime", "proxy": "shoal_proxy"}
SOCKET, PROXY_SOCKET = "runtime.sock", "proxy.sock"
CERTIFICATE, KEY, CLIENT_CA = (f"SHOAL_PROXY_TLS_{name}" for name in ("CERTIFICATE", "KEY", "CLIENT_CA"))
DOCS = "SHOAL_PROXY_DOCS"
"""The page to try a model, which a cluster has only where it is asked for."""
KEYS = "SHOAL_PROXY_API_KEYS"
"""Where the keys of callers are."""
# Hosts that mean every interface, with an address of this machine that reaches them.
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
POLL_INTERVAL_S = 0.1
NEVER_READY = (Fault.MISMATCH, Fault.CYCLE, Fault.INVALID)
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
# What was said last waits this long for whoever reads it slowly.
READERS_PATIENCE_S = 2.0
# A start may take this long, and a step of a longer one, before it is said what is waited for.
PATIENCE_S = 5.0
CLEAR = "\r\x1b[K"
"""Takes a terminal's cursor back to an empty line."""


@dataclass(frozen=True, slots=True)
class Teller:
    """Who is told what happens.

    Attributes:
        output: where it is told.
        log: where the processes' logs go.
        quiet: do not tell.
        json: tell programs, an object a line.
    """

    output: Outlet
    log: Outlet
    quiet: bool = False
    json: bool = False

    def say(self, line: str, *styles: Style, **facts: object) -> None:
        """Tell what happens: the line to a person, the line and what it tells to a program."""
        if not self.quiet:
            told = orjson.dumps({"message": line, **facts}).decode()
            text = told if self.json else styled(line, *styles, stream=sys.stdout) if styles else line
            self.output.write(f"{CLEAR if self._draws else ''}{text}\n".encode(errors="replace"))

    def draw(self, line: str) -> bool:
        """Show what passes in one line, whose place what is told next takes; return False where no terminal is."""
        if self._draws and not self.quiet:
            self.output.write(f"{CLEAR}{line}\r".encode(errors="replace"))
        return self._draws

    @property
    def _draws(self) -> bool:
        return not self.json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def close(self) -> None:
        """Wait a while until all that was told is read."""
        for each in (self.output, self.log):
            each.close(READERS_PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Launch:
    """What to serve and where.

    Attributes:
        name: the model's name, the same for both processes.
        settings: environment variables of both processes.
        host: address that callers ask at; its ports follow.
        teller: tells what happens.
        files: what lies beside the model, one of which may be an item to send.
        shared: other models share the port, and callers' requests come by a front.
        key_file: holds the keys of callers; None: everybody may ask.
        graph: what the proxy runs in the place of a runtime; None: there is one.
    """

    name: str
    settings: Mapping[str, str]
    host: str
    port: int
    admin_port: int
    teller: "Teller"
    files: tuple[str, ...] = ()
    shared: bool = False
    key_file: Path | None = None
    graph: Graph | None = None

    def say(self, line: str, *styles: Style, **facts: object) -> None:
        """Tell what happens, and where several models are served, to which."""
        if self.shared:
            self.teller.say(f"{self.name}: {line}", *styles, model=self.name, **facts)
        else:
            self.teller.say(line, *styles, **facts)

    @property
    def url(self) -> str:
        """Where callers on this machine reach the server."""
        return url_of(self.host, self.port, "https" if self.certificate else "http")

    @property
    def certificate(self) -> str:
        """The file of the certificate that callers are shown; empty without TLS."""
        return self.settings.get(CERTIFICATE, "")

    @property
    def admin_url(self) -> str:
        """Where the proxy answers /readyz and /metrics."""
        return url_of(self.host, self.admin_port)

    def environment(self, folder: str, sockets: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of both processes, whose socket lies in ``folder``; ``sockets`` are other models'."""
        runtime = f"unix:{folder}/{SOCKET}"
        graph = {} if self.graph is None else self.graph.environment(sockets)
        return {
            # What a handler prints is seen when it prints it, not when a buffer is full.
            "PYTHONUNBUFFERED": "1",
            **self.settings,
            **graph,
            "SHOAL_MODEL_NAME": self.name,
            "SHOAL_RUNTIME_LISTEN": runtime,
            "SHOAL_PROXY_RUNTIME": runtime,
            "SHOAL_PROXY_LISTEN": (f"unix:{folder}/{PROXY_SOCKET}" if self.shared else _address(self.host, self.port)),
            "SHOAL_PROXY_ADMIN_LISTEN": _address(self.host, self.admin_port),
        }


def outlets(*, json: bool) -> tuple[Outlet, Outlet]:
    """Return where to tell what happens, and where both processes' logs go."""

    def lost(count: int) -> str:
        line = lines_lost(count)
        return orjson.dumps({"message": line, "lines_lost": count}).decode() if json else line

    return Outlet(STANDARD_OUTPUT, lost=lost), Outlet(STANDARD_ERROR)


def tell_of_everywhere(host: str, teller: Teller) -> None:
    """Tell what it means to listen on every interface, where that is so."""
    if host in EVERYWHERE:
        teller.say(
            f"{host} is every interface: whoever reaches this machine can ask the model, read metrics"
            " and stop the server; --host 127.0.0.1 is for this machine alone"
        )


class Pair:
    """The two processes of one model, and what is told about them, in a folder of their own."""

    def __init__(self, launch: Launch, folder: str, sockets: Mapping[str, str]) -> None:
        self.launch = launch
        self.ready = asyncio.Event()
        """Set once the model could be asked."""
        self.end = ""
        """How it ended, if it did and others go on."""
        self._say = launch.say
        self._environment = launch.environment(folder, sockets)
        self._socket = Path(folder, SOCKET)
        self._runtime = Supervisor("runtime", self._start_runtime, self._say)
        self._proxy = Supervisor("proxy", self._start_proxy, self._say)
        # A graph has no runtime: its proxy asks those of its steps.
        self._processes = [self._proxy] if launch.graph else [self._runtime, self._proxy]

    async def run(self) -> list[Exit]:
        """Keep both running until one cannot work, or the proxy was drained; return how that ended.

        The other one is left as it is, and both are when this is cancelled.
        """
        supervisors = [asyncio.create_task(each.run()) for each in self._processes]
        announcing = asyncio.create_task(self._announce())
        try:
            await asyncio.wait((*supervisors, announcing), return_when=asyncio.FIRST_COMPLETED)
            ends = [supervisor.result() for supervisor in supervisors if supervisor.done()]
            if announcing.done():
                announcing.result()
            return ends
        finally:
            for task in (*supervisors, announcing):
                task.cancel()
            await asyncio.gather(*supervisors, announcing, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the proxy, which finishes what it has accepted, and then the runtime."""
        for each in reversed(self._processes):
            await each.stop()

    def kill(self) -> None:
        """End both at once."""
        for each in reversed(self._processes):
            each.kill()

    async def _start_runtime(self) -> Process:
        # A runtime that was killed leaves its socket behind; nobody else listens in this folder.
        self._socket.unlink(missing_ok=True)
        return await Process.start(MODULES["runtime"], self._environment, log=self.launch.teller.log)

    async def _start_proxy(self) -> Process:
        return await Process.start(MODULES["proxy"], without_secrets(self._environment), log=self.launch.teller.log)

    async def _announce(self) -> None:
        """Tell when the server is ready, the first time with its first request; never returns."""
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            while True:
                await self._processes[0].started.wait()
                self._processes[0].started.clear()
                started_s = time.monotonic()
                await self._until_ready(http)
                took_s = time.monotonic() - started_s
                self._say(f"ready after {took_s:.1f} s", Style.GREEN, ready_after_s=took_s)
                if not self._proxy.served:
                    for each in self._processes:
                        each.served = True
                    await self._show_first_requests()
                    self.ready.set()

    async def _until_ready(self, http: httpx.AsyncClient) -> None:
        reason, say_s = "", time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = await http.get(f"{self.launch.admin_url}/readyz")
            except httpx.TransportError:
                await asyncio.sleep(POLL_INTERVAL_S)
                continue
            if answer.status_code == 200:
                return
            now = _reason(answer)
            if self.launch.graph:
                await self._check_graph(http)
            if (bar := progress_bar(now)) and self.launch.teller.draw(f"{self.launch.name}: {bar}"):
                reason = now
            elif time.monotonic() >= say_s and now != reason:
                reason, say_s = now, time.monotonic() + PATIENCE_S
                self._say(f"not ready yet: {reason}", not_ready=reason)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _check_graph(self, http: httpx.AsyncClient) -> None:
        """Raise what no waiting mends.

        Raises:
            MachineError: the models of the graph's steps do not fit, or its composer's code cannot be loaded.
        """
        try:
            state = (await http.get(f"{self.launch.admin_url}{LOAD}")).json().get("graph") or {}
        except httpx.TransportError:  # it has ended, and whoever watches it says why
            return
        if state.get("reason") in NEVER_READY:
            raise MachineError(f"the graph {self.launch.name} cannot work: {state.get('message')}")

    async def _show_first_requests(self) -> None:
        url, admin = self.launch.url, self.launch.admin_url
        if self.launch.shared:
            self._say(f"metrics on {admin}/metrics", admin_url=admin)
        else:
            self._say(f"listening on {url}, metrics on {admin}/metrics", Style.BOLD, url=url, admin_url=admin)
            if port := self._environment.get("SHOAL_PROXY_GRPC_PORT"):
                target = _address(EVERYWHERE.get(self.launch.host, self.launch.host), int(port))
                self._say(f"gRPC on {target}", grpc=target)
            tell_of_everywhere(self.launch.host, self.launch.teller)
        try:
            # A transport of our own: no HTTP proxy of the environment stands before this machine.
            transport = httpx.AsyncHTTPTransport(verify=self._own_trust())
            key = key_in(self.launch.key_file)
            async with AsyncClient(url, self.launch.name, api_key=key, transport=transport) as client:
                signature = await client.signature()
                curl, command = first_requests(
                    url,
                    signature,
                    self.launch.files,
                    among_others=self.launch.shared,
                    certificate=self.launch.certificate,
                )
        except (ShoalError, OSError) as error:
            self._say(f"no example of a request: {error}")
        else:
            page = self._page()
            if self.launch.key_file is not None:  # a browser shows no key
                page, file = None, shlex.quote(str(self.launch.key_file))
                header = f'-H "x-api-key: $(head -n 1 {file} | cut -d = -f 2-)"'
                curl = curl.replace("curl ", f"curl {header} ", 1)
                command += f" --api-key-file {file}"
            lines = [curl, command, *([f"{page} in a browser"] if page else ())]
            self._say("\n  ".join(("try it:", *lines)), first_requests=[curl, command], docs_url=page)
        if not self.launch.shared:
            self._say("Ctrl-C stops")

    def _own_trust(self) -> ssl.SSLContext | bool:
        """Return what it takes to ask our own proxy, whose certificate need not name this address."""
        certificate, key = self.launch.certificate, self.launch.settings.get(KEY)
        if not certificate:
            return True
        context = trust(certificate, (certificate, key))
        context.check_hostname = False
        return context

    def _page(self) -> str | None:
        """Return where a browser finds the page to try the model, if it is on."""
        if self._environment.get(DOCS, "").lower() != "true":
            return None
        place = f"/v2/models/{self.launch.name}" if self.launch.shared else ""
        return f"{self.launch.url}{place}/docs"


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


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Return where a server is reached from this machine, also one that listens on all of its addresses."""
    return f"{scheme}://{_address(EVERYWHERE.get(host, host), port)}"
