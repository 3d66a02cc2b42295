"""The explanation of a count for users, and when to replace a reported one."""

from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.autoscaler.aim import Aim
from shoal_operator.autoscaler.down import whole
from shoal_operator.autoscaler.want import Want

_NEWS = 0.5
"""Changes below this share are not reported."""
_FEW = 1.0
"""Changes below this, in rows or rows per second, are not reported."""


class Window(StrEnum):
    """The window that determined the count."""

    PANIC = "panic window"
    SHORT = "short window"
    STABLE = "stable window"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The inputs of a decided count."""

    aim: Aim
    replicas: int
    """The decided count."""
    wanted: Want
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
        """Return the explanation as one sentence."""
        load = f"{self.wanted.amount:.0f} {self.wanted.unit}, {self.wanted.each:.3g} per replica, {self.window}"
        text = f"{self.replicas} replica{'' if self.replicas == 1 else 's'}: {load}"
        if self.count > whole(self.wanted.replicas):
            text += "; one more than the ready replicas, because rows are rejected or late"
        if self.count > self.replicas:
            text += f"; {self.count} wanted"
        if self.held_s is not None:
            text += f"; set by another writer, and held for {self.held_s:.0f} s unless the load requires more"
        elif self.replicas > self.count and not self.falling:
            # More replicas than the load requires: what happens to them next.
            least = max(self.aim.minimum, 1)
            if self.replicas > least:
                text += f"; {max(self.count, least)} would suffice, and replicas fall if the load stays low"
            elif self.aim.minimum:
                text += "; scaling.minReplicas is the minimum"
            else:
                text += "; the last one stops after scaling.scaleToZeroDelaySeconds without requests"
        return text


def is_other(said: Explanation, now: Explanation) -> bool:
    """Return whether count, bounds, or being set from outside differ."""
    return (said.replicas, said.held_s is None, said.aim) != (now.replicas, now.held_s is None, now.aim)


def is_stale(said: Explanation, now: Explanation) -> bool:
    """Return whether the reported load is outdated."""
    # Small changes of the load are not reported.
    if (said.count, said.window, said.wanted.unit) != (now.count, now.window, now.wanted.unit):
        return True
    return _moved(said.wanted.amount, now.wanted.amount) or _moved(said.wanted.each, now.wanted.each)


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > max(_FEW, _NEWS * max(before, after))
