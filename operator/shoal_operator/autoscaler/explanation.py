"""What the law says of a count, for people: a sentence, and when it has to be said anew."""

from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.autoscaler.aim import Aim
from shoal_operator.autoscaler.down import whole
from shoal_operator.autoscaler.want import Want

_NEWS = 0.5
"""Numbers that have moved by less than this share are what was said before."""
_FEW = 1.0
"""Rows, or rows a second: less is no load to speak of."""


class Window(StrEnum):
    """Which window decided."""

    PANIC = "panic window"
    SHORT = "short window"
    STABLE = "stable window"


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the count is what it is.

    Args:
        aim: of the spec.
        replicas: the count.
        wanted: what the load asks for, bounds aside.
        count: the same in whole replicas, with the one more that strain adds.
        window: which one decided.
        falling: the count is less than it was.
        held_s: how long it is held since it was set from outside (`kubectl scale`); None where it was not.
    """

    aim: Aim
    replicas: int
    wanted: Want
    count: int
    window: Window
    falling: bool = False
    held_s: float | None = None

    @property
    def sentence(self) -> str:
        """Return it in words."""
        said = f"{self.wanted.amount:.0f} {self.wanted.unit}, {self.wanted.each:.3g} a replica, {self.window}"
        words = f"{self.replicas} replica{'' if self.replicas == 1 else 's'}: {said}"
        if self.count > whole(self.wanted.replicas):
            words += "; one more than are ready, since rows are refused or late"
        if self.count > self.replicas:
            words += f"; {self.count} wanted"
        if self.held_s is not None:
            words += f"; set from outside, and held for {self.held_s:.0f} s from then unless the load asks for more"
        elif self.replicas > self.count and not self.falling:
            words += f"; {self._outlook}"
        return words

    @property
    def _outlook(self) -> str:
        """What becomes of replicas that the load does not ask for."""
        least = max(self.aim.minimum, 1)
        if self.replicas > least:
            return f"{max(self.count, least)} would do, and fewer come when that has lasted"
        if self.aim.minimum:
            return "scaling.minReplicas allows no fewer"
        return "the last one goes when nobody has called for scaling.scaleToZeroDelaySeconds"


def is_other(said: Explanation, now: Explanation) -> bool:
    """Return whether the count is another one, or another's."""
    return (said.replicas, said.held_s is None, said.aim) != (now.replicas, now.held_s is None, now.aim)


def is_stale(said: Explanation, now: Explanation) -> bool:
    """Return whether what was said of the load is true no more."""
    if (said.count, said.window, said.wanted.unit) != (now.count, now.window, now.wanted.unit):
        return True
    return _moved(said.wanted.amount, now.wanted.amount) or _moved(said.wanted.each, now.wanted.each)


def _moved(before: float, after: float) -> bool:
    return abs(after - before) > max(_FEW, _NEWS * max(before, after))
