"""Interface between the dispatcher and a runtime or a graph of models."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from shoal_proxy.batching.batch import Batch, BatchResult
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.dispatch.upstream import RuntimeMemory
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.metrics import Metrics
from shoal_schema.interfaces.load import GraphState


class BatchResponse(Protocol):
    """A batch's undecoded response, with the time of its arrival (monotonic seconds)."""

    sent_s: float
    completed_s: float

    def result(self, signature: ModelSignature) -> BatchResult:
        """Return the decoded result.

        Raises:
            ProxyError: all requests of the batch failed.
        """

    def timing(self, batch: Batch, batch_s: float) -> bytes:
        """Return the values of the batch for the Server-Timing header.

        ``batch_s`` is the time (s) of the batch outside the runtime.
        """


class ModelLink(Protocol):
    """Sends batches to a model, and tracks its readiness and signature."""

    signature: ModelSignature | None
    binary: bool
    """Whether tensors may hold values that JSON cannot express (NaN, infinities, bytes)."""
    on_change: Callable[[], None]
    started: asyncio.Event
    """Set when the link is ready for the first time."""

    @property
    def ready(self) -> bool:
        """Whether batches may be sent."""

    @property
    def concurrency(self) -> int:
        """Batches that are executed concurrently, while the link is ready."""

    @property
    def reason(self) -> str:
        """The reason that no batch can be sent; empty if batches can be sent."""

    @property
    def losses(self) -> int:
        """Number of times that a ready runtime, or graph, became unready."""

    @property
    def device_memory(self) -> tuple[int, int] | None:
        """Used and total bytes of device memory; None if not reported."""

    @property
    def memory(self) -> RuntimeMemory:
        """Memory of the runtimes' processes."""

    @property
    def graph_state(self) -> GraphState | None:
        """Whether a graph's models are compatible; None for a runtime."""

    async def watch(self) -> None:
        """Keep readiness and signature up to date, until cancelled."""

    async def exchange(self, batch: Batch, signature: ModelSignature, metrics: Metrics) -> BatchResponse:
        """Send a batch and return its response, which may be an error response.

        Raises:
            ProxyError: there is no response.
        """

    def abandoned(self, pending: PendingRequest) -> None:
        """Record that the client of a running request has disconnected."""

    def close(self) -> None:
        """Close every connection."""
