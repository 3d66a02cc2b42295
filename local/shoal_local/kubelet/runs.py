"""One run of a container: the shim's process and its files. The kubelet may come and go."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from datetime import datetime
from pathlib import Path
from subprocess import DEVNULL, Popen

import shoal_local
from shoal_local.kubelet.containers import Exit
from shoal_local.kubelet.records import read_json, write_json
from shoal_local.kubelet.shim import identity, lives
from shoal_local.objects import Object

SHIM = [sys.executable, "-S", "-m", "shoal_local.kubelet.shim"]
SHIM_ENVIRONMENT = {"PYTHONPATH": str(Path(shoal_local.__file__).parent.parent)}
LOST = 137
"""Exit code of a run whose end nobody saw: everything was killed at once."""


class Run:
    """A run that was started, by this kubelet or an earlier one."""

    def __init__(self, folder: Path, container: Object) -> None:
        self.folder = folder
        self.container = container
        self.ended = asyncio.Event()
        self._shim: Object | None = None

    @classmethod
    def start(cls, folder: Path, container: Object) -> "Run":
        """Start a container; its process runs soon after."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "container.json", container)
        with (folder / "shim.log").open("wb") as log:
            argv = [*SHIM, str(folder)]
            shim = Popen(
                argv, env=SHIM_ENVIRONMENT, cwd="/", stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        # The event loop reaps it by its number; Popen must not complain that nobody waited.
        shim.returncode = 0
        run = cls(folder, container)
        run._shim = identity(shim.pid)
        write_json(folder / "shim.json", run._shim)
        run._watch(shim.pid)
        return run

    @classmethod
    def adopt(cls, folder: Path) -> "Run | None":
        """Take a run over from an earlier kubelet; None when it never began."""
        container = read_json(folder / "container.json")
        if container is None:
            return None
        run = cls(folder, container)
        run._shim = _shim_of(folder)
        if run._shim is not None and lives(run._shim):
            run._watch(run._shim["pid"])
        else:
            run._settle()
        return run

    @property
    def started_at(self) -> float | None:
        """Return when the process began to run, in seconds since 1970; None while it has not."""
        found = read_json(self.folder / "running.json")
        return datetime.fromisoformat(found["started_at"]).timestamp() if found else None

    @property
    def exit(self) -> Exit | None:
        """Return how the run ended; None while it lives."""
        found = read_json(self.folder / "exit.json")
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

    def terminate(self) -> None:
        """Send SIGTERM to the container's process."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the container's process and everything that it started."""
        self._send(signal.SIGUSR1)

    async def bring_down(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL when the grace is over."""
        self.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await self.ended.wait()
        except TimeoutError:
            self.kill()

    def _send(self, number: int) -> None:
        if self._shim is not None and not self.ended.is_set() and lives(self._shim):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._shim["pid"], number)

    def _watch(self, pid: int) -> None:
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
        """Note the end. A shim that was killed could not write it, and what it ran must not live on alone."""
        if not (self.folder / "exit.json").exists():
            running = read_json(self.folder / "running.json")
            if running:
                kill_session(running)
            now = datetime.now().astimezone().isoformat()
            message = "the process that watches over the container was killed, or the machine restarted"
            lost = {"code": LOST, "reason": "ContainerStatusUnknown", "message": message}
            write_json(self.folder / "exit.json", {**lost, "finished_at": now})
        self.ended.set()


def _shim_of(folder: Path) -> Object | None:
    """Return the shim's identity. One that was started just before the kubelet was killed is waited for."""
    for _ in range(20):
        found = read_json(folder / "shim.json") or read_json(folder / "running.json")
        if found or (folder / "exit.json").exists():
            return found
        time.sleep(0.1)
    return None


def kill_session(running: Object) -> None:
    """Kill the container's session, if its leader is the process that the shim started."""
    pid = running["process"]
    try:
        ours = os.getsid(pid) == pid and identity(pid)["boot"] == running["boot"]
        started = identity(pid)["start_ticks"] >= running["start_ticks"]
    except OSError:
        return
    if ours and started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
