"""From a report to what a person wants to know: what bounds latency and throughput, and what to change."""

from collections.abc import Iterator
from math import floor, log10

from shoal_proxy.explaining.bound import ENOUGH_BATCHES
from shoal_proxy.explaining.report import Report, Span
from shoal_schema.bounds import MORE_PROCESSOR_TIME, Bound
from shoal_schema.metrics import Rejection
from shoal_schema.resource.traffic import BatchingPolicy

_PADDING = 0.2
_HOST_BOUND = 0.5
_IDLE = 0.1
"""Share of a second up to which neither runtime nor proxy was at work: no load to speak of."""


_NOT_REPEATED = {
    "RandomResults": "the same batch, run twice, gives different results",
    "ChangingResults": "results change from run to run, with a state that the model keeps or with time",
}


def explain(report: Report) -> list[str]:
    """Return the sentences: of which model and shape they are, and then the most important first."""
    if report.alone_ms is None or report.full_ms is None:
        return [
            f"Model {report.model}.",
            "No batch has run yet, so nothing is known of the model's speed; send some requests and ask again.",
        ]
    return [
        _about(report),
        *_mixed(report),
        *_objective(report, report.alone_ms, report.full_ms),
        *_latency(report, report.alone_ms, report.full_ms),
        *_throughput(report),
        *_refusals(report),
        *_waste(report),
    ]


def explain_graph(report: Report) -> list[str]:
    """Return the sentences about a graph, whose time is that of its steps: what bounds those, they tell themselves."""
    # The scheduler sends one more, ahead.
    under_way = f"{report.running_batches} of at most {report.in_flight + 1} requests (inFlight) are under way"
    return [
        f"Graph {report.model}: {under_way}, and {rows(report.waiting_rows)} wait.",
        *([] if report.alone_ms is None else [f"A request of 1 row takes {time(report.alone_ms)}{_sure(report)}."]),
        "How long each step takes, Server-Timing tells of one request, and the metric shoal_proxy_step_seconds of all.",
        "It forms no batches: each step's own proxy does. What bounds a step, and which field to change, its"
        " /v1/explain says.",
        *_refusals(report),
    ]


def _about(report: Report) -> str:
    if report.known_shapes < 2:
        return f"Model {report.model}."
    shape = ", ".join(f"{name} {shape}" for name, shape in report.shapes.items())
    return (
        f"Model {report.model}. Batches of {report.known_shapes} shapes of input have run; times and sizes of batches"
        f" are those of the one that came last, {shape}. GET /v1/latency has all."
    )


def _mixed(report: Report) -> Iterator[str]:
    if report.unchecked in _NOT_REPEATED:
        yield f"Whether rows are independent is not checked ({report.unchecked}): {_NOT_REPEATED[report.unchecked]}."
    elif report.independent and report.varying_rows:
        yield (
            f"Results vary: of {report.checked_rows} rows run again, {report.varying_rows} had another result than"
            " before. Ties and rounding that follow the batch do that; a model that seldom mixes rows does it too."
        )
    if report.independent:
        return
    yield (
        "Rows are not independent: results of a batch of several requests were not those of its own rows, as"
        f" {report.checked_rows} rows run again showed. Each batch holds one request until the model is replaced. Make"
        " the model return one result for each row, in order and whatever its neighbours, or set batching.policy: None;"
        " if its results follow something besides its inputs, set batching.rowChecks: Off."
    )


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


def _measured(report: Report) -> str:
    return rows(report.measured_rows) + (" of this shape" if report.known_shapes > 1 else "")


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
            f"more than {_measured(report)} has been measured. Up to {report.allowed_rows} are tried."
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
    yield f"A request alone on an idle runtime takes {time(alone_ms)}{_sure(report)}; {_parts(report)}."
    yield _full(report)
    if report.policy is BatchingPolicy.FIXED and report.max_delay_ms > 0:
        yield (
            f"A batch that is not full waits up to {report.max_delay_ms:g} ms although the runtime may be idle: lower "
            "batching.maxDelayMilliseconds, or set batching.policy to Adaptive, which never waits in vain."
        )
    if full_ms.high is not None and report.late_ms > _HOST_BOUND * full_ms.high:
        yield (
            f"Answers leave up to {number(report.late_ms)} ms later than the model's time explains: the host is short "
            "of processor time. Give it more of that, or send larger requests."
        )


def _sure(report: Report) -> str:
    """Return of what that is a time, and of how many it is known."""
    if report.batches < ENOUGH_BATCHES:
        after = "warm-up" if not report.batches else "1 batch" if report.batches == 1 else f"{report.batches} batches"
        return f", by what {after} showed: too little to say how often it takes longer"
    return ", in most cases no more, from when it was read until its answer leaves (callers wait for the network, too)"


