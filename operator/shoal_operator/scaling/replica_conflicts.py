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
    seen_s: float = float("-inf")
    """When the last foreign count was observed."""
    last_write: tuple[float, int] | None = None
    """The operator's last write: when, and the change of the count."""

    def record_write(self, change: int, now_s: float) -> "ReplicaConflicts":
        """Return the state after a write of the operator that changed the count by ``change``."""
        return replace(self, last_write=(now_s, change))

    def observe(self, name: str, change: int, now_s: float, window_s: float) -> "ReplicaConflicts":
        """Return the state after ``name`` changed the count by ``change``."""
        undone = 0 if self._is_over(now_s, window_s) else self.undone
        if self.last_write is not None and now_s - self.last_write[0] < UNDONE_S and self.last_write[1] * change < 0:
            undone += 1
        return ReplicaConflicts(name, undone, now_s)

    def conflicting_writer(self, now_s: float, window_s: float) -> str | None:
        """Return the conflicting field manager ("" if unknown), or else None."""
        if self._is_over(now_s, window_s) or not (self.undone >= TIMES or self.name == HPA_MANAGER):
            return None
        return self.name

    def _is_over(self, now_s: float, window_s: float) -> bool:
        return now_s - self.seen_s >= max(CALM_S, 2 * window_s)
