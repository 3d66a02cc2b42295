"""Scaling targets of a service, from its spec."""

import math
from dataclasses import dataclass

from shoal_schema.interfaces.load import Capacity

HEADROOM = 0.8
"""Share of a replica's capacity to plan with; the rest absorbs uneven arrivals."""
LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class ScalingTargets:
    """Bounds and target load of a service's replicas."""

    minimum: int
    maximum: int
    target_queue_depth: int | None
    """Queued and running rows that one pod should have, >= 1; None: derived from the measured capacity."""
    full_batch_rows: int = 32
    """Rows of the largest batches that one pod runs at a time."""
    objective_s: float | None = None
    """The latency objective (s); None without one."""
    most_rows: float = math.inf
    """Queued and running rows that one pod can hold."""

    def __post_init__(self) -> None:
        target = self.target_queue_depth
        if not (0 <= self.minimum <= self.maximum and self.maximum >= 1 and (target is None or target >= 1)):
            raise ValueError(f"need 0 <= minReplicas <= maxReplicas and a target >= 1, not {self}")

    def within(self, replicas: int) -> int:
        """Return ``replicas`` within the bounds, and at least 1."""
        return max(self.minimum, 1, min(replicas, self.maximum))


def target_rows(targets: ScalingTargets, capacity: Capacity | None) -> float:
    """Return how many queued and running rows a replica should have."""
    if targets.target_queue_depth is not None:
        return targets.target_queue_depth
    if targets.objective_s is not None and capacity is not None:
        return max(HEADROOM * capacity.rows, LEAST)
    return 2 * targets.full_batch_rows


@dataclass(frozen=True, slots=True)
class ZeroPolicy:
    """Settings of a service that scales to zero."""

    delay_s: float
    """Time without requests before scaling to zero (s)."""
    maximum: int
    """Maximum of replicas, >= 1."""
    per_replica: int
    """Held requests for each replica to start, >= 1."""

    def backlog(self, waiting: int) -> int:
        """Return the replicas to start for ``waiting`` held requests, at least 1."""
        return max(1, min(self.maximum, -(-waiting // self.per_replica)))
