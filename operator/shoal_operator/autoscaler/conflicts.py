"""Noticing that somebody else drives the replicas which the law drives.

A person sets a number now and then, and it is held. Who sets back what the law has just written, and again, is another
autoscaler, or a controller that applies a manifest; an HPA says so by its name.
"""

from dataclasses import dataclass, replace

UNDONE_S = 120.0
"""A number that comes so soon after one of ours, and goes the other way, sets it back. An HPA looks each 15 s."""
TIMES = 2
CALM_S = 600.0
"""After so long without another's number, or two windows, nobody is told of any more."""
HPA = "kube-controller-manager"
"""Where the HPA controller runs, KEDA's HPAs included: no person writes by that name."""


@dataclass(frozen=True, slots=True)
class ReplicaConflicts:
    """What is remembered of others' writes, in monotonic seconds.

    Args:
        name: who wrote last, beside the law; empty where that is not known.
        undone: how often our number was set back.
        seen_s: when another's number was seen last.
        ours: our last write: when, and by how much.
    """

    name: str = ""
    undone: int = 0
    seen_s: float = float("-inf")
    ours: tuple[float, int] | None = None

    def wrote(self, change: int, now_s: float) -> "ReplicaConflicts":
        """Return what to remember after a write of ours that changed the count by so much."""
        return replace(self, ours=(now_s, change))

    def saw(self, name: str, change: int, now_s: float, window_s: float) -> "ReplicaConflicts":
        """Return what to remember after a number of another's, so much more than ours was."""
        undone = 0 if self._is_over(now_s, window_s) else self.undone
        if self.ours is not None and now_s - self.ours[0] < UNDONE_S and self.ours[1] * change < 0:
            undone += 1
        return ReplicaConflicts(name, undone, now_s)

    def told(self, now_s: float, window_s: float) -> str | None:
        """Return who drives the replicas beside us, empty where that has no name; None where nobody does."""
        if self._is_over(now_s, window_s) or not (self.undone >= TIMES or self.name == HPA):
            return None
        return self.name

    def _is_over(self, now_s: float, window_s: float) -> bool:
        return now_s - self.seen_s >= max(CALM_S, 2 * window_s)
