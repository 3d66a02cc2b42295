"""The runtime that a proxy serves: whether it can serve now, and one batch's way there and back."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from shoal_proxy.batching.batch import Batch, Merged, Result, merge
from shoal_proxy.batching.pending import Pending
from shoal_proxy.codecs.upstream import decode_answer, decode_failure, encode_batch
from shoal_proxy.connection import Response
from shoal_proxy.errors import DeadlineExceeded, ProxyError
from shoal_proxy.metrics import Metrics
from shoal_proxy.model.overrides import NO_BUCKETS, PadBuckets
from shoal_proxy.model.signature import ModelSignature, SignatureError
from shoal_proxy.timing import batch_timing
from shoal_proxy.upstream import Upstream
from shoal_schema.addresses import Address
from shoal_schema.headers import EXECUTED, HEADER_LENGTH, TIMEOUT_MS
from shoal_schema.load import GraphState

logger = logging.getLogger(__name__)

_MOST_REASONS: Final = 16
"""A foreign runtime may give another reason at each look."""
_LONGEST_REASON: Final = 1000
STUCK_MARGIN_S: Final = 1.0
"""How long after its last caller's deadline a batch is given up: a stuck runtime must not hold its slot for ever."""


_TIMEOUT_MS: Final = TIMEOUT_MS.encode()
_EXECUTED: Final = EXECUTED.encode()
_HEADER_LENGTH: Final = HEADER_LENGTH.encode()


class Sent:
    """A batch that came back: what was sent, the runtime's raw answer, and when."""

    __slots__ = ("answered_s", "merged", "response", "sent_s")

    def __init__(self, merged: Merged, response: Response, sent_s: float, answered_s: float) -> None:
        self.merged = merged
        self.response = response
        self.sent_s = sent_s
        self.answered_s = answered_s

    def result(self, signature: ModelSignature) -> Result:
        """Return the rows that came back.

        Raises:
            ProxyError: what the runtime says went wrong with the whole batch.
        """
        response = self.response
        if response.status != 200:
            raise decode_failure(response.status, response.body, response.headers.get(_EXECUTED))
        return decode_answer(response.body, response.headers.get(_HEADER_LENGTH), signature)

    def timing(self, batch: Batch, batch_s: float) -> bytes:
        """Return what the batch cost, as Server-Timing says it; ``batch_s`` is the proxy's own time."""
        return batch_timing(batch, self.merged, runtime_s=self.answered_s - self.sent_s, batch_s=batch_s)


async def exchange(
    batch: Batch, signature: ModelSignature, upstream: Upstream, metrics: Metrics, *, binary: bool
) -> Sent:
    """Send ``batch`` and wait for the answer, whatever it says.

    Raises:
        RuntimeAway: it cannot be reached, or went away meanwhile.
        DeadlineExceeded: nobody waits for this batch any more.
    """
    merged = merge(batch, signature)
    metrics.elements += merged.elements
    metrics.padded_elements += merged.padded_elements
    header, tail = encode_batch(batch, merged.inputs, signature, binary=binary)
    sent_s = time.monotonic()
    budget_s = max(0.001, batch.deadline_s - sent_s)
    extra = trace_headers(batch)
    extra.extend(batch.key.headers)
    extra.append((_TIMEOUT_MS, b"%d" % max(1, int(budget_s * 1000))))
    try:
        response = await upstream.infer(header, tail, extra, sent_s + budget_s + STUCK_MARGIN_S)
    except TimeoutError:
        late = DeadlineExceeded("the runtime did not answer in time")
        late.may_have_run = True
        raise late from None
    answered_s = time.monotonic()
    metrics.runtime_seconds.observe(answered_s - sent_s)
    return Sent(merged, response, sent_s, answered_s)


