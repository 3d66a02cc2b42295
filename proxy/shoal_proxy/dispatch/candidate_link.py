"""Interface between the dispatcher and the rollout of a candidate."""

from collections.abc import Sequence
from typing import Protocol

from shoal_proxy.batching.batch import BatchResult
from shoal_proxy.batching.batcher import RunningBatch
from shoal_proxy.batching.pending import Delivery, PendingRequest
from shoal_proxy.dispatch.link import BatchResponse
from shoal_proxy.model.signature import ModelSignature


class CandidateLink(Protocol):
    """Sends requests and copies of batches to the candidate's pods, and counts the outcomes of both revisions.

    The methods that report events are called only while the dispatcher's `comparing` is set.
    """

    @property
    def has_forwarded(self) -> bool:
        """Whether the candidate still has requests of clients."""

    def forward(self, pending: PendingRequest, signature: ModelSignature | None) -> bool:
        """Assign a new request to a revision; return whether it was sent to the candidate."""

    def cancel(self, pending: PendingRequest) -> bool:
        """Cancel a disconnected client's request; return whether the candidate had it."""

    def fail_all(self) -> None:
        """Fail all requests that the candidate has, because the drain has timed out."""

    def batch_completed(
        self,
        running: RunningBatch,
        sent: BatchResponse,
        result: BatchResult,
        signature: ModelSignature,
        deliveries: Sequence[Delivery],
    ) -> None:
        """Record a completed batch of this pod, whose outcomes are about to be delivered."""

    def requests_ended(self, deliveries: Sequence[Delivery]) -> None:
        """Record requests of failed batches."""
