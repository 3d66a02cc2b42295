"""The operator's autoscaler on the load that the proxies of the simulated cluster would report."""

from msgspec.structs import replace

from benchmarks.scalers.readings import Reading, Service
from shoal_operator.scaling.decision import AutoscalerState, ScalingContext, decide
from shoal_operator.scaling.signals import LoadHistory
from shoal_operator.scaling.targets import HEADROOM, ScalingTargets
from shoal_schema.interfaces.load import Capacity, Load, RejectedRows


class Shoal:
    """``shoal_operator.autoscaler`` without a target of its user's, at its own tick.

    It plans with `HEADROOM` of what a replica serves; for another target its input is scaled.
    """

    period_s = 2.0

    def __init__(self, service: Service, target: float) -> None:
        share = target / service.rows / HEADROOM
        self._targets = ScalingTargets(service.minimum, service.maximum, None, service.largest, service.objective_s)
        self._context = ScalingContext(service.start_s)
        self._new = replace(_NEW, capacity=Capacity(share * service.rows_per_s, share * service.rows))
        self._pods: list[_Pod] = []
        self._before: Reading | None = None
        self._history, self._state = LoadHistory(), AutoscalerState()

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return how many replicas (`Law`)."""
        before = self._before or reading
        self._before = reading
        self._pods = self._pods[: reading.ready]
        for pod in self._pods:
            pod.go_on(before, reading, reading.ready)
        self._pods += [_Pod(self._new, now_s, reading) for _ in range(reading.ready - len(self._pods))]
        loads = {pod.uid: pod.load for pod in self._pods}
        signals = self._history.record(loads, now_s, self._targets)
        decision, self._state = decide(self._targets, signals, reading.replicas, self._state, now_s, self._context)
        return decision.replicas


class _Pod:
    """A proxy that has an equal share of what its service does."""

    def __init__(self, new: Load, now_s: float, reading: Reading) -> None:
        self.uid = f"{id(self)}"
        self._arrived = self._answered = self._refused = 0.0
        self.load = replace(new, time_s=now_s)

    def go_on(self, before: Reading, after: Reading, pods: int) -> None:
        """Take a share of what there was between two readings."""
        self._arrived += (after.arrived - before.arrived) / pods
        self._answered += (after.answered - before.answered) / pods
        self._refused += (after.refused - before.refused) / pods
        load = self.load
        self.load = replace(
            load,
            time_s=after.now_s,
            queued_rows=round(after.queued_rows / pods),
            running_rows=round(after.running_rows / pods),
            arrived_rows=int(self._arrived),
            answered_rows=int(self._answered),
            refused_rows=RejectedRows(0, 0, int(self._refused), 0),
            row_seconds=load.row_seconds + (after.row_seconds - before.row_seconds) / pods,
            queued_row_seconds=load.queued_row_seconds + (after.queued_row_seconds - before.queued_row_seconds) / pods,
            busy_s=load.busy_s + (after.busy_s - before.busy_s) / pods,
        )


_NEW = Load(
    time_s=0.0,
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
