"""Link to several runtimes that serve one model.

Each batch is sent to the ready runtime with the fewest batches. If a runtime is lost, the others continue.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.dispatch.exchange import RuntimeLink, SentBatch
from shoal_proxy.dispatch.upstream import RuntimeMemory
from shoal_proxy.errors import NotExecuted
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.metrics import Metrics
from shoal_schema.interfaces.load import GraphState

logger = logging.getLogger(__name__)


class _Instance:
    """One runtime, with the number of batches that it holds."""

    def __init__(self, number: int, link: RuntimeLink) -> None:
        self.number = number
        self.link = link
        self.batches = 0
        self.sent = 0
        """Position of its last batch among all batches, so that idle runtimes take turns."""


class InstancesLink:
    """Readiness of several runtimes and the signature of their model.

    A runtime whose model has another identity than the first ready one's, such as another precision, gets no batches.
    """

    def __init__(self, links: Sequence[RuntimeLink]) -> None:
        self._instances = [_Instance(number, link) for number, link in enumerate(links)]
        self._usable: list[_Instance] = []
        """The ready runtimes with the served model. Requests read it, so it is computed at each change."""
        self._sent = 0
        self.signature: ModelSignature | None = None
        self.binary = True
        self.on_change: Callable[[], None] = lambda: None
        self.started = asyncio.Event()
        """Set when a runtime is ready for the first time."""
        for each in self._instances:
            each.link.on_change = self._changed

    @property
    def ready(self) -> bool:
        """Whether batches may be sent."""
        return bool(self._usable)

    @property
    def reason(self) -> str:
        """The reason that no batch can be sent; empty if batches can be sent."""
        return "" if self.ready else self._instances[0].link.reason

    @property
    def concurrency(self) -> int:
        """Batches that the ready runtimes execute concurrently."""
        return sum(each.link.concurrency for each in self._usable)

    @property
    def losses(self) -> int:
        """Number of times that a ready runtime became unready."""
        return sum(each.link.losses for each in self._instances)

    @property
    def device_memory(self) -> tuple[int, int] | None:
        """Used and total bytes of the fullest device; None if not reported."""
        reported = [memory for each in self._instances if (memory := each.link.device_memory) is not None]
        return max(reported, key=lambda memory: memory[0] / max(1, memory[1]), default=None)

    @property
    def memory(self) -> RuntimeMemory:
        """Sum of the memory of all runtimes."""
        found = [each.link.memory for each in self._instances]
        return RuntimeMemory(sum(each.process_bytes for each in found), sum(each.device_bytes for each in found))

    @property
    def graph_state(self) -> GraphState | None:
        """Return None: a runtime is not a graph."""
        return None

    async def watch(self) -> None:
        """Check the health of each runtime, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for each in self._instances:
                group.create_task(each.link.watch())

    async def exchange(self, batch: Batch, signature: ModelSignature, metrics: Metrics) -> SentBatch:
        """Send a batch to the ready runtime with the fewest batches, and return the response.

        Raises:
            ProxyError: there is no response.
        """
        tried: list[_Instance] = []
        while True:
            # Without a ready runtime, the first one returns the error.
            untried = [each for each in self._usable if each not in tried] or self._instances[:1]
            chosen = min(untried, key=lambda each: (each.batches, each.sent))
            tried.append(chosen)
            try:
                return await self._exchange(chosen, batch, signature, metrics)
            except NotExecuted:
                # The runtime has just ended, and its rows certainly did not run: try another one.
                if all(each in tried for each in self._usable):
                    raise

    async def _exchange(
        self, chosen: _Instance, batch: Batch, signature: ModelSignature, metrics: Metrics
    ) -> SentBatch:
        self._sent += 1
        chosen.sent = self._sent
        chosen.batches += 1
        try:
            return await chosen.link.exchange(batch, signature, metrics)
        finally:
            chosen.batches -= 1

    def abandoned(self, pending: PendingRequest) -> None:
        """Do nothing: a running batch cannot drop one of its requests."""

    def close(self) -> None:
        """Close every connection, which lets Shoal's runtimes exit."""
        for each in self._instances:
            each.link.close()

    def _serves(self, signature: ModelSignature | None) -> bool:
        """Return whether a runtime's model is the one that is served."""
        served = self.signature
        return served is not None and signature is not None and signature.identity == served.identity

    def _changed(self) -> None:
        ready = [each for each in self._instances if each.link.ready]
        # A new model is served only when no runtime with the old one is ready.
        if ready and not any(self._serves(each.link.signature) for each in ready):
            self.signature, self.binary = ready[0].link.signature, ready[0].link.binary
        self._usable = [each for each in ready if self._serves(each.link.signature)]
        for each in ready:
            if each not in self._usable:
                logger.warning(
                    "event=instance_not_used instance=%d reason=its model has another signature", each.number
                )
        logger.info("event=instances_ready count=%d of=%d", len(self._usable), len(self._instances))
        if self._usable:
            self.started.set()
        self.on_change()
