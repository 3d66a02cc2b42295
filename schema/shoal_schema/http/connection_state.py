"""State of a server's connection, and the deadlines of each state. Pure: times are arguments, in monotonic seconds.

    phase     begins with                           deadline
    NOTHING   the connection, the end of a request  the first head in `head_s`, a later one in `idle_s`
    HEAD      the first byte of a head              `head_s`
    BODY      the end of the head                   `body_s`, extended while the body arrives fast enough
    IGNORED   an error                              none

A client that does not read its responses has `write_s`, in any phase, extended while it reads fast enough. During a
request whose response is not complete, there is no deadline.
"""

from typing import Final

from shoal_schema.http.timeouts import BUSY_CHECK_S, TransferTimeouts

NOTHING: Final = 0
HEAD: Final = 1
BODY: Final = 2
IGNORED: Final = 3
"""All further input is discarded."""


class ConnectionState:
    """Phase of a connection's input, and the measurements of its transfers."""

    __slots__ = (
        "idle_since_s", "is_unused", "marked_bytes", "phase", "requests", "since_s", "timeouts", "unread_bytes",
        "unread_since_s",
    )  # fmt: skip

    def __init__(self, timeouts: TransferTimeouts, now_s: float) -> None:
        self.timeouts = timeouts
        self.phase = NOTHING
        self.requests = 0
        """Number of heads that have begun."""
        self.since_s = now_s
        """Start of the last head; while a body arrives, start of the present measurement of its rate."""
        self.marked_bytes = 0
        """Received bytes of the body at that time."""
        self.idle_since_s = now_s
        self.is_unused = True
        """Whether the connection has not had a response yet."""
        self.unread_since_s = 0.0
        """Since when the client has not read its responses; 0 while it reads."""
        self.unread_bytes = 0
        """Unread bytes at that time."""

    def begin_head(self, now_s: float) -> None:
        """Start the head of a request."""
        self.phase = HEAD
        self.requests += 1
        self.since_s, self.marked_bytes = now_s, 0

    def begin_idle(self, now_s: float) -> None:
        """Start to measure the idle time, after a response."""
        self.idle_since_s, self.is_unused = now_s, False

    def begin_unread(self, unread_bytes: int, now_s: float) -> None:
        """Start to measure how fast the client reads."""
        self.unread_since_s, self.unread_bytes = now_s, unread_bytes

    def allowed_s(self) -> float:
        """Return the time limit of a head or body."""
        return self.timeouts.head_s if self.phase == HEAD else self.timeouts.body_s

    def check(self, now_s: float, *, body_bytes: int, unread_bytes: int | None, paused: bool, busy: bool) -> float:
        """Return the deadline of the present state, which is at most ``now_s`` if the state has timed out.

        The deadline is extended while a response is read, or a body received, fast enough since the last check.

        Args:
            now_s: the time of the check.
            body_bytes: received bytes of the present body.
            unread_bytes: bytes that the client has not read; None while it reads.
            paused: whether this process has paused reading, so that the client is not slow.
            busy: whether a request has no response yet.
        """
        if unread_bytes is None and paused and self.phase in (HEAD, BODY):
            self.since_s = now_s
        due_s = self._deadline_s(now_s, unread_bytes, busy=busy)
        if due_s <= now_s and self._keeps_up(now_s, body_bytes, unread_bytes):
            due_s = self._deadline_s(now_s, unread_bytes, busy=busy)
        return due_s

    def _deadline_s(self, now_s: float, unread_bytes: int | None, *, busy: bool) -> float:
        timeouts = self.timeouts
        if unread_bytes is not None:
            if not self.unread_since_s:
                self.begin_unread(unread_bytes, now_s)
            return self.unread_since_s + timeouts.write_s
        if self.phase in (HEAD, BODY):
            return self.since_s + self.allowed_s()
        if busy or self.phase == IGNORED:
            return now_s + min(BUSY_CHECK_S, timeouts.idle_s)
        return self.idle_since_s + (timeouts.head_s if self.is_unused else timeouts.idle_s)

    def _keeps_up(self, now_s: float, body_bytes: int, unread_bytes: int | None) -> bool:
        """Return whether the transfer was fast enough since the last check; start a new measurement."""
        if unread_bytes is not None:
            moved_bytes, since_s = self.unread_bytes - unread_bytes, self.unread_since_s
            self.begin_unread(unread_bytes, now_s)
        elif self.phase == BODY:
            moved_bytes, since_s = body_bytes - self.marked_bytes, self.since_s
            self.since_s, self.marked_bytes = now_s, body_bytes
        else:
            return False
        return since_s < now_s and self.timeouts.is_fast_enough(moved_bytes, now_s - since_s)
