"""Outcomes of requests that end without a result, or share one, and the charge for rows that still run for them."""

from collections.abc import Sequence

from shoal_proxy.batching.batch import CancelledRows
from shoal_proxy.batching.batcher import RunningBatch
from shoal_proxy.batching.pending import Delivery, PendingRequest
from shoal_proxy.batching.queue import Queue
from shoal_proxy.batching.recovery import Coalescing
from shoal_proxy.errors import ProxyError


class Outcomes:
    """Sets outcomes of requests, and removes their rows from the queue.

    Args:
        queue: the queue.
        unsettled: the batches that were sent and neither completed nor failed.
        coalescing: the sets of identical requests; None if they are not coalesced.
    """

    def __init__(self, queue: Queue, unsettled: set[RunningBatch], coalescing: Coalescing | None) -> None:
        self._queue = queue
        self._unsettled = unsettled
        self._coalescing = coalescing

    def drop(self, rejected: Sequence[PendingRequest], error: ProxyError) -> list[Delivery]:
        """Reject requests that wait in the queue, or have just left it."""
        mark_executed([pending for pending in rejected if pending.dequeued_rows > 0])
        return self.resolve(rejected, error)

    def resolve(self, requests: Sequence[PendingRequest], error: ProxyError) -> list[Delivery]:
        """Resolve requests with ``error``, wherever they are; return the outcomes of the clients' requests."""
        for pending in requests:
            self._queue.remove(pending)
            for client in self._coalescing.requests_sharing(pending) if self._coalescing else (pending,):
                self.keep_charged(client)
        deliveries = [pending.resolve(error) for pending in requests]
        return self.of_clients(deliveries) if self._coalescing else deliveries

    def keep_charged(self, pending: PendingRequest) -> None:
        """Keep the running rows of a resolved request charged to its client.

        Otherwise a client that cancels repeatedly could have any number of rows run.
        """
        client = pending.client
        if client is None or client.quota is None:
            return
        runs = self._coalescing.executed_for(pending) if self._coalescing else pending
        if not runs.dequeued_rows:
            return
        for running in self._unsettled:
            if running.cancelled_rows is None:
                running.cancelled_rows = CancelledRows(running.batch)
            running.cancelled_rows.charge(client, runs)

    def batch_ended(self, running: RunningBatch) -> None:
        """Record that a batch completed or failed, and release the rows that clients were still charged for."""
        self._unsettled.discard(running)
        if running.cancelled_rows is not None:
            running.cancelled_rows.release()

    def of_clients(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Copy each executed request's outcome to the clients' identical requests."""
        assert self._coalescing is not None
        requests: list[Delivery] = []
        for shared, outcome in deliveries:
            requests.extend(self._coalescing.deliveries(shared, outcome))
        return requests

    def leave(self, pending: PendingRequest) -> None:
        """Remove a request's rows from the queue, unless other requests share them."""
        runs: PendingRequest | None = pending
        if self._coalescing:
            runs = self._coalescing.leave(pending)
            if runs is not None:
                runs.abandon()
        if runs is not None:
            self._queue.remove(runs)


def mark_executed(seen: Sequence[PendingRequest]) -> None:
    """Mark requests of which the runtime may have executed rows."""
    for pending in seen:
        pending.may_have_run = True
