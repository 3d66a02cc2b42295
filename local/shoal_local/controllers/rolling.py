"""The rolling update: how many replicas each ReplicaSet of a Deployment gets next.

Never more than ``replicas + max_surge`` pods are asked for, and never are available pods given up below
``replicas - max_unavailable``. Source: kubernetes/kubernetes pkg/controller/deployment/rolling.go. A new number of
replicas in the midst of a rollout is its new goal: old ReplicaSets are not scaled in proportion first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a rollout must keep to: counts of pods."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @property
    def max_total(self) -> int:
        """Return how many pods there may be."""
        return self.replicas + self.max_surge

    @property
    def min_available(self) -> int:
        """Return how many pods must be available."""
        return self.replicas - self.max_unavailable


@dataclass(frozen=True, slots=True)
class Share:
    """One ReplicaSet: what it is asked for and what it has."""

    name: str
    replicas: int
    available: int
    created: str = ""
    """Its creation time; text that sorts."""
    pods: int = 0
    """Pods that there are: while old ones end, more than are asked for."""

    @property
    def held(self) -> int:
        """Return how many pods it takes from what there may be."""
        return max(self.replicas, self.pods)


def make_bounds(replicas: int, max_surge: int | str, max_unavailable: int | str) -> Bounds:
    """Resolve percentages: surge rounds up, unavailable rounds down, and they are never both 0."""
    surge = _resolved(max_surge, replicas, round_up=True)
    unavailable = _resolved(max_unavailable, replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(replicas, surge, min(unavailable, replicas))


def _resolved(value: int | str, replicas: int, *, round_up: bool) -> int:
    if isinstance(value, int):
        return value
    exact = int(value.removesuffix("%")) * replicas
    return -(-exact // 100) if round_up else exact // 100


def next_sizes(bounds: Bounds, new: Share, old: Sequence[Share]) -> dict[str, int]:
    """Return the sizes to change in this step. First the new one grows, then the old ones shrink."""
    room = max(0, bounds.max_total - new.replicas - sum(share.held for share in old))
    size = min(bounds.replicas, new.replicas + room)
    return {new.name: size} if size != new.replicas else _shrunk(bounds, new, old)


def _shrunk(bounds: Bounds, new: Share, old: Sequence[Share]) -> dict[str, int]:
    total = new.replicas + sum(share.replicas for share in old)
    # What the new one asked for and has not got yet may never come: it does not count.
    spare = total - bounds.min_available - max(0, new.replicas - new.available)
    if spare <= 0:
        return {}
    # Pods that do not serve anyway go first, so that they cannot block the rollout.
    left = _cut([(share, share.replicas - share.available) for share in sorted(old, key=lambda s: s.created)], spare)
    available = new.available + sum(share.available for share in old)
    left = _cut([(share, share.replicas) for share in left], available - bounds.min_available)
    before = {share.name: share.replicas for share in old}
    return {share.name: share.replicas for share in left if share.replicas != before[share.name]}


def _cut(shares: Sequence[tuple[Share, int]], budget: int) -> list[Share]:
    """Take away from each at most the number beside it, and from all together at most the budget."""
    left = []
    for share, limit in shares:
        taken = max(0, min(budget, limit))
        budget -= taken
        left.append(replace(share, replicas=share.replicas - taken))
    return left
