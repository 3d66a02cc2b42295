"""Leader election among operators.

The rules are client-go's: the holder renews its Lease every 2 s, and stops writing after 10 s without a renewal;
another operator takes over after 15 s without one. Each operator uses its own monotonic clock, from the moment it
observed a change, so clocks need not agree.
"""

from dataclasses import dataclass, field, replace

LEASE_NAME = "shoal-operator"
LEASE_DURATION_S = 15.0
RENEW_DEADLINE_S = 10.0
RETRY_PERIOD_S = 2.0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The content of a Lease."""

    holder: str
    """Identity of the leader; empty after its release."""
    acquired: str
    """RFC 3339 time with microseconds."""
    renewed: str
    """RFC 3339 time with microseconds; it distinguishes renewals."""
    transitions: int
    """Number of changes of the holder."""


@dataclass(slots=True)
class Election:
    """One operator's view of the leader election.

    Args:
        identity: unique name of this operator.
    """

    identity: str
    _record: LeaseRecord | None = None
    _changed_s: float = field(default=float("-inf"))
    _renewed_s: float = field(default=float("-inf"))

    def observe(self, record: LeaseRecord | None, now_s: float) -> None:
        """Record the Lease that was read from the API server.

        Args:
            record: the content of the Lease; None if no Lease exists.
            now_s: time of the response (monotonic s); the holder wrote this content before then.
        """
        if record != self._record:
            self._record, self._changed_s = record, now_s
        if record is None or record.holder != self.identity:
            self.lost()

    def next_record(self, now_s: float, wall_time: str) -> LeaseRecord | None:
        """Return the record to write; None while another operator holds the Lease."""
        record = self._record
        if record is None:
            return LeaseRecord(self.identity, wall_time, wall_time, 0)
        if record.holder == self.identity:
            return replace(record, renewed=wall_time)
        # Another operator's Lease has not expired.
        if record.holder and now_s < self._changed_s + LEASE_DURATION_S:
            return None
        return LeaseRecord(self.identity, wall_time, wall_time, record.transitions + 1)

    def renewed(self, record: LeaseRecord, asked_s: float) -> None:
        """Record that this operator wrote the Lease.

        Args:
            record: the stored record.
            asked_s: time of the request (monotonic s); other operators may have observed the write since then.
        """
        self._record, self._changed_s, self._renewed_s = record, asked_s, asked_s

    def lost(self) -> None:
        """Record that this operator no longer holds the Lease."""
        self._renewed_s = float("-inf")

    def may_write(self, now_s: float) -> bool:
        """Return whether this operator certainly holds the Lease."""
        return now_s < self._renewed_s + RENEW_DEADLINE_S
