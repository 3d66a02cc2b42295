"""Which of several operators writes.

The rules are client-go's: the holder renews its Lease every 2 s; it stops writing when it could not
renew for 10 s; another takes over when it has seen no renewal for 15 s. Each side counts on its own
monotonic clock, from the moment it saw the record change, so clocks need not agree.
"""

from dataclasses import dataclass, field, replace

LEASE_NAME = "shoal-operator"
LEASE_DURATION_S = 15.0
RENEW_DEADLINE_S = 10.0
RETRY_PERIOD_S = 2.0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a Lease says.

    Args:
        holder: identity of the operator that writes; empty after it has let go.
        acquired, renewed: RFC 3339 times with microseconds, for people and for telling renewals
            apart.
        transitions: how often the holder has changed.
    """

    holder: str
    acquired: str
    renewed: str
    transitions: int


@dataclass(slots=True)
class Election:
    """One operator's view of who writes.

    Args:
        identity: this operator's own name; no other may have it.
    """

    identity: str
    _record: LeaseRecord | None = None
    _changed_s: float = field(default=float("-inf"))
    _renewed_s: float = field(default=float("-inf"))

    def observe(self, record: LeaseRecord | None, now_s: float) -> None:
        """Record what the Lease says (None: there is none).

        Args:
            record: what was read.
            now_s: when the answer had come: the holder may have written until then.
        """
        if record != self._record:
            self._record, self._changed_s = record, now_s
        if record is None or record.holder != self.identity:
            self.lost()

    def next_record(self, now_s: float, wall_time: str) -> LeaseRecord | None:
        """Return what to write to hold the Lease, or None while another holds it."""
        record = self._record
        if record is None:
            return LeaseRecord(self.identity, wall_time, wall_time, 0)
        if record.holder == self.identity:
            return replace(record, renewed=wall_time)
        if record.holder and now_s < self._changed_s + LEASE_DURATION_S:
            return None
        return LeaseRecord(self.identity, wall_time, wall_time, record.transitions + 1)

    def renewed(self, record: LeaseRecord, asked_s: float) -> None:
        """Record that our record was stored.

        Args:
            record: what was stored.
            asked_s: when the write was sent: another may count from then.
        """
        self._record, self._changed_s, self._renewed_s = record, asked_s, asked_s

    def lost(self) -> None:
        """Record that another's record was stored, or that we let go."""
        self._renewed_s = float("-inf")

    def may_write(self, now_s: float) -> bool:
        """Return whether this operator holds the Lease beyond doubt."""
        return now_s < self._renewed_s + RENEW_DEADLINE_S
