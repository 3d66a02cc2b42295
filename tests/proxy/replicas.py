"""A replica whose time a test drives: the proxy's own scheduler, and a device that computes what the test says."""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np

from shoal_proxy.batching.batch import BatchResult
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits, WaitUntil
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.row_checks.checks import RowChecks
from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.resource.traffic import BatchingPolicy
from shoal_schema.wire.datatypes import Array
from tests.proxy.signatures import request, signature

MAX_ROWS = 8
FLOATS = signature()
Model = Callable[[Mapping[str, Array]], dict[str, Array]]


def double(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"y": inputs["x"] * 2}


class Replica:
    """A scheduler, and a device that computes at once what a test says."""

    def __init__(
        self,
        model: Model = double,
        served: ModelSignature = FLOATS,
        *,
        policy: BatchingPolicy = BatchingPolicy.ADAPTIVE,
        objective_s: float = NEVER_S,
    ) -> None:
        self.model, self.served = model, served
        limits = BatchLimits(MAX_ROWS, 0.0, 1, policy)
        self.checks = RowChecks(Random(1).randrange)
        batcher = Batcher(QueueLimits(1024, 10**9), limits, objective_s=objective_s)
        self.scheduler = Scheduler(batcher, checks=self.checks)
        self.scheduler.set_model(MAX_ROWS, (), ((1, 0.001), (MAX_ROWS, 0.002)))
        self.scheduler.verify(served)
        self.now_s = 1.0
        self.sent: list[RunningBatch] = []
        self.rng = np.random.default_rng(1)

    def ask(self, *rows: Any, name: str = "x", **more: Any) -> None:
        """Admit requests of one row each, and run the batches that they become."""
        for each in rows:
            inputs = each if isinstance(each, dict) else {name: np.asarray([each], np.float32)}
            pending = request(inputs, arrived_s=self.now_s, deadline_s=self.now_s + 60, **more)
            assert self.scheduler.admit(pending, self.now_s) is None
        while not isinstance(step := self.scheduler.next_batch(self.now_s), WaitUntil):
            assert step.running is not None
            self.sent.append(step.running)
            self.now_s += 0.001
            self.scheduler.record_finished(step.running, self.now_s)
            result = BatchResult(self.compute(step.running), forward_s=0.001)
            self.scheduler.complete_batch(step.running, result, self.served, completed_s=self.now_s)
            self.scheduler.record_delivered(step.running, self.now_s)

    def compute(self, running: RunningBatch) -> dict[str, Array]:
        slices = running.batch.slices
        return self.model({name: np.concatenate([part.inputs[name] for part in slices]) for name in slices[0].inputs})

    def random_rows(self, rows: int = MAX_ROWS) -> list[Array]:
        return list(self.rng.standard_normal((rows, 4)).astype(np.float32))

    def idle(self, seconds: float = 60.0) -> int:
        """Let time pass without clients; return how many checks ran."""
        end_s, ran = self.now_s + seconds, 0
        while self.now_s < end_s:
            check = self.scheduler.next_check(self.now_s)
            if check is None:
                self.now_s = min(end_s, max(self.scheduler.check_s, self.now_s + 1e-6))
                continue
            ran += 1
            self.now_s += 0.001
            self.scheduler.record_finished(check, self.now_s)
            result = BatchResult(self.compute(check), forward_s=0.001)
            self.scheduler.complete_check(check, result, self.served, completed_s=self.now_s)
        return ran

    def serve(self, batches: int) -> None:
        """Serve batches of random rows, with idle time between."""
        for _ in range(batches):
            self.ask(*self.random_rows())
            self.idle(1.0)
