"""Simulated loads of proxies: one with given rates, and a service whose pods follow the autoscaler."""

import math

from msgspec.structs import replace

from shoal_operator.scaling.decision import AutoscalerState, ScalingContext, ScalingDecision, decide
from shoal_operator.scaling.signals import LoadHistory
from shoal_operator.scaling.targets import ScalingTargets
from shoal_schema.interfaces.load import Capacity, Load, RejectedRows

NOTHING = Load(
    time_s=1000.0,
    queued_rows=0,
    running_rows=0,
    arrived_rows=0,
    answered_rows=0,
    refused_rows=RejectedRows(0, 0, 0, 0),
    forwarded_rows=0,
    row_seconds=0.0,
    queued_row_seconds=0.0,
    busy_s=0.0,
    utilization=0.0,
    objective_attainable=True,
    draining=False,
)


def holding(rows: int, *, attainable: bool = True, time_s: float = 1000.0) -> Load:
    """Return what a proxy says that holds so many rows, and has just begun."""
    return replace(NOTHING, queued_rows=rows, objective_attainable=attainable, time_s=time_s)


class Pod:
    """A proxy with given rates."""

    def __init__(self, capacity: Capacity | None = None) -> None:
        self.load = replace(NOTHING, capacity=capacity)
        self._parts = [0.0] * 3

    def passes(
        self,
        seconds: float,
        *,
        rows: float = 0.0,
        offered: float = 0.0,
        refused: float = 0.0,
        queued: float = 0.0,
        busy: float = 0.0,
    ) -> Load:
        """Let time pass with so many rows in the system, and so many a second asked for and refused."""
        before = self.load
        served = offered - refused
        self._parts = [
            part + rate * seconds for part, rate in zip(self._parts, (offered, refused, served), strict=True)
        ]
        arrived, late, answered = (int(part) for part in self._parts)
        self.load = replace(
            before,
            time_s=before.time_s + seconds,
            queued_rows=round(queued),
            running_rows=round(max(0.0, rows - queued)),
            arrived_rows=arrived,
            answered_rows=answered,
            refused_rows=RejectedRows(0, 0, late, 0),
            row_seconds=before.row_seconds + rows * seconds,
            queued_row_seconds=before.queued_row_seconds + queued * seconds,
            busy_s=before.busy_s + busy * seconds,
        )
        return self.load


class Service:
    """Replicas that serve so many rows a second each, refuse what is too much, and take a while to start."""

    TICK_S = 2.0

    def __init__(
        self,
        targets: ScalingTargets,
        *,
        rows_per_s: float = 94.7,
        alone_s: float = 0.03,
        full_rows: float = 18.0,
        start_s: float = 20,
    ) -> None:
        self.targets, self.start_s = targets, start_s
        self.capacity = Capacity(rows_per_s, rows_per_s * 0.1425)
        self._alone_s, self._full_rows = alone_s, full_rows
        self.now_s, self.replicas = 0.0, targets.within(1)
        self.pods = [Pod(self.capacity) for _ in range(self.replicas)]
        self._starting: list[float] = []
        self.state, self.memory = AutoscalerState(), LoadHistory()
        self.decisions: list[ScalingDecision] = []
        self.refused_per_s = 0.0

    @property
    def counts(self) -> list[int]:
        """The replicas of every decision so far."""
        return [decision.replicas for decision in self.decisions]

    def restart_operator(self) -> None:
        """Forget all that the law remembers."""
        self.state, self.memory = AutoscalerState(), LoadHistory()

    def run(self, seconds: float, offered: float, *, silent: int = 0, rolling: bool = False, full: int = 0) -> None:
        """Tick for so long, with so many rows a second asked for; of the pods the first ``silent`` say nothing."""
        for _ in range(math.ceil(seconds / self.TICK_S)):
            self._tick(offered, silent, ScalingContext(self.start_s, rolling, full))

    def _tick(self, offered: float, silent: int, context: ScalingContext) -> None:
        self.now_s += self.TICK_S
        up = [ready_s for ready_s in self._starting if ready_s <= self.now_s]
        self._starting = [ready_s for ready_s in self._starting if ready_s > self.now_s]
        self.pods += [Pod(self.capacity) for _ in up]
        each = offered / len(self.pods)
        refused = max(0.0, each - self.capacity.rows_per_s)
        self.refused_per_s = refused * len(self.pods)
        rows = self._full_rows if refused else each * self._alone_s
        said: dict[str, Load | None] = {}
        for at, pod in enumerate(self.pods):
            busy = min(1.0, 2 * each / self.capacity.rows_per_s)
            queued = rows / 2 if refused else 0.0
            load = pod.passes(self.TICK_S, rows=rows, offered=each, refused=refused, queued=queued, busy=busy)
            said[f"{id(pod)}"] = None if at < silent else load
        signals = self.memory.record(said, self.now_s, self.targets)
        decision, self.state = decide(self.targets, signals, self.replicas, self.state, self.now_s, context)
        self.decisions.append(decision)
        self.follow(decision.replicas)

    def follow(self, replicas: int) -> None:
        """Start pods, or take some away: those that are starting first."""
        missing = replicas - len(self.pods) - len(self._starting)
        self._starting += [self.now_s + self.start_s] * max(0, missing)
        gone = min(len(self._starting), max(0, -missing))
        del self._starting[len(self._starting) - gone :]
        del self.pods[max(1, replicas) :]
        self.replicas = replicas
