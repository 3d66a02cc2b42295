"""Rate limit of log lines for events that clients can cause at will."""

INTERVAL_S = 10.0


class LogSampler:
    """Rate limit of one kind of event: one log line per ``interval_s``."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._next_s = 0.0
        self._unlogged = 0

    def take(self, now_s: float) -> int | None:
        """Count an event, and decide whether to log it.

        Returns: The number of events skipped since the last log line; None if this event is skipped too.
        """
        if now_s < self._next_s:
            self._unlogged += 1
            return None
        unlogged, self._unlogged = self._unlogged, 0
        self._next_s = now_s + self._interval_s
        return unlogged
