"""Tracer: records spans of sampled requests and batches in a ring buffer."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.tracing.sampling import Sampling, ShareSampler, SpanContext, is_enabled, parse_traceparent, sampling_of
from shoal_proxy.tracing.span import Span
from shoal_schema.interfaces.headers import REQUEST_ID, TRACEPARENT

RING: Final = 4096
"""Most spans that wait for the exporter; the oldest are dropped."""
GONE: Final = 499
"""The status of a request whose client disconnected, as in nginx."""
_TRACEPARENT, _REQUEST_ID = TRACEPARENT.encode(), REQUEST_ID.encode()


class Tracer:
    """Samples requests, and buffers finished spans for the exporter."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._share = ShareSampler(sampling.share)
        self._ring: deque[Span] = deque(maxlen=RING)
        self.dropped = 0

    def begin(self, headers: Mapping[bytes, bytes], protocol: str, now_s: float) -> Span | None:
        """Return the span of a request; None if the request is not sampled."""
        value = headers.get(_TRACEPARENT)
        if value is not None and self._sampling.by_parent and value.startswith(b"00-") and value.endswith(b"-00"):
            return None  # the common case with sampling clients, decided without parsing
        parent = parse_traceparent(value)
        if parent is None:
            low = random.getrandbits(64)
            if not self._share.takes(low):
                return None
            # The low half is the sampled number, so that other services with the same ratio decide alike.
            trace_id = random.getrandbits(64) << 64 | low or 1
        else:
            trace_id = parent.trace_id
            if not self._sampling.takes(parent, trace_id):
                return None
        span = Span(f"infer {protocol}", SpanContext(trace_id, _span_id(), sampled=True), now_s, parent)
        if (request_id := headers.get(_REQUEST_ID)) is not None:
            span.attributes["shoal.request_id"] = request_id.decode("latin-1")[:128]
        return span

    def end(self, span: Span, status: int, now_s: float) -> None:
        """Finish the span of a request with the response's status."""
        span.ended_s = now_s
        span.attributes["http.response.status_code"] = status
        span.failed = "" if status < 500 else f"status {status}"
        self._keep(span)

    def batch_ended(
        self, batch: Batch, began_s: float, events: Sequence[tuple[str, float]], now_s: float, *, failed: str = ""
    ) -> None:
        """Record the span of a batch, linked with the spans of its requests.

        Args:
            batch: the sent batch.
            began_s: when the batch was closed.
            events: names and times of events within the batch.
            now_s: when the batch ended.
            failed: why the whole batch failed; empty if it did not.
        """
        spans = [part.pending.span for part in batch.slices if part.pending.span is not None]
        if not spans:
            return
        context = SpanContext(random.getrandbits(128) or 1, _span_id(), sampled=True)
        made = Span("batch", context, began_s)
        made.ended_s, made.events, made.failed = now_s, list(events), failed
        made.attributes = {"shoal.batch.rows": batch.rows, "shoal.batch.requests": len(batch.slices)}
        made.links = [span.context for span in spans]
        for span in spans:
            span.links.append(context)
            span.events.append(("batched", began_s))
        self._keep(made)

    def _keep(self, span: Span) -> None:
        # A full deque drops its oldest element.
        self.dropped += len(self._ring) == RING
        self._ring.append(span)

    def take(self) -> list[Span]:
        """Remove and return all ended spans. May be called from any thread."""
        return [self._ring.popleft() for _ in range(len(self._ring))]


def attach(span: Span, pending: PendingRequest) -> None:
    """Attach the span of a sampled request to the pending request."""
    # The runtime and peers see this span as their parent.
    pending.span = span
    pending.trace = {**(pending.trace or {}), TRACEPARENT: span.context.traceparent}
    span.attributes["shoal.rows"] = pending.rows
    span.events.append(("queued", pending.arrived_s))


def tracer_from(environ: Mapping[str, str]) -> Tracer | None:
    """Return the tracer that ``OTEL_*`` variables set; None if disabled.

    Raises:
        shoal_schema.process.environment.SettingsError: the value of a variable is invalid.
    """
    return Tracer(sampling_of(environ)) if is_enabled(environ) else None


def _span_id() -> int:
    return random.getrandbits(64) or 1
