"""A container across all its runs, with its state on disk, and one run: the shim's process and its files.

A run outlives the kubelet. Also tests whether this machine allows the mounts of containers.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from subprocess import DEVNULL, Popen

import shoal_local
from shoal_local.kubelet.container_spec import TERMINATION_LOG
from shoal_local.kubelet.containers import Exit, Member, ObservedContainer, next_streak
from shoal_local.kubelet.probing import Kind, Prober
from shoal_local.kubelet.records import PodRecord, read_json
from shoal_local.kubelet.shim import identity, is_alive, write_json
from shoal_local.objects import Object

SHIM = [sys.executable, "-S", "-m", "shoal_local.kubelet.shim"]
SHIM_ENVIRONMENT = {"PYTHONPATH": str(Path(shoal_local.__file__).parent.parent)}
EXIT_UNKNOWN = 137
"""Exit code of a run whose end was not recorded, because its shim was killed too."""


class Run:
    """A run of a container, started by this kubelet or an earlier one."""

    def __init__(self, directory: Path, container: Object) -> None:
        self.directory = directory
        self.container = container
        self.ended = asyncio.Event()
        self._shim: Object | None = None

    @classmethod
    def start(cls, directory: Path, container: Object) -> "Run":
        """Start a container's shim; return before the container's process runs."""
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / "container.json", container)
        with (directory / "shim.log").open("wb") as log:
            argv = [*SHIM, str(directory)]
            shim = Popen(
                argv, env=SHIM_ENVIRONMENT, cwd="/", stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        # The event loop reaps it by its pid; Popen must not warn that it was not waited for.
        shim.returncode = 0
        run = cls(directory, container)
        run._shim = identity(shim.pid)
        write_json(directory / "shim.json", run._shim)
        run._watch(shim.pid)
        return run

    @classmethod
    def adopt(cls, directory: Path) -> "Run | None":
        """Adopt the run of an earlier kubelet; return None if it never began."""
        container = read_json(directory / "container.json")
        if container is None:
            return None
        run = cls(directory, container)
        # The earlier kubelet may have been killed just after it started the shim, which writes its own file soon.
        for _ in range(20):
            run._shim = read_json(directory / "shim.json") or read_json(directory / "running.json")
            if run._shim or (directory / "exit.json").exists():
                break
            time.sleep(0.1)
        if run._shim is not None and is_alive(run._shim):
            run._watch(run._shim["pid"])
        else:
            run._settle()
        return run

    @property
    def started_at(self) -> float | None:
        """Return the start in seconds since 1970, or None before the start."""
        found = read_json(self.directory / "running.json")
        return datetime.fromisoformat(found["started_at"]).timestamp() if found else None

    @property
    def exit(self) -> Exit | None:
        """Return how the run ended, or None while the run continues."""
        found = read_json(self.directory / "exit.json")
        # The shim writes the file just before it ends.
        if found is None or not self.ended.is_set():
            return None
        finished = datetime.fromisoformat(found["finished_at"]).timestamp()
        return Exit(
            code=found["code"],
            signal=found.get("signal", 0),
            started_at=self.started_at or finished,
            finished_at=finished,
            reason=found.get("reason", ""),
            message=found.get("message", ""),
        )

    async def stop_gracefully(self, grace_s: float) -> None:
        """Send SIGTERM, and kill after the grace period."""
        self._send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.ended.wait()
        except TimeoutError:
            # The shim kills the container's process and its descendants.
            self._send(signal.SIGUSR1)

    def _send(self, number: int) -> None:
        if self._shim is not None and not self.ended.is_set() and is_alive(self._shim):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._shim["pid"], number)

    def _watch(self, pid: int) -> None:
        # A pidfd becomes readable when its process ends, whatever its parent is.
        try:
            file = os.pidfd_open(pid)
        except ProcessLookupError:
            self._settle()
            return
        loop = asyncio.get_running_loop()

        def over() -> None:
            loop.remove_reader(file)
            os.close(file)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            self._settle()

        loop.add_reader(file, over)

    def _settle(self) -> None:
        """Mark the run as ended; if its shim was killed, kill the container."""
        if not (self.directory / "exit.json").exists():
            running = read_json(self.directory / "running.json")
            if running:
                kill_session(running)
            now = datetime.now().astimezone().isoformat()
            message = "the process that watches over the container was killed, or the machine restarted"
            lost = {"code": EXIT_UNKNOWN, "reason": "ContainerStatusUnknown", "message": message}
            write_json(self.directory / "exit.json", {**lost, "finished_at": now})
        self.ended.set()


def kill_session(running: Object) -> None:
    """Kill the container's session, if its leader is still the process that the shim started."""
    pid = running["process"]
    try:
        # The pid may belong to another process by now, also after a reboot.
        ours = os.getsid(pid) == pid and identity(pid)["boot"] == running["boot"]
        started = identity(pid)["start_ticks"] >= running["start_ticks"]
    except OSError:
        return
    if ours and started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


