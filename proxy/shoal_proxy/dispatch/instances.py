"""Link to several runtimes that serve one model.

Each batch is sent to the ready runtime with the fewest batches. If a runtime is lost, the others continue. A runtime
that holds a batch for much longer than others took is slow, or stuck: it gets a further batch only if all others hold
more, and its own batches do not keep batches from the others.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.dispatch.exchange import RuntimeLink, SentBatch
from shoal_proxy.dispatch.upstream import RuntimeMemory
from shoal_proxy.errors import NotExecuted
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.observe.metrics import Metrics
from shoal_schema.interfaces.load import GraphState

LATE_FACTOR: Final = 4.0
LATE_S: Final = 1.0
"""A batch is late after `LATE_FACTOR` times the longest recent batch, and at least this time (s)."""
_DECAY: Final = 0.9
"""Of the longest recent batch, with each further one."""

logger = logging.getLogger(__name__)


class _Instance:
    """One runtime, with the number of batches that it holds."""

    def __init__(self, number: int, link: RuntimeLink) -> None:
        self.number = number
        self.link = link
        self.sent_s: list[float] = []
        """Times at which the batches were sent that it holds, in order."""
        self.sent = 0
        """Position of its last batch among all batches, so that idle runtimes take turns."""

    @property
    def batches(self) -> int:
        """Return the number of batches that it holds."""
        return len(self.sent_s)


class InstancesLink:
    """Readiness of several runtimes and the signature of their model.

    A runtime whose model has another identity than the first ready one's, such as another precision, gets no batches.
    """

    def __init__(self, links: Sequence[RuntimeLink]) -> None:
        self._instances = [_Instance(number, link) for number, link in enumerate(links)]
        self._usable: list[_Instance] = []
        """The ready runtimes with the served model. Requests read it, so it is computed at each change."""
        self._sent = 0
        self._longest_s = 0.0
        """Time of the longest recent batch."""
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
        """Batches that the ready runtimes execute concurrently, and those that others still hold."""
        held = sum(each.batches for each in self._instances if each not in self._usable)
        return sum(each.link.concurrency for each in self._usable) + held

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of runtimes that get batches, and of all."""
        return len(self._usable), len(self._instances)

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

        A batch that a runtime certainly did not run, as it has just ended or is about to, is sent to another one.

        Raises:
            ProxyError: there is no response.
        """
        tried: list[_Instance] = []
        while True:
            # Without a ready runtime, the first one returns the error.
            untried = [each for each in self._usable if each not in tried] or self._instances[:1]
            late_s = time.monotonic() - max(LATE_S, LATE_FACTOR * self._longest_s)
            chosen = min(
                untried, key=lambda each: (each.batches, bool(each.batches and each.sent_s[0] < late_s), each.sent)
            )
            tried.append(chosen)
            try:
                sent = await self._exchange(chosen, batch, signature, metrics)
                if not sent.was_refused or all(each in tried for each in self._usable):
                    return sent
            except NotExecuted:
                if all(each in tried for each in self._usable):
                    raise

    async def _exchange(
        self, chosen: _Instance, batch: Batch, signature: ModelSignature, metrics: Metrics
    ) -> SentBatch:
        self._sent += 1
        chosen.sent = self._sent
        sent_s = time.monotonic()
        chosen.sent_s.append(sent_s)
        try:
            sent = await chosen.link.exchange(batch, signature, metrics)
            if not sent.was_refused:
                self._longest_s = max(sent.completed_s - sent_s, _DECAY * self._longest_s)
            return sent
        finally:
            chosen.sent_s.remove(sent_s)
            if chosen not in self._usable and self.ready:
                self.on_change()  # the number of batches that it holds

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
