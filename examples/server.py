"""Run ``shoal serve`` beside a program for as long as a ``with`` block lasts."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from shoal_schema.interfaces.bounds import ADVICE, Bound

PR_SET_PDEATHSIG = 1
POLL_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 30.0
LOG_TAIL_LINES = 15


class ServerError(Exception):
    """``shoal serve`` did not start, or ended; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready.

    Args:
        url: where it takes requests.
        admin_url: where it answers /metrics.
        pid: of ``shoal serve``; proxy and runtime are its children.
    """

    url: str
    admin_url: str
    pid: int

    def metrics(self) -> str:
        """Return the proxy's metrics as Prometheus text."""
        return httpx.get(f"{self.admin_url}/metrics", trust_env=False).raise_for_status().text

    def bottleneck(self) -> str:
        """Return what bounds the rate, as the proxy says."""
        accept = {"accept": "application/json"}
        answer = httpx.get(f"{self.admin_url}/v1/explain", headers=accept, trust_env=False).raise_for_status()
        return ADVICE[Bound(answer.json()["report"]["bound"])].cause


@contextmanager
def serving(
    target: Path | str, *, fields: Mapping[str, str] | None = None, start_timeout_s: float = 120.0
) -> Iterator[Server]:
    """Serve ``target`` on free ports of 127.0.0.1; stop the server when the block ends.

    Args:
        target: a manifest, a model directory, a folder with one manifest, or a URI.
        fields: of the InferenceService, set over those of the manifest.
        start_timeout_s: how long loading and warming up may take.

    Raises:
        ServerError: it ended or was not ready in time.
    """
    port, admin_port = free_ports(2)
    options = [f"--port={port}", f"--admin-port={admin_port}"]
    options += [f"--set={key}={value}" for key, value in (fields or {}).items()]
    command = [sys.executable, "-m", "shoal", "serve", str(target), *options]
    with tempfile.TemporaryFile() as log:
        process = start(command, log)
        server = Server(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", process.pid)
        try:
            wait_until_ready(server, process, log, start_timeout_s)
            yield server
        finally:
            stop(process)


def free_ports(count: int) -> list[int]:
    """Return distinct free ports of 127.0.0.1."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def start(
    command: list[str], log: BinaryIO, more_environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that stops when this one ends, even if this one is killed.

    It has a process group of its own: Ctrl-C reaches this program alone, which then stops the
    server once, in order; a server signalled twice would kill its model.
    """
    return subprocess.Popen(
        command,
        env={**os.environ, **(more_environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=stop_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
    )


def stop_with_parent() -> None:
    """Ask the kernel for a SIGTERM when the parent dies; between fork and exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def wait_until_ready(server: Server, process: subprocess.Popen[bytes], log: BinaryIO, timeout_s: float) -> None:
    """Return when the proxy says it is ready."""
    deadline_s = time.monotonic() + timeout_s
    while not is_ready(server):
        if (status := process.poll()) is not None:
            raise ServerError(f"shoal serve ended with status {status}; its log ends:\n{tail(log)}")
        if time.monotonic() > deadline_s:
            raise ServerError(f"not ready within {timeout_s:g} s; its log ends:\n{tail(log)}")
        time.sleep(POLL_INTERVAL_S)


def is_ready(server: Server) -> bool:
    """Ask the proxy once."""
    try:
        answer = httpx.get(f"{server.admin_url}/readyz", trust_env=False, timeout=5)
    except httpx.TransportError:
        return False
    return answer.status_code == httpx.codes.OK


def tail(log: BinaryIO) -> str:
    """Return the last lines of a log that another process writes."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(size - 20_000, 0))
    lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_TAIL_LINES:])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the server in order; kill it, and proxy and runtime with it, if that takes too long."""
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
