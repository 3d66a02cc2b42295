"""Turn a report into sentences on the bottleneck and the field to change."""

from collections.abc import Iterator
from math import floor, log10
from typing import Final

from shoal_proxy.explaining.bound import ENOUGH_BATCHES
from shoal_proxy.explaining.report import FigureBounds, LatencyReport
from shoal_schema.interfaces.bounds import ADVICE, Bound
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.resource.traffic import BatchingPolicy

_PADDING: Final = 0.2
"""Share of padding from which it is reported."""
_HOST_BOUND: Final = 0.5
"""Share of a full batch's time from which late responses are reported."""
_IDLE: Final = 0.1
"""Share of a second below which runtime and proxy count as idle."""

_NOT_REPEATED: Final = {
    "RandomResults": "the same batch, run twice, gives different results",
    "ChangingResults": "results change from run to run, with the model's state or with time",
}

_REJECTED: Final = {
    RejectionReason.LATE: "because the response would have been late. Add replicas, or raise the latency objective.",
    RejectionReason.QUEUE_ROWS: "because queue.maxRows rows waited. Add replicas, or raise it if clients can wait.",
    RejectionReason.QUEUE_BYTES: "because queue.maxBytes were in use. Raise it, or send smaller requests.",
    RejectionReason.DEADLINE: (
        "with 504, because their deadline passed: it is shorter than the model's time under load."
    ),
    RejectionReason.LIMIT: "with 429, because their clients were at their limits. Raise access.limits to allow more.",
}
"""Cause and remedy by reason, in the order in which they are reported."""


def explain(report: LatencyReport) -> list[str]:
    """Return the sentences of a report: model and shape first, then by importance."""
    # Nothing was measured, not even by warm-up.
    if report.alone_ms is None or report.full_ms is None:
        return [
            f"Model {report.model}.",
            "No batch has run yet, so the model's speed is unknown. Send requests, then read this again.",
        ]
    about = f"Model {report.model}."
    if report.precision:
        about += f" The runtime chose precision {report.precision} by measurement at its start."
    if report.known_shapes > 1:
        shape = ", ".join(f"{name} {shape}" for name, shape in report.shapes.items())
        # Times of different shapes are not comparable, so only one is reported.
        about += (
            f" Inputs of {report.known_shapes} shapes have run. Times and batch sizes are for the most recent "
            f"shape, {shape}; GET /v1/latency returns all."
        )
    sentences = [
        about,
        *_mixed(report),
        *_objective(report, report.alone_ms, report.full_ms),
        *_latency(report, report.alone_ms, report.full_ms),
        *_throughput(report),
        *_rejections(report),
    ]
    if report.padding > _PADDING:
        sentences.append(
            f"{report.padding:.0%} of the model's computation is padding. Add pad_buckets in model.toml to "
            "separate long and short inputs."
        )
    return sentences


def explain_graph(report: LatencyReport) -> list[str]:
    """Return the sentences about a graph; the proxies of its steps explain the steps."""
    # The scheduler sends one more, ahead.
    running = f"{report.running_batches} of at most {report.in_flight + 1} requests (inFlight) are running"
    return [
        f"Graph {report.model}: {running}, and {rows(report.waiting_rows)} wait.",
        *([] if report.alone_ms is None else [f"A request of 1 row takes {time(report.alone_ms)}{_sure(report)}."]),
        "Server-Timing has the time of each step for one request; shoal_proxy_step_seconds has it for all requests.",
        "The proxy of each step forms batches, not the graph. Its /v1/explain states the bottleneck of the step "
        "and the field to change.",
        *_rejections(report),
    ]


def _mixed(report: LatencyReport) -> Iterator[str]:
    """State whether row checks found that each row gets its own result."""
    if report.unchecked in _NOT_REPEATED:
        yield f"Independence of rows is not checked ({report.unchecked}): {_NOT_REPEATED[report.unchecked]}."
    elif report.independent and report.varying_rows:
        yield (
            f"Results vary: of {report.checked_rows} rows run again, {report.varying_rows} had another result than"
            " before. Causes are ties, rounding that depends on the batch, or a model that rarely mixes rows."
        )
    if report.independent:
        return
    yield (
        f"Rows are not independent: of {report.checked_rows} rows run again, some had results of other rows of their"
        " batch. Each batch holds one request until the model is replaced. Make the model return one result for each"
        " row, in order and independent of its neighbours, or set batching.policy: None. If its results depend on more"
        " than its inputs, set batching.rowChecks: Off."
    )


