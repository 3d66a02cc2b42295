"""The rolling update: the next size of each ReplicaSet of a Deployment.

Invariants: at most ``replicas + max_surge`` pods are requested, and available pods never fall below
``replicas - max_unavailable``. Unlike Kubernetes, a change of ``replicas`` during a rollout does not first scale the
old ReplicaSets in proportion. Source: kubernetes/kubernetes pkg/controller/deployment/rolling.go.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a rollout, in pods."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @property
    def max_total(self) -> int:
        """Return the largest allowed number of pods during a rollout."""
        return self.replicas + self.max_surge

    @property
    def min_available(self) -> int:
        """Return the smallest allowed number of available pods in a rollout."""
        return self.replicas - self.max_unavailable


@dataclass(frozen=True, slots=True)
class ReplicaSetCounts:
    """The pods of one ReplicaSet: requested, available and existing."""

    name: str
    replicas: int
    available: int
    created: str = ""
    """Its creation time; sorts as text."""
    pods: int = 0
    """Pods that exist; more than ``replicas`` while old pods terminate."""

    @property
    def occupied(self) -> int:
        """Return the number of pods that count against ``max_total``."""
        return max(self.replicas, self.pods)


def make_bounds(replicas: int, max_surge: int | str, max_unavailable: int | str) -> Bounds:
    """Resolve percentages of ``replicas``: surge rounds up, unavailable down."""
    surge = _resolved(max_surge, replicas, round_up=True)
    unavailable = _resolved(max_unavailable, replicas, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Bounds(replicas, surge, min(unavailable, replicas))


def _resolved(value: int | str, replicas: int, *, round_up: bool) -> int:
    if isinstance(value, int):
        return value
    exact = int(value.removesuffix("%")) * replicas
    # Integer division: floats would round 7 % of 100 up to 8.
    return -(-exact // 100) if round_up else exact // 100


def next_sizes(bounds: Bounds, new: ReplicaSetCounts, old: Sequence[ReplicaSetCounts]) -> dict[str, int]:
    """Return the next sizes of the ReplicaSets that change, by name.

    The old ReplicaSets shrink only when the new one keeps its size.
    """
    free = max(0, bounds.max_total - new.replicas - sum(share.occupied for share in old))
    size = min(bounds.replicas, new.replicas + free)
    if size != new.replicas:
        return {new.name: size}
    total = new.replicas + sum(share.replicas for share in old)
    # Unavailable pods of the new ReplicaSet may never become available: they free no old pods.
    spare = total - bounds.min_available - max(0, new.replicas - new.available)
    if spare <= 0:
        return {}
    # Unavailable old pods go first, so that they cannot block the rollout.
    left = _cut([(share, share.replicas - share.available) for share in sorted(old, key=lambda s: s.created)], spare)
    available = new.available + sum(share.available for share in old)
    # Then available ones, down to the minimum.
    left = _cut([(share, share.replicas) for share in left], available - bounds.min_available)
    before = {share.name: share.replicas for share in old}
    return {share.name: share.replicas for share in left if share.replicas != before[share.name]}


def _cut(shares: Sequence[tuple[ReplicaSetCounts, int]], budget: int) -> list[ReplicaSetCounts]:
    """Return ReplicaSets with at most ``budget`` replicas fewer in total.

    ``shares`` are pairs of a ReplicaSet and the number of replicas that may be removed from it.
    """
    left = []
    for share, limit in shares:
        taken = max(0, min(budget, limit))
        budget -= taken
        left.append(replace(share, replicas=share.replicas - taken))
    return left
