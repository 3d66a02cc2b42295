"""From steps to sentences: how much the server takes, what bounds it, and which field to change."""

from collections.abc import Iterator, Sequence
from math import ceil

from shoal.benching.drawing import figure
from shoal.benching.knee import MAX_BAD_STRETCHES, MAX_RUN_SHARE, MIN_REQUESTS, Knee, Verdict, find, judge
from shoal.benching.steps import BUSY, Step
from shoal_schema.bounds import MORE_PROCESSOR_TIME, Bound

FULL = 0.9
IDLE = 0.2


def advice(
    steps: Sequence[Step], within_ms: float, *, alone_ms: float, max_batch_rows: int | None, bound: Bound | None
) -> list[str]:
    """Return the sentences, the most important first.

    Args:
        steps: what each rate measured.
        within_ms: how late an answer may be.
        alone_ms: what a request alone takes.
        max_batch_rows: the model's batch, if it says.
        bound: what the server concludes at its admin port; None if that could not be asked.
    """
    if not any(step.answered for step in steps):
        return ["No request was answered, so nothing was measured."]
    ordered = sorted(steps, key=lambda each: each.offered_per_s)
    knee = find(ordered)
    return [
        *_generator(ordered),
        *_knee(knee, within_ms, alone_ms),
        *_unsure(knee),
        *(_bound(knee.bent, max_batch_rows, bound) if knee.bent and not _idle(knee.bent, alone_ms) else _unbent(bound)),
        *_unasked(bound),
        *_light(ordered[0]),
        *_failures(ordered),
    ]


def _generator(steps: Sequence[Step]) -> Iterator[str]:
    full = next((step for step in steps if step.busy > BUSY), None)
    late = next((step for step in steps if judge(step) is Verdict.GENERATOR and step is not full), None)
    if full:
        yield (
            f"From {figure(full.offered_per_s)} requests/s on the load generator itself was the bound ({full.busy:.0%}"
            " of a core): the server may take more than is shown. Run it on another machine than the server, or send"
            " more rows a request (--rows)."
        )
    elif late:
        yield (
            f"At {figure(late.offered_per_s)} requests/s the load generator sent {figure(late.sent_late_ms)} ms late,"
            f" though it took only {late.busy:.0%} of a core: the machine is too busy, with the server or with others,"
            " to measure more on it. Run it on another machine than the server."
        )


def _knee(knee: Knee, within_ms: float, alone_ms: float) -> Iterator[str]:
    held, bent = knee.held, knee.bent
    if held and bent and knee.found:
        yield (
            f"The knee: about {figure(held.offered_per_s)} requests/s. {_told(held, within_ms)} there; at"
            f" {figure(bent.offered_per_s)}/s {_percent(bent)}, and {figure(bent.answered_per_s)}/s were answered at"
            " all."
        )
    elif held and bent:
        yield (
            f"The knee lies between {figure(held.offered_per_s)} and {figure(bent.offered_per_s)} requests/s; closer it"
            f" was not found. {_told(held, within_ms)} at the lower rate, {_percent(bent)} at the higher one."
        )
    elif held:
        stopped = held.busy > BUSY or any(judge(step) is Verdict.GENERATOR for step in knee.unsure)
        more = "" if stopped else " --seconds gives more time to find it."
        yield (
            f"The knee was not found: the server kept up with {figure(held.offered_per_s)} requests/s, the most that"
            f" told anything. {_told(held, within_ms)} there." + more
        )
    elif bent and _idle(bent, alone_ms):
        yield (
            f"The knee was not found: at {figure(bent.offered_per_s)} requests/s the server is nearly idle, and still"
            f" only {_percent(bent)} of {bent.sent} were answered within {figure(within_ms)} ms, so it is not the rate"
            " that makes them late. Run it again when the machine is quiet, or say with --objective-ms what is in"
            " time."
        )
    elif bent:
        yield (
            f"The knee was not found: it is below {figure(bent.offered_per_s)} requests/s, of which only"
            f" {_percent(bent)} were answered within {figure(within_ms)} ms."
        )
    else:
        yield "The knee was not found: no rate that was tried tells whether the server keeps up."


def _idle(step: Step, alone_ms: float) -> bool:
    """Return whether requests at this rate hardly ever meet."""
    return step.offered_per_s * alone_ms / 1000 < IDLE


def _told(step: Step, within_ms: float) -> str:
    return f"{_percent(step)} of {step.sent} requests were answered within {figure(within_ms)} ms"


def _percent(step: Step) -> str:
    return f"{100 * step.in_time_share:.3g}%"


def _unsure(knee: Knee) -> Iterator[str]:
    """Say why the rates at which the knee may be tell nothing."""
    for step in knee.unsure:
        verdict = judge(step)
        if verdict is Verdict.FEW:
            needed_s = ceil(MIN_REQUESTS / MAX_RUN_SHARE / step.offered_per_s)
            yield (
                f"Of {figure(step.offered_per_s)} requests/s only {step.sent} fitted into the time, too few to tell"
                f" ({MIN_REQUESTS} are needed): --seconds {needed_s} or more gives them the time."
            )
        elif verdict is Verdict.NOISY:
            moments = step.bad_stretches <= MAX_BAD_STRETCHES
            when = "came in a few short moments" if moments else "were seen in one run only"
            yield (
                f"At {figure(step.offered_per_s)} requests/s {_percent(step)} were in time, but the late ones {when},"
                " as when something else takes the machine: run it again when it is quiet, or with more --seconds."
            )


