"""The runtime and the proxy of one model: their environment, readiness and exit."""

import asyncio
import os
import shlex
import shutil
import ssl
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import orjson

from shoal.async_client import AsyncClient
from shoal.colours import Style, styled
from shoal.errors import ShoalError
from shoal.exchange import trust
from shoal.graph_file import ServedGraph
from shoal.keys import key_in
from shoal.outlet import Outlet, lines_lost
from shoal.printing import progress_bar
from shoal.processes import Process, Supervisor
from shoal.serving.errors import LocalError
from shoal.serving.fields import without_secrets
from shoal.serving.hints import first_requests
from shoal.serving.supervision import Exit
from shoal_schema.fields.addresses import Address
from shoal_schema.graphs.errors import GraphFault
from shoal_schema.interfaces.load import PATH as LOAD
from shoal_schema.process.log_lines import read

MODULES = {"runtime": "shoal_runtime", "proxy": "shoal_proxy"}
SOCKET, PROXY_SOCKET = "runtime.sock", "proxy.sock"
CERTIFICATE, KEY, CLIENT_CA = (f"SHOAL_PROXY_TLS_{name}" for name in ("CERTIFICATE", "KEY", "CLIENT_CA"))
DOCS = "SHOAL_PROXY_DOCS"
"""Enables the page to try a model; off by default in a cluster."""
KEYS = "SHOAL_PROXY_API_KEYS"
"""The file of API keys."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Hosts that mean every interface, and the loopback address that reaches them."""
POLL_INTERVAL_S = 0.1
NEVER_READY = (GraphFault.MISMATCH, GraphFault.CYCLE, GraphFault.INVALID)
"""Faults of a graph that waiting does not repair."""
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
DRAIN_TIMEOUT_S = 2.0
"""Time for a slow reader of the last output."""
SILENCE_S = 5.0
"""Time after which a slow start, or a slow step of it, is reported."""
ROUTINE = ("DEBUG", "INFO")
"""Levels of log lines that a drawn line replaces."""
CLEAR = "\r\x1b[K"
"""Moves a terminal's cursor to the start of the line and clears it."""


