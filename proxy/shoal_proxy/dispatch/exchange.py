"""Link to the runtime: its health, the model's signature, and batches."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from shoal_proxy.batching.batch import Batch, BatchResult, MergedInputs, merge
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.codecs.upstream import decode_failure, decode_result, encode_batch
from shoal_proxy.dispatch.runtime_connection import RuntimeResponse
from shoal_proxy.dispatch.upstream import RuntimeMemory, Upstream
from shoal_proxy.errors import DeadlineExceeded, ProxyError
from shoal_proxy.model.overrides import NO_BUCKETS, PadBuckets
from shoal_proxy.model.signature import ModelSignature, SignatureError
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.observe.timing import batch_timing
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.headers import EXECUTED, HEADER_LENGTH, TIMEOUT_MS
from shoal_schema.interfaces.instances import RUNTIME_NAME
from shoal_schema.interfaces.load import GraphState

logger = logging.getLogger(__name__)

_MAX_REASONS: Final = 16
"""Most reasons logged: other V2 servers may return a new one at each check."""
_MAX_REASON: Final = 1000
STUCK_MARGIN_S: Final = 1.0
"""Time after its last deadline at which a batch is abandoned, so that a stuck runtime does not block its slot."""


_TIMEOUT_MS: Final = TIMEOUT_MS.encode()
_EXECUTED: Final = EXECUTED.encode()
_HEADER_LENGTH: Final = HEADER_LENGTH.encode()


class SentBatch:
    """The runtime's undecoded response to a batch, with monotonic times (s)."""

    __slots__ = ("completed_s", "merged", "response", "sent_s")

    def __init__(self, merged: MergedInputs, response: RuntimeResponse, sent_s: float, completed_s: float) -> None:
        self.merged = merged
        self.response = response
        self.sent_s = sent_s
        self.completed_s = completed_s

    @property
    def was_refused(self) -> bool:
        """Return whether the runtime certainly did not run the batch, as it ends or is not ready."""
        return self.response.status == 503 and self.response.headers.get(_EXECUTED) == b"no"

    def result(self, signature: ModelSignature) -> BatchResult:
        """Return the decoded result of the batch.

        Raises:
            ProxyError: the whole batch failed.
        """
        response = self.response
        if response.status != 200:
            raise decode_failure(response.status, response.body, response.headers.get(_EXECUTED))
        return decode_result(response.body, response.headers.get(_HEADER_LENGTH), signature)

    def timing(self, batch: Batch, batch_s: float) -> bytes:
        """Return the values of a batch for the Server-Timing header.

        ``batch_s`` is the time (s) of the batch outside the runtime.
        """
        return batch_timing(batch, self.merged, runtime_s=self.completed_s - self.sent_s, batch_s=batch_s)


async def exchange(
    batch: Batch, signature: ModelSignature, upstream: Upstream, metrics: Metrics, *, binary: bool
) -> SentBatch:
    """Send ``batch`` and return the runtime's response, of any status.

    Raises:
        RuntimeUnavailable: the runtime is unreachable, or the connection was lost.
        DeadlineExceeded: all deadlines of the batch have passed.
    """
    merged = merge(batch, signature)
    metrics.elements += merged.elements
    metrics.padded_elements += merged.padded_elements
    header, tail = encode_batch(batch, merged.inputs, signature, binary=binary)
    sent_s = time.monotonic()
    # The runtime gets the time until the batch's last deadline.
    budget_s = max(0.001, batch.deadline_s - sent_s)
    extra = trace_headers(batch)
    # Forwarded headers are part of the batch key: all requests of the batch have the same.
    extra.extend(batch.key.headers)
    extra.append((_TIMEOUT_MS, b"%d" % max(1, int(budget_s * 1000))))
    try:
        response = await upstream.infer(header, tail, extra, sent_s + budget_s + STUCK_MARGIN_S)
    except TimeoutError:
        late = DeadlineExceeded("the runtime did not respond before the deadline")
        late.may_have_run = True
        raise late from None
    completed_s = time.monotonic()
    metrics.runtime_seconds.observe(completed_s - sent_s)
    return SentBatch(merged, response, sent_s, completed_s)


def trace_headers(batch: Batch) -> list[tuple[bytes, bytes]]:
    """Return the trace headers of a batch; empty for several requests."""
    trace = batch.slices[0].pending.trace
    if len(batch.slices) > 1 or not trace:
        return []
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in trace.items()]