MOUNTS_UNAVAILABLE = "--no-mounts"
"""Name of the kubelet's option."""
_TRIAL = [sys.executable, "-S", "-m", "shoal_local.kubelet.namespaces"]


def mount_error() -> str:
    """Return why this machine refuses mounts, or '' if it allows them.

    A separate process tries all steps: some systems forbid user namespaces, others allow them without mounts.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        done = subprocess.run(
            [*_TRIAL, directory], env=SHIM_ENVIRONMENT, cwd="/", capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def mount_error_message(refusal: str) -> str:
    """Return the message that mounts are refused and paths replace them."""
    return f"cannot mount volumes on this machine ({refusal}): containers get the paths of their directories instead"


MAX_MESSAGE_BYTES, MAX_MESSAGE_LINES = 4096, 80
_MAX_FALLBACK_BYTES = 2048


class Container:
    """A container, its current run and its probes."""

    def __init__(self, member: Member, record: PodRecord, on_change: Callable[[], None]) -> None:
        self.member = member
        self.run: Run | None = None
        self.state = ObservedContainer()
        self._record = record
        self._on_change = on_change
        self._ended: Exit | None = None
        self._probing: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None

    @property
    def next_attempt(self) -> int:
        """Return the number of the next run."""
        return self.state.attempt + 1

    def adopt(self) -> None:
        """Restore the state on disk and adopt the run of an earlier kubelet."""
        known = read_json(self._record.container(self.member.name) / "state.json")
        if known is None:
            return
        # Written before each run, so this is the latest run.
        previous = Exit(**known["previous"]) if known["previous"] else None
        self.state = ObservedContainer(known["attempt"], previous=previous, streak=known["streak"])
        self.run = Run.adopt(self._record.run(self.member.name, self.state.attempt))
        if self.run is None:
            # The earlier kubelet was killed after it wrote the state and before it started the run.
            self.state.attempt -= 1
            self._ended = previous
        else:
            self._follow(self.run)

    def start(self, container: Object, now: float) -> Run:
        """Start the next run."""
        ended, attempt, streak = self._exit(), self.next_attempt, self.state.streak
        if ended is not None:
            streak = next_streak(streak, ended.finished_at - ended.started_at)
        self.state, self._ended = ObservedContainer(attempt, previous=ended, streak=streak), None
        state = {"attempt": attempt, "streak": streak, "previous": asdict(ended) if ended else None}
        # Written before the start: after a kill in between, the next kubelet counts no run twice.
        write_json(self._record.container(self.member.name) / "state.json", state)
        self.run = Run.start(self._record.run(self.member.name, attempt), container)
        self._follow(self.run)
        return self.run

    def _follow(self, run: Run) -> None:
        async def until_ended() -> None:
            await run.ended.wait()
            self.stop_probing()
            self._on_change()

        self._waiting = asyncio.create_task(until_ended())

    def probe(self, prober: Prober, *, started: bool = False, ready: bool = False) -> None:
        """Start to probe the current run."""

        def report(verdicts: Mapping[Kind, bool]) -> None:
            self.state.ready = verdicts.get(Kind.READINESS, self.state.ready)
            self.state.started |= verdicts.get(Kind.STARTUP, False)
            self.state.healthy &= all(good for kind, good in verdicts.items() if kind is not Kind.READINESS)
            self._on_change()

        self._probing = asyncio.create_task(prober.run(report, started=started, ready=ready))

    def stop_probing(self) -> None:
        """Stop the probes."""
        if self._probing is not None:
            self._probing.cancel()

    def release(self) -> None:
        """Stop following the current run; its process continues."""
        self.stop_probing()
        if self._waiting is not None:
            self._waiting.cancel()

    def observe(self, now: float) -> ObservedContainer:
        """Return a copy of the container's state now."""
        running = self.run is not None and not self.run.ended.is_set()
        # The shim may not have recorded the start yet.
        since = (self.run.started_at or now) if running and self.run else None
        return replace(self.state, running_since=since, exit=self._exit())

    def _exit(self) -> Exit | None:
        """Return how the latest run ended, with its termination message."""
        if self._ended is None and self.run is not None and (found := self.run.exit):
            message = found.message
            if not message:
                try:
                    text = (self.run.directory / TERMINATION_LOG).read_bytes()[-MAX_MESSAGE_BYTES:]
                except FileNotFoundError:
                    text = b""
                policy, log = self.member.spec.get("terminationMessagePolicy"), self.run.directory / "log"
                if not text and found.code and policy == "FallbackToLogsOnError" and log.exists():
                    # A line of the log is: time, stream, tag, text.
                    lines = log.read_bytes()[-16 * MAX_MESSAGE_BYTES :].splitlines()[-MAX_MESSAGE_LINES:]
                    text = b"\n".join(line.split(b" ", 3)[-1] for line in lines)[-_MAX_FALLBACK_BYTES:]
                message = text.decode(errors="replace").strip()
            self._ended = replace(found, message=message)
        return self._ended