_BOUNDS = {
    Bound.HOST: (
        f"the host's work around a batch, which takes longer than the model: give it {MORE_PROCESSOR_TIME}, or send"
        " more rows a request, as binary tensors"
    ),
    Bound.PROXY: (
        "the proxy's core, of which it can use one: compile it (docs/how-to/make-a-service-faster.md), send more rows"
        " a request or binary tensors, or raise scaling.maxReplicas"
    ),
    Bound.MODEL: "the model, which takes longer than the host's work around a batch",
}
"""What the server concludes (``/v1/explain``), and what helps; nothing is concluded against it here."""


def _bound(over: Step, max_batch_rows: int | None, bound: Bound | None) -> Iterator[str]:
    """Say what bounds the server at the first rate that it did not keep up with: its own word, else by the split."""
    parts = over.parts_ms
    if bound in (Bound.HOST, Bound.PROXY):
        yield f"The bound is {_BOUNDS[bound]}."
    elif not parts:
        if over.answered:
            yield "The server sends no Server-Timing, so queue, batch and runtime cannot be told apart."
    elif parts["rest"] > sum(parts[name] for name in ("queue", "batch", "runtime")):
        yield (
            f"Most of the time ({figure(parts['rest'])} ms) is spent outside queue and runtime: on the way, or in"
            " reading and writing HTTP. Give the proxy more CPU, or send more rows a request, as binary tensors; of a"
            " graph that is the time of its steps: Server-Timing tells of each."
        )
    elif parts["batch"] > parts["runtime"]:
        yield (
            f"The proxy's own work ({figure(parts['batch'])} ms) takes longer than the runtime"
            f" ({figure(parts['runtime'])} ms): it is short of CPU. Compile it (docs/how-to/make-a-service-faster.md),"
            " or send binary tensors."
        )
    else:
        yield from _runtime(over, max_batch_rows, bound)


def _runtime(over: Step, max_batch_rows: int | None, bound: Bound | None) -> Iterator[str]:
    """Say what helps where most of the time is the runtime's; only the server knows whether that is the model's."""
    parts, runtime_ms = over.parts_ms, figure(over.parts_ms["runtime"])
    name = "model" if bound is Bound.MODEL else "runtime"
    if over.batch_rows is None or max_batch_rows is None:
        yield f"The {name} is the bound: raise scaling.maxReplicas."
    elif over.batch_rows >= FULL * max_batch_rows:
        yield (
            f"The {name} is the bound, and batches are full ({figure(over.batch_rows)} of {max_batch_rows} rows,"
            f" {runtime_ms} ms each): raise batching.maxBatchSize if a larger batch is not slower in proportion, else"
            " scaling.maxReplicas."
        )
    elif parts["queue"] < parts["runtime"] and bound is not Bound.MODEL:
        yield (
            f"Requests hardly wait ({figure(parts['queue'])} ms) and batches are not full ({figure(over.batch_rows)} of"
            f" {max_batch_rows} rows), so it is the time of a batch in the runtime ({runtime_ms} ms) that makes"
            " answers late. More rows a request take the room that is left."
        )
    else:
        yield (
            f"The {name} is the bound ({runtime_ms} ms a batch) with {figure(over.batch_rows)} of"
            f" {max_batch_rows} rows in a batch. Where an objective is set, a larger"
            " batching.latencyObjectiveMilliseconds lets them grow; inputs of different shapes share none"
            " (padBuckets); else raise scaling.maxReplicas."
        )
    yield from _untold(bound)


def _unbent(bound: Bound | None) -> Iterator[str]:
    """Say what would be the bound where no rate showed it."""
    if bound in _BOUNDS:
        yield f"What bounds the server was not seen; what will be used up first is {_BOUNDS[bound]}."
    else:
        yield "What bounds the server was not seen."
    yield from _untold(bound)


def _untold(bound: Bound | None) -> Iterator[str]:
    """Say that the server itself does not know; of what lies outside the runtime that says nothing."""
    if bound is Bound.UNKNOWN:
        yield "The server itself cannot tell yet whether the model or the host's work around it takes longer."


def _unasked(bound: Bound | None) -> Iterator[str]:
    """Say what is not known without the admin port, and how it would be."""
    if bound is None:
        yield (
            "Whether the runtime's time is the model's or the host's work around it only the server can say, at its"
            " admin port (/v1/explain), and none was found that is this server's: --admin URL names it."
        )


def _light(first: Step) -> Iterator[str]:
    parts = first.parts_ms
    if parts and parts["queue"] > max(2.0, 2 * parts["runtime"]) and first.answered_per_s > 0.9 * first.offered_per_s:
        yield (
            f"Even at {figure(first.offered_per_s)} requests/s a request waits {figure(parts['queue'])} ms, longer than"
            " the model takes: lower batching.maxDelayMilliseconds, or set batching.policy to Adaptive."
        )


def _failures(steps: Sequence[Step]) -> Iterator[str]:
    refused, late, failed = (sum(getattr(step, name) for step in steps) for name in ("refused", "late", "failed"))
    if refused:
        yield (
            f"{refused} requests were refused (503): more than the queue takes, or more than the objective leaves time"
            " for. queue.maxRows lets more wait, scaling.maxReplicas serves more."
        )
    if late:
        yield f"{late} requests were given up: no answer came in the time they had."
    if failed:
        yield f"{failed} requests failed with another error: ask one with `shoal predict` to see it."
