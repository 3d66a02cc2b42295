"""The text table of a simulation study."""

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.capacity import DOUBLINGS
from shoal_proxy.simulator.study import IN_TIME, SimulatedService, StudyResult, TraceOutcome

BOUNDS = (
    "latencies are lower bounds and rates upper bounds: network and clients are not simulated, and of the host only its"
    " measured work around a batch"
)
"""What the figures are that a simulation with the times of a running proxy returns."""


def lines(study: StudyResult, service: SimulatedService, guesses: str = "", *, measured: bool = False) -> list[str]:
    """Return the lines of the table.

    The last lines state of which kind the bounds are if the batch times were ``measured`` at a running proxy, and which
    times were guessed, if any.
    """
    outcome = study.outcome
    replicas = "1 replica" if service.replicas == 1 else f"{service.replicas} replicas"
    if service.instances > 1:
        replicas += f" of {service.instances} processes"
    kept = f", {service.connections} connections a replica" if service.balance.keeps_connections else ""
    forwarded = f"; {_share(outcome.forwarded, outcome)} forwarded" if outcome.forwarded else ""
    best = "" if study.best_in_time is None else f"; the optimum is {_share(study.best_in_time, outcome)}"
    after_s = outcome.refused_after_p99_s
    soon = "" if after_s is None else f", 99 % of them within {_ms(after_s)}"
    rows = [
        ("offered", f"{outcome.offered:,} requests, {outcome.offered_per_s:,.0f}/s, {replicas}"),
        *([("balance", f"{service.balance}{kept}{forwarded}")] if service.replicas > 1 else []),
        ("objective", "none" if service.objective_s == NEVER_S else f"{1000 * service.objective_s:g} ms"),
        ("in time", _share(outcome.in_time, outcome) + best),
        ("late", _share(outcome.late, outcome)),
        ("rejected", _share(outcome.refused, outcome) + soon),
        *([("failed", _share(outcome.failed, outcome))] if outcome.failed else []),
        ("latency", f"p50 {_ms(outcome.p50_s)}, p95 {_ms(outcome.p95_s)}, p99 {_ms(outcome.p99_s)}"),
        ("batches", f"mean {outcome.mean_batch_rows:.1f} rows of {service.limits.max_rows}"),
        ("device busy", f"{outcome.busy:.0%}"),
    ]
    if service.objective_s < NEVER_S:
        rows.append((f"capacity at {IN_TIME:.0%}", _capacity(study)))
    if measured:
        rows.append(("bounds", BOUNDS))
    if guesses:
        rows.append(("guessed", f"{guesses} (not measured)"))
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}" for name, text in rows]


def per_s(rate: float) -> str:
    """Return a rate as text, in requests per second."""
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"


def _share(count: int, outcome: TraceOutcome) -> str:
    return f"{count:,} ({count / outcome.offered:.2%})"


def _capacity(study: StudyResult) -> str:
    offered_per_s = study.outcome.offered_per_s
    if study.capacity_per_s is None and not offered_per_s:
        return "unknown: requests that all arrive at once have no rate"
    if study.capacity_per_s is None and study.met_at_any_rate:
        return f"more than {per_s(2**DOUBLINGS * offered_per_s)}: the objective was met at every rate tried"
    if study.capacity_per_s is None:
        return (
            "none: the objective was missed at every rate tried, down to"
            f" {per_s(offered_per_s / 2**DOUBLINGS)}; a request alone, or requests that arrive together, take longer"
        )
    if study.served_per_s and study.beyond_served(study.capacity_per_s):
        return (
            f"at most {study.capacity_per_s:,.0f}/s by the model's own time; with the host's work, at most"
            f" {per_s(study.served_per_s)} were measured{_too_short(study, study.capacity_per_s)}"
        )
    if study.enough_requests is not None:
        rate = per_s(study.capacity_per_s)
        bound = (
            f"at most {rate}, the limit of the devices"
            if study.capacity_per_s == study.device_per_s
            else f"about {rate}"
        )
        return bound + _too_short(study, study.capacity_per_s)
    best = study.best_capacity_per_s
    return f"{study.capacity_per_s:,.0f}/s" + ("" if best is None else f"; the optimum is {best:,.0f}/s")


def _too_short(study: StudyResult, capacity_per_s: float) -> str:
    if study.enough_requests is None:
        return ""
    count = study.outcome.offered
    return (
        f"; {count:,} requests last {count / capacity_per_s:.2g} s at that rate, too short to be sure."
        f" Simulate {study.enough_requests:,} (--requests, or a longer trace)"
    )


def _ms(time_s: float | None) -> str:
    return "-" if time_s is None else f"{1000 * time_s:.1f} ms"
