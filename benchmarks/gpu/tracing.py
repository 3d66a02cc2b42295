"""Idle time of a device, from a trace of its kernels and copies.

torch's profiler (Kineto, on NVIDIA's CUPTI) records when each kernel and each copy of the process ran, in CUDA graphs
too. Pauses of up to 20 µs are not idle time: kernels follow one another at such a distance in any loop.
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.processes import PROC, parse_cpu_ticks

WORK: Final = {"kernel", "gpu_memcpy", "gpu_memset"}
SHORT_US: Final = 20.0
TRACE_S: Final = 0.5
POLL_S: Final = 0.05
REQUESTED, TRACE, THREADS = "requested", "trace.json", "threads.json"


def trace_on_request(directory: Path) -> None:
    """Trace this process once, when the file `requested` appears in the directory."""
    load_tracer()
    threading.Thread(target=_trace_when_requested, args=(directory,), name="tracer", daemon=True).start()


def load_tracer() -> None:
    """Load CUPTI, which must happen before the first CUDA graph is captured."""
    with profile(activities=activities()):
        pass


def _trace_when_requested(directory: Path) -> None:
    while not (directory / REQUESTED).exists():
        time.sleep(POLL_S)
    # Before the trace, which slows down the process.
    (directory / THREADS).write_text(json.dumps(thread_shares(TRACE_S)))
    with profile(activities=activities()) as profiled:
        time.sleep(TRACE_S)
    unfinished = directory / f"unfinished-{TRACE}"
    profiled.export_chrome_trace(str(unfinished))
    unfinished.rename(directory / TRACE)


def thread_shares(seconds: float) -> dict[str, float]:
    """Return the share of a core that each kind of Python thread of this process uses; `native` are all others."""
    used, began_s = thread_ticks(), time.monotonic()
    time.sleep(seconds)
    used = thread_ticks() - used
    ticks = os.sysconf("SC_CLK_TCK") * (time.monotonic() - began_s)
    return {name: count / ticks for name, count in used.items()}


def thread_ticks() -> Counter[str]:
    """Return the processor time of this process by kind of thread, in clock ticks."""
    # Threads of a pool differ in the number at the end of their names.
    names = {each.native_id: each.name.rpartition("_")[0] or each.name for each in threading.enumerate()}
    found: Counter[str] = Counter()
    for path in (PROC / "self/task").iterdir():
        found[names.get(int(path.name), "native")] += parse_cpu_ticks((path / "stat").read_text())
    return found


def request_trace(directory: Path, timeout_s: float) -> Sequence[Mapping[str, Any]]:
    """Return the events of a trace that another process records now.

    Raises:
        TimeoutError: there was none in time.
    """
    (directory / REQUESTED).touch()
    deadline_s = time.monotonic() + timeout_s
    while not (directory / TRACE).exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no trace of the runtime within {timeout_s:g} s")
        time.sleep(POLL_S)
    return read_events(directory / TRACE)


def read_events(path: Path) -> Sequence[Mapping[str, Any]]:
    """Return the events of a Chrome trace."""
    events: Sequence[Mapping[str, Any]] = json.loads(path.read_text(errors="replace"))["traceEvents"]
    return events


def activities() -> list[ProfilerActivity]:
    """Return what to record: the device's work, or that of the processor where there is no device."""
    return [ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU]


def idle_time(events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return how long the device did nothing.

    Returns:
        `device_idle`: share of the time between the first and the last work; `compute_idle`: the same for kernels
        alone; `gap_ms`: the median pause; `gaps_per_s`. Empty if the trace has no work of a device.
    """
    work = [(event["cat"], event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in WORK]
    kernels = [(start, end) for kind, start, end in work if kind == "kernel"]
    if len(kernels) < 2:
        return {}
    gaps, span_us = pauses([(start, end) for _, start, end in work])
    compute_gaps, compute_span_us = pauses(kernels)
    return {
        "device_idle": sum(gaps) / span_us,
        "compute_idle": sum(compute_gaps) / compute_span_us,
        "gap_ms": median(gaps) / 1e3 if gaps else 0.0,
        "gaps_per_s": len(gaps) / (span_us / 1e6),
    }


def pauses(intervals: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
    """Return the pauses longer than 20 µs between intervals that may overlap, and the whole span, in microseconds."""
    ordered = sorted(intervals)
    found, begin, last = [], ordered[0][0], ordered[0][1]
    for start, end in ordered:
        if start - last > SHORT_US:
            found.append(start - last)
        last = max(last, end)
    return found, last - begin
