"""How many rows a caller may ask for in a second, and have waiting and running at a time."""

from collections.abc import Mapping
from math import ceil
from typing import Final

from shoal_proxy.errors import LimitReached

OTHERS: Final = "*"
"""Stands for each caller without a limit of its own."""
MAX_ACCOUNTS: Final = 10_000
"""Callers that are remembered: names of tokens are not ours to count."""


class Account:
    """What one caller has left; ``rate_s`` 0 and ``most_rows`` 0 are without limit."""

    __slots__ = ("_at_s", "_burst", "_most_rows", "_rate_s", "_tokens", "rows")

    def __init__(self, rate_s: float, most_rows: int, now_s: float) -> None:
        self._rate_s = rate_s
        self._most_rows = most_rows
        self._burst = max(1.0, rate_s)
        """Rows that may come at once: those of a second."""
        self._tokens = self._burst
        self._at_s = now_s
        self.rows = 0
        """That wait or run."""

    def take(self, rows: int, now_s: float) -> None:
        """Charge ``rows``, or raise `LimitReached`.

        A request of more rows than ever are free at a time is let in when all of them are; what it takes beyond them
        is paid for by who comes next.
        """
        if self._most_rows and self.rows and self.rows + rows > self._most_rows:
            held = f"you have {self.rows} rows here, and {self._most_rows} are allowed at a time"
            raise LimitReached(f"{held}: wait for their answers", retry_after_s=1)
        if self._rate_s:
            self._tokens = min(self._burst, self._tokens + self._rate_s * max(0.0, now_s - self._at_s))
            self._at_s = now_s
            lacking = min(float(rows), self._burst) - self._tokens
            if lacking > 0:
                wait_s = max(1, ceil(lacking / self._rate_s))
                raise LimitReached(f"you may ask for {self._rate_s:g} rows a second", retry_after_s=wait_s)
            self._tokens -= rows
        self.rows += rows


class Limits:
    """Accounts, by who calls.

    Args:
        rows_per_second: by caller's name, or ``*``; others have no limit.
        rows_in_flight: likewise.
    """

    def __init__(self, rows_per_second: Mapping[str, float], rows_in_flight: Mapping[str, int]) -> None:
        self._rates = rows_per_second
        self._rows = rows_in_flight
        self._accounts: dict[tuple[str, bool], Account] = {}
        self.names = (self._rates.keys() | self._rows.keys()) - {OTHERS}

    def account(self, name: str, now_s: float, *, handed_over: bool) -> Account | None:
        """Return a caller's account; None: it has no limit.

        What siblings hand over has one of its own: it was charged where it came in, and whoever only says that it is
        handed over gains no more than that.
        """
        account = self._accounts.get((name, handed_over))
        if account is None:
            rate_s = self._rates.get(name, self._rates.get(OTHERS, 0.0))
            most_rows = self._rows.get(name, self._rows.get(OTHERS, 0))
            if not (rate_s or most_rows):
                return None
            if len(self._accounts) >= MAX_ACCOUNTS:
                self._forget_one()
            account = self._accounts[name, handed_over] = Account(rate_s, most_rows, now_s)
        return account

    def _forget_one(self) -> None:
        for who, account in self._accounts.items():
            if not account.rows:
                del self._accounts[who]
                return
