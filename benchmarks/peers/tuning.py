"""The settings that each server is tried with, and which of them the benchmark uses.

The grids hold each server's own batching and admission knobs around what its documentation
recommends. ``python -m benchmarks.peers --tune`` measures them all with another seed than the
benchmark's, and writes the best of each to ``tuned.json``: requests per second at 64 and 256
connections for ``wait`` and ``mlp``, answers in time at 0.9 and 1.5 x saturation for ``slow``.
Without that file, the first of each grid is used.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.workload import MLP, SLOW, WAIT

Settings = Mapping[str, Any]
OBJECTIVE_MS = 100
TUNED = Path(__file__).with_name("tuned.json")
OVERTIME: Mapping[str, Sequence[Settings]] = {
    # One batch waits while one runs: 2 x 36 ms is under the objective, 3 x 36 ms is not.
    "mosec": (
        {"max_wait_ms": 1, "capacity": 32},
        {"max_wait_ms": 1, "capacity": 1024},
        {"max_wait_ms": 5, "capacity": 1024},
        {"max_wait_ms": 1, "capacity": 64},
    ),
    "triton": (
        {"max_queue_delay_us": 0, "http_threads": 64, "reject_after_ms": 60, "max_queue_size": 0},
        {"max_queue_delay_us": 0, "http_threads": 8},
        {"max_queue_delay_us": 5000, "http_threads": 64, "reject_after_ms": 40, "max_queue_size": 48},
    ),
    "bentoml": (
        {"max_latency_ms": 100, "max_concurrency": None},
        {"max_latency_ms": 100, "max_concurrency": 64},
        {"max_latency_ms": 60, "max_concurrency": None},
    ),
    "ray": (
        {"batch_wait_timeout_s": 0.005, "max_ongoing_requests": 64, "max_queued_requests": -1},
        {"batch_wait_timeout_s": 0.0, "max_ongoing_requests": 64, "max_queued_requests": 16},
        {"batch_wait_timeout_s": 0.005, "max_ongoing_requests": 48, "max_queued_requests": 1},
    ),
    "litserve": (
        {"batch_timeout_s": 0.005, "timeout_s": 30, "fast_queue": False},
        {"batch_timeout_s": 0.005, "timeout_s": 0.06, "fast_queue": False},
        {"batch_timeout_s": 0.0, "timeout_s": 0.06, "fast_queue": True},
    ),
    "mlserver": (
        {"max_batch_time_s": 0.005, "parallel_workers": 1},
        {"max_batch_time_s": 0.02, "parallel_workers": 1},
        {"max_batch_time_s": 0.02, "parallel_workers": 0},
    ),
    "torchserve": (
        {"max_batch_delay_ms": 10, "job_queue_size": 32},
        {"max_batch_delay_ms": 5, "job_queue_size": 1000},
        {"max_batch_delay_ms": 1, "job_queue_size": 48},
    ),
}
FAST: Mapping[str, Sequence[Settings]] = {
    "mosec": tuple({"max_wait_ms": wait_ms, "capacity": 1024} for wait_ms in (1, 2, 5)),
    "triton": (
        {"max_queue_delay_us": 0, "http_threads": 8},
        {"max_queue_delay_us": 500, "http_threads": 64},
        {"max_queue_delay_us": 2000, "http_threads": 64},
    ),
    "bentoml": tuple({"max_latency_ms": latency_ms, "max_concurrency": None} for latency_ms in (1000, 10000, 60000)),
    "ray": tuple(
        {"batch_wait_timeout_s": wait_s, "max_ongoing_requests": 256, "max_queued_requests": -1}
        for wait_s in (0.0, 0.002, 0.01)
    ),
    "litserve": (
        {"batch_timeout_s": 0.0, "timeout_s": 30, "fast_queue": False},
        {"batch_timeout_s": 0.002, "timeout_s": 30, "fast_queue": False},
        {"batch_timeout_s": 0.002, "timeout_s": 30, "fast_queue": True},
    ),
    "mlserver": (
        {"max_batch_time_s": 0.002, "parallel_workers": 0},
        {"max_batch_time_s": 0.002, "parallel_workers": 1},
        {"max_batch_time_s": 0.01, "parallel_workers": 0},
    ),
    "torchserve": tuple({"max_batch_delay_ms": delay_ms, "job_queue_size": 1000} for delay_ms in (1, 5, 10)),
}


def candidates(peer: str, workload: str) -> Sequence[Settings]:
    """Return the settings to try for a server; Shoal gets the objective only."""
    if peer == "shoal":
        return (shoal_settings(workload),)
    return {WAIT.name: FAST, MLP.name: FAST, SLOW.name: OVERTIME}[workload][peer]


def shoal_settings(workload: str) -> Settings:
    """Return Shoal's fields: what its defaults do not know is the objective."""
    return {"batching.latencyObjectiveMilliseconds": OBJECTIVE_MS} if workload == SLOW.name else {}


def chosen(peer: str, workload: str) -> Settings:
    """Return the settings that the benchmark uses: the best one measured, or the first of the grid."""
    grid = candidates(peer, workload)
    tuned = json.loads(TUNED.read_text()) if TUNED.exists() else {}
    best = tuned.get(workload, {}).get(peer, {}).get("settings")
    return next((settings for settings in grid if settings == best), grid[0])
