"""The processes of the cluster's parts, from outside and from inside.

Started once, identified by pid and start time, stopped without leftovers. Each runs until SIGINT or SIGTERM.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

from shoal_local.kubelet import shim
from shoal_local.kubelet.records import read_json
from shoal_schema.process.logs import configure

Identity = dict[str, Any]
POLL_S = 0.02


class Process:
    """One process of the cluster; its pid is kept in ``parts/NAME.json``, its output in ``logs/NAME.log``."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.log = directory / "logs" / f"{name}.log"
        self._file = directory / "parts" / f"{name}.json"

    @property
    def pid(self) -> int | None:
        """Return the pid, or None if the process does not run."""
        known = read_json(self._file)
        return int(known["pid"]) if known and is_alive(known) else None

    def start(self, argv: list[str]) -> None:
        """Start the process in its own session, so that it outlives its parent."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log, _uninterrupted():
            started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            shim.write_json(self._file, shim.identity(started.pid))
        # Popen warns about a child that still runs when the object is collected; this one is meant to.
        started.returncode = 0

    def stop(self, timeout_s: float = 10.0) -> None:
        """Send SIGTERM, and SIGKILL after ``timeout_s``."""
        if known := read_json(self._file):
            stop_all([known], timeout_s)
        self._file.unlink(missing_ok=True)

    @property
    def memory_bytes(self) -> int:
        """Return the resident memory, or 0 if the process does not run."""
        pid = self.pid
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) if pid else 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def last_output(self, lines: int = 5) -> str:
        """Return the last lines of the process's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer Ctrl-C, so that each started process has its pid stored."""
    # Signal handlers can be set in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


def is_alive(known: Identity) -> bool:
    """Return whether a process runs; reap it first if it is a zombie child."""
    with contextlib.suppress(ChildProcessError):
        # A process of an earlier command is no child of this one.
        os.waitpid(known["pid"], os.WNOHANG)
    return shim.is_alive(known)


def stop_all(processes: Iterable[Identity], timeout_s: float, last: int = signal.SIGKILL) -> None:
    """Stop processes with SIGTERM, then ``last``, then SIGKILL.

    A process that still runs ``timeout_s`` after SIGTERM gets the signal ``last``, and SIGKILL 5 s later.
    """
    left = [known for known in processes if is_alive(known)]
    for number, wait_s in ((signal.SIGTERM, timeout_s), (last, 5.0), (signal.SIGKILL, 5.0)):
        for known in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(known["pid"], number)
        end_s = time.monotonic() + wait_s
        while left and time.monotonic() < end_s:
            left = [known for known in left if is_alive(known)]
            # Not all of the processes are children, so their ends cannot be awaited.
            time.sleep(POLL_S if left else 0)
        if not left:
            return


def run_part(work: Coroutine[Any, Any, None]) -> int:
    """Run a part of the cluster to SIGINT (KeyboardInterrupt) or SIGTERM; return its exit status."""
    configure()
    try:
        asyncio.run(until_terminated(work))
    except asyncio.CancelledError:
        return 0
    # Expected at the start: a port in use, a bad option or kubeconfig. No traceback.
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


async def until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` to its end, or cancel it at SIGTERM; asyncio cancels it at SIGINT."""
    task = asyncio.current_task()
    assert task is not None
    # asyncio's handler, unlike signal.signal, may cancel a task safely.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work
