"""Limits of clients: rows per second, and rows waiting and running at a time."""

from collections.abc import Mapping
from math import ceil
from typing import Final

from shoal_proxy.errors import LimitReached

OTHERS: Final = "*"
"""Name of the limits for clients without limits of their own."""
MAX_QUOTAS: Final = 10_000
"""Most clients that are remembered: names in tokens are chosen elsewhere, and their number is unbounded."""


class ClientQuota:
    """The remaining quota of one client.

    ``rate_s`` limits rows per second, and ``most_rows`` rows at a time; 0 means no limit.
    """

    __slots__ = ("_at_s", "_burst", "_most_rows", "_rate_s", "_tokens", "rows")

    def __init__(self, rate_s: float, most_rows: int, now_s: float) -> None:
        self._rate_s = rate_s
        self._most_rows = most_rows
        self._burst = max(1.0, rate_s)
        """Maximum burst: the rows of one second."""
        self._tokens = self._burst
        self._at_s = now_s
        self.rows = 0
        """Rows that wait or run."""

    def charge(self, rows: int, now_s: float) -> None:
        """Charge ``rows`` of a request to the quota.

        A request of more rows than the limit is admitted if the client has no other rows; the excess is charged to its
        later requests.

        Raises:
            LimitReached: the client is at its limit.
        """
        # The first request is admitted at any size.
        if self._most_rows and self.rows and self.rows + rows > self._most_rows:
            held = f"this client has {self.rows} rows queued or running; its limit is {self._most_rows}"
            raise LimitReached(f"{held}. Wait for their responses.", retry_after_s=1)
        if self._rate_s:
            # A token bucket, refilled by time up to the rows of one second.
            self._tokens = min(self._burst, self._tokens + self._rate_s * max(0.0, now_s - self._at_s))
            self._at_s = now_s
            # A request larger than the bucket needs only a full one; the rest is a debt.
            missing = min(float(rows), self._burst) - self._tokens
            if missing > 0:
                wait_s = max(1, ceil(missing / self._rate_s))
                raise LimitReached(f"the client's limit is {self._rate_s:g} rows per second", retry_after_s=wait_s)
            self._tokens -= rows
        self.rows += rows


class ClientLimits:
    """The limits of all clients, and the remaining quota of each.

    Args:
        rows_per_second: limit by client name, or ``*`` for all others; clients without an entry have no limit.
        rows_in_flight: maximum rows waiting and running, by client name as in ``rows_per_second``.
    """

    def __init__(self, rows_per_second: Mapping[str, float], rows_in_flight: Mapping[str, int]) -> None:
        self._rates = rows_per_second
        self._rows = rows_in_flight
        self._quotas: dict[tuple[str, bool], ClientQuota] = {}
        self.names = (self._rates.keys() | self._rows.keys()) - {OTHERS}

    def quota(self, name: str, now_s: float, *, forwarded: bool) -> ClientQuota | None:
        """Return a client's quota; None if the client has no limit.

        Forwarded requests have a separate quota, because the first replica has charged them. A client that falsely
        marks requests as forwarded gains only that quota.
        """
        quota = self._quotas.get((name, forwarded))
        if quota is None:
            # A limit of its own, or that of all others.
            rate_s = self._rates.get(name, self._rates.get(OTHERS, 0.0))
            most_rows = self._rows.get(name, self._rows.get(OTHERS, 0))
            if not (rate_s or most_rows):
                return None
            if len(self._quotas) >= MAX_QUOTAS:
                # Drop the first account without rows.
                for who, idle in self._quotas.items():
                    if not idle.rows:
                        del self._quotas[who]
                        break
            quota = self._quotas[name, forwarded] = ClientQuota(rate_s, most_rows, now_s)
        return quota
