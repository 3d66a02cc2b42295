"""How long a service's pods take to start, from being seen first to being ready, on one monotonic clock.

Waiting for a node or an image counts: a replica is of no use before. Pods that were there when the service was first
seen say nothing, as nobody knows how long they had been.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median

_REMEMBERED = 5


class Starts:
    """What the last pods to start took."""

    def __init__(self) -> None:
        self._begun_s: dict[str, float | None] = {}
        """By uid of each pod, since when it is starting; None once it has been ready, or where that is not known."""
        self._took_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._first = True

    @property
    def start_s(self) -> float | None:
        """Return the median of the last starts; None before one was seen from its begin to its end."""
        return median(self._took_s) if self._took_s else None

    def see(self, ready: Mapping[str, bool], now_s: float) -> None:
        """Take which pods there are, by uid, and whether each is ready."""
        begun_s: dict[str, float | None] = {}
        for uid, is_ready in ready.items():
            since_s = self._begun_s.get(uid, None if self._first or is_ready else now_s)
            if is_ready and since_s is not None:
                self._took_s.append(now_s - since_s)
                since_s = None
            begun_s[uid] = since_s
        self._begun_s, self._first = begun_s, False
