"""Child processes that die with us: one that runs, and its keeper that starts it again."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from shoal.serving.supervision import LAST_WORDS, Backoff, Death, after_death, is_final, obituary

TETHER = str(Path(__file__).with_name("tether.py"))
TAIL_BYTES = 8192
# A dead process's last words arrive within this; its own children may hold the pipe longer.
LAST_WORDS_S = 1.0


class Process:
    """A running component: ``python -m MODULE`` in a session of its own, tied to our life."""

    def __init__(self, child: asyncio.subprocess.Process, log: BinaryIO | None) -> None:
        self.started_s = time.monotonic()
        self.pid = child.pid
        self._child = child
        self._tail = b""
        self._last_words = b""
        self._reader = asyncio.create_task(self._pass_through(log))

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str], *, log: BinaryIO | None) -> Self:
        """Start ``python -m module``; its output goes to ``log``, or nowhere."""
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", TETHER, str(os.getpid())),
            # -P: not our caller's folder first, which may be a model's with a file of any name in it.
            *(sys.executable, "-P", "-m", module),
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C reaches the terminal's whole process group; ours stop in order instead.
            start_new_session=True,
        )
        return cls(child, log)

    @property
    def last_line(self) -> str:
        """The last line that the process wrote."""
        lines = (self._last_words or self._tail).decode(errors="replace").rstrip().splitlines()
        return lines[-1].strip() if lines else ""

    async def wait(self) -> int:
        """Wait until the process ended; return its exit status, or minus the signal's number.

        What the process had started and left behind is ended too: it may hold the device's memory.
        """
        returncode = await self._child.wait()
        self.kill()
        await asyncio.wait({self._reader}, timeout=LAST_WORDS_S)
        self._reader.cancel()
        return returncode

    def terminate(self) -> None:
        """Ask the process to stop."""
        with suppress(ProcessLookupError):
            self._child.terminate()

    def kill(self) -> None:
        """End the process, and whatever it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def _pass_through(self, log: BinaryIO | None) -> None:
        assert self._child.stdout is not None
        begun = b""
        while chunk := await self._child.stdout.read(65536):
            self._tail = (self._tail + chunk)[-TAIL_BYTES:]
            *lines, begun = (begun + chunk).split(b"\n")
            whole = b"".join(line + b"\n" for line in lines if not self._keeps(line))
            if len(begun) > TAIL_BYTES:
                whole, begun = whole + begun, b""
            _write(log, whole)
        if begun and not self._keeps(begun):
            _write(log, begun + b"\n")

    def _keeps(self, line: bytes) -> bool:
        """Keep the line that says why the process ends: whoever tells of the end tells it once, and last."""
        if LAST_WORDS.match(line):
            self._last_words = line
            return True
        return False


def _write(log: BinaryIO | None, text: bytes) -> None:
    if log is None or not text:
        return
    # Nobody may read our log any more; the process's pipe must be emptied all the same.
    with suppress(OSError):
        log.write(text)
        log.flush()


class Keeper:
    """Keeps one component running: starts it again when it dies, until its death is final."""

    def __init__(
        self,
        role: str,
        start: Callable[[], Awaitable[Process]],
        say: Callable[[str], None],
    ) -> None:
        self.served = False
        self.started = asyncio.Event()
        self._role = role
        self._start = start
        self._say = say
        self._process: Process | None = None

    async def run(self) -> Death:
        """Run the process; return its final death. Cancelling leaves the process as it is."""
        backoff = Backoff()
        while True:
            self._process = process = await self._start()
            self.started.set()
            returncode = await process.wait()
            death = Death(self._role, returncode, process.last_line, served=self.served)
            if is_final(death):
                return death
            now_s = time.monotonic()
            backoff = after_death(backoff, started_s=process.started_s, now_s=now_s)
            self._say(f"{obituary(death)}; starting it again in {backoff.delay_s:g} s")
            await asyncio.sleep(backoff.delay_s)

    async def stop(self) -> None:
        """Ask the process to stop and wait until it did; call when ``run`` was cancelled."""
        if self._process is not None:
            self._process.terminate()
            await self._process.wait()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
