"""From steps to sentences: how much the server takes, what bounds it, and which field to change."""

from collections.abc import Iterator, Sequence

from shoal.benching.steps import Step, bent, knee

FULL = 0.8


def advice(
    steps: Sequence[Step], alone_ms: float, *, max_batch_rows: int | None, objective_ms: float | None = None
) -> list[str]:
    """Return the sentences, the most important first; ``max_batch_rows`` is the model's batch, if it says."""
    if not any(step.answered for step in steps):
        return ["No request was answered, so nothing was measured."]
    ordered = sorted(steps, key=lambda each: each.offered_per_s)
    held = knee(ordered, alone_ms, objective_ms)
    over = next((step for step in ordered if bent(step, alone_ms, objective_ms)), None)
    return [
        *_generator(ordered),
        *_knee(held, over, ordered, objective_ms),
        *(_bound(over, max_batch_rows) if over and not over.generator_bound else ()),
        *_light(ordered[0]),
        *_failures(ordered),
    ]


def _generator(steps: Sequence[Step]) -> Iterator[str]:
    bound = next((step for step in steps if step.generator_bound), None)
    if bound:
        yield (
            f"From {bound.offered_per_s:.3g} requests/s on the load generator itself was the bound ({bound.busy:.0%} of"
            f" a core, {bound.sent_late_ms:.3g} ms late): the server may take more than is shown. Run it on another"
            " machine than the server, or send more rows a request (--rows)."
        )


def _knee(held: Step | None, over: Step | None, steps: Sequence[Step], objective_ms: float | None) -> Iterator[str]:
    if held is None:
        wanted = f"within {objective_ms:g} ms" if objective_ms else "in time"
        yield f"Not even {steps[0].offered_per_s:.3g} requests/s were answered {wanted}."
    elif over is None:
        yield (
            f"The server kept up with {held.offered_per_s:.3g} requests/s, the most that was tried"
            f" (95th percentile {held.p95_ms:.3g} ms): the knee is higher. --seconds gives more time to find it."
        )
    else:
        yield (
            f"The knee: {held.offered_per_s:.3g} requests/s are answered with a 95th percentile of {held.p95_ms:.3g} ms"
            f"; at {over.offered_per_s:.3g} it is {over.p95_ms:.3g} ms, and {over.goodput_per_s:.3g}/s are answered."
        )


def _bound(over: Step, max_batch_rows: int | None) -> Iterator[str]:
    """Say what bounds the server, by the split of the first rate that it did not keep up with."""
    parts = over.parts_ms
    if not parts:
        if over.answered:
            yield "The server sends no Server-Timing, so queue, batch and runtime cannot be told apart."
        return
    if parts["rest"] > sum(parts[name] for name in ("queue", "batch", "runtime")):
        yield (
            f"Most of the time ({parts['rest']:.3g} ms) is spent outside queue and model: on the way, or in reading and"
            " writing HTTP. Give the proxy more CPU, or send more rows a request, as binary tensors."
        )
    elif parts["batch"] > parts["runtime"]:
        yield (
            f"The proxy's own work ({parts['batch']:.3g} ms) takes longer than the model ({parts['runtime']:.3g} ms):"
            " it is short of CPU. Compile it (HATCH_BUILD_HOOKS_ENABLE=1), or send binary tensors."
        )
    elif over.batch_rows is None or max_batch_rows is None:
        yield "The model is the bound: raise scaling.maxReplicas."
    elif over.batch_rows >= FULL * max_batch_rows:
        yield (
            f"Batches are full ({over.batch_rows:.3g} of {max_batch_rows} rows, {parts['runtime']:.3g} ms each): raise"
            " batching.maxBatchSize if a larger batch is not slower in proportion, else scaling.maxReplicas."
        )
    elif parts["queue"] < parts["runtime"]:
        yield (
            f"Requests hardly wait ({parts['queue']:.3g} ms) and batches are not full ({over.batch_rows:.3g} of"
            f" {max_batch_rows} rows), so the model is not the bound: the host is short of processor time. Give the"
            " pod more CPU (runtime.resources), or send more rows a request."
        )
    else:
        yield (
            f"The model is the bound ({parts['runtime']:.3g} ms a batch) with {over.batch_rows:.3g} of {max_batch_rows}"
            " rows in a batch. Where an objective is set, a larger batching.latencyObjectiveMilliseconds lets them"
            " grow; inputs of different shapes share none (padBuckets); else raise scaling.maxReplicas."
        )


def _light(first: Step) -> Iterator[str]:
    parts = first.parts_ms
    if parts and parts["queue"] > max(2.0, 2 * parts["runtime"]) and first.goodput_per_s > 0.9 * first.offered_per_s:
        yield (
            f"Even at {first.offered_per_s:.3g} requests/s a request waits {parts['queue']:.3g} ms, longer than the"
            " model takes: lower batching.maxDelayMilliseconds, or set batching.policy to Adaptive."
        )


def _failures(steps: Sequence[Step]) -> Iterator[str]:
    refused, late, failed = (sum(getattr(step, name) for step in steps) for name in ("refused", "late", "failed"))
    if refused:
        yield (
            f"{refused} requests were refused (503): more than the queue takes, or more than the objective leaves time"
            " for. queue.maxRows lets more wait, scaling.maxReplicas serves more."
        )
    if late:
        yield f"{late} requests had no answer in time."
    if failed:
        yield f"{failed} requests failed with another error: ask one with `shoal predict` to see it."
