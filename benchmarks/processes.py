"""Read the resources of processes from Linux's /proc: processor time, memory, and children."""

import os
from pathlib import Path

PROC = Path("/proc")


def cpu_s(pid: int) -> float:
    """Return the processor time a process has used so far, in user and system mode, in seconds."""
    return parse_cpu_ticks((PROC / str(pid) / "stat").read_text()) / os.sysconf("SC_CLK_TCK")


def parse_cpu_ticks(stat: str) -> int:
    """Return utime + stime of a /proc/PID/stat line; the name before them may hold anything."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def resident_bytes(pid: int) -> int:
    """Return how much memory of a process is in RAM now."""
    return parse_resident_bytes((PROC / str(pid) / "status").read_text())


def parse_resident_bytes(status: str) -> int:
    """Return VmRSS of a /proc/PID/status file."""
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def find_child(parent_pid: int, word: str) -> int:
    """Return the child of a process whose command line holds ``word``.

    Raises:
        LookupError: there is none, or more than one.
    """
    found = find_children(parent_pid, word)
    if len(found) != 1:
        raise LookupError(f"process {parent_pid} has {len(found)} children with {word!r}, not 1")
    return found[0]


def find_children(parent_pid: int, word: str) -> list[int]:
    """Return the children of a process whose command lines hold ``word``."""
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit() and is_child(path, parent_pid, word)]


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    children = find_children(pid, "")
    return [*children, *(each for child in children for each in descendants(child))]


def is_child(path: Path, parent_pid: int, word: str) -> bool:
    """Say whether a /proc/PID belongs to such a child; a process that has just ended does not."""
    try:
        parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == parent_pid and word in (path / "cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
