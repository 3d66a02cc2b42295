"""Explanation of a service's replicas for users, and when it is outdated."""

from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.scaling.limits import rounded_up
from shoal_operator.scaling.recommendation import Recommendation
from shoal_operator.scaling.targets import ScalingTargets

_NEWS = 0.5
"""Changes below this share are not reported."""
_FEW = 1.0
"""Changes below this, in rows or rows per second, are not reported."""


class Window(StrEnum):
    """Time window of the load that determined a service's replicas."""

    PANIC = "panic window"
    SHORT = "short window"
    STABLE = "stable window"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Inputs of a decision on replicas, which explain it to users."""

    targets: ScalingTargets
    replicas: int
    """The decided count."""
    recommendation: Recommendation
    """Replicas that the load requires, regardless of bounds."""
    count: int
    """The same in whole replicas, with one more under strain."""
    window: Window
    falling: bool = False
    """The count is lower than before."""
    held_s: float | None = None
    """Time to hold a manually set count (`kubectl scale`); None without such a count."""

    @property
    def sentence(self) -> str:
        """The explanation of a count as one sentence."""
        load = (
            f"{self.recommendation.amount:.0f} {self.recommendation.unit}, {self.recommendation.each:.3g} per replica"
        )
        text = f"{self.replicas} replica{'' if self.replicas == 1 else 's'}: {load}, {self.window}"
        if self.count > rounded_up(self.recommendation.replicas):
            text += "; one more than are ready, since rows are rejected or late"
        if self.count > self.replicas:
            text += f"; {self.count} wanted"
        if self.held_s is not None:
            text += f"; set by another writer, and held for {self.held_s:.0f} s unless the load requires more"
        elif self.replicas > self.count and not self.falling:
            # More replicas than the load requires: what happens to them next.
            least = max(self.targets.minimum, 1)
            if self.replicas > least:
                text += f"; {max(self.count, least)} would suffice, and replicas fall if the load stays low"
            elif self.targets.minimum:
                text += "; scaling.minReplicas allows no fewer"
            else:
                text += "; the last one stops after scaling.scaleToZeroDelaySeconds without requests"
        return text


def differs(reported: Explanation, now: Explanation) -> bool:
    """Return whether replicas, scaling targets or manual scaling differ."""
    return (reported.replicas, reported.held_s is None, reported.targets) != (
        now.replicas,
        now.held_s is None,
        now.targets,
    )


def is_stale(reported: Explanation, now: Explanation) -> bool:
    """Return whether the load changed much since the reported explanation."""
    # Small changes of the load are not reported.
    if (reported.count, reported.window, reported.recommendation.unit) != (
        now.count,
        now.window,
        now.recommendation.unit,
    ):
        return True
    return _moved(reported.recommendation.amount, now.recommendation.amount) or _moved(
        reported.recommendation.each, now.recommendation.each
    )


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > max(_FEW, _NEWS * max(before, after))
