"""Serve a case with ``shoal serve``, and measure it under one load after the other."""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gpu.cases import MODEL, Case
from benchmarks.gpu.clients import Plan, send
from benchmarks.gpu.sampling import sampling
from benchmarks.gpu.tracing import THREADS, idle_time, request_trace
from benchmarks.processes import cpu_s, descendants, find_child
from benchmarks.report import mean_batch_rows
from benchmarks.serve import batch_sums
from examples.server import Server, serving

FOLDER = Path(__file__).with_name("served")
START_S = 120.0
TRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How to measure.

    Args:
        device: `cpu`, `cuda` or `cuda:N`.
        quick: tiny networks.
        clients: numbers of clients of the closed loops, in increasing order.
        warm_up_s, duration_s: of each load.
        processes: of clients, at most.
        brief: measure only what the marks need.
    """

    device: str
    quick: bool
    clients: tuple[int, ...] = (1, 8, 64, 512)
    warm_up_s: float = 1.0
    duration_s: float = 4.0
    processes: int = max(1, len(os.sched_getaffinity(0)) // 2)
    brief: bool = False

    @property
    def most(self) -> int:
        """Return the largest number of clients."""
        return self.clients[-1]


@dataclass(frozen=True, slots=True)
class Served:
    """A case that is served."""

    server: Server
    case: Case
    effort: Effort

    def closed(self, clients: int, request_rows: int = 1) -> dict[str, float]:
        """Measure clients that each send the next request after the response."""
        return self._measure(clients=clients, request_rows=request_rows)

    def open(self, rows_per_s: float) -> dict[str, float]:
        """Measure requests of one row that arrive at random, at this rate."""
        return self._measure(rate_per_s=rows_per_s)

    def saturated(self, seconds: float, request_rows: int = 1) -> dict[str, float]:
        """Send requests of the largest number of clients, without measuring the server."""
        return send(self._plan(clients=self.effort.most, request_rows=request_rows, duration_s=seconds), self.processes)

    @property
    def processes(self) -> int:
        """Return the number of processes of clients."""
        return self.effort.processes

    def _plan(self, **load: Any) -> Plan:
        port = int(self.server.url.rpartition(":")[2])
        defaults = {"warm_up_s": self.effort.warm_up_s, "duration_s": self.effort.duration_s}
        return Plan(port, self.case.name, self.effort.quick, **(defaults | load))

    def _measure(self, **load: Any) -> dict[str, float]:
        before, used_s = batch_sums(self.server.metrics()), self._cpu_s()
        with sampling(self.effort.device) as sampled:
            found = send(self._plan(**load), self.processes)
        lasted_s = self.effort.warm_up_s + self.effort.duration_s
        shares = {name: (now_s - used_s[name]) / lasted_s for name, now_s in self._cpu_s().items()}
        batch_rows = mean_batch_rows(before, batch_sums(self.server.metrics()))
        return found | sampled | shares | {"mean_batch_rows": batch_rows}

    def _cpu_s(self) -> dict[str, float]:
        """Return the processor time (s) that proxy and runtimes have used so far."""
        found = {}
        for name in ("proxy", "runtime"):
            pid = find_child(self.server.pid, f"shoal_{name}")
            # Instances of a model are children of its runtime.
            found[f"{name}_cpu"] = sum(map(cpu_s, [pid, *descendants(pid)]))
        return found

    def estimated_idle(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return 1 minus batches per second times the forward's mean duration, as the proxy has learned it.

        Without a trace, this is the device thread's idle time. It is not defined for rows of several lengths.
        """
        tables = httpx.get(f"{self.server.admin_url}/v1/latency", trust_env=False).raise_for_status().json()["tables"]
        if len(tables) != 1 or not measured["mean_batch_rows"]:
            return {}
        rows = round(measured["mean_batch_rows"])
        forward_s = next((each["mean_s"] for each in tables[0]["sizes"] if each["rows"] == rows), None)
        if forward_s is None:
            return {}
        return {"estimated_idle": 1 - forward_s * measured["rows_per_s"] / measured["mean_batch_rows"]}


@contextmanager
def served(case: Case, effort: Effort, fields: Mapping[str, str] | None = None) -> Iterator[Served]:
    """Serve a case for as long as the block lasts."""
    parameters = {"case": case.name, **({"quick": "1"} if effort.quick else {})}
    own = {f"model.parameters.{name}": value for name, value in parameters.items()}
    with served_model(FOLDER, case, effort, own | dict(fields or {})) as running:
        yield running


@contextmanager
def served_model(model: Path, case: Case, effort: Effort, fields: Mapping[str, str]) -> Iterator[Served]:
    """Serve a model with the inputs of a case for as long as the block lasts."""
    own = {
        "metadata.name": MODEL,
        "batching.maxBatchSize": str(case.batch_rows),
        "runtime.device": effort.device,
    }
    with serving(model, fields={**own, **fields}, start_timeout_s=START_S) as server:
        yield Served(server, case, effort)


def trace_served(case: Case, effort: Effort) -> dict[str, float]:
    """Return the device's idle time under the largest number of clients, from a trace of the runtime.

    `cpu_NAME` is the share of a core that the runtime's threads of that name use.
    The trace slows down the runtime, so that this server is measured in no other way.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bench-gpu-") as directory,
        served(case, effort, {"model.parameters.trace": directory}) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        seconds = effort.warm_up_s + 2 * effort.duration_s
        load = pool.submit(running.saturated, seconds)
        time.sleep(2 * effort.warm_up_s)
        found = idle_time(request_trace(Path(directory), TRACE_S))
        load.result()
        threads = json.loads((Path(directory) / THREADS).read_text())
        return found | {f"cpu_{name}": share for name, share in threads.items()} if found else {}
