"""Rate-limits the log lines of events that clients can cause at will."""

INTERVAL_S = 10.0


class LogSampler:
    """Selects one event per ``interval_s`` to be logged, and counts the others."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0
        self._unlogged = 0

    def take(self, now_s: float) -> int | None:
        """Return the number of unlogged events since the last line; None if this one is not logged either."""
        if now_s < self._next_s:
            self._unlogged += 1
            return None
        unlogged, self._unlogged = self._unlogged, 0
        self._next_s = now_s + self._interval_s
        return unlogged