def trace_headers(batch: Batch) -> list[tuple[bytes, bytes]]:
    """Return the trace headers of a batch of one request, as HTTP knows them; a shared one can carry none."""
    trace = batch.slices[0].pending.trace
    if len(batch.slices) > 1 or not trace:
        return []
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in trace.items()]


_LATE_S = 60.0
"""After which a runtime that was never ready is worth a warning; until then it is starting."""


class RuntimeLink:
    """Whether the runtime can serve now, and the signature of what it serves; kept up to date by `watch`."""

    def __init__(self, address: Address, model_name: str, pad_buckets: PadBuckets = NO_BUCKETS) -> None:
        self._pad_buckets = pad_buckets
        self.upstream = Upstream(address, model_name, on_lost=self._lost)
        self.signature: ModelSignature | None = None
        self.binary = True
        self.reason = f"no connection to the runtime at {address} yet"
        self.on_change: Callable[[], None] = lambda: None
        self.losses = 0
        """How often it went away after it had been ready."""
        self.started = asyncio.Event()
        """Set once the runtime could serve."""
        self._wake = asyncio.Event()
        self._told: set[str] = set()
        self._begun_s = time.monotonic()
        self._starting = True

    @property
    def ready(self) -> bool:
        """Tell whether batches may be sent."""
        return not self.reason

    @property
    def device_memory(self) -> tuple[int, int] | None:
        """Of the model's device bytes in use and all of them; None where that is not told."""
        return self.upstream.device_memory

    @property
    def graph_state(self) -> GraphState | None:
        """Return None: a runtime is no graph."""
        return None

    async def exchange(self, batch: Batch, signature: ModelSignature, metrics: Metrics) -> Sent:
        """Send a batch and wait for the answer, as `exchange` does."""
        return await exchange(batch, signature, self.upstream, metrics, binary=self.binary)

    def abandoned(self, pending: Pending) -> None:
        """Do nothing: what runs with others in a batch is computed for nobody."""

    def close(self) -> None:
        """Close every connection: for our runtime, permission to exit."""
        self.upstream.close()

    async def watch(self, interval_s: float = 1.0, away_interval_s: float = 0.1) -> None:
        """Ask for the runtime's health until cancelled: every ``interval_s``, more often while it is away."""
        while True:
            self._wake.clear()
            await self._look()
            try:
                # No wait_for: before Python 3.12 it forgets that it is cancelled in the moment that it has waited for.
                async with asyncio.timeout(interval_s if self.ready else away_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(away_interval_s)

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(10):
                reason = await self.upstream.ready_reason()
                if not reason and not self.ready:
                    self.signature = await self.upstream.signature(self._pad_buckets)
                    self.binary = await self.upstream.speaks_binary()
        except ProxyError as error:
            reason = str(error)
        except SignatureError as error:
            # Nothing that a start brings with it.
            reason, self._starting = str(error), False
        except TimeoutError:
            reason = "the runtime does not answer its health check"
        self._become(reason)

    def _lost(self) -> None:
        """The last connection is gone: nothing can be sent until the next look says otherwise."""
        self._become("the runtime closed its connections")
        self._wake.set()

    def _become(self, reason: str) -> None:
        changed = bool(reason) != bool(self.reason)
        self.losses += changed and bool(reason)
        self.reason = reason
        self._tell(reason)
        if not reason:
            self.started.set()
        if changed:
            self.on_change()

    def _tell(self, reason: str) -> None:
        """Log each reason once until the runtime is ready again: it is asked ten times a second while it is away.

        It is no warning that a runtime starts, until that is late; then it is told once more, as one.
        """
        if self._starting and time.monotonic() > self._begun_s + _LATE_S:
            self._starting = False
            self._told.clear()
        if not reason:
            self._told.clear()
            self._starting = False
        elif reason not in self._told and len(self._told) < _MOST_REASONS:
            self._told.add(reason)
            level = logging.INFO if self._starting else logging.WARNING
            logger.log(level, "event=not_ready reason=%r", reason[:_LONGEST_REASON])
