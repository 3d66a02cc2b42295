"""The interface between the dispatcher and a runner of batches: a runtime (`exchange`) or a graph (`graph`)."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from shoal_proxy.batching.batch import Batch, BatchResult
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.metrics import Metrics
from shoal_schema.interfaces.load import GraphState


class BatchResponse(Protocol):
    """A batch's undecoded response, and when it arrived (monotonic seconds)."""

    sent_s: float
    completed_s: float

    def result(self, signature: ModelSignature) -> BatchResult:
        """Return the decoded result; raises a `ProxyError` that applies to all requests of the batch."""

    def timing(self, batch: Batch, batch_s: float) -> bytes:
        """Return the batch's part of Server-Timing; ``batch_s`` is the proxy's own time."""


class ModelLink(Protocol):
    """Sends batches, and tracks whether they can be sent and the model's signature."""

    signature: ModelSignature | None
    binary: bool
    """Whether tensors may hold values that JSON cannot express (NaN, infinities, bytes)."""
    reason: str
    """The reason that no batch can be sent; empty if batches can be sent."""
    on_change: Callable[[], None]
    losses: int
    """Number of times that the link became unready after it was ready."""
    started: asyncio.Event
    """Set when the link is ready for the first time."""

    @property
    def ready(self) -> bool:
        """Whether batches may be sent."""

    @property
    def device_memory(self) -> tuple[int, int] | None:
        """The device's used and total bytes of memory; None if the runtime does not report them."""

    @property
    def graph_state(self) -> GraphState | None:
        """Whether a graph's models fit together; None for a runtime."""

    async def watch(self) -> None:
        """Keep the state up to date, until cancelled."""

    async def exchange(self, batch: Batch, signature: ModelSignature, metrics: Metrics) -> BatchResponse:
        """Send a batch and return its response, also an error; raises a `ProxyError` if there is none."""

    def abandoned(self, pending: PendingRequest) -> None:
        """Note that the client of a request in progress has disconnected."""

    def close(self) -> None:
        """Close every connection."""
