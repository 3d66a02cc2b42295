"""Client of an engine process, which runs the model for the batch program."""

import logging
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Final

from shoal_runtime.errors import EXIT_DEVICE_LOST
from shoal_runtime.offline.errors import JobError
from shoal_schema.fields.redaction import redacted
from shoal_schema.process.child_process import kill_session
from shoal_schema.wire.engine_messages import EngineBatch, EngineFailed, EngineReady, Message

ENDED_AT_ONCE: Final = 3
"""Consecutive ends without a finished batch that are not the fault of a row."""

logger = logging.getLogger(__name__)


class EngineEnded(Exception):
    """The engine process ended, perhaps because of a row in its batch."""


class EngineProcess:
    """An engine process with a model, and the socket to it.

    Args:
        environment: environment variables of the process.
        command: command to start instead of the runtime.
    """

    def __init__(self, environment: Mapping[str, str], command: str = "") -> None:
        self._environment = environment
        self._command = shlex.split(command) or [sys.executable, "-P", "-m", "shoal_runtime", "engine"]
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = 0
        self.connection: Connection | None = None
        self.started_s = 0.0

    def start(self) -> EngineReady:
        """Start the process and wait until its model is loaded.

        Raises:
            JobError: the model cannot be loaded, or the process ends repeatedly.
        """
        # The pair has no name, and closes when either process ends.
        ours, theirs = socket.socketpair()
        with theirs:
            self.started_s = time.monotonic()
            self._process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C reaches a terminal's whole process group; the batch program stops the engine itself.
                start_new_session=True,
            )
        self.connection = Connection(ours.detach())
        try:
            first = self.receive()
        except EngineEnded as ended:
            self._ends += 1
            if self._ends >= ENDED_AT_ONCE:
                raise JobError(
                    f"the model's process {ended} before it was ready, {self._ends} times in a row. Its log has the"
                    " reason"
                ) from None
            return self.start()
        if isinstance(first, EngineFailed):
            self.stop()
            raise JobError(f"the model is unavailable: {redacted(first.why)}")
        assert isinstance(first, EngineReady)
        return first

    def send(self, batch: EngineBatch) -> None:
        """Send a batch to the process.

        Raises:
            EngineEnded: the process has ended.
        """
        assert self.connection is not None
        try:
            self.connection.send(batch)
        except OSError:
            raise EngineEnded(self._how()) from None

    def receive(self) -> Message:
        """Wait for a message from the process.

        Raises:
            EngineEnded: the process has ended.
        """
        assert self.connection is not None
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            raise EngineEnded(self._how()) from None
        except TypeError:
            # Another thread closed the connection during the read, which the library does not expect.
            if not self.connection.closed:
                raise
            raise EngineEnded(self._how()) from None
        return message

    def stop(self) -> None:
        """Kill the process and its child processes."""
        if self._process is None:
            return
        if self.connection is not None:
            self.connection.close()
        kill_session(self._process.pid)
        self._process.wait()

    def _how(self) -> str:
        """Wait for the end of the process, and describe it.

        Returns: A predicate, such as "ended with exit status 1".
        """
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.stop()
            code = -signal.SIGKILL
        self.stop()
        if code == EXIT_DEVICE_LOST:
            return "ended because a forward exceeded runtime.forwardTimeoutSeconds or the device was lost"
        # A negative code is the number of a signal.
        if code >= 0:
            return f"ended with exit status {code}"
        name = signal.Signals(-code).name
        return f"was ended by {name}" + (" (memory may have run out)" if code == -signal.SIGKILL else "")
