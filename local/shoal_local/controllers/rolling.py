"""The rolling update: how many replicas each ReplicaSet of a Deployment gets next.

Never more than ``replicas + max_surge`` pods are asked for, and never are available pods given up
below ``replicas - max_unavailable``. Source: kubernetes/kubernetes pkg/controller/deployment
(rolling.go, sync.go) and its util/deployment_util.go.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a rollout must keep to: counts of pods."""

    replicas: int
    max_surge: int
    max_unavailable: int

    @property
    def most(self) -> int:
        """Return how many pods there may be."""
        return self.replicas + self.max_surge

    @property
    def least_available(self) -> int:
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
    planned_for: int = 0
    """``Bounds.most`` when it was last scaled; 0 when nobody knows."""


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
    size = _new_size(bounds, new, old)
    if size != new.replicas:
        return {new.name: size}
    return _shrunk(bounds, new, old)


def _new_size(bounds: Bounds, new: Share, old: Sequence[Share]) -> int:
    if new.replicas >= bounds.replicas:
        return bounds.replicas
    total = new.replicas + sum(share.replicas for share in old)
    room = max(0, bounds.most - total)
    return new.replicas + min(room, bounds.replicas - new.replicas)


def _shrunk(bounds: Bounds, new: Share, old: Sequence[Share]) -> dict[str, int]:
    total = new.replicas + sum(share.replicas for share in old)
    # What the new one asked for and has not got yet may never come: it does not count.
    spare = total - bounds.least_available - max(0, new.replicas - new.available)
    if spare <= 0:
        return {}
    oldest_first = sorted(old, key=lambda share: share.created)
    cleaned = _without_unavailable(oldest_first, spare)
    available = new.available + sum(share.available for share in old)
    left = _without_available(cleaned, available - bounds.least_available)
    before = {share.name: share.replicas for share in old}
    return {share.name: share.replicas for share in left if share.replicas != before[share.name]}


def _without_unavailable(old: Sequence[Share], most: int) -> list[Share]:
    """Give up pods that do not serve anyway, so that they cannot block the rollout."""
    left = []
    for share in old:
        cut = max(0, min(most, share.replicas - share.available))
        most -= cut
        left.append(replace(share, replicas=share.replicas - cut))
    return left


def _without_available(old: Sequence[Share], most: int) -> list[Share]:
    left = []
    for share in old:
        cut = max(0, min(most, share.replicas))
        most -= cut
        left.append(replace(share, replicas=share.replicas - cut))
    return left


def scaled_sizes(bounds: Bounds, shares: Sequence[Share], newest: str) -> dict[str, int]:
    """Return the sizes after someone changed the number of replicas. In the midst of a rollout, in proportion."""
    active = [share for share in shares if share.replicas > 0]
    if len(active) <= 1:
        only = active[0] if active else next((s for s in shares if s.name == newest), None)
        return {only.name: bounds.replicas} if only and only.replicas != bounds.replicas else {}
    new = next((share for share in shares if share.name == newest), None)
    if new is not None and new.replicas == bounds.replicas == new.available:
        return {share.name: 0 for share in active if share.name != newest}
    return _in_proportion(bounds, active)


def _in_proportion(bounds: Bounds, active: Sequence[Share]) -> dict[str, int]:
    allowed = bounds.most if bounds.replicas > 0 else 0
    to_add = allowed - sum(share.replicas for share in active)
    # Larger ones first; among equals the newer grows and the older shrinks.
    ordered = sorted(active, key=lambda share: share.created, reverse=to_add > 0)
    ordered.sort(key=lambda share: share.replicas, reverse=True)
    sizes, added = {}, 0
    for share in ordered:
        part = _part(bounds, share)
        part = min(part, to_add - added) if to_add > 0 else max(part, to_add - added)
        part = max(part, -share.replicas) if to_add != 0 else 0
        sizes[share.name] = share.replicas + part
        added += part
    # What rounding left over goes to the first that can take it.
    left = to_add - added
    for share in ordered:
        size = max(0, sizes[share.name] + left)
        left -= size - sizes[share.name]
        sizes[share.name] = size
    return {share.name: sizes[share.name] for share in active if sizes[share.name] != share.replicas}


def _part(bounds: Bounds, share: Share) -> int:
    if bounds.replicas == 0:
        return -share.replicas
    planned_for = share.planned_for or bounds.most
    return math.floor(share.replicas * bounds.most / planned_for + 0.5) - share.replicas
