"""Sum of the rollout reports of several pods."""

from collections.abc import Iterable
from functools import reduce
from typing import Final, TypeVar

from msgspec import Struct, structs

from shoal_schema.interfaces.rollout import BatchTimes, RolloutReport

NO_REPORT: Final = RolloutReport("", "")
"""The report of no pods."""
Counts = TypeVar("Counts", bound=Struct)
_LARGEST: Final = frozenset({"max_abs_error", "ready_candidates", "memory_bytes", "device_memory_bytes"})


def add_reports(reports: Iterable[RolloutReport]) -> RolloutReport:
    """Return the report of several pods of one revision about one candidate.

    Counts are added. Of texts, the first that is not empty is kept; of the numbers in `_LARGEST`, the largest.
    """
    return reduce(_add, reports, NO_REPORT)


def merge_times(first: BatchTimes, second: BatchTimes) -> BatchTimes:
    """Return the times of both samples.

    Source: Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
    """
    batches = first.batches + second.batches
    if not batches:
        return first
    weight = first.batches * second.batches / batches
    share = second.batches / batches
    difference = second.log_mean - first.log_mean
    rows_difference = second.log_rows_mean - first.log_rows_mean
    return BatchTimes(
        rows=first.rows,
        batches=batches,
        log_mean=first.log_mean + difference * share,
        log_variance_sum=first.log_variance_sum + second.log_variance_sum + difference**2 * weight,
        log_rows_mean=first.log_rows_mean + rows_difference * share,
        log_rows_variance_sum=first.log_rows_variance_sum + second.log_rows_variance_sum + rows_difference**2 * weight,
        covariance_sum=first.covariance_sum + second.covariance_sum + difference * rows_difference * weight,
    )


def _add(first: RolloutReport, second: RolloutReport) -> RolloutReport:
    outputs = dict(first.outputs)
    for name, counts in second.outputs.items():
        outputs[name] = _add_counts(outputs[name], counts) if name in outputs else counts
    times = {each.rows: each for each in first.times}
    for each in second.times:
        times[each.rows] = merge_times(times[each.rows], each) if each.rows in times else each
    return structs.replace(
        _add_counts(first, second), outputs=outputs, times=tuple(times[rows] for rows in sorted(times))
    )


def _add_counts(first: Counts, second: Counts) -> Counts:
    added = {}
    for name in first.__struct_fields__:
        one, other = getattr(first, name), getattr(second, name)
        if isinstance(one, str):
            added[name] = one or other
        elif name in _LARGEST:
            added[name] = max(one, other)
        elif isinstance(one, int):
            added[name] = one + other
    return structs.replace(first, **added)
