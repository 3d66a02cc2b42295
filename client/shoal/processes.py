"""Child processes that die with us: one that runs, and its supervisor that starts it again."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from shoal.outlet import Outlet
from shoal.serving.supervision import Backoff, Exit, after_exit, cause, exit_message, is_final, takes_leave

TETHER = str(Path(__file__).with_name("tether.py"))
TAIL_BYTES = 32768
# A dead process's last words arrive within this; its own children may hold the pipe longer.
LAST_OUTPUT_S = 1.0


class Process:
    """A running component: ``python -m MODULE`` in a session of its own, tied to our life."""

    def __init__(self, transport: asyncio.SubprocessTransport, output: "Output") -> None:
        self.started_s = time.monotonic()
        self.pid = transport.get_pid()
        self._transport = transport
        self._output = output

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str], *arguments: str, log: Outlet | None) -> Self:
        """Start ``python -m module``; its output goes to ``log``, or nowhere."""
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            lambda: Output(log),
            *(sys.executable, "-I", "-S", TETHER, str(os.getpid())),
            # -P: not our caller's folder first, which may be a model's with a file of any name in it.
            *(sys.executable, "-P", "-m", module, *arguments),
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C reaches the terminal's whole process group; ours stop in order instead.
            start_new_session=True,
        )
        return cls(transport, output)

    @property
    def last_written(self) -> str:
        """The last that the process wrote, some KiB; the line alone in which it took its leave, if it did."""
        return self._output.last_written

    async def wait(self) -> int:
        """Wait until the process ended; return its exit status, or minus the signal's number.

        What the process had started and left behind is ended too: it may hold the device's memory. What went away
        into a session of its own lives on, and may hold the pipe for ever; it is not waited for.
        """
        await self._output.exited.wait()
        self.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_OUTPUT_S):
                await self._output.closed.wait()
        self._transport.close()
        returncode = self._transport.get_returncode()
        assert returncode is not None
        return returncode

    def terminate(self) -> None:
        """Ask the process to stop."""
        # Not by the transport: that looks first whether the process has ended, and so may take its exit status from
        # asyncio's watcher, which then writes a warning, stands still where nobody reads that, and reports 255.
        if self._transport.get_returncode() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End the process, and whatever it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


class Output(asyncio.SubprocessProtocol):
    """What a process writes, passed on line by line as it comes; and whether it has ended.

    Of a protocol of our own, because asyncio's ``Process.wait`` waits for the end of the pipe too.
    """

    def __init__(self, log: Outlet | None) -> None:
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        self._log = log
        self._begun = b""
        self._tail = b""
        self._exit_line = b""

    @property
    def last_written(self) -> str:
        """The last so far."""
        return (self._exit_line or self._tail).decode(errors="replace")

    def process_exited(self) -> None:
        """The process has ended; others may still write."""
        self.exited.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Pass on the lines that are whole by now."""
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        *lines, self._begun = (self._begun + data).split(b"\n")
        whole = b"".join(line + b"\n" for line in lines if not self._keeps(line))
        if len(self._begun) > TAIL_BYTES:
            whole, self._begun = whole + self._begun, b""
        self._pass_on(whole)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Pass on the last line, which has no end."""
        if self._begun and not self._keeps(self._begun):
            self._pass_on(self._begun + b"\n")
        self.closed.set()

    def _pass_on(self, text: bytes) -> None:
        if self._log is not None:
            self._log.write(text)

    def _keeps(self, line: bytes) -> bool:
        """Keep the line that says why the process ends: whoever tells of the end tells it once, and last."""
        if takes_leave(line):
            self._exit_line = line
            return True
        return False


class Supervisor:
    """Keeps one component running: starts it again when it dies, until its exit is final."""

    def __init__(self, role: str, start: Callable[[], Awaitable[Process]], say: Callable[[str], None]) -> None:
        self.served = False
        self.started = asyncio.Event()
        self._role = role
        self._start = start
        self._say = say
        self._process: Process | None = None

    async def run(self) -> Exit:
        """Run the process; return its final exit. Cancelling leaves the process as it is."""
        backoff, crashes = Backoff(), 0
        while True:
            self._process = process = await self._start()
            self.started.set()
            returncode = await process.wait()
            crashes += returncode < 0 and not self.served
            exit_ = Exit(self._role, returncode, cause(process.last_written), self.served, crashes)
            if is_final(exit_):
                return exit_
            now_s = time.monotonic()
            backoff = after_exit(backoff, started_s=process.started_s, now_s=now_s)
            self._say(f"{exit_message(exit_)}; starting it again in {backoff.delay_s:g} s")
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
