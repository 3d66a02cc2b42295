"""How long a peer may take over what it does on a connection. Pure: times are arguments, in monotonic seconds."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

BUSY_LOOK_S: Final = 30.0
"""How often a connection is looked at on which it is for us to act."""
STALLED_S: Final = 1.0
"""A look that comes this much late says that we were slow, not the peer: what it sent is still to be read."""


class Patience(NamedTuple):
    """How long each of a connection's doings may last."""

    head_s: float
    """From a connection's start until its first head is here; from any head's first byte until its last."""
    body_s: float
    """How long a body may come more slowly than ``min_bytes_per_s``."""
    write_s: float
    """How long an answer may be taken more slowly than that."""
    idle_s: float
    """Between an answer and the next request."""
    min_bytes_per_s: float

    def keeps_up(self, moved_bytes: int, elapsed_s: float) -> bool:
        """Return whether so many bytes in such a time are enough to go on.

        A total alone would cut off a large body on a slow line. A rate from its beginning would let one that came
        quickly stall for as long as it has earned. So each stretch of time has to keep the rate.
        """
        return moved_bytes >= self.min_bytes_per_s * elapsed_s


class Lookout:
    """One timer of a connection: calls ``on_look`` at the earliest of the times it was given.

    Args:
        call_later: the event loop's; returns what can be cancelled.
        clock: monotonic seconds.
        on_look: told the time.
    """

    __slots__ = ("_at_s", "_call_later", "_clock", "_on_look", "_timer")

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], Any],
        clock: Callable[[], float],
        on_look: Callable[[float], None],
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._on_look = on_look
        self._timer: Any = None
        self._at_s = 0.0

    def by(self, at_s: float, now_s: float) -> None:
        """Look at ``at_s`` at the latest."""
        if self._timer is not None:
            if self._at_s <= at_s:
                return
            self._timer.cancel()
        self._at_s = at_s
        self._timer = self._call_later(max(0.0, at_s - now_s), self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        now_s = self._clock()
        if now_s - self._at_s > STALLED_S:
            self.by(now_s + STALLED_S, now_s)
        else:
            self._on_look(now_s)
