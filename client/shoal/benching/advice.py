"""Turn the measurements of a load test into sentences: capacity, bottleneck and remedies."""

from collections.abc import Iterator, Sequence
from math import ceil

from shoal.benching.drawing import by_rate, figure
from shoal.benching.knee import MAX_BAD_STRETCHES, MAX_RUN_SHARE, MIN_REQUESTS, Knee, StepVerdict, find, judge
from shoal.benching.steps import BUSY, LoadStep
from shoal_schema.interfaces.bounds import ADVICE, Bound

FULL = 0.9
"""Share of the maximum batch size from which a batch counts as full."""
SHORT_WAIT = 0.1
"""Share of the latency below which requests hardly wait."""
IDLE = 0.2
"""Mean requests in the server below which it counts as idle."""


def advice(
    steps: Sequence[LoadStep], within_ms: float, *, alone_ms: float, max_batch_rows: int | None, bound: Bound | None
) -> list[str]:
    """Return the conclusions of a load test as sentences, the most important first.

    Args:
        steps: the measurement at each rate.
        within_ms: latency up to which a response is in time.
        alone_ms: latency of a request on an idle server.
        max_batch_rows: the model's maximum batch size; None if the server does not report it.
        bound: the bottleneck from the admin port; None if the port was not reached.
    """
    if not any(step.answered for step in steps):
        return ["No request received a response, so nothing was measured."]
    # The order of the sentences is the order of their importance.
    ordered = by_rate(steps)
    knee = find(ordered)
    # A server that is late while idle is late for a reason other than its rate.
    bent = knee.bent if knee.bent and not _idle(knee.bent, alone_ms) else None
    # The cause of noise is stated once: by the first of these sentences.
    explained = any(judge(step) is StepVerdict.GENERATOR for step in ordered) or (
        knee.bent is not bent and not knee.held
    )
    return [
        *_generator(ordered),
        *_knee(knee, within_ms, alone_ms),
        *_unsure(knee, explained=explained),
        *_bound(bent, max_batch_rows, bound),
        *_remarks(ordered),
    ]


def _generator(steps: Sequence[LoadStep]) -> Iterator[str]:
    """Yield a sentence if the load generator limited the measurement."""
    full = next((step for step in steps if step.busy > BUSY), None)
    late = next((step for step in steps if judge(step) is StepVerdict.GENERATOR and step is not full), None)
    if full:
        yield (
            f"The load generator was the bottleneck from {figure(full.offered_per_s)} requests/s on "
            f"({full.busy:.0%} of a"
            " core), so the server may serve more than shown. Run `shoal bench` on another machine, or send more "
            "rows per request (--rows)."
        )
    elif late:
        yield (
            f"The load generator sent requests {figure(late.sent_late_ms)} ms late at"
            f" {figure(late.offered_per_s)} requests/s, with {late.busy:.0%} of a core: the machine is too busy for"
            " higher rates. Run `shoal bench` on another machine."
        )


def _knee(knee: Knee, within_ms: float, alone_ms: float) -> Iterator[str]:
    held, bent = knee.held, knee.bent
    if held and bent and knee.found:
        yield (
            f"The knee is at about {figure(held.offered_per_s)} requests/s: {_in_time(held, within_ms)}. At "
            f"{figure(bent.offered_per_s)} requests/s {_percent(bent)} were in time, with "
            f"{figure(bent.answered_per_s)} responses/s."
        )
    elif held and bent:
        yield (
            f"The knee lies between {figure(held.offered_per_s)} and {figure(bent.offered_per_s)} requests/s. At the"
            f" lower rate {_in_time(held, within_ms)}; at the higher rate {_percent(bent)}."
        )
    elif held:
        stopped = held.busy > BUSY or any(judge(step) is StepVerdict.GENERATOR for step in knee.unsure)
        more = "" if stopped else " Allow more time with --seconds."
        yield (
            f"The knee was not found: the server kept up with {figure(held.offered_per_s)} requests/s, the highest"
            f" conclusive rate ({_in_time(held, within_ms)}).{more}"
        )
    elif bent and _idle(bent, alone_ms):
        yield (
            f"The knee was not found: at {figure(bent.offered_per_s)} requests/s the server is nearly idle, and still"
            f" only {_in_time(bent, within_ms)}. Repeat on a quiet machine, or set the limit with --objective-ms."
        )
    elif bent:
        yield (
            f"The knee was not found: it is below {figure(bent.offered_per_s)} requests/s, where only "
            f"{_percent(bent)} received a response within {figure(within_ms)} ms."
        )
    else:
        yield "The knee was not found: no measured rate shows whether the server keeps up."


def _unsure(knee: Knee, *, explained: bool) -> Iterator[str]:
    """Yield the reasons why rates near the knee are inconclusive; ``explained`` omits the cause of noise."""
    if few := [step for step in knee.unsure if judge(step) is StepVerdict.FEW]:
        needed_s = ceil(MIN_REQUESTS / MAX_RUN_SHARE / few[0].offered_per_s)
        sent = ", ".join(f"at {figure(step.offered_per_s)} requests/s only {step.sent} requests" for step in few)
        yield (
            f"{sent[0].upper()}{sent[1:]} fit into the time, and a verdict needs {MIN_REQUESTS}. Pass --seconds"
            f" {needed_s} or more."
        )
    if noisy := [step for step in knee.unsure if judge(step) is StepVerdict.NOISY]:
        shares = ", ".join(f"at {figure(step.offered_per_s)} requests/s {_percent(step)}" for step in noisy)
        bursts = {step.bad_stretches <= MAX_BAD_STRETCHES for step in noisy}
        when = " or ".join("in short bursts" if burst else "in one run only" for burst in sorted(bursts, reverse=True))
        cause = ", as under other load on the machine. Repeat on a quiet machine, or with more --seconds"
        yield (
            f"{shares[0].upper()}{shares[1:]} were in time, but the late responses came {when}"
            f"{'' if explained else cause}."
        )


