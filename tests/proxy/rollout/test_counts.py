"""The counts that a proxy reports."""

from math import inf

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.batching.pending import Outcome, RequestResult
from shoal_proxy.errors import Draining, InvalidRequest, ModelFailed, RowsFailed, RuntimeLost
from shoal_proxy.rollout.comparison import OutputDifference
from shoal_proxy.rollout.counts import RolloutCounts
from shoal_schema.interfaces.rollout import MAX_BYTES, MAX_OUTPUTS, BatchTimes, RolloutReport, add_batch
from shoal_schema.wire.row_errors import RowError
from tests.proxy.signatures import request


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(1e-6, 100)), min_size=1, max_size=60))
def test_times_are_kept_by_rows_rounded_up_to_a_power_of_two(batches: list[tuple[int, float]]) -> None:
    counts = RolloutCounts()
    for rows, seconds in batches:
        counts.record_batch(rows, seconds)

    times = counts.report("a", "b").times
    assert [each.rows for each in times] == sorted({1 << (rows - 1).bit_length() for rows, _ in batches})
    for each in times:
        expected = BatchTimes(each.rows)
        for rows, seconds in batches:
            if each.rows / 2 < rows <= each.rows:
                expected = add_batch(expected, rows, seconds)
        assert each == expected


@pytest.mark.parametrize(
    ("outcome", "failed"),
    [
        (RequestResult({}, {}), 0),
        (ModelFailed("it"), 3),
        (RuntimeLost("it"), 3),
        (InvalidRequest("it"), 3),
        (Draining("it"), 0),
        (RowsFailed([RowError(0, 422, "no"), RowError(2, 500, "no")]), 2),
    ],
)
def test_rows_without_a_result_have_failed(outcome: Outcome, failed: int) -> None:
    counts = RolloutCounts()
    pending = request(3)
    counts.record_outcomes([(pending, outcome)])
    counts.record_candidate(3, outcome)
    pending.shadow = True
    counts.record_outcomes([(pending, outcome)])  # no client's

    report = counts.report("a", "b")
    assert (report.served_rows, report.failed_rows) == (3, failed)
    assert (report.candidate_requests, report.candidate_rows, report.candidate_failed_rows) == (1, 3, failed)
    assert report.failed_squares == report.candidate_failed_squares == failed**2


def test_rows_that_fail_together_have_larger_squares() -> None:
    counts = RolloutCounts()
    for failed in (32, 0, 1, 1):
        counts.record_shadow(32, failed)

    report = counts.report("a", "b")
    assert (report.shadowed_batches, report.shadowed_rows) == (4, 128)
    assert (report.shadow_failed_rows, report.shadow_failed_squares) == (34, 1026)


def test_differences_add_up_apart_from_repeated_ones() -> None:
    counts = RolloutCounts()
    counts.record_differences({"y": OutputDifference(8, 1, 0.5), "z": OutputDifference(0, change="gone")})
    counts.record_differences({"y": OutputDifference(4, 0, inf)})
    counts.record_differences({"y": OutputDifference(2, 2, 9.0)}, repeated=True)

    encoded = msgspec.json.encode(counts.report("a", "b"))
    outputs = msgspec.json.decode(encoded, type=RolloutReport).outputs
    assert (outputs["y"].rows, outputs["y"].disagreements) == (12, 1)
    assert (outputs["y"].row_squares, outputs["y"].disagreement_squares) == (80, 1)
    assert (outputs["y"].repeated_rows, outputs["y"].repeated_disagreements) == (2, 2)
    assert (outputs["y"].repeated_row_squares, outputs["y"].repeated_disagreement_squares) == (4, 4)
    assert outputs["y"].max_abs_error > 1e300
    assert (outputs["z"].rows, outputs["z"].change) == (0, "gone")


def test_a_report_is_bounded_whatever_the_model_returns() -> None:
    counts = RolloutCounts()
    for number in range(2 * MAX_OUTPUTS):
        counts.record_differences({f"{number}-{'n' * 300}": OutputDifference(1, 1, 1 / 3, "x" * 500)})

    encoded = msgspec.json.encode(counts.report("a", "b", input_change="x" * 1024, output_change="x" * 1024))
    assert len(encoded) <= MAX_BYTES
    assert msgspec.json.decode(encoded, type=RolloutReport).outputs


def test_repeats_are_needed_until_noise_was_observed_or_is_excluded() -> None:
    counts = RolloutCounts()
    counts.record_differences({"y": OutputDifference(8)})
    assert not counts.needs_repeats(10)
    counts.record_differences({"y": OutputDifference(8, 1)})
    assert counts.needs_repeats(10)
    counts.record_differences({"y": OutputDifference(8)}, repeated=True)
    assert counts.needs_repeats(10)
    counts.record_differences({"y": OutputDifference(8)}, repeated=True)
    assert not counts.needs_repeats(10)
    counts.record_differences({"z": OutputDifference(8, 1)})
    counts.record_differences({"z": OutputDifference(8, 1)}, repeated=True)
    assert not counts.needs_repeats(10)
