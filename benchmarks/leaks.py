"""How soon a model is found that now and then gives a row another row's result: simulated time, the proxy's own code.

Requests of one row arrive by chance; a device takes ``base + row x rows`` for a batch and computes in order. One batch
in so many is answered with two of its rows exchanged. `python -m benchmarks.leaks` prints, for several models, how
often that was found within ten minutes, what the checks cost, and what they add to latency.
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from shoal_proxy.batching.batch import BatchResult
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.pending import NEVER_S, PendingRequest
from shoal_proxy.batching.policy import BatchLimits, WaitUntil
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.row_checks.checks import RowChecks
from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.model.signature import ModelSignature, parse_metadata

Array = np.ndarray[Any, Any]
_TENSOR = {"datatype": "FP32", "shape": [-1, 4]}
SIGNATURE = parse_metadata(
    {"name": "leaky", "versions": ["1"], "inputs": [{"name": "x", **_TENSOR}], "outputs": [{"name": "y", **_TENSOR}]}
)


@dataclass
class Service:
    """A replica and its device, by hand-driven time.

    Args:
        base_s: what any batch takes.
        row_s: what each row adds.
        rows_per_s: requests of one row, at random times.
        leak_every: one batch in so many has two rows exchanged; 0 for none.
        seed: of all that is random.
        objective_s: the latency objective.
        max_rows: of a batch.
        checked: whether rows are checked.
    """

    base_s: float
    row_s: float
    rows_per_s: float
    leak_every: int = 0
    seed: int = 0
    objective_s: float = NEVER_S
    max_rows: int = 32
    checked: bool = True
    signature: ModelSignature = SIGNATURE
    now_s: float = 1.0
    leaked: int = 0
    """Batches that would have leaked."""
    seen_leaks: int = 0
    """Those that had another row to leak."""
    busy_s: float = 0.0
    """Of the device, with clients' batches."""
    waited_s: list[float] = field(default_factory=list)
    found_s: float | None = None
    """When the violation was found."""
    batch_requests: list[int] = field(default_factory=list)
    """Requests of each batch."""

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.checks = RowChecks(Random(self.seed).randrange) if self.checked else None
        batcher = Batcher(QueueLimits(4096, 1 << 30), BatchLimits(self.max_rows), objective_s=self.objective_s)
        self.scheduler = Scheduler(batcher, checks=self.checks)
        measured = tuple((rows, self.forward_s(rows)) for rows in (1, 2, 4, 8, 16, 32) if rows <= self.max_rows)
        self.scheduler.set_model(self.max_rows, (), measured)
        self.scheduler.verify(self.signature)
        self._device: deque[tuple[RunningBatch, float]] = deque()
        self._free_s = 0.0
        self._arrival_s = self.now_s

    def forward_s(self, rows: int) -> float:
        """Return what a batch takes."""
        return self.base_s + self.row_s * rows

    def compute(self, inputs: Array) -> Array:
        """Return each row's own result."""
        return inputs * 2

    def answer(self, inputs: Array) -> Array:
        """Return the results of a batch, now and then with two rows exchanged."""
        outputs = self.compute(inputs)
        if self.leak_every and self.rng.random() * self.leak_every < 1:
            self.leaked += 1
            if len(outputs) > 1:
                self.seen_leaks += 1
                one, other = self.rng.choice(len(outputs), 2, replace=False)
                outputs[[one, other]] = outputs[[other, one]]
        return outputs

    def run(self, seconds: float) -> None:
        """Let time pass, or until a violation is found."""
        end_s = self.now_s + seconds
        while self.now_s < end_s and self.found_s is None:
            wake_s = self._dispatch()
            done_s = self._device[0][1] if self._device else NEVER_S
            self.now_s = min(self._arrival_s, done_s, max(wake_s, self.now_s + 1e-6))
            if self.now_s == done_s:
                self._finish(self._device.popleft()[0])
            while self._arrival_s <= self.now_s:
                self._arrive()

    def _arrive(self) -> None:
        inputs = self.rng.standard_normal((1, 4)).astype(np.float32)
        pending = PendingRequest(
            inputs={"x": inputs},
            rows=1,
            size_bytes=16,
            arrived_s=self._arrival_s,
            deadline_s=self._arrival_s + 60,
            deliver=lambda _: None,
        )
        self.scheduler.admit(pending, self.now_s)
        self._arrival_s += self.rng.exponential(1 / self.rows_per_s)

    def _dispatch(self) -> float:
        while True:
            check = self.scheduler.next_check(self.now_s)
            if check is not None:
                self._send(check)
            step = self.scheduler.next_batch(self.now_s)
            if isinstance(step, WaitUntil):
                return min(step.until_s, self.scheduler.check_s)
            if step.running is not None:
                self._send(step.running)

    def _send(self, running: RunningBatch) -> None:
        self._free_s = max(self._free_s, self.now_s) + self.forward_s(running.rows)
        self._device.append((running, self._free_s))

    def _finish(self, running: RunningBatch) -> None:
        scheduler, slices = self.scheduler, running.batch.slices
        scheduler.record_finished(running, self.now_s)
        outputs = self.answer(np.concatenate([part.inputs["x"] for part in slices]))
        result = BatchResult({"y": outputs}, forward_s=self.forward_s(running.rows))
        if running.check is not None:
            if scheduler.complete_check(running, result, self.signature, completed_s=self.now_s) is not None:
                self.found_s = self.now_s
            return
        self.busy_s += self.forward_s(running.rows)
        self.batch_requests.append(len(slices))
        for pending, _ in scheduler.complete_batch(running, result, self.signature, completed_s=self.now_s):
            self.waited_s.append(self.now_s - pending.arrived_s)
        scheduler.record_delivered(running, self.now_s)