def number(value: float) -> str:
    """Format a measured number with two significant digits: 570, 3,400, 0.0042."""
    if value <= 0:
        return "0"
    # Position of the second significant digit.
    digits = 1 - floor(log10(value))
    return f"{round(value, digits):,.{max(0, digits)}f}"


def time(span: FigureBounds) -> str:
    """Format a time in milliseconds, or its bounds."""
    if span.known:
        return f"about {number(span.low)} ms"
    if span.high is None:
        return f"at least {number(span.low)} ms"
    return f"{number(span.low)} to {number(span.high)} ms"


def rows(count: int) -> str:
    """Format a number of rows with its unit."""
    return "1 row" if count == 1 else f"{count} rows"


def _measured(report: LatencyReport) -> str:
    return rows(report.measured_rows) + (" of this shape" if report.known_shapes > 1 else "")


def _objective(report: LatencyReport, alone_ms: FigureBounds, full_ms: FigureBounds) -> Iterator[str]:
    """State what the latency objective does to batches."""
    objective_ms = report.objective_ms
    if objective_ms is None:
        return
    if alone_ms.low > objective_ms:
        yield (
            f"The latency objective of {objective_ms:g} ms cannot be met: a single request takes {time(alone_ms)}. "
            "Requests are served as fast as possible instead. Raise batching.latencyObjectiveMilliseconds above "
            f"{number(alone_ms.low)}, or make the model faster (runtime.dtype, runtime.compile, runtime.device)."
        )
    elif full_ms.high is None:
        yield (
            f"The largest batch within the latency objective of {objective_ms:g} ms is unknown: no batch of more than "
            f"{_measured(report)} has been measured. Batches of up to {rows(report.allowed_rows)} are tried."
        )
    elif report.allowed_rows < report.most_rows:
        yield (
            f"The latency objective of {objective_ms:g} ms limits batches to {rows(report.allowed_rows)} of "
            f"{report.most_rows} at a steady load, because a request may wait for one batch before its own. Raise "
            "batching.latencyObjectiveMilliseconds to serve more rows per second."
        )
    else:
        yield (
            f"The latency objective of {objective_ms:g} ms leaves room for full batches of {rows(report.most_rows)}. "
            "It does not limit throughput."
        )


def _latency(report: LatencyReport, alone_ms: FigureBounds, full_ms: FigureBounds) -> Iterator[str]:
    """State the time of a request alone and of a full batch, and what adds to it."""
    parts = "the host's work around the model is not included, since the first requests have yet to show it"
    if report.overhead_ms > 0:
        host = f"{number(report.overhead_ms)} ms for the host's work around it"
        parts = f"on average {host} are included"
        if report.model_alone_ms is not None and report.model_alone_ms.low:
            parts = f"on average {time(report.model_alone_ms)} for the model and {host}; the rest is variation"
    yield f"A request alone on an idle runtime takes {time(alone_ms)}{_sure(report)}; {parts}."
    model_ms = report.model_full_ms
    if model_ms is None or model_ms.high is None:
        yield (
            f"The time of a full batch of {rows(report.most_rows)} is unknown: no batch of more than"
            f" {_measured(report)} has been measured."
        )
    else:
        took = time(model_ms) if model_ms.low else f"at most {number(model_ms.high)} ms"
        yield f"A full batch of {rows(report.most_rows)} takes the model {took} on average, plus the host's work."
    # Only this policy holds partial batches by time.
    if report.policy is BatchingPolicy.FIXED and report.max_delay_ms > 0:
        yield (
            f"A partial batch waits up to {report.max_delay_ms:g} ms even while the runtime is idle. Lower "
            "batching.maxDelayMilliseconds, or set batching.policy to Adaptive, which does not wait then."
        )
    if full_ms.high is not None and report.late_ms > _HOST_BOUND * full_ms.high:
        yield (
            f"Responses are sent up to {number(report.late_ms)} ms later than the model's time accounts for: the "
            f"host is short of CPU. {ADVICE[Bound.HOST].remedy}."
        )


