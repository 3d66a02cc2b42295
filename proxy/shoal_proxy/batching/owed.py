"""Rows of cancelled requests, charged to their clients until the batch that runs them ends."""

from shoal_proxy.access.gate import Caller
from shoal_proxy.access.limits import Account
from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import Pending


class Owed:
    """Rows of cancelled requests in a running batch, which stay charged until ``batch`` ends."""

    __slots__ = ("_accounts", "_rows_of")

    def __init__(self, batch: Batch) -> None:
        self._accounts: list[tuple[Account, int]] = []
        self._rows_of: dict[Pending, int] = {}
        for part in batch.slices:
            self._rows_of[part.pending] = self._rows_of.get(part.pending, 0) + part.rows

    def take_over(self, caller: Caller, runs: Pending) -> None:
        """Charge the rows of ``runs`` in this batch here instead of to ``caller``, which no longer exists then."""
        rows = self._rows_of.get(runs, 0)
        if rows and caller.account is not None:
            # The account keeps the rows, which the client no longer releases.
            caller.rows -= rows
            self._accounts.append((caller.account, rows))

    def give_back(self) -> None:
        """Release the rows: the batch has ended."""
        for account, rows in self._accounts:
            account.rows -= rows
        self._accounts.clear()
