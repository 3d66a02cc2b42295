"""What became of the requests of one open-loop run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from examples.report import percentile

TIMED_OUT, BROKEN = 0, -1
"""In place of an HTTP status: no answer within the client's patience; the connection broke."""
REFUSALS = {408, 429, 503, 504}
"""A server's word that it will not answer: over capacity, or out of time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request.

    Args:
        status: of HTTP, or TIMED_OUT, or BROKEN.
        latency_s: from its scheduled arrival to its answer, so that a late sender hides nothing.
        lag_s: from its scheduled arrival to its being sent.
    """

    status: int
    latency_s: float
    lag_s: float


def summary(outcomes: Sequence[Outcome], objective_s: float, duration_s: float) -> dict[str, float]:
    """Count and time the outcomes of requests that arrived during ``duration_s``; rates per second."""
    answered_s = [outcome.latency_s for outcome in outcomes if outcome.status == 200]
    refused_s = [outcome.latency_s for outcome in outcomes if outcome.status in REFUSALS]
    timed_out = sum(outcome.status == TIMED_OUT for outcome in outcomes)
    in_time = sum(latency_s <= objective_s for latency_s in answered_s)
    errors = len(outcomes) - len(answered_s) - len(refused_s) - timed_out
    return {
        "offered_per_s": len(outcomes) / duration_s,
        "in_time_per_s": in_time / duration_s,
        "late_per_s": (len(answered_s) - in_time) / duration_s,
        "refused_per_s": len(refused_s) / duration_s,
        "timed_out_per_s": timed_out / duration_s,
        "errors_per_s": errors / duration_s,
        **quantiles("answer", answered_s),
        **quantiles("refusal", refused_s),
        **quantiles("lag", [outcome.lag_s for outcome in outcomes]),
    }


def quantiles(name: str, values_s: Sequence[float]) -> dict[str, float]:
    """Return median and 99th percentile in milliseconds; 0 where there is nothing to measure."""
    return {f"{name}_p{share}_ms": 1000 * percentile(values_s, share / 100) if values_s else 0.0 for share in (50, 99)}
