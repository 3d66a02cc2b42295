"""What a server does in the middle of a load: between two of its batches, so that no part of a batch is left out.

A load begins with an empty server and ends with batches without successors. Where one batch takes half a second,
that is several per cent of what a short load would count.
"""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.processes import cpu_s, find_child
from benchmarks.report import mean_batch_rows
from benchmarks.serve import batch_sums
from benchmarks.wrk import Load, Measurement, Wrk, WrkError
from examples.server import Server

POLL_INTERVAL_S = 0.03
PROCESSES = ("proxy", "runtime")


@dataclass(frozen=True, slots=True)
class Moment:
    """When the proxy had just sent a batch, and what server and processes had done until then."""

    time_s: float
    batches: Mapping[str, float]
    cpu_s: Mapping[str, float]


def under_load(wrk: Wrk, load: Load, server: Server, *, warm_up_s: float, window_s: float) -> dict[str, float]:
    """Load the server, and return what it did in a window of that time.

    Args:
        wrk: loads it.
        load: lasts until the end of the window and longer.
        server: is idle.
        warm_up_s: before the window.
        window_s: from the batch after it to the first one this much later.

    Raises:
        WrkError: requests failed, or the load ended before the window.
    """
    pids = {name: find_child(server.pid, f"shoal_{name}") for name in PROCESSES}
    with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=server.admin_url, trust_env=False) as admin:
        measurement = pool.submit(wrk.run, load)
        time.sleep(warm_up_s)
        first = next_batch(admin, pids, measurement)
        time.sleep(window_s)
        last = next_batch(admin, pids, measurement)
        return between(first, last) | latencies(measurement.result())


def next_batch(admin: httpx.Client, pids: Mapping[str, int], load: "Future[Measurement]") -> Moment:
    """Wait until the proxy sends another batch."""
    before = now = sums(admin)
    while now["count"] == before["count"]:
        if load.done():
            load.result()
            raise WrkError("the load ended before the next batch: the machine became slower meanwhile; try again")
        time.sleep(POLL_INTERVAL_S)
        now = sums(admin)
    return Moment(time.monotonic(), now, {name: cpu_s(pid) for name, pid in pids.items()})


def sums(admin: httpx.Client) -> Mapping[str, float]:
    """Return how many batches and rows there were so far."""
    return batch_sums(admin.get("/metrics").raise_for_status().text)


def between(first: Moment, last: Moment) -> dict[str, float]:
    """Return rates and costs between two moments."""
    rows = last.batches["sum"] - first.batches["sum"]
    used_s = {name: last.cpu_s[name] - first.cpu_s[name] for name in first.cpu_s}
    return {
        "rows_per_s": rows / (last.time_s - first.time_s),
        "mean_batch_rows": mean_batch_rows(first.batches, last.batches),
        **{f"{name}_cpu_ms_per_row": 1e3 * seconds / rows for name, seconds in used_s.items()},
    }


def latencies(measured: Measurement) -> dict[str, Any]:
    """Return how long clients waited in the whole load."""
    return {"p50_ms": measured.p50_ms, "p99_ms": measured.p99_ms}
