"""Verdicts on candidates: each cause, its sentence and figures, and the end of a step."""

import random
from math import log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shoal_operator.rollout.findings import VerdictCause
from shoal_operator.rollout.report_sums import NO_REPORT
from shoal_operator.rollout.verdict import StartTimes, StepProgress, Verdict, VerdictState, judge
from shoal_schema.interfaces.rollout import BatchTimes, OutputCounts, RolloutReport
from shoal_schema.resource.comparison import CompareSpec, ErrorToleranceSpec, LatencyToleranceSpec, OutputToleranceSpec
from shoal_schema.resource.rollout import RolloutStep

COMPARE = CompareSpec()
STEP = RolloutStep(shadow=10, rows=2000)


def stable(rows: int = 2000, **fields: Any) -> RolloutReport:
    """Return the sum of the stable pods' reports after so many shadowed rows."""
    counts = {"served_rows": 10 * rows, "shadowed_rows": rows, "ready_candidates": 1, **fields}
    return RolloutReport("stable", "new", **counts)


def scored(rows: int = 2000, disagreements: int = 0, repeated: int = 2000, **fields: Any) -> RolloutReport:
    """Return the same, with an output in whose rows both revisions disagree."""
    counts = OutputCounts(
        rows=rows, disagreements=disagreements, disagreement_squares=disagreements, repeated_rows=repeated, **fields
    )
    return stable(rows, outputs={"score": counts})


def timed(ratio: float = 1.0, batches: int = 300, spread: float = 0.1, **fields: Any) -> BatchTimes:
    return BatchTimes(32, batches, log(0.01 * ratio), batches * spread**2, **fields)


def verdict(
    report: RolloutReport,
    compare: CompareSpec = COMPARE,
    candidate: RolloutReport = NO_REPORT,
    step: RolloutStep = STEP,
    before: int = 0,
    elapsed_s: float = 60.0,
    *,
    repeats: bool = True,
) -> Verdict:
    return judge(compare, report, candidate, StepProgress(step, before, elapsed_s), repeats=repeats)


def test_an_equal_candidate_passes_its_step() -> None:
    passed = verdict(scored())
    assert (passed.state, passed.cause) == (VerdictState.STEP_PASSED, None)
    assert passed.figures == {"rows": 2000, "errors": "0", "output": "score", "disagreement": "0"}


def test_disagreement_beyond_the_tolerance_fails() -> None:
    failed = verdict(scored(10_000, 50, 10_000))
    assert (failed.state, failed.cause) == (VerdictState.FAILED, VerdictCause.DISAGREEMENT)
    assert "`score` disagrees in 50 of 10,000 rows (0.5 %)" in failed.sentence
    assert failed.figures["disagreement"] == "0.005"


def test_the_tolerance_of_an_output_replaces_the_default() -> None:
    compare = CompareSpec(outputs={"score": OutputToleranceSpec(agreement="0.99")})
    assert verdict(scored(10_000, 50, 10_000), compare).state is VerdictState.STEP_PASSED


def test_disagreement_that_the_stable_revision_has_too_is_noise() -> None:
    noisy = scored(10_000, 500, 10_000, repeated_disagreements=500, repeated_disagreement_squares=500)
    assert verdict(noisy).state is VerdictState.STEP_PASSED


@pytest.mark.parametrize("repeated", [0, 1, 30])
def test_without_repeated_rows_a_random_model_is_not_rolled_back_within_its_step(repeated: int) -> None:
    waiting = verdict(scored(500, 25, repeated))
    assert (waiting.state, waiting.cause) == (VerdictState.CONTINUE, None)


def test_a_suspected_candidate_does_not_pass_before_rows_are_repeated() -> None:
    waiting = verdict(scored(2000, 100, 30))
    assert (waiting.state, waiting.cause) == (VerdictState.CONTINUE, VerdictCause.DISAGREEMENT)
    assert "waits for more repeated rows" in waiting.sentence


def test_the_end_of_the_step_decides_on_a_model_that_never_disagreed_with_itself() -> None:
    failed = verdict(scored(2000, 20, 2000))
    assert (failed.state, failed.cause) == (VerdictState.FAILED, VerdictCause.DISAGREEMENT)