MODELS = (
    ("MLP on a CPU", 0.5e-3, 0.02e-3, NEVER_S),
    ("MLP, objective 20 ms", 0.5e-3, 0.02e-3, 0.02),
    ("2 ms + 0.1 ms a row", 2e-3, 0.1e-3, NEVER_S),
    ("4 ms + 0.15 ms a row", 4e-3, 0.15e-3, NEVER_S),
    ("4 ms + 0.15 ms a row, objective 50 ms", 4e-3, 0.15e-3, 0.05),
    ("1 ms + 1 ms a row", 1e-3, 1e-3, NEVER_S),
    ("R50, 5.07 ms + 1.05 ms a row", 5.07e-3, 1.05e-3, NEVER_S),
)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seconds", type=float, default=600.0)
    options.add_argument("--rate", type=float, default=500.0, help="rows per second")
    options.add_argument("--every", type=int, default=10_000, help="one batch in so many leaks")
    options.add_argument("--runs", type=int, default=4)
    given = options.parse_args()
    print("| model | requests a batch | leaks | rows checked/s | device time | p99 ms (without) | found | after s |")
    print("|---|---|---|---|---|---|---|---|")
    for name, base_s, row_s, objective_s in MODELS:
        began_s = time.perf_counter()
        runs = []
        for seed in range(given.runs):
            service = Service(base_s, row_s, given.rate, given.every, seed, objective_s)
            service.run(given.seconds)
            runs.append(service)
        plain = Service(base_s, row_s, given.rate, 0, 0, objective_s, checked=False)
        plain.run(60)
        quiet = Service(base_s, row_s, given.rate, 0, 0, objective_s)
        quiet.run(60)
        assert quiet.checks is not None
        found = [service.found_s - 1 for service in runs if service.found_s is not None]
        p99 = f"{1000 * np.quantile(quiet.waited_s, 0.99):.1f} ({1000 * np.quantile(plain.waited_s, 0.99):.1f})"
        after = f"{np.median(found):.0f}" if found else "-"
        shared = sum(requests > 1 for requests in quiet.batch_requests) / 60
        print(
            f"| {name} | {np.mean(quiet.batch_requests):.1f} | {given.seconds * shared / given.every:.1f}"
            f" | {quiet.checks.checked_rows / 60:.0f}"
            f" | {quiet.checks.device_s / 60:.1%} | {p99} | {len(found)} of {len(runs)} | {after} |"
            f" {time.perf_counter() - began_s:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
