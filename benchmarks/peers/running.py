"""Run one server at a time, whole process trees: start, wait until it answers, count its processor time, stop."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.peers.environments import python_with
from benchmarks.peers.launching import Launch, launch
from benchmarks.peers.tuning import Settings
from benchmarks.peers.workload import Job, Workload
from benchmarks.processes import PROC, cpu_s
from examples.server import free_ports, stop_with_parent, tail

PR_SET_CHILD_SUBREAPER = 36
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.2


class PeerError(Exception):
    """A server did not start, or gave a wrong answer; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers.

    Args:
        port: of 127.0.0.1.
        launch: where to post what.
        pid: of its first process.
        started_s: how long starting took.
    """

    port: int
    launch: Launch
    pid: int
    started_s: float

    @property
    def url(self) -> str:
        """Where a row is posted."""
        return f"http://127.0.0.1:{self.port}{self.launch.path}"

    def cpu_s(self) -> float:
        """Return the processor time that the server's living processes have used."""
        total_s = 0.0
        for pid in [self.pid, *descendants(self.pid)]:
            with suppress(FileNotFoundError, ProcessLookupError):
                total_s += cpu_s(pid)
        return total_s


def adopt_orphans() -> None:
    """Become the parent of what a server's processes leave behind, so that none outlives its turn."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def interpreter(peer: str) -> str:
    """Return the Python that a server runs in; Shoal's is this one."""
    return sys.executable if peer == "shoal" else str(python_with(peer.partition("-graph")[0]))


@contextmanager
def served(peer: str, workload: Workload, settings: Settings) -> Iterator[Served]:
    """Serve a model until the block ends.

    Raises:
        PeerError: it ended, or did not answer in time.
        InstallError: it cannot be installed.
    """
    python = interpreter(peer)
    port, *others = free_ports(3)
    job = Job(workload, port, dict(settings))
    started = launch(peer, job, (others[0], others[1]))
    with tempfile.TemporaryDirectory(prefix=f"peer-{peer}-") as folder, tempfile.TemporaryFile() as log:
        start_s = time.monotonic()
        process = start(python, started, Path(folder), log.fileno())
        try:
            server = Served(port, started, process.pid, 0.0)
            try:
                wait_until_answering(server, process)
            except PeerError as error:
                raise PeerError(f"{error}; its log ends:\n{tail(log)}") from None
            yield Served(port, started, process.pid, time.monotonic() - start_s)
        finally:
            stop(process)


def start(python: str, started: Launch, folder: Path, log: int) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, with no more of our environment than it needs."""
    for name, content in started.files.items():
        (folder / name).write_bytes(content)
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "TMPDIR": str(folder), **started.environment}
    return subprocess.Popen(
        [python, *started.command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=stop_with_parent,  # noqa: PLW1509, no thread of ours runs beside it
    )


def wait_until_answering(server: Served, process: subprocess.Popen[bytes]) -> None:
    """Return when a row is answered with 200."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    headers = {"content-type": "application/json"}
    problem = "nothing listens"
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise PeerError(f"it ended with status {process.returncode}")
        try:
            answer = httpx.post(
                server.url, content=server.launch.bodies[0], headers=headers, timeout=5, trust_env=False
            )
        except httpx.TransportError:
            time.sleep(POLL_INTERVAL_S)
            continue
        if answer.status_code == httpx.codes.OK:
            return
        problem = f"it answers {answer.status_code}: {answer.text[:300]}"
        time.sleep(POLL_INTERVAL_S)
    raise PeerError(f"not ready within {START_TIMEOUT_S:g} s: {problem}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then kill what is left of it, wherever it moved."""
    family = [process.pid, *descendants(process.pid)]
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_TIMEOUT_S)
    family += descendants(process.pid)
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    reap_orphans()


def reap_orphans() -> None:
    """Kill and bury processes that became ours when their parents died."""
    while strays := children(os.getpid()):
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def descendants(pid: int) -> list[int]:
    """Return the living children of a process, theirs, and so on."""
    found = children(pid)
    for child in found:
        found += [each for each in children(child) if each not in found]
    return found


def children(pid: int) -> list[int]:
    """Return the living children of all threads of a process."""
    found: list[int] = []
    for path in (PROC / str(pid) / "task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += [int(word) for word in path.read_text().split()]
    return found