def _sure(report: LatencyReport) -> str:
    """Return the note on how reliable a time is.

    The note states what the time includes, or that too few batches were measured.
    """
    if report.batches < ENOUGH_BATCHES:
        source = "warm-up" if not report.batches else "1 batch" if report.batches == 1 else f"{report.batches} batches"
        return f" (by {source}: too few samples for a percentile)"
    return " (upper estimate, from reading the request until sending its response, without the network)"


def _throughput(report: LatencyReport) -> Iterator[str]:
    """State the capacity and its bottleneck."""
    yield _served(report)
    if report.policy is BatchingPolicy.NONE:
        yield "Requests are not batched. Set batching.policy to Adaptive to serve several requests per batch."
    # Only the lowest of the limits is reported.
    if report.capped_rows is not None:
        yield (
            f"The device ran out of memory with more than {report.capped_rows} rows, so batches stay below that; "
            f"batching.maxBatchSize of {report.configured_rows} has no effect beyond it."
        )
    elif report.max_rows < report.configured_rows:
        yield (
            f"The model's own limit of {report.max_rows} rows applies instead of batching.maxBatchSize "
            f"({report.configured_rows})."
        )
    # A request may wait for one batch before its own; more is saturation.
    if report.waiting_rows > 2 * report.allowed_rows:
        yield (
            f"{report.waiting_rows} rows wait, more than two batches: this replica is saturated. Add replicas "
            "(scaling.maxReplicas), or allow larger batches (batching.maxBatchSize)."
        )


def _served(report: LatencyReport) -> str:
    """State the served rate, and whether it could be higher."""
    busiest = report.busiest
    if busiest is None:
        return (
            "The capacity of a replica is unknown before the first requests, because it includes the host's work."
            + _ceiling(report)
        )
    rate = number(busiest.rows_per_s)
    # A replica without load shows no capacity.
    if max(busiest.runtime_busy, busiest.proxy_busy) < _IDLE:
        return (
            "The capacity of a replica is unknown: the replica has been nearly idle (at most"
            f" {rows(round(busiest.rows_per_s) or 1)} per second). Send many requests at the same time, then read this"
            " again." + _ceiling(report)
        )
    # Full batches without a pause, or a whole core: this was the capacity.
    if report.at_its_end:
        reached = f"batches of {number(busiest.batch_rows)} rows ran without a pause"
        if report.bound is Bound.PROXY:
            reached = f"the proxy used {busiest.proxy_busy:.0%} of a core"
        bound = _bound(report) if report.bound in (Bound.HOST, Bound.PROXY) else ""
        return f"One replica serves about {rate} rows per second: in its busiest second {reached}.{bound}"
    return (
        f"The busiest recent second of this replica served {rate} rows, in batches of {number(busiest.batch_rows)} rows"
        f" on average, with a batch at the runtime for {busiest.runtime_busy:.0%} of the time. Whether it can serve"
        " more is unknown. Send more requests at the same time, then read this again." + _ceiling(report)
    )


def _ceiling(report: LatencyReport) -> str:
    """State the upper bound by the model's own time; empty if unknown or exceeded."""
    if report.bound is Bound.HOST:
        return _bound(report)
    most = report.model_rows_per_s
    served_per_s = report.busiest.rows_per_s if report.busiest else 0.0
    # Without a lower bound its batches were not measured, which has been stated.
    # An upper bound below the served rate would contradict it.
    if most is None or most.high is None or most.high < served_per_s or not most.low:
        return ""
    rate = f"about {number(most.high)}" if most.known else number(most.high)
    size = f"batches of {rows(report.allowed_rows)}"
    return f" The model's own time allows {rate} rows per second at most, in {size}, without the host's work."


def _bound(report: LatencyReport) -> str:
    """State the bottleneck of throughput and its remedy."""
    advice = ADVICE[report.bound]
    work = ""
    if report.bound is Bound.HOST:
        work = f" ({number(report.overhead_ms)} ms for batches of {rows(report.allowed_rows)})"
    return f" The bottleneck is {advice.cause}{work}. {advice.remedy}."


def _rejections(report: LatencyReport) -> Iterator[str]:
    for reason, words in _REJECTED.items():
        if count := report.rejected.get(reason):
            yield f"{count} {'request was' if count == 1 else 'requests were'} rejected {words}"
