"""Detection of other autoscalers that write ``spec.replicas``.

A count that a user sets occasionally is kept. A writer that resets the operator's counts repeatedly is another
autoscaler, or a controller that applies a manifest. An HPA is recognized by its field manager.
"""

from dataclasses import dataclass, replace

from shoal_operator.ownership.conflicts import HPA_MANAGER

UNDONE_S = 120.0
"""A foreign count in the opposite direction this soon after the operator's is a reset. An HPA acts every 15 s."""
TIMES = 2
"""Resets that make a conflict."""
CALM_S = 600.0
"""A conflict ends after this long, or two windows, without a foreign count."""


@dataclass(frozen=True, slots=True)
class ReplicaConflicts:
    """Writes of one service's replicas by other clients; times in monotonic seconds."""

    name: str = ""
    """Field manager of the last foreign write; empty where it is unknown."""
    undone: int = 0
    """Number of times that the operator's count was reset."""
    until_s: float = float("-inf")
    """When a conflict ends, unless another foreign count is observed."""
    last_write: tuple[float, int] | None = None
    """The operator's last write: when, and the change of the count."""

    def record_write(self, change: int, now_s: float) -> "ReplicaConflicts":
        """Return the state after a write of the operator that changed the count by ``change``."""
        return replace(self, last_write=(now_s, change))

    def observe(self, name: str, change: int, now_s: float, window_s: float) -> "ReplicaConflicts":
        """Return the state after ``name`` changed the count by ``change``."""
        undone = self.undone if now_s < self.until_s else 0
        if self.last_write is not None and now_s - self.last_write[0] < UNDONE_S and self.last_write[1] * change < 0:
            undone += 1
        return ReplicaConflicts(name, undone, now_s + max(CALM_S, 2 * window_s))

    def conflicting_writer(self, now_s: float) -> str | None:
        """Return the conflicting field manager ("" if unknown), or else None."""
        return self.name if now_s < self.until_s and (self.undone >= TIMES or self.name == HPA_MANAGER) else None
