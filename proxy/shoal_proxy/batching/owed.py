"""What a batch that runs gives back when it ends: rows of callers who did not wait for it."""

from shoal_proxy.access.gate import Caller
from shoal_proxy.access.limits import Account
from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import Pending


class Owed:
    """Rows of ``batch`` that count for those who asked for them until it ends; made when the first of them has gone."""

    __slots__ = ("_accounts", "_rows_of")

    def __init__(self, batch: Batch) -> None:
        self._accounts: list[tuple[Account, int]] = []
        self._rows_of: dict[Pending, int] = {}
        for part in batch.slices:
            self._rows_of[part.pending] = self._rows_of.get(part.pending, 0) + part.rows

    def take_over(self, caller: Caller, runs: Pending) -> None:
        """Take over from ``caller`` what the batch runs of the request ``runs``, so that it cannot give it back."""
        rows = self._rows_of.get(runs, 0)
        if rows and caller.account is not None:
            caller.rows -= rows
            self._accounts.append((caller.account, rows))

    def give_back(self) -> None:
        """Note that the batch has ended."""
        for account, rows in self._accounts:
            account.rows -= rows
        self._accounts.clear()
