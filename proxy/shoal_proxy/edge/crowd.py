"""How many connections there may be, and which one makes room for the next. Pure: numbers in, numbers out."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

KEPT_DESCRIPTORS = 128
"""For what is no caller: listeners, the admin port's connections, the runtime's, callers being told that it is full."""
MAX_CONNECTIONS = 10_000
"""Unless a number is set: 100 MB of them, after one request each."""
WANTED_DESCRIPTORS = MAX_CONNECTIONS + KEPT_DESCRIPTORS
_AT_ONCE = 100
"""Idle connections are closed a hundredth at a time, so that a flood of new ones does not look at all for each."""


def connection_limit(wanted: int, descriptors: int) -> int:
    """Return how many callers may be connected: ``wanted`` (0: as many as is sensible), if descriptors allow it."""
    kept = min(KEPT_DESCRIPTORS, descriptors // 2)
    return max(1, min(wanted or MAX_CONNECTIONS, descriptors - kept))


class Resting(Protocol):
    """A connection, as far as it matters here."""

    @property
    def resting_since_s(self) -> float | None:
        """Since when nothing is under way on it; None while something is."""

    @property
    def never_asked(self) -> bool:
        """Whether no request has come yet."""


AnyResting = TypeVar("AnyResting", bound=Resting)


def make_room(connections: Iterable[AnyResting], count: int) -> Sequence[AnyResting]:
    """Return which of ``count`` connections go, so that another may come; none, when all are busy.

    Idle ones go: first those that never asked for anything, and of either kind the oldest.
    """
    idle = [
        (not each.never_asked, since_s, each) for each in connections if (since_s := each.resting_since_s) is not None
    ]
    idle.sort(key=_age)
    return [each for _, _, each in idle[: max(1, count // _AT_ONCE)]]


def _age(item: tuple[bool, float, object]) -> tuple[bool, float]:
    return item[0], item[1]
