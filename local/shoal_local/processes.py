"""Background processes. Started once, found again by number and start time, stopped without leftovers."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shoal_local.kubelet import shim

Identity = dict[str, Any]
POLL_S = 0.02


class Process:
    """One process of the cluster; ``file`` remembers who it is, ``log`` what it said."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / "logs" / f"{name}.log"
        self._file = folder / "parts" / f"{name}.json"

    @property
    def pid(self) -> int | None:
        """Return the number of the process; None when it does not run."""
        try:
            known = json.loads(self._file.read_text())
        except FileNotFoundError:
            return None
        return int(known["pid"]) if lives(known) else None

    def start(self, argv: list[str]) -> None:
        """Start it in a session of its own, so that it outlives whoever started it."""
        for path in (self.log, self._file):
            path.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log, _uninterrupted():
            started = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(shim.identity(started.pid)))
            new.replace(self._file)
        # It is meant to outlive this object; Popen must not complain about that.
        started.returncode = 0

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it: SIGTERM, and SIGKILL when it takes too long."""
        if self.pid is not None:
            stop_all([json.loads(self._file.read_text())], timeout_s)
        self._file.unlink(missing_ok=True)

    @property
    def memory_bytes(self) -> int:
        """Return its resident memory; 0 when it does not run."""
        pid = self.pid
        if pid is None:
            return 0
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def last_words(self, lines: int = 5) -> str:
        """Return the end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait: a process that began and is written down nowhere could not be stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def lives(known: Identity) -> bool:
    """Return whether this very process still runs; one that was our child is let go first, or it looks alive."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(known["pid"], os.WNOHANG)
    return shim.lives(known)


def stop_all(processes: Iterable[Identity], timeout_s: float, last: int = signal.SIGKILL) -> None:
    """End processes together. SIGTERM, then the last signal, and SIGKILL after five seconds more."""
    left = [known for known in processes if lives(known)]
    for number, wait_s in ((signal.SIGTERM, timeout_s), (last, 5.0), (signal.SIGKILL, 5.0)):
        for known in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(known["pid"], number)
        end_s = time.monotonic() + wait_s
        while left and time.monotonic() < end_s:
            left = [known for known in left if lives(known)]
            time.sleep(POLL_S if left else 0)
        if not left:
            return
