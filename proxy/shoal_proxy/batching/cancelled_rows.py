"""Rows of cancelled requests, charged to their clients until the batch that runs them ends."""

from shoal_proxy.access.control import AuthenticatedClient
from shoal_proxy.access.limits import ClientQuota
from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import PendingRequest


class CancelledRows:
    """Rows of a running batch's cancelled requests, charged to their clients."""

    __slots__ = ("_quotas", "_rows_of")

    def __init__(self, batch: Batch) -> None:
        self._quotas: list[tuple[ClientQuota, int]] = []
        self._rows_of: dict[PendingRequest, int] = {}
        for part in batch.slices:
            self._rows_of[part.pending] = self._rows_of.get(part.pending, 0) + part.rows

    def charge(self, client: AuthenticatedClient, runs: PendingRequest) -> None:
        """Keep the rows of ``runs`` charged to the quota of ``client`` until `release`."""
        rows = self._rows_of.get(runs, 0)
        if rows and client.quota is not None:
            # The account keeps the rows, which the client no longer releases.
            client.rows -= rows
            self._quotas.append((client.quota, rows))

    def release(self) -> None:
        """Release the charged rows, after the batch has ended."""
        for quota, rows in self._quotas:
            quota.rows -= rows
        self._quotas.clear()
