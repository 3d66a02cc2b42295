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


@dataclass(frozen=True, slots=True)
class Round:
    """All pictures, sent to one service.

    Args:
        answers: in the order of the pictures.
        elapsed_s: from the first request to the last answer.
    """

    answers: Sequence[Answer]
    elapsed_s: float

    @property
    def per_s(self) -> float:
        """Answers per second."""
        return len(self.answers) / self.elapsed_s


def comparison(unbatched: Round, batched: Round) -> list[str]:
    """Return a table of the two rounds, and the ratio of their rates."""
    lines = [f"{'':<22} {'time':>7} {'requests/s':>11} {'p50':>9} {'p99':>9}"]
    for name, each in (("one picture per batch", unbatched), ("batches", batched)):
        p50_ms, p99_ms = (percentile([answer.latency_s * 1000 for answer in each.answers], p) for p in (0.5, 0.99))
        lines.append(f"{name:<22} {each.elapsed_s:>5.1f} s {each.per_s:>11.1f} {p50_ms:>6.0f} ms {p99_ms:>6.0f} ms")
    ratio = batched.per_s / unbatched.per_s
    return [*lines, f"With batches, the rate is {ratio:.1f} times that of single pictures, on the same processor."]


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
