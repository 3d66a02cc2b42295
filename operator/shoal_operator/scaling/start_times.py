"""Durations of pods' starts, from the first observation to readiness.

Waiting for a node or an image counts, because a replica serves nothing before it is ready. Pods that existed at the
first observation of the service do not count, because their age is unknown.
"""

from collections import deque
from collections.abc import Mapping
from statistics import median

_REMEMBERED = 5


class StartTimes:
    """Durations of the last starts of one service's pods."""

    def __init__(self) -> None:
        self._begun_s: dict[str, float | None] = {}
        """By uid, the start time of each pod; None if the pod was ready, or the time is unknown."""
        self._took_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._first = True

    @property
    def start_s(self) -> float | None:
        """Median of the last starts' durations (s); None before the first start."""
        return median(self._took_s) if self._took_s else None

    def observe(self, ready: Mapping[str, bool], now_s: float) -> None:
        """Record, by uid, whether each existing pod is ready."""
        begun_s: dict[str, float | None] = {}
        for uid, is_ready in ready.items():
            # A pod that was ready at its first observation has no known start.
            since_s = self._begun_s.get(uid, None if self._first or is_ready else now_s)
            if is_ready and since_s is not None:
                self._took_s.append(now_s - since_s)
                since_s = None
            begun_s[uid] = since_s
        self._begun_s, self._first = begun_s, False
