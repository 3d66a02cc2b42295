"""What the demo prints: pure functions from what was measured to lines of text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from prometheus_client.parser import text_string_to_metric_families

BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class Answer:
    """One picture's answer.

    Args:
        picture: what was sent.
        label: the most probable class.
        probability: of that class, 0 to 1.
        latency_s: from sending the picture to having the answer.
    """

    picture: str
    label: str
    probability: float
    latency_s: float


def label_table(answers: Sequence[Answer]) -> list[str]:
    """Return one line per picture: how often it was sent, and the first answer to it."""
    lines = [f"{'picture':<12} {'sent':>5}  {'top label':<24} probability"]
    for picture in dict.fromkeys(answer.picture for answer in answers):
        same = [answer for answer in answers if answer.picture == picture]
        first = same[0]
        lines.append(f"{picture:<12} {len(same):>5}  {first.label:<24} {first.probability:>11.0%}")
    return lines


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0 to 1) of the values do not exceed."""
    return sorted(values)[max(ceil(share * len(values)) - 1, 0)]


def batch_counts(metrics: str) -> dict[str, int]:
    """Return how many batches had how many rows, from the proxy's metrics.

    Keys are the histogram's buckets as text, ``1``, ``3-4`` or ``>64``, in their order; empty
    buckets at either end are left out.
    """
    bounds = sorted(cumulative_buckets(metrics).items())
    counts: dict[str, int] = {}
    lower, before = 0.0, 0.0
    for upper, cumulative in bounds:
        counts[bucket_name(lower, upper)] = int(cumulative - before)
        lower, before = upper, cumulative
    return trimmed(counts)


def cumulative_buckets(metrics: str) -> dict[float, float]:
    """Return how many batches had at most so many rows."""
    for family in text_string_to_metric_families(metrics):
        if family.name == "shoal_proxy_batch_rows":
            buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
            return {float(sample.labels["le"]): sample.value for sample in buckets}
    return {}


def bucket_name(lower: float, upper: float) -> str:
    """Name the whole numbers above ``lower`` up to ``upper``."""
    if upper == inf:
        return f">{lower:g}"
    return f"{upper:g}" if upper - lower == 1 else f"{lower + 1:g}-{upper:g}"


def trimmed(counts: Mapping[str, int]) -> dict[str, int]:
    """Leave out what is zero before the first and after the last batch."""
    names = list(counts)
    used = [index for index, name in enumerate(names) if counts[name]]
    return {name: counts[name] for name in names[used[0] : used[-1] + 1]} if used else {}


def bars(counts: Mapping[str, int]) -> list[str]:
    """Draw one bar per entry, the longest BAR_WIDTH characters."""
    longest = max(counts.values(), default=0)
    return [
        f"{name:>7} rows  {'#' * ceil(BAR_WIDTH * count / longest):<{BAR_WIDTH}} {count}"
        for name, count in counts.items()
    ]
