"""What the autoscaler remembers of one service."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal_operator.scaling.decision import AutoscalerState, ScalingDecision, ScalingLimit
from shoal_operator.scaling.explanation import Explanation, differs, is_stale
from shoal_operator.scaling.objective import ObjectiveReports
from shoal_operator.scaling.replica_conflicts import ReplicaConflicts
from shoal_operator.scaling.report import ScalingReport
from shoal_operator.scaling.signals import LoadHistory
from shoal_schema.interfaces.fleet import FleetPod

_RENEWED_S = 60.0
"""Minimum age of a reported load before it is replaced: each report costs a reconciliation and a status write."""


@dataclass(frozen=True, slots=True)
class LastDecision:
    """One service's last decision, for metrics."""

    desired: int
    ready: int
    rows: float
    offered_rows_per_s: float
    each: float
    """Target of one replica, in rows or rows per second: see `Recommendation` of the autoscaler."""
    panicking: bool


@dataclass(slots=True)
class ScalingState:
    """Decisions on the replicas of one service."""

    history: LoadHistory = field(default_factory=LoadHistory)
    state: AutoscalerState = field(default_factory=AutoscalerState)
    explanation: Explanation | None = None
    """The reported explanation of the count."""
    reported_s: float = -math.inf
    conflicts: ReplicaConflicts = field(default_factory=ReplicaConflicts)
    to_remove: frozenset[str] = frozenset()
    """Pods, by uid, that were chosen for removal at the last decrease; they may still exist."""
    limited: tuple[ScalingLimit, float] | None = None
    """The last limit of the count, and when it last applied."""
    last_decision: LastDecision | None = None

    def is_due(self, decision: ScalingDecision, now_s: float) -> bool:
        """Return whether the reported explanation must be replaced."""
        before, now = self.explanation, decision.explanation
        if before is None or now is None:
            return before is not now
        return differs(before, now) or (now_s - self.reported_s >= _RENEWED_S and is_stale(before, now))


@dataclass(slots=True)
class LoadState:
    """Readings of one service's pods, and what follows from them; times in monotonic seconds."""

    reading: bool = False
    """A reading is in progress."""
    read_s: float | None = None
    """When the pods were last read; before the first reading, when that was scheduled."""
    doubted_s: float = -math.inf
    """When a pod without a reading last caused a reconciliation."""
    pods: tuple[FleetPod, ...] | None = None
    """The last load of each pod."""
    candidates: tuple[FleetPod, ...] = ()
    """The last load of each pod of its candidate."""
    reported: ScalingReport | None = None
    """The last reported decision; None before the first one."""
    attainable: Mapping[str, bool] | None = None
    """By uid, whether pods can meet their latency objective; None before the first reading."""
    independent: Mapping[str, bool] | None = None
    """By uid, the results of the pods' row checks; None before the first reading."""
    precisions: Mapping[str, str] | None = None
    """By uid, the precisions that the pods' runtimes chose; None before the first reading."""
    objective: ObjectiveReports | None = None
    """Reports about the latency objective."""
    scaling: ScalingState | None = None
    """None where the replicas do not follow the load."""
