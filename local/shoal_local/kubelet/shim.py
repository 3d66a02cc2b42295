"""The shim: starts one container, writes its log and records its end.

The shim outlives the kubelet. `python -S -m shoal_local.kubelet.shim DIR` reads DIR/container.json. It writes
DIR/running.json once the process runs, DIR/log while the process writes, and DIR/exit.json after the process and all
its descendants have ended. SIGTERM is forwarded to the container; SIGUSR1 kills it.

Standard library only, so that it starts fast and stays small.
"""

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from shoal_local.kubelet.namespaces import Mount, View, become_subreaper, isolate

MAX_LOG_BYTES = 10 * 2**20
"""A longer log is moved to log.1, and an older log.1 is deleted."""
CHUNK_BYTES = 16 * 1024
"""Longest part of a line; longer lines are split, as container runtimes do."""
CANNOT_START = 128


def run(directory: Path) -> int:
    """Run the container until it ends."""
    become_subreaper()
    container = json.loads((directory / "container.json").read_text())
    # Closed by exec: an empty read means that the container's program has started.
    failure_read, failure_write = os.pipe2(os.O_CLOEXEC)
    pipes = {name: os.pipe2(os.O_CLOEXEC) for name in ("stdout", "stderr")}
    pid = os.fork()
    if pid == 0:
        _become(container, directory, {name: pair[1] for name, pair in pipes.items()}, failure_write)
    os.close(failure_write)
    for _, write in pipes.values():
        os.close(write)

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if number == signal.SIGUSR1 else signal.SIGTERM)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGUSR1, forward)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(failure_read, "rb") as stream:
        failure = stream.read()
    if failure:
        os.waitpid(pid, 0)
        write_json(directory / "exit.json", {**json.loads(failure), "finished_at": _now()})
        return 0
    write_json(directory / "running.json", {**identity(os.getpid()), "process": pid, "started_at": _now()})
    status = _pump(pid, {pair[0]: name for name, pair in pipes.items()}, Log(directory / "log"))
    code = os.waitstatus_to_exitcode(status)
    # As shells do: 128 plus the number of the signal.
    ended = {"code": code if code >= 0 else 128 - code, "signal": max(0, -code)}
    write_json(directory / "exit.json", {**ended, "finished_at": _now()})
    return 0


def identity(pid: int) -> dict[str, Any]:
    """Return pid, start time and boot id, which distinguish a process from a later one with its pid.

    Raises OSError: there is no such process, or it has ended and is a zombie.
    """
    # The second field is the command in parentheses; it may hold spaces and parentheses itself.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    # Zombie or dead.
    if fields[0] in "ZX":
        raise ProcessLookupError(pid, "the process has ended")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start_ticks": int(fields[19]), "boot": boot}


def is_alive(known: dict[str, Any]) -> bool:
    """Return whether the process with this identity still runs."""
    try:
        found = identity(known["pid"])
    except OSError:
        return False
    return all(found[part] == known[part] for part in ("pid", "start_ticks", "boot"))


def _become(container: dict[str, Any], directory: Path, ends: dict[str, int], failure_write: int) -> None:
    """Execute the container's command in place of this process.

    A failure is reported to the parent process through ``failure_write``.
    """
    try:
        os.setsid()
        # Containers have no standard input.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ends["stdout"], 1)
        os.dup2(ends["stderr"], 2)
        mounts = [Mount(**mount) for mount in container["mounts"]]
        if mounts:
            try:
                isolate()
            except OSError as error:
                raise NoNamespacesError(str(error)) from error
            staging = directory / "root"
            staging.mkdir(exist_ok=True)
            View(str(staging)).show(mounts)
        os.chdir(container["cwd"])
        # Python ignores SIGPIPE, and exec would pass that on.
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvpe(container["argv"][0], container["argv"], container["env"])
    except BaseException as error:
        reason, message = "StartError", "".join(traceback.format_exception_only(error)).strip()
        if isinstance(error, NoNamespacesError):
            reason = "CreateContainerError"
            message = (
                f"cannot create a mount namespace any more ({error}). Restart the kubelet (`shoal local down --keep`, "
                "then `up`): containers then get the paths of their directories instead"
            )
        elif isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
            message = f"cannot run {container['argv'][0]!r} in {container['cwd']}: {error}"
        text = json.dumps({"code": CANNOT_START, "signal": 0, "reason": reason, "message": message})
        os.write(failure_write, text.encode())
    # Without the cleanup of the parent's copy of the interpreter.
    os._exit(1)


class NoNamespacesError(Exception):
    """The container has mounts and this machine refuses a mount namespace."""


class Log:
    """The container's log in the format of the container runtime interface: time, stream, F or P, text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._parts = {"stdout": b"", "stderr": b""}

    def write(self, stream: str, data: bytes) -> None:
        """Write complete lines; keep the rest for the next call."""
        *lines, rest = (self._parts[stream] + data).split(b"\n")
        # A line without an end must not fill the memory.
        while len(rest) > CHUNK_BYTES:
            self._line(stream, "P", rest[:CHUNK_BYTES])
            rest = rest[CHUNK_BYTES:]
        self._parts[stream] = rest
        for line in lines:
            self._line(stream, "F", line)

    def close(self) -> None:
        """Write an unfinished last line as a partial one."""
        for stream, rest in self._parts.items():
            if rest:
                self._line(stream, "P", rest)

    def _line(self, stream: str, tag: str, text: bytes) -> None:
        # A full disk must not kill the container.
        with contextlib.suppress(OSError):
            self._file.write(f"{_now()} {stream} {tag} ".encode() + text + b"\n")
            if self._file.tell() > MAX_LOG_BYTES:
                self._path.replace(self._path.with_name("log.1"))
                self._file.close()
                self._file = self._path.open("ab", buffering=0)


def _pump(pid: int, streams: dict[int, str], log: Log) -> int:
    """Write the log, kill descendants at the end, and return the wait status."""
    ended = os.pidfd_open(pid)
    poll = select.poll()
    for file in (ended, *streams):
        poll.register(file, select.POLLIN)
    status: int | None = None
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while streams or status is None:
        for file, _ in poll.poll(None if status is None else 1000):
            if file == ended:
                poll.unregister(ended)
                status = os.waitpid(pid, 0)[1]
            elif data := os.read(file, 65536):
                log.write(streams[file], data)
            else:
                # All descendants have closed this stream.
                poll.unregister(file)
                del streams[file]
        # The shim is the subreaper: once the container has ended, all descendants are its children.
        while status is not None and (found := children.read_text().split()):
            for child in map(int, found):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            for child in map(int, found):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, 0)
    log.close()
    assert status is not None
    return status


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a value to a JSON file, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Rename is atomic on one file system.
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value))
    new.replace(path)


def _now() -> str:
    # Wall clock: log lines and states carry the time of day.
    nanoseconds = time.time_ns()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(nanoseconds // 10**9))
    return f"{stamp}.{nanoseconds % 10**9:09d}Z"


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1])))
