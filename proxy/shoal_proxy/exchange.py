"""One batch's way to the runtime and back."""

import time
from typing import Final

from shoal_proxy.batching.batch import Batch, Merged, Result, merge
from shoal_proxy.codecs.upstream import decode_answer, decode_failure, encode_batch
from shoal_proxy.connection import Response
from shoal_proxy.errors import DeadlineExceeded
from shoal_proxy.metrics import Metrics
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.upstream import RuntimeLink
from shoal_schema.headers import EXECUTED, HEADER_LENGTH, TIMEOUT_MS

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


async def exchange(batch: Batch, signature: ModelSignature, link: RuntimeLink, metrics: Metrics) -> Sent:
    """Send ``batch`` and wait for the answer, whatever it says.

    Raises:
        RuntimeAway: it cannot be reached, or went away meanwhile.
        DeadlineExceeded: nobody waits for this batch any more.
    """
    merged = merge(batch, signature)
    metrics.elements += merged.elements
    metrics.padded_elements += merged.padded_elements
    header, tail = encode_batch(batch, merged.inputs, signature, binary=link.binary)
    sent_s = time.monotonic()
    budget_s = max(0.001, batch.deadline_s - sent_s)
    extra = _trace_headers(batch)
    extra.extend(batch.key.headers)
    extra.append((_TIMEOUT_MS, b"%d" % max(1, int(budget_s * 1000))))
    try:
        response = await link.upstream.infer(header, tail, extra, sent_s + budget_s + STUCK_MARGIN_S)
    except TimeoutError:
        late = DeadlineExceeded("the runtime did not answer in time")
        late.may_have_run = True
        raise late from None
    answered_s = time.monotonic()
    metrics.runtime_seconds.observe(answered_s - sent_s)
    return Sent(merged, response, sent_s, answered_s)


def result_of(sent: Sent, signature: ModelSignature) -> Result:
    """Return the rows that came back.

    Raises:
        ProxyError: what the runtime says went wrong with the whole batch.
    """
    response = sent.response
    if response.status != 200:
        raise decode_failure(response.status, response.body, response.headers.get(_EXECUTED))
    return decode_answer(response.body, response.headers.get(_HEADER_LENGTH), signature)


def _trace_headers(batch: Batch) -> list[tuple[bytes, bytes]]:
    """A batch of one request carries its trace headers as HTTP knows them; a shared one cannot."""
    trace = batch.slices[0].pending.trace
    if len(batch.slices) > 1 or not trace:
        return []
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in trace.items()]