@pytest.mark.parametrize(("rows", "repeated"), [(4000, 0), (20_000, 100), (2000, 500)])
def test_a_long_step_is_no_proof_that_a_model_is_deterministic(rows: int, repeated: int) -> None:
    waiting = verdict(scored(rows, rows // 100, repeated))
    assert (waiting.state, waiting.cause) == (VerdictState.CONTINUE, VerdictCause.DISAGREEMENT)


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.03, 0.2])
def test_equal_candidates_of_a_random_model_on_a_busy_device_do_not_fail(noise: float) -> None:
    chance = random.Random(11)
    failed = 0
    for _ in range(100):
        events = [0, 0]
        for rows in range(500, 20_001, 500):
            # One in 30 rows is repeated.
            events[0] += sum(chance.random() < noise for _ in range(500))
            events[1] += sum(chance.random() < noise for _ in range(500 // 30))
            noisy = {"repeated_disagreements": events[1], "repeated_disagreement_squares": events[1]}
            if verdict(scored(rows, events[0], rows // 500 * (500 // 30), **noisy)).state is VerdictState.FAILED:
                failed += 1
                break
    assert failed == 0


def test_any_disagreement_is_the_candidates_if_no_rows_are_repeated() -> None:
    assert verdict(scored(500, 25, 0), repeats=False).state is VerdictState.FAILED


def test_a_batch_that_disagrees_as_a_whole_is_one_event() -> None:
    counts = OutputCounts(rows=2000, disagreements=32, disagreement_squares=1024, repeated_rows=2000)
    assert verdict(stable(outputs={"score": counts})).state is VerdictState.STEP_PASSED


@pytest.mark.parametrize(
    "fields",
    [
        {"shadow_failed_rows": 40, "shadow_failed_squares": 40},
        {"candidate_rows": 400, "candidate_failed_rows": 40, "candidate_failed_squares": 40},
    ],
)
def test_failed_rows_beyond_the_share_fail(fields: dict[str, int]) -> None:
    failed = verdict(stable(**fields))
    assert (failed.state, failed.cause) == (VerdictState.FAILED, VerdictCause.ERRORS)
    assert "40 of 2," in failed.sentence


def test_one_failed_batch_is_no_reason_to_roll_back() -> None:
    assert verdict(stable(shadow_failed_rows=32, shadow_failed_squares=1024)).state is VerdictState.STEP_PASSED


def test_errors_that_the_stable_revision_has_too_are_tolerated() -> None:
    report = stable(failed_rows=400, failed_squares=400, shadow_failed_rows=40, shadow_failed_squares=40)
    assert verdict(report).state is VerdictState.STEP_PASSED
    assert verdict(report, CompareSpec(errors=ErrorToleranceSpec("1"))).state is VerdictState.STEP_PASSED


def test_slower_batches_of_one_size_fail() -> None:
    report = stable(times=(timed(batches=3000), BatchTimes(8, 3000, log(0.005), 30.0)))
    own = RolloutReport("new", "new", times=(timed(1.2), BatchTimes(8, 300, log(0.005), 3.0)))
    failed = verdict(report, CompareSpec(latency=LatencyToleranceSpec("1.05")), own)
    assert (failed.state, failed.cause) == (VerdictState.FAILED, VerdictCause.LATENCY)
    assert "Batches of 17 to 32 rows take 1.2 times as long" in failed.sentence
    assert failed.figures["latencyRatio"] == "1.2"
    assert verdict(report, COMPARE, own).state is VerdictState.STEP_PASSED


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_larger_batches_of_a_bucket_may_take_longer(spread: float) -> None:
    sums: dict[str, Any] = {"log_rows_variance_sum": spread, "covariance_sum": spread}
    usual = stable(times=(timed(batches=3000, log_rows_mean=log(20), **sums),))
    own = RolloutReport("new", "new", times=(timed(1.4, log_rows_mean=log(28), **sums),))
    compare = CompareSpec(latency=LatencyToleranceSpec("1.05"))
    passed = verdict(usual, compare, own)
    assert passed.state is VerdictState.STEP_PASSED
    assert passed.figures["latencyRatio"] == "1"


def test_times_of_few_batches_are_not_compared() -> None:
    own = RolloutReport("new", "new", times=(timed(9.0, batches=9),))
    assert "latencyRatio" not in verdict(stable(times=(timed(),)), candidate=own).figures


@pytest.mark.parametrize(
    ("devices", "expected"),
    [((0, 0), (330, 300)), ((5, 0), (330, 300)), ((2000, 1000), (2000, 1000))],
)
def test_memory_is_reported_of_the_device_if_both_have_one(devices: tuple[int, int], expected: tuple[int, int]) -> None:
    mib = 1 << 20
    other = RolloutReport("new", "new", memory_bytes=330 * mib, device_memory_bytes=devices[0] * mib)
    report = structs.replace(scored(), memory_bytes=300 * mib, device_memory_bytes=devices[1] * mib)
    passed = verdict(report, candidate=other)
    assert tuple(passed.figures[name] // mib for name in ("memoryBytes", "stableMemoryBytes")) == expected
    assert f"{expected[0]:,} MiB" in passed.sentence
    assert "memoryBytes" not in verdict(report).figures


def test_start_times_are_reported_once_both_are_known() -> None:
    progress = StepProgress(STEP, 0, 60.0)
    passed = judge(COMPARE, scored(), NO_REPORT, progress, starts=StartTimes(8.0, 12.4))
    assert (passed.figures["startSeconds"], passed.figures["stableStartSeconds"]) == (12, 8)
    assert "12 s (stable: 8 s)" in passed.sentence
    assert "startSeconds" not in judge(COMPARE, scored(), NO_REPORT, progress, starts=StartTimes(8.0)).figures


def test_other_inputs_fail_in_any_case() -> None:
    failed = verdict(stable(10, input_change="x: FP32 [-1, 3], was [-1, 4]"), CompareSpec(allow_signature_change=True))
    assert (failed.state, failed.cause) == (VerdictState.FAILED, VerdictCause.SIGNATURE)
    assert "[-1, 3]" in failed.sentence


@pytest.mark.parametrize(
    "fields", [{"output_change": "score is missing"}, {"outputs": {"a": OutputCounts(change="INT64, was FP32")}}]
)
def test_other_outputs_fail_unless_they_are_allowed(fields: dict[str, Any]) -> None:
    report = stable(**fields)
    assert verdict(report).cause is VerdictCause.SIGNATURE
    assert verdict(report, CompareSpec(allow_signature_change=True)).state is VerdictState.STEP_PASSED


def test_a_tolerance_of_an_unknown_output_stops_the_step_without_a_failure() -> None:
    compare = CompareSpec(outputs={"scor": OutputToleranceSpec()})
    stopped = verdict(scored(), compare)
    assert (stopped.state, stopped.cause) == (VerdictState.CONTINUE, VerdictCause.UNKNOWN_OUTPUT)
    assert "`scor`" in stopped.sentence
    assert verdict(scored(10_000, 500, 10_000), compare).cause is VerdictCause.DISAGREEMENT


@pytest.mark.parametrize(
    ("step", "rows", "elapsed_s", "fragment"),
    [
        (STEP, 1999, 60, "1,999 of 2,000 rows"),
        (RolloutStep(weight=5, minutes=10), 3000, 240, "3,000 rows and 4 of 10 minutes"),
        (RolloutStep(weight=5, rows=5000, minutes=10), 3000, 900, "3,000 of 5,000 rows and 15 of 10 minutes"),
        (RolloutStep(weight=5, minutes=10), 0, 900, "has run no rows"),
    ],
)
def test_a_step_continues_until_it_has_rows_and_minutes(
    step: RolloutStep, rows: int, elapsed_s: float, fragment: str
) -> None:
    waiting = verdict(stable(rows), step=step, elapsed_s=elapsed_s)
    assert (waiting.state, waiting.cause) == (VerdictState.CONTINUE, None)
    assert fragment in waiting.sentence


def test_rows_before_the_step_do_not_count() -> None:
    assert verdict(stable(2500), before=1000).state is VerdictState.CONTINUE
    assert verdict(stable(3000), before=1000).state is VerdictState.STEP_PASSED


NO_POD, NO_REQUESTS = "no pod of the candidate responds", "no requests arrive"


@pytest.mark.parametrize(
    ("counts", "stated", "not_stated"),
    [
        ({}, [NO_REQUESTS], [NO_POD]),
        # Requests of an earlier step.
        ({"served_rows": 100, "dropped_batches": 3, "returned_requests": 2}, [NO_REQUESTS], [NO_POD]),
        ({"ready_candidates": 0}, [NO_POD], [NO_REQUESTS]),
        ({"served_rows": 107}, ["7 rows that arrived"], [NO_POD, NO_REQUESTS]),
        ({"served_rows": 107, "dropped_batches": 9}, ["none of 4 batches and requests"], [NO_POD, NO_REQUESTS]),
        ({"served_rows": 107, "returned_requests": 9}, ["none of 4 batches and requests"], [NO_POD, NO_REQUESTS]),
        ({"ready_candidates": 0, "dropped_batches": 9}, [NO_POD, "none of 4 batches"], [NO_REQUESTS]),
    ],
)
def test_a_step_without_rows_states_the_cause(counts: dict[str, int], stated: list[str], not_stated: list[str]) -> None:
    report = stable(0, **counts)
    earlier, later = (
        judge(
            COMPARE, report, NO_REPORT, StepProgress(STEP, 0, elapsed_s, served_before=100, dropped_before=5)
        ).sentence
        for elapsed_s in (59.0, 60.0)
    )

    assert "no rows in this step yet" in earlier
    assert not any(each in earlier for each in (*stated, *not_stated))
    assert all(each in later for each in stated)
    assert not any(each in later for each in not_stated)


def report_of(rows: int, disagreements: int, repeated: int, failed: int) -> RolloutReport:
    report = scored(rows, min(rows, disagreements), repeated)
    failed = min(rows, failed)
    return structs.replace(report, shadow_failed_rows=failed, shadow_failed_squares=failed)


SMALL = st.integers(0, 200)


@given(rows=st.integers(1, 5000), disagreements=SMALL, repeated=st.integers(0, 5000), failed=SMALL, fewer=SMALL)
def test_more_agreement_never_turns_a_pass_into_a_failure(
    rows: int, disagreements: int, repeated: int, failed: int, fewer: int
) -> None:
    worse = verdict(report_of(rows, disagreements, repeated, failed))
    better = verdict(report_of(rows, max(0, disagreements - fewer), repeated, max(0, failed - fewer)))
    assert better.state is not VerdictState.FAILED or worse.state is VerdictState.FAILED


@given(rows=st.integers(0, 5000), disagreements=SMALL, repeated=st.integers(0, 5000), failed=SMALL)
def test_figures_are_those_of_the_counts(rows: int, disagreements: int, repeated: int, failed: int) -> None:
    report = report_of(rows, disagreements, repeated, failed)
    figures = verdict(report).figures
    assert figures["rows"] == rows
    assert float(figures["errors"]) == pytest.approx(report.shadow_failed_rows / rows if rows else 0, abs=1e-6)
    if rows:
        assert float(figures["disagreement"]) == pytest.approx(report.outputs["score"].disagreements / rows, abs=1e-6)


def test_equal_candidates_of_a_random_model_are_not_rolled_back() -> None:
    for seed in range(30):
        generator, rows, disagreements, repeats = random.Random(seed), 0, 0, 0
        for _ in range(100):
            rows += 100
            disagreements += sum(generator.random() < 0.05 for _ in range(100))
            repeats += sum(generator.random() < 0.05 for _ in range(10))
            report = scored(
                rows, disagreements, rows // 10, repeated_disagreements=repeats, repeated_disagreement_squares=repeats
            )
            assert verdict(report, step=RolloutStep(shadow=10, rows=10_000)).state is not VerdictState.FAILED
