"""Follows sampled requests and their batches, and puts what became of them into the ring."""

import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from shoal_proxy.batching.batch import Batch
from shoal_proxy.tracing.sampling import Context, Sampling, Share, is_asked_for, parse_traceparent, sampling_of
from shoal_proxy.tracing.span import Span
from shoal_schema.headers import REQUEST_ID, TRACEPARENT

RING: Final = 4096
"""Spans that wait for the exporter; of more the oldest are forgotten."""
GONE: Final = 499
"""The status of a request whose caller left, as nginx has it."""
_TRACEPARENT, _REQUEST_ID = TRACEPARENT.encode(), REQUEST_ID.encode()


class Tracer:
    """Decides who is traced, and keeps ended spans until the exporter takes them."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._share = Share(sampling.share)
        self._ring: deque[Span] = deque(maxlen=RING)
        self.dropped = 0

    def begin(self, headers: Mapping[bytes, bytes], protocol: str, now_s: float) -> Span | None:
        """Return the span of a request that is sampled."""
        value = headers.get(_TRACEPARENT)
        if value is not None and self._sampling.by_parent and value.startswith(b"00-") and value.endswith(b"-00"):
            return None  # most are, where a share of the callers is traced: not worth reading
        parent = parse_traceparent(value)
        if parent is None:
            low = random.getrandbits(64)
            if not self._share.takes(low):
                return None
            trace_id = random.getrandbits(64) << 64 | low or 1
        else:
            trace_id = parent.trace_id
            if not self._sampling.takes(parent, trace_id):
                return None
        span = Span(f"infer {protocol}", Context(trace_id, _span_id(), sampled=True), now_s, parent)
        if (request_id := headers.get(_REQUEST_ID)) is not None:
            span.attributes["shoal.request_id"] = request_id.decode("latin-1")[:128]
        return span

    def end(self, span: Span, status: int, now_s: float) -> None:
        """Keep the span of a request that was answered so."""
        span.ended_s = now_s
        span.attributes["http.response.status_code"] = status
        span.failed = "" if status < 500 else f"status {status}"
        self._keep(span)

    def batch_ended(
        self, batch: Batch, began_s: float, events: Sequence[tuple[str, float]], now_s: float, *, failed: str = ""
    ) -> None:
        """Keep the span of a batch that holds sampled requests, each linked to the other.

        Args:
            batch: as it was sent.
            began_s: when it was closed.
            events: what happened to it, and when.
            now_s: its end.
            failed: why nothing of it was answered, where that is so.
        """
        spans = [part.pending.span for part in batch.slices if part.pending.span is not None]
        if not spans:
            return
        context = Context(random.getrandbits(128) or 1, _span_id(), sampled=True)
        made = Span("batch", context, began_s)
        made.ended_s, made.events, made.failed = now_s, list(events), failed
        made.attributes = {"shoal.batch.rows": batch.rows, "shoal.batch.requests": len(batch.slices)}
        made.links = [span.context for span in spans]
        for span in spans:
            span.links.append(context)
            span.events.append(("batched", began_s))
        self._keep(made)

    def _keep(self, span: Span) -> None:
        self.dropped += len(self._ring) == RING
        self._ring.append(span)

    def take(self) -> list[Span]:
        """Return all that wait, and forget them; from any thread."""
        return [self._ring.popleft() for _ in range(len(self._ring))]


def tracer_from(environ: Mapping[str, str]) -> Tracer | None:
    """Return what the ``OTEL_*`` variables ask for; None where they name no collector.

    Raises:
        shoal_schema.environment.SettingsError: one of them makes no sense.
    """
    return Tracer(sampling_of(environ)) if is_asked_for(environ) else None


def _span_id() -> int:
    return random.getrandbits(64) or 1