def _bound(over: LoadStep | None, max_batch_rows: int | None, bound: Bound | None) -> Iterator[str]:
    """Yield sentences about the bottleneck: from the server's report, or from the parts of the latency.

    Args:
        over: the first rate above the server's capacity; None if there was none.
        max_batch_rows: the model's maximum batch size.
        bound: the bottleneck that the server reports.
    """
    # In the order of certainty: the server's own conclusion comes before the split of the latency.
    parts = over.parts_ms if over else {}
    unattributed = over is None
    if over is None:
        known = bound not in (None, Bound.UNKNOWN)
        first = f"; the first bottleneck will be {ADVICE[bound].cause}" if bound and known else ""
        yield f"No rate reached the server's limit{first}."
    elif bound in (Bound.HOST, Bound.PROXY):
        yield f"The bottleneck is {ADVICE[bound].cause}. {ADVICE[bound].remedy}."
    elif not parts:
        yield "The server sends no Server-Timing header, so the latency cannot be split into queue, batch and runtime."
    elif parts["rest"] > parts["queue"] + parts["batch"] + parts["runtime"]:
        yield (
            f"Most of the latency ({figure(parts['rest'])} ms) is spent outside queue and runtime: on the network, or"
            " in reading and writing HTTP. Give the proxy more CPU, or send more rows per request as binary tensors."
            " For a graph it is the time of its steps, which Server-Timing lists."
        )
    elif parts["batch"] > parts["runtime"]:
        yield (
            f"The proxy's work ({figure(parts['batch'])} ms) takes longer than the runtime"
            f" ({figure(parts['runtime'])} ms): the proxy is short of CPU. {ADVICE[Bound.PROXY].remedy}."
        )
    else:
        yield _runtime(over, max_batch_rows, bound)
        unattributed = True
    if unattributed and bound is Bound.UNKNOWN:
        yield f"According to the server's own measurements, the bottleneck is {ADVICE[bound].cause}."
    elif bound is None:
        yield (
            "Only the server can attribute the runtime's time to the model or to the host's work around it, and no"
            ' admin port of this server was found. Name it with --admin URL: `shoal serve` prints it as "metrics on",'
            " and kubectl port-forward POD 9090 forwards that of a service's only pod."
        )


def _runtime(over: LoadStep, max_batch_rows: int | None, bound: Bound | None) -> str:
    """Return the remedy if most of the latency is spent in the runtime."""
    parts, runtime_ms = over.parts_ms, figure(over.parts_ms["runtime"])
    name = "model" if bound is Bound.MODEL else "runtime"
    if over.batch_rows is None or max_batch_rows is None:
        return f"The {name} is the bottleneck. Raise scaling.maxReplicas."
    rows = f"{figure(over.batch_rows)} of {max_batch_rows} rows"
    if over.batch_rows >= FULL * max_batch_rows:
        return (
            f"The {name} is the bottleneck, and batches are full ({rows}, {runtime_ms} ms each). Raise"
            " batching.maxBatchSize if a larger batch is not proportionally slower; otherwise raise"
            " scaling.maxReplicas."
        )
    total_ms = sum(parts.values())
    if parts["queue"] < SHORT_WAIT * total_ms and bound is not Bound.MODEL:
        return (
            f"Requests hardly wait ({figure(parts['queue'])} of {figure(total_ms)} ms) and batches are not"
            f" full ({rows}), so responses are late because of the time of a batch in the runtime ({runtime_ms} ms)."
            " Send more rows per request."
        )
    return (
        f"The {name} is the bottleneck ({runtime_ms} ms per batch) with {rows} in a batch. Raise"
        " batching.latencyObjectiveMilliseconds, if set, for larger batches; set padBuckets if inputs of different"
        " shapes do not share a batch; otherwise raise scaling.maxReplicas."
    )


def _remarks(steps: Sequence[LoadStep]) -> Iterator[str]:
    first = steps[0]
    parts = first.parts_ms
    if parts and parts["queue"] > max(2.0, 2 * parts["runtime"]) and first.answered_per_s > 0.9 * first.offered_per_s:
        yield (
            f"Even at {figure(first.offered_per_s)} requests/s a request waits {figure(parts['queue'])} ms, longer than"
            " the model takes. Lower batching.maxDelayMilliseconds, or set batching.policy to Adaptive."
        )
    rejected, late, failed = (sum(getattr(step, name) for step in steps) for name in ("refused", "late", "failed"))
    if rejected:
        yield (
            f"{rejected} requests were rejected (429 or 503): the queue was full, or the objective left too little"
            " time. Raise queue.maxRows to queue more, or scaling.maxReplicas to serve more."
        )
    if late:
        yield f"{late} requests were abandoned because no response arrived in time."
    if failed:
        yield f"{failed} requests failed with another error. Send one with `shoal predict` to see it."


def _idle(step: LoadStep, alone_ms: float) -> bool:
    """Return whether fewer than `IDLE` requests are in the server on average at the step's rate."""
    return step.offered_per_s * alone_ms / 1000 < IDLE


def _in_time(step: LoadStep, within_ms: float) -> str:
    return f"{_percent(step)} of {step.sent} requests received a response within {figure(within_ms)} ms"


def _percent(step: LoadStep) -> str:
    return f"{100 * step.in_time_share:.3g}%"
