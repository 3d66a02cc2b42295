"""Sums of the reports of several pods."""

import statistics
from math import log

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.rollout.report_sums import NO_REPORT, add_reports
from shoal_schema.interfaces.rollout import (
    MAX_BYTES,
    MAX_OUTPUTS,
    BatchTimes,
    OutputCounts,
    RolloutReport,
    add_batch,
    rows_bucket,
)

COUNTS = st.integers(0, 10**9)
BATCHES = st.lists(st.tuples(st.integers(17, 32), st.floats(0.01, 0.0149)), min_size=1, max_size=10)


def times_of(batches: list[tuple[int, float]]) -> BatchTimes:
    times = BatchTimes(32)
    for rows, time_s in batches:
        times = add_batch(times, rows, time_s)
    return times


reports = st.builds(
    RolloutReport,
    revision=st.just("stable"),
    candidate=st.just("new"),
    served_rows=COUNTS,
    shadowed_rows=COUNTS,
    ready_candidates=st.integers(0, 9),
    output_change=st.sampled_from(["", "label: BYTES, was INT64"]),
    outputs=st.dictionaries(
        st.sampled_from("abc"),
        st.builds(OutputCounts, rows=COUNTS, disagreements=COUNTS, max_abs_error=st.floats(0, 9)),
    ),
    times=st.builds(lambda batches: (times_of(batches),), BATCHES),
)


def rounded(report: RolloutReport) -> RolloutReport:
    """Return the report without the differences that rounding makes."""
    times = tuple(
        BatchTimes(each.rows, each.batches, *(round(value, 6) for value in msgspec.structs.astuple(each)[2:]))
        for each in report.times
    )
    return msgspec.structs.replace(report, times=times)


@given(reports, reports, reports)
def test_the_order_of_adding_does_not_matter(first: RolloutReport, second: RolloutReport, third: RolloutReport) -> None:
    left, right = add_reports([add_reports([first, second]), third]), add_reports([first, add_reports([second, third])])
    assert rounded(left) == rounded(right)
    assert left.served_rows == first.served_rows + second.served_rows + third.served_rows


@given(BATCHES, BATCHES)
def test_times_of_two_pods_are_those_of_all_their_batches(
    first: list[tuple[int, float]], second: list[tuple[int, float]]
) -> None:
    pods = [RolloutReport("stable", "new", times=(times_of(each),)) for each in (first, second)]
    (merged,) = add_reports(pods).times
    logs = [log(time_s) for _, time_s in first + second]
    rows = [log(size) for size, _ in first + second]
    assert (merged.rows, merged.batches) == (32, len(logs))
    assert merged.log_mean == pytest.approx(statistics.fmean(logs))
    assert merged.log_variance_sum == pytest.approx(statistics.pvariance(logs) * len(logs), abs=1e-9)
    covariance = sum(
        (x - statistics.fmean(rows)) * (y - statistics.fmean(logs)) for x, y in zip(rows, logs, strict=True)
    )
    assert merged.covariance_sum == pytest.approx(covariance, abs=1e-9)


def test_buckets_of_different_sizes_stay_apart() -> None:
    pods = [RolloutReport("stable", "new", times=(add_batch(BatchTimes(rows), rows, 0.01),)) for rows in (32, 8, 32)]
    assert [(each.rows, each.batches) for each in add_reports(pods).times] == [(8, 1), (32, 2)]


def test_the_sum_of_no_reports_is_empty() -> None:
    assert add_reports([]) == NO_REPORT


def test_candidates_that_all_pods_see_count_once() -> None:
    assert add_reports([RolloutReport("stable", "new", ready_candidates=2)] * 3).ready_candidates == 2


def test_an_outlier_counts_as_a_difference_of_a_half() -> None:
    times = times_of([(32, 0.01)] * 19 + [(32, 10.0)])
    assert times.log_mean == pytest.approx(log(0.01) + log(1.5) / 20)


@pytest.mark.parametrize(("rows", "bucket"), [(1, 1), (2, 2), (3, 4), (16, 16), (17, 32)])
def test_a_bucket_ends_at_a_power_of_two(rows: int, bucket: int) -> None:
    assert rows_bucket(rows) == bucket


def test_the_largest_report_is_within_the_limit() -> None:
    counts = OutputCounts(max_abs_error=1 / 3, change="x" * 256)
    integers = [name for name, value in msgspec.structs.asdict(counts).items() if isinstance(value, int)]
    largest = msgspec.structs.replace(counts, **dict.fromkeys(integers, 2**53))
    report = RolloutReport("s", "c", outputs={f"{index:0>64}": largest for index in range(MAX_OUTPUTS)})
    assert len(msgspec.json.encode(report)) < MAX_BYTES
