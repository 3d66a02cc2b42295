"""One log line for many events of a kind: whoever can cause an event at will must not fill a disk with it."""

INTERVAL_S = 10.0


class Sampler:
    """Lets one event in ``interval_s`` be logged, and counts the others."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0
        self._unlogged = 0

    def take(self, now_s: float) -> int | None:
        """Return how many events went unlogged since the last line, or None: this one does too."""
        if now_s < self._next_s:
            self._unlogged += 1
            return None
        unlogged, self._unlogged = self._unlogged, 0
        self._next_s = now_s + self._interval_s
        return unlogged
