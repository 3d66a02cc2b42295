"""What answers batches, as the dispatcher knows it: a runtime (`exchange`), or a graph of models (`graph`)."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from shoal_proxy.batching.batch import Batch, Result
from shoal_proxy.batching.pending import Pending
from shoal_proxy.metrics import Metrics
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.load import GraphState


class Returned(Protocol):
    """A batch that came back, and when; its answer is taken apart when there is time for it."""

    sent_s: float
    answered_s: float

    def result(self, signature: ModelSignature) -> Result:
        """Return the rows that came back; raises a `ProxyError` that the whole batch is answered with."""

    def timing(self, batch: Batch, batch_s: float) -> bytes:
        """Return what the batch cost, as Server-Timing says it; ``batch_s`` is the proxy's own time."""


class Link(Protocol):
    """Whether batches can be answered now, by what signature, and their answers."""

    signature: ModelSignature | None
    binary: bool
    """Whether tensors may hold what JSON has no words for."""
    reason: str
    """Why it is not ready; empty when it is."""
    on_change: Callable[[], None]
    losses: int
    """How often it went away after it had been ready."""
    started: asyncio.Event
    """Set once it could serve."""

    @property
    def ready(self) -> bool:
        """Tell whether batches may be sent."""

    @property
    def device_memory(self) -> tuple[int, int] | None:
        """Of a model's device bytes in use and all of them; None where that is not told."""

    @property
    def graph_state(self) -> GraphState | None:
        """Whether a graph's models fit one another; None of a runtime."""

    async def watch(self) -> None:
        """Keep up to date, until cancelled."""

    async def exchange(self, batch: Batch, signature: ModelSignature, metrics: Metrics) -> Returned:
        """Send a batch and wait for the answer, whatever it says; raises a `ProxyError` where none comes."""

    def abandoned(self, pending: Pending) -> None:
        """Note that a caller has gone whose rows may be under way."""

    def close(self) -> None:
        """Close every connection."""