_LATE_S = 60.0
"""The time after which a runtime that was never ready is logged as a warning; until then it is starting."""


class RuntimeLink:
    """Readiness of the runtime and signature of its model.

    Args:
        address: address of the runtime.
        model_name: name of the model at the runtime.
        pad_buckets: lengths to which rows are padded, by input.
        in_flight: batches that a foreign runtime executes concurrently; Shoal's own executes one.
    """

    def __init__(
        self, address: Address, model_name: str, pad_buckets: PadBuckets = NO_BUCKETS, *, in_flight: int = 1
    ) -> None:
        self._pad_buckets = pad_buckets
        self._in_flight = in_flight
        self.concurrency = in_flight
        self.upstream = Upstream(address, model_name, on_lost=self._lost)
        self.signature: ModelSignature | None = None
        self.binary = True
        self.reason = f"no connection to the runtime at {address} yet"
        self.on_change: Callable[[], None] = lambda: None
        self.losses = 0
        """Number of times that a ready runtime became unready."""
        self.started = asyncio.Event()
        """Set when the runtime is ready for the first time."""
        self._wake = asyncio.Event()
        self._logged: set[str] = set()
        self._begun_s = time.monotonic()
        self._starting = True

    @property
    def ready(self) -> bool:
        """Whether batches may be sent."""
        return not self.reason

    @property
    def device_memory(self) -> tuple[int, int] | None:
        """Used and total bytes of device memory; None if not reported."""
        return self.upstream.device_memory

    @property
    def memory(self) -> RuntimeMemory:
        """Memory of the runtime's process."""
        return self.upstream.memory

    @property
    def graph_state(self) -> GraphState | None:
        """Return None: a runtime is not a graph."""
        return None

    async def exchange(self, batch: Batch, signature: ModelSignature, metrics: Metrics) -> SentBatch:
        """Send a batch to the runtime and return the response."""
        sent = await exchange(batch, signature, self.upstream, metrics, binary=self.binary)
        if sent.was_refused:
            self._become("the runtime refused a batch")
            self._wake.set()
        return sent

    def abandoned(self, pending: PendingRequest) -> None:
        """Do nothing: a running batch cannot drop one of its requests."""

    def close(self) -> None:
        """Close every connection, which lets Shoal's runtime exit."""
        self.upstream.close()

    async def watch(self, interval_s: float = 1.0, away_interval_s: float = 0.1) -> None:
        """Check the runtime's health at the given intervals, until cancelled."""
        while True:
            self._wake.clear()
            await self.check()
            try:
                # Not `wait_for`: before Python 3.12 it loses a cancellation at the moment that its future completes.
                async with asyncio.timeout(interval_s if self.ready else away_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(away_interval_s)

    async def check(self) -> None:
        """Check the runtime's health once."""
        try:
            async with asyncio.timeout(10):
                reason = await self.upstream.ready_reason()
                if not reason and not self.ready:
                    self.signature = await self.upstream.signature(self._pad_buckets)
                    name, self.binary = await self.upstream.server()
                    self.concurrency = 1 if name == RUNTIME_NAME else self._in_flight
        except ProxyError as error:
            reason = str(error)
        except SignatureError as error:
            # Not part of a normal start, so it is logged as a warning.
            reason, self._starting = str(error), False
        except TimeoutError:
            reason = "the runtime does not respond to its health check"
        self._become(reason)

    def _lost(self) -> None:
        """Become unready, as the last connection to the runtime was lost."""
        self._become("the runtime closed its connections")
        self._wake.set()

    def _become(self, reason: str) -> None:
        changed = bool(reason) != bool(self.reason)
        # A change to a reason is a loss.
        self.losses += changed and bool(reason)
        self.reason = reason
        # Each reason is logged once until the runtime is ready again, as it is checked ten times a second while
        # unready. While the runtime starts, the level is INFO; a reason that lasts is logged once more, as a warning.
        if self._starting and time.monotonic() > self._begun_s + _LATE_S:
            self._starting = False
            self._logged.clear()
        if not reason:
            self._logged.clear()
            self._starting = False
        elif reason not in self._logged and len(self._logged) < _MAX_REASONS:
            self._logged.add(reason)
            level = logging.INFO if self._starting else logging.WARNING
            logger.log(level, "event=not_ready reason=%r", reason[:_MAX_REASON])
        if not reason:
            self.started.set()
        if changed:
            self.on_change()
