"""Child processes that end with this process, and the supervisor that restarts them."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Protocol, Self

from shoal.serving.supervision import Exit, cause, exit_message, is_exit_line, is_final
from shoal_schema.process.child_process import kill_session, module_command
from shoal_schema.process.restarts import Backoff, after_exit

TAIL_BYTES = 32768
"""Last output kept, to find the cause of an exit."""
LAST_OUTPUT_S = 1.0
"""Time in which the output of an exited process arrives; its children may hold the pipe longer."""


class Log(Protocol):
    """Receiver of a process's output."""

    def write(self, text: bytes) -> None:
        """Take ``text``, which consists of whole lines, without blocking."""


class Process:
    """A running component: ``python -m MODULE`` in a session of its own, killed with this process."""

    def __init__(self, transport: asyncio.SubprocessTransport, output: "Output") -> None:
        self.started_s = time.monotonic()
        self.pid = transport.get_pid()
        self._transport = transport
        self._output = output

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str], *arguments: str, log: Log | None) -> Self:
        """Start ``python -m module``; its output goes to ``log``, or is discarded."""
        transport, output = await asyncio.get_running_loop().subprocess_exec(
            lambda: Output(log),
            *module_command(module, *arguments),
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            # Ctrl-C reaches the terminal's whole process group; these processes are stopped in order instead.
            start_new_session=True,
        )
        return cls(transport, output)

    @property
    def last_written(self) -> str:
        """The line that announced the exit, or else the last 32 KiB of output."""
        return self._output.last_written

    async def wait(self) -> int:
        """Wait for the exit; return the exit status, or minus the signal's number.

        The process's children are killed too, since they may hold the device's memory. A child in a session of its own
        survives and may hold the output pipe forever, so the end of the pipe is awaited for at most 1 s.
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
        """Send SIGTERM."""
        # Not by the transport: it polls the process first, and may take the exit status from asyncio's child watcher,
        # which then logs a warning (and blocks if standard error is not read) and reports 255.
        if self._transport.get_returncode() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its children."""
        kill_session(self.pid)


class Output(asyncio.SubprocessProtocol):
    """Protocol that forwards a process's output line by line, and records its exit.

    asyncio's ``Process.wait`` is not used, because it also waits for the end of the output pipe.
    """

    def __init__(self, log: Log | None) -> None:
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        self._log = log
        self._begun = b""
        self._tail = b""
        self._exit_line = b""
        self._held = b""
        """The exit line, until the process writes more."""

    @property
    def last_written(self) -> str:
        """The line that announced the exit, or else the last 32 KiB of output."""
        return (self._exit_line or self._tail).decode(errors="replace")

    def process_exited(self) -> None:
        """Record the exit of the process; its children may still write."""
        self.exited.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Forward complete lines to the log."""
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        *lines, self._begun = (self._begun + data).split(b"\n")
        whole = b"".join(self._logged(line) for line in lines)
        # A very long line is passed on in pieces.
        if len(self._begun) > TAIL_BYTES:
            whole, self._begun = whole + self._begun, b""
        self._forward(whole)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Forward an unterminated last line to the log."""
        if self._begun:
            self._forward(self._logged(self._begun))
        self.closed.set()

    def _forward(self, text: bytes) -> None:
        if self._log is not None:
            self._log.write(text)

    def _logged(self, line: bytes) -> bytes:
        """Return what to log at a line of the process.

        A line that announces the exit is held back, since the exit message replaces it. If the process continues, one
        of its own processes has ended: then the line is logged.
        """
        held, self._held = self._held, b""
        if is_exit_line(line):
            self._exit_line, self._held = line, line + b"\n"
            return held
        return held + line + b"\n"


class Supervisor:
    """Supervisor that restarts one component until a restart cannot help."""

    def __init__(self, role: str, start: Callable[[], Awaitable[Process]], report: Callable[[str], None]) -> None:
        self.served = False
        """Whether the component was ready before."""
        self.started = asyncio.Event()
        self._role = role
        self._start = start
        self._report = report
        self._process: Process | None = None

    async def run(self) -> Exit:
        """Run the process, with restarts, and return its final exit; cancelling leaves the process running."""
        backoff, crashes = Backoff(), 0
        while True:
            self._process = process = await self._start()
            self.started.set()
            returncode = await process.wait()
            # A crash while serving may be transient; one while loading usually is not.
            crashes += returncode < 0 and not self.served
            exit_ = Exit(self._role, returncode, cause(process.last_written), self.served, crashes)
            if is_final(exit_):
                return exit_
            now_s = time.monotonic()
            backoff = after_exit(backoff, started_s=process.started_s, now_s=now_s)
            self._report(f"{exit_message(exit_)}; restarting it in {backoff.delay_s:g} s")
            await asyncio.sleep(backoff.delay_s)

    async def stop(self) -> None:
        """Terminate the process and wait for its exit; call after ``run`` was cancelled."""
        if self._process is not None:
            self._process.terminate()
            await self._process.wait()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
