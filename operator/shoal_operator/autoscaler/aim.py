"""What the spec asks of scaling, and how many rows that means for one replica."""

import math
from dataclasses import dataclass

from shoal_schema.load import Capacity

HEADROOM = 0.8
"""Share of a replica's capacity to plan with: the rest is for what arrives unevenly."""
LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Aim:
    """What the spec asks for.

    Args:
        target_queue_depth: rows waiting and running that one pod should have, >= 1; None where it is to be learned.
        full_batch_rows: the largest batch.
        objective_s: within what time answers should leave; None where the spec has none.
        most_rows: that one pod can hold, waiting and running.
    """

    minimum: int
    maximum: int
    target_queue_depth: int | None
    full_batch_rows: int = 32
    objective_s: float | None = None
    most_rows: float = math.inf

    def __post_init__(self) -> None:
        target = self.target_queue_depth
        if not (0 <= self.minimum <= self.maximum and self.maximum >= 1 and (target is None or target >= 1)):
            raise ValueError(f"need 0 <= minReplicas <= maxReplicas and a target >= 1, not {self}")

    def within(self, replicas: int) -> int:
        """Return the count, kept within the bounds; what runs never falls to none."""
        return max(self.minimum, 1, min(replicas, self.maximum))


def target_rows(aim: Aim, capacity: Capacity | None) -> float:
    """Return how many rows, waiting and running, a replica should have."""
    if aim.target_queue_depth is not None:
        return aim.target_queue_depth
    if aim.objective_s is not None and capacity is not None:
        return max(HEADROOM * capacity.rows, LEAST)
    return 2 * aim.full_batch_rows
