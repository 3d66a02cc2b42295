"""From a report to what a person wants to know: what bounds latency and throughput, and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from shoal_proxy.batching.policy import Policy
from shoal_proxy.explaining.report import Report

_SMALL_BATCHES = 0.5
_PADDING = 0.2
_HOST_BOUND = 0.5


def explain(report: Report) -> list[str]:
    """Return the sentences, the most important first."""
    if report.alone_ms is None or report.full_ms is None or report.rows_per_s is None:
        return ["No batch has run yet, so nothing is known of the model's speed; send some requests and ask again."]
    return [
        *_objective(report),
        *_latency(report, report.alone_ms, report.full_ms),
        *_throughput(report, report.rows_per_s),
        *_refusals(report),
        *_waste(report, report.full_ms),
    ]


def _objective(report: Report) -> Iterator[str]:
    objective_ms, alone_ms = report.objective_ms, report.alone_ms
    if objective_ms is None or alone_ms is None:
        return
    if alone_ms > objective_ms:
        yield (
            f"The latency objective of {objective_ms:g} ms cannot be met: a request alone takes {alone_ms:.3g} ms. "
            "Requests are served as fast as possible instead. Raise batching.latencyObjectiveMilliseconds above "
            f"{alone_ms:.3g}, or make the model faster (runtime.dtype, runtime.compile, runtime.device)."
        )
    elif report.allowed_rows < report.max_rows:
        yield (
            f"The latency objective of {objective_ms:g} ms bounds batches to {report.allowed_rows} rows at a steady "
            f"load (two batches must fit into it, one running and one's own), out of {report.max_rows}. A larger "
            "batching.latencyObjectiveMilliseconds would serve more rows per second."
        )
    else:
        yield (
            f"The latency objective of {objective_ms:g} ms leaves room for full batches of {report.max_rows} rows. "
            "It does not bound throughput."
        )


def _latency(report: Report, alone_ms: float, full_ms: float) -> Iterator[str]:
    yield (
        f"A request alone on an idle runtime takes {alone_ms:.3g} ms, a full batch of {report.max_rows} rows "
        f"{full_ms:.3g} ms; of each {report.overhead_ms:.2g} ms are the host's work around the model."
    )
    if report.policy is Policy.FIXED and report.max_delay_ms > 0:
        yield (
            f"A batch that is not full waits up to {report.max_delay_ms:g} ms although the runtime may be idle: lower "
            "batching.maxDelayMilliseconds, or set batching.policy to Adaptive, which never waits in vain."
        )
    if report.late_ms > _HOST_BOUND * full_ms:
        yield (
            f"Answers leave up to {report.late_ms:.3g} ms later than the model's time explains: the host is short of "
            "processor time. Give the pod more CPU, or send larger requests."
        )


def _throughput(report: Report, rows_per_s: float) -> Iterator[str]:
    size = "1 row" if report.policy is Policy.NONE else f"{report.allowed_rows} rows"
    yield f"One replica serves at most {rows_per_s:,.0f} rows per second, in batches of {size}."
    if report.policy is Policy.NONE:
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


def _refusals(report: Report) -> Iterator[str]:
    reasons = {
        "late": "because their answer would have come too late: add replicas, or raise the latency objective",
        "queue_rows": "because queue.maxItems rows waited already: add replicas, or raise it if callers can wait",
        "queue_bytes": "because queue.maxBytes were held already: raise it, or send smaller requests",
        "deadline": "with 504, because their own deadline passed: they allow less time than the model takes under load",
    }
    for reason, sentence in reasons.items():
        if count := report.rejected.get(reason):
            yield f"{count} requests were refused {sentence}."


def _waste(report: Report, full_ms: float) -> Iterator[str]:
    if report.padding > _PADDING:
        yield (
            f"{report.padding:.0%} of what the model computes is padding: more pad_buckets in model.toml keep long and "
            "short inputs apart."
        )
    if report.overhead_ms > full_ms / 2:
        yield (
            "The host's work takes longer than the model's: batches are limited by CPU, not by the device. Binary "
            "tensors (Inference-Header-Content-Length) cost far less than JSON."
        )