@dataclass(frozen=True, slots=True)
class Reporter:
    """Printer of the events of ``shoal serve``, as text or JSON."""

    output: Outlet
    """For events."""
    log: Outlet
    """For the logs of the processes."""
    quiet: bool = False
    """Print no events."""
    json: bool = False
    """Print one JSON object per line."""

    def report(self, line: str, *styles: Style, **facts: object) -> None:
        """Print an event: the line, or with ``json`` an object of the line and ``facts``."""
        if not self.quiet:
            document = orjson.dumps({"message": line, **facts}).decode()
            text = document if self.json else styled(line, *styles, stream=sys.stdout) if styles else line
            self.output.write(f"{CLEAR if self._draws else ''}{text}\n".encode(errors="replace"))

    def draw(self, line: str) -> bool:
        """Print a line that the next line overwrites; without a terminal, print nothing and return False."""
        if self._draws and not self.quiet:
            # A line that wraps cannot be overwritten.
            line = line[: shutil.get_terminal_size().columns - 1]
            self.output.write(f"{CLEAR}{line}\r".encode(errors="replace"))
        return self._draws

    @property
    def replaces_log(self) -> bool:
        """Whether a drawn line replaces the routine log lines of a start: both outputs are on a terminal."""
        return self._draws and not self.quiet and sys.stderr.isatty()

    @property
    def _draws(self) -> bool:
        return not self.json and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"

    def close(self) -> None:
        """Close both outputs, each after waiting up to 2 s until it is written."""
        for each in (self.output, self.log):
            each.close(DRAIN_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings and addresses with which to serve one model or graph."""

    name: str
    settings: Mapping[str, str]
    """Environment variables of both processes."""
    host: str
    """Address to listen on."""
    port: int
    admin_port: int
    reporter: Reporter
    files: tuple[str, ...] = ()
    """Files beside the model, one of which may be a sample item."""
    shared: bool = False
    """Whether other models share the port."""
    key_file: Path | None = None
    """The file of API keys; None for open access."""
    graph: ServedGraph | None = None
    """The graph that the proxy runs instead of a runtime."""

    def report(self, line: str, *styles: Style, **facts: object) -> None:
        """Print an event, with the model's name if there are several."""
        if self.shared:
            self.reporter.report(f"{self.name}: {line}", *styles, model=self.name, **facts)
        else:
            self.reporter.report(line, *styles, **facts)

    @property
    def url(self) -> str:
        """URL of the server for clients on this machine."""
        return url_of(self.host, self.port, "https" if self.certificate else "http")

    @property
    def certificate(self) -> str:
        """The file of the server's certificate; empty without TLS."""
        return self.settings.get(CERTIFICATE, "")

    @property
    def admin_url(self) -> str:
        """Base URL of the admin port, with /readyz and /metrics."""
        return url_of(self.host, self.admin_port)

    def environment(self, directory: str, sockets: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the runtime and the proxy.

        Args:
            directory: directory of their unix sockets.
            sockets: the proxy socket of each model that a graph may call, by model.
        """
        runtime = f"unix:{directory}/{SOCKET}"
        graph = {} if self.graph is None else self.graph.environment(sockets)
        return {
            # Output of a handler appears at once.
            "PYTHONUNBUFFERED": "1",
            **self.settings,
            **graph,
            "SHOAL_MODEL_NAME": self.name,
            "SHOAL_RUNTIME_LISTEN": runtime,
            "SHOAL_PROXY_RUNTIME": runtime,
            "SHOAL_PROXY_RUNTIME_INSTANCES": self.settings.get("SHOAL_RUNTIME_INSTANCES", "1"),
            "SHOAL_PROXY_LISTEN": (
                f"unix:{directory}/{PROXY_SOCKET}" if self.shared else str(Address(self.host, self.port))
            ),
            "SHOAL_PROXY_ADMIN_LISTEN": str(Address(self.host, self.admin_port)),
        }


def outlets(*, json: bool) -> tuple[Outlet, Outlet]:
    """Return the outlets for events (standard output) and for the processes' logs (standard error)."""

    def lost(count: int) -> str:
        line = lines_lost(count)
        return orjson.dumps({"message": line, "lines_lost": count}).decode() if json else line

    return Outlet(STANDARD_OUTPUT, lost=lost), Outlet(STANDARD_ERROR)


class StartLog:
    """Log of a model whose start is drawn: without debug and info lines until the model is ready."""

    def __init__(self, log: Outlet) -> None:
        self.is_ready = False
        self._log = log

    def write(self, text: bytes) -> None:
        """Queue whole lines; warnings, errors and output of the model stay."""
        if not self.is_ready:
            lines = text.splitlines(keepends=True)
            levels = [found.level if (found := read(line.decode(errors="replace").rstrip())) else "" for line in lines]
            kept = [line for line, level in zip(lines, levels, strict=True) if level not in ROUTINE]
            text = b"".join(CLEAR.encode() + line for line in kept)
        self._log.write(text)


def warn_of_everywhere(host: str, reporter: Reporter) -> None:
    """Print a warning if ``host`` means every interface."""
    if host in EVERYWHERE:
        reporter.report(
            f"{host} is every interface: any client that reaches this machine can query the model, read metrics and"
            " stop the server. Pass --host 127.0.0.1 to serve this machine only"
        )


class Pair:
    """The runtime and the proxy of one model, supervised together."""

    def __init__(self, launch: Launch, directory: str, sockets: Mapping[str, str]) -> None:
        self.launch = launch
        self.ready = asyncio.Event()
        """Set once the model has been ready."""
        self.end = ""
        """How the model ended while others continue; empty if it did not."""
        self._report = launch.report
        self._environment = launch.environment(directory, sockets)
        self._socket = Path(directory, SOCKET)
        # Options for the log are a wish to read it.
        drawn = launch.reporter.replaces_log and not launch.settings.keys() & {"SHOAL_LOG_LEVEL", "SHOAL_LOG_FORMAT"}
        self._start_log = StartLog(launch.reporter.log) if drawn else None
        self._log = self._start_log or launch.reporter.log
        self._runtime = Supervisor("runtime", self._start_runtime, self._report)
        own = without_secrets(self._environment)
        start_proxy = partial(Process.start, MODULES["proxy"], own, log=self._log)
        self._proxy = Supervisor("proxy", start_proxy, self._report)
        # A graph has no runtime: its proxy calls the models of its steps.
        # In the order of starting; they stop in reverse.
        self._processes = [self._proxy] if launch.graph else [self._runtime, self._proxy]

    async def run(self) -> list[Exit]:
        """Keep both processes running until one ends for good.

        An exit is final if a restart cannot help; other exits are followed by a restart. The other process keeps
        running. Cancelling this call leaves both running.

        Returns:
            The final exits.
        """
        supervisors = [asyncio.create_task(each.run()) for each in self._processes]
        announcing = asyncio.create_task(self._announce())
        try:
            await asyncio.wait((*supervisors, announcing), return_when=asyncio.FIRST_COMPLETED)
            ends = [supervisor.result() for supervisor in supervisors if supervisor.done()]
            # It ends only with an error, such as a graph that cannot work.
            if announcing.done():
                announcing.result()
            return ends
        finally:
            for task in (*supervisors, announcing):
                task.cancel()
            await asyncio.gather(*supervisors, announcing, return_exceptions=True)

    async def stop(self) -> None:
        """Stop the proxy, which completes its accepted requests, then the runtime."""
        for each in reversed(self._processes):
            await each.stop()

    def kill(self) -> None:
        """Kill both processes."""
        for each in reversed(self._processes):
            each.kill()

    async def _start_runtime(self) -> Process:
        # A killed runtime leaves its socket behind; no other process listens in this directory.
        self._socket.unlink(missing_ok=True)
        return await Process.start(MODULES["runtime"], self._environment, log=self._log)

    async def _announce(self) -> None:
        """Report each time the server becomes ready, the first time with a sample request; never returns."""
        # The environment's HTTP proxies do not apply to this machine.
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            while True:
                await self._processes[0].started.wait()
                self._processes[0].started.clear()
                started_s = time.monotonic()
                ready, instances = await self._until_ready(http)
                took_s = time.monotonic() - started_s
                several = f"{ready} of {instances} instances " if instances > 1 else ""
                self._report(f"{several}ready after {took_s:.1f} s", Style.GREEN, ready_after_s=took_s)
                if self._start_log is not None:
                    self._start_log.is_ready = True
                if not self._proxy.served:
                    # From now on an exit is a crash, not a wrong setting.
                    for each in self._processes:
                        each.served = True
                    await self._show_first_requests()
                    self.ready.set()
                if ready < instances and await self._until_all_ready(http):
                    took_s = time.monotonic() - started_s
                    self._report(f"all {instances} instances ready after {took_s:.1f} s", Style.GREEN)

    async def _until_all_ready(self, http: httpx.AsyncClient) -> bool:
        """Wait until all instances are ready; return False if the runtime has started again meanwhile."""
        while not self._processes[0].started.is_set():
            with suppress(httpx.TransportError):
                ready, instances = _instances(await http.get(f"{self.launch.admin_url}/readyz"))
                if ready == instances:
                    return True
            await asyncio.sleep(POLL_INTERVAL_S)
        return False

    async def _until_ready(self, http: httpx.AsyncClient) -> tuple[int, int]:
        """Poll /readyz until the server is ready, and report the progress of a slow start.

        Returns:
            The number of ready instances, and of all.

        Raises:
            LocalError: the models of a graph's steps do not match, or its composer cannot be loaded.
        """
        began_s, reason, now = time.monotonic(), "", "starting"
        report_s = began_s + SILENCE_S
        while True:
            with suppress(httpx.TransportError):
                response = await http.get(f"{self.launch.admin_url}/readyz")
                if response.status_code == 200:
                    return _instances(response)
                now = _reason(response)
            if self.launch.graph:
                # Waiting does not repair some faults of a graph.
                with suppress(httpx.TransportError):  # the proxy has exited, and its supervisor reports it
                    state = (await http.get(f"{self.launch.admin_url}{LOAD}")).json().get("graph") or {}
                    if state.get("reason") in NEVER_READY:
                        raise LocalError(f"the graph {self.launch.name} cannot work: {state.get('message')}")
            # On a terminal the reason is drawn in place, otherwise printed when it changes.
            shown = progress_bar(now) or f"{now}, {time.monotonic() - began_s:.0f} s"
            if self.launch.reporter.draw(f"{self.launch.name}: {shown}"):
                reason = now
            elif time.monotonic() >= report_s and now != reason:
                reason, report_s = now, time.monotonic() + SILENCE_S
                self._report(f"not ready yet: {reason}", not_ready=reason)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _show_first_requests(self) -> None:
        url, admin = self.launch.url, self.launch.admin_url
        if self.launch.shared:
            self._report(f"metrics on {admin}/metrics", admin_url=admin)
        else:
            self._report(f"listening on {url}, metrics on {admin}/metrics", Style.BOLD, url=url, admin_url=admin)
            if port := self._environment.get("SHOAL_PROXY_GRPC_PORT"):
                target = str(Address(EVERYWHERE.get(self.launch.host, self.launch.host), int(port)))
                self._report(f"gRPC on {target}", grpc=target)
            warn_of_everywhere(self.launch.host, self.launch.reporter)
        try:
            verify: ssl.SSLContext | bool = True
            if certificate := self.launch.certificate:
                # Trust the server's own certificate, which need not name this address.
                verify = trust(certificate, (certificate, self.launch.settings.get(KEY)))
                verify.check_hostname = False
            # A custom transport, so that no HTTP proxy of the environment is used.
            transport = httpx.AsyncHTTPTransport(verify=verify)
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
            self._report(f"there is no sample request: {error}")
        else:
            page: str | None = None
            if self._environment.get(DOCS, "").lower() == "true":
                place = f"/v2/models/{self.launch.name}" if self.launch.shared else ""
                page = f"{url}{place}/docs"
            if self.launch.key_file is not None:  # a browser sends no key
                page, file = None, shlex.quote(str(self.launch.key_file))
                # The file has NAME=KEY lines; the sample uses the first key.
                header = f'-H "x-api-key: $(head -n 1 {file} | cut -d = -f 2-)"'
                curl = curl.replace("curl ", f"curl {header} ", 1)
                command += f" --api-key-file {file}"
            lines = [curl, command, *([f"{page} in a browser"] if page else ())]
            self._report("\n  ".join(("try it:", *lines)), first_requests=[curl, command], docs_url=page)
        if not self.launch.shared:
            self._report("Ctrl-C stops")


def _instances(response: httpx.Response) -> tuple[int, int]:
    """Return the number of ready instances and of all, in a response of /readyz."""
    found = response.json().get("instances") or {"ready": 1, "of": 1}
    return found["ready"], found["of"]


def _reason(response: httpx.Response) -> str:
    """Return the reason in a response of /readyz: JSON, or plain text."""
    try:
        body = response.json()
    except ValueError:
        body = None
    found = body.get("reason") if isinstance(body, dict) else None
    return str(found or response.text.strip()[:200])


def url_of(host: str, port: int, scheme: str = "http") -> str:
    """Return the URL of a server for clients on this machine, even if the server listens on every interface."""
    return f"{scheme}://{Address(EVERYWHERE.get(host, host), port)}"