def _parts(report: Report) -> str:
    """Return what a request alone spends its time on, in means: what a full batch is told in."""
    if report.overhead_ms <= 0:
        return "without the host's work around the model, which the first requests will show"
    host = f"{number(report.overhead_ms)} ms for the host's work around it"
    if report.model_alone_ms is None or not report.model_alone_ms.low:
        return f"on average {host} are in that"
    return (
        f"on average {time(report.model_alone_ms)} for the model and {host}, and the rest is how late some answers are"
    )


def _full(report: Report) -> str:
    full_ms = report.model_full_ms
    if full_ms is None or full_ms.high is None:
        return (
            f"How long a full batch of {rows(report.most_rows)} takes is not known: none of more than "
            f"{_measured(report)} has been measured."
        )
    told = time(full_ms) if full_ms.low else f"at most {number(full_ms.high)} ms"
    full = f"A full batch of {rows(report.most_rows)} takes the model {told} on average"
    return f"{full}; the host's work for so many comes on top."


def _throughput(report: Report) -> Iterator[str]:
    yield from _served(report)
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


def _served(report: Report) -> Iterator[str]:
    """Say what was served in truth, and what is known of whether it could be more."""
    busiest = report.busiest
    if busiest is None:
        yield (
            "How many rows per second one replica serves is not known before the first requests: the host's work "
            "counts, too." + _ceiling(report)
        )
        return
    rate = number(busiest.rows_per_s)
    if max(busiest.runtime_busy, busiest.proxy_busy) < _IDLE:
        yield (
            "How many rows per second one replica serves is not known: so far it has hardly had to work (at most"
            f" {rows(round(busiest.rows_per_s) or 1)} in a second). Send many requests at the same time and ask again."
            + _ceiling(report)
        )
    elif report.at_its_end and report.bound is Bound.PROXY:
        yield (
            f"One replica serves about {rate} rows per second of such requests: so many in its busiest second, in which"
            f" the proxy used {busiest.proxy_busy:.0%} of a core, and it can use no more than one. Larger requests,"
            " binary tensors, a compiled proxy or more replicas (scaling.maxReplicas) serve more."
        )
    elif report.at_its_end:
        host = _host(report) if report.bound is Bound.HOST else ""
        yield (
            f"One replica serves about {rate} rows per second: so many in its busiest second, in which batches of "
            f"{number(busiest.batch_rows)} rows followed one another without a pause.{host}"
        )
    else:
        yield (
            f"The most that this replica has served lately is {rate} rows per second (its busiest second, with batches"
            f" of {number(busiest.batch_rows)} rows on average, one of them at the runtime for"
            f" {busiest.runtime_busy:.0%} of the time). Whether it can serve more is not known: send more requests at"
            " the same time and ask again." + _ceiling(report)
        )


def _ceiling(report: Report) -> str:
    """Return what the model's own time allows, a bound and no promise, where it was measured and says something."""
    if report.bound is Bound.HOST:
        return _host(report)
    bound = report.model_rows_per_s
    served_per_s = report.busiest.rows_per_s if report.busiest else 0.0
    if bound is None or bound.high is None or bound.high < served_per_s:
        return ""
    if not bound.low:
        return ""  # What batches take that were not measured has been said.
    size = f"batches of {rows(report.allowed_rows)}"
    most = f"about {number(bound.high)}" if bound.known else number(bound.high)
    return f" The model's own time allows {most} at most, in {size}; the host's work comes on top."


def _host(report: Report) -> str:
    return (
        f" The model is not the bound: batches of {rows(report.allowed_rows)} take it less time than the"
        f" {number(report.overhead_ms)} ms of the host's work around them. It serves more with {MORE_PROCESSOR_TIME},"
        " more rows a request, and binary tensors (Inference-Header-Content-Length) instead of JSON."
    )


def _refusals(report: Report) -> Iterator[str]:
    sentences = {
        Rejection.LATE: "because their answer would have come too late: add replicas, or raise the latency objective",
        Rejection.QUEUE_ROWS: "because queue.maxRows rows waited already: add replicas, or raise it if callers can"
        " wait",
        Rejection.QUEUE_BYTES: "because queue.maxBytes were held already: raise it, or send smaller requests",
        Rejection.DEADLINE: "with 504, because their own deadline passed: they allow less time than the model takes"
        " under load",
        Rejection.LIMIT: "with 429, because their callers were at their own limits: raise access.limits if they may ask"
        " for more",
    }
    for reason, sentence in sentences.items():
        if count := report.rejected.get(reason):
            yield f"{count} requests were refused {sentence}."


def _waste(report: Report) -> Iterator[str]:
    if report.padding > _PADDING:
        yield (
            f"{report.padding:.0%} of what the model computes is padding: more pad_buckets in model.toml keep long and "
            "short inputs apart."
        )
