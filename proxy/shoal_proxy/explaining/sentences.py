"""From a report to what a person wants to know: what bounds latency and throughput, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log10

from shoal_proxy.explaining.report import Report, Span
from shoal_schema.resource.traffic import BatchingPolicy

_SMALL_BATCHES = 0.5
_PADDING = 0.2
_HOST_BOUND = 0.5


def explain(report: Report) -> list[str]:
    """Return the sentences, the most important first."""
    if report.alone_ms is None or report.full_ms is None or report.rows_per_s is None:
        return ["No batch has run yet, so nothing is known of the model's speed; send some requests and ask again."]
    return [
        *_objective(report, report.alone_ms, report.full_ms),
        *_latency(report, report.alone_ms, report.full_ms),
        *_throughput(report, report.rows_per_s),
        *_refusals(report),
        *_waste(report, report.full_ms),
    ]


def number(value: float) -> str:
    """Return a measured figure in two digits, as people write it: 570, 3,400, 0.0042."""
    if value <= 0:
        return "0"
    digits = 1 - floor(log10(value))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def time(span: Span) -> str:
    """Return milliseconds, or what they lie between."""
    if span.known:
        return f"about {number(span.low)} ms"
    if span.high is None:
        return f"at least {number(span.low)} ms"
    return f"{number(span.low)} to {number(span.high)} ms"


def rows(count: int) -> str:
    """Return a number of rows."""
    return "1 row" if count == 1 else f"{count} rows"


def _objective(report: Report, alone_ms: Span, full_ms: Span) -> Iterator[str]:
    objective_ms = report.objective_ms
    if objective_ms is None:
        return
    if alone_ms.low > objective_ms:
        yield (
            f"The latency objective of {objective_ms:g} ms cannot be met: a request alone takes {time(alone_ms)}. "
            "Requests are served as fast as possible instead. Raise batching.latencyObjectiveMilliseconds above "
            f"{number(alone_ms.low)}, or make the model faster (runtime.dtype, runtime.compile, runtime.device)."
        )
    elif full_ms.high is None:
        yield (
            f"How large batches the latency objective of {objective_ms:g} ms leaves room for is not known: none of "
            f"more than {rows(report.measured_rows)} has been measured. Up to {report.allowed_rows} are tried."
        )
    elif report.allowed_rows < report.most_rows:
        yield (
            f"The latency objective of {objective_ms:g} ms bounds batches to {rows(report.allowed_rows)} at a steady "
            f"load (two batches must fit into it, one running and one's own), out of {report.most_rows}. A larger "
            "batching.latencyObjectiveMilliseconds would serve more rows per second."
        )
    else:
        yield (
            f"The latency objective of {objective_ms:g} ms leaves room for full batches of {rows(report.most_rows)}. "
            "It does not bound throughput."
        )


def _latency(report: Report, alone_ms: Span, full_ms: Span) -> Iterator[str]:
    host = "without the host's work around the model, which the first requests will show"
    if report.overhead_ms > 0:
        host = f"of each {number(report.overhead_ms)} ms are the host's work around the model"
    full = time(full_ms)
    if full_ms.high is None:
        full = f"at least as long; none of more than {rows(report.measured_rows)} has been measured"
    yield (
        f"A request alone on an idle runtime takes {time(alone_ms)}, a full batch of {rows(report.most_rows)} "
        f"{full}; {host}."
    )
    if report.policy is BatchingPolicy.FIXED and report.max_delay_ms > 0:
        yield (
            f"A batch that is not full waits up to {report.max_delay_ms:g} ms although the runtime may be idle: lower "
            "batching.maxDelayMilliseconds, or set batching.policy to Adaptive, which never waits in vain."
        )
    if full_ms.high is not None and report.late_ms > _HOST_BOUND * full_ms.high:
        yield (
            f"Answers leave up to {number(report.late_ms)} ms later than the model's time explains: the host is short "
            "of processor time. Give the pod more CPU, or send larger requests."
        )


def _throughput(report: Report, rows_per_s: Span) -> Iterator[str]:
    yield _rate(report, rows_per_s)
    if report.policy is BatchingPolicy.NONE:
        yield "Requests are not batched at all: set batching.policy to Adaptive to serve several at the price of one."
    if report.capped_rows is not None:
        yield (
            f"The device ran out of memory with more than {report.capped_rows} rows, so batches stay below that; "
            f"batching.maxBatchSize of {report.configured_rows} has no effect beyond it."
        )
    elif report.max_rows < report.configured_rows:
        yield (
            f"The model's own limit of {report.max_rows} rows holds, not batching.maxBatchSize "
            f"({report.configured_rows})."
        )
    if report.waiting_rows > 2 * report.allowed_rows:
        yield (
            f"{report.waiting_rows} rows wait, more than two batches: this replica is saturated. Add replicas "
            "(scaling.maxReplicas), or allow larger batches (batching.maxBatchSize)."
        )


def _rate(report: Report, rows_per_s: Span) -> str:
    size = f"in batches of {rows(report.allowed_rows)}"
    if rows_per_s.known:
        return f"One replica serves at most about {number(rows_per_s.low)} rows per second, {size}."
    if rows_per_s.low > 0 and rows_per_s.high is not None:
        return (
            f"One replica serves at most {number(rows_per_s.low)} to {number(rows_per_s.high)} rows per second, "
            f"{size}: smaller and larger ones have been measured, none of about that size."
        )
    if report.measured_rows_per_s is None:
        return (
            f"How many rows per second one replica serves, {size}, is not known: only larger ones have been measured."
        )
    return (
        f"One replica serves about {number(report.measured_rows_per_s)} rows per second in batches of "
        f"{rows(report.measured_rows)}, the largest measured. What up to {report.allowed_rows} at once would give is "
        "not known: send more requests at the same time and ask again."
    )


def _refusals(report: Report) -> Iterator[str]:
    reasons = {
        "late": "because their answer would have come too late: add replicas, or raise the latency objective",
        "queue_rows": "because queue.maxRows rows waited already: add replicas, or raise it if callers can wait",
        "queue_bytes": "because queue.maxBytes were held already: raise it, or send smaller requests",
        "deadline": "with 504, because their own deadline passed: they allow less time than the model takes under load",
    }
    for reason, sentence in reasons.items():
        if count := report.rejected.get(reason):
            yield f"{count} requests were refused {sentence}."


def _waste(report: Report, full_ms: Span) -> Iterator[str]:
    if report.padding > _PADDING:
        yield (
            f"{report.padding:.0%} of what the model computes is padding: more pad_buckets in model.toml keep long and "
            "short inputs apart."
        )
    if full_ms.high is not None and report.overhead_ms > full_ms.high / 2:
        yield (
            "The host's work takes longer than the model's: batches are limited by CPU, not by the device. Binary "
            "tensors (Inference-Header-Content-Length) cost far less than JSON."
        )
