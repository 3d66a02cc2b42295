import pytest

from shoal.benching.steps import Outcome, Run, limit_ms, summarize

PARTS = {"queue": 1.0, "batch": 1.0, "runtime": 5.0}


def answer(due_s: float, latency_s: float = 0.01, status: int = 200, late_s: float = 0.0) -> Outcome:
    return Outcome(due_s, due_s + late_s, due_s + latency_s, status, PARTS if status == 200 else {}, 4)


def even(per_s: int, latency_s: float = 0.01, late_s: float = 0.0) -> Run:
    return Run(1.0, [answer(n / per_s, latency_s, late_s=late_s) for n in range(per_s)], 0.2)


def test_a_generator_that_is_late_is_the_bound_though_its_core_is_not_busy() -> None:
    assert summarize(100, [even(100, 0.03, late_s=0.02)], 50).generator_bound
    assert not summarize(100, [even(100)], 50).generator_bound


def test_step_counts_responses_in_time_late_rejected_and_failed() -> None:
    outcomes = [answer(0.1), answer(0.2, 0.03), answer(0.3, status=503), answer(0.4, status=0), answer(0.5, status=500)]

    step = summarize(5, [Run(1.0, outcomes, 0.0)], within_ms=20)

    assert (step.sent, step.answered, step.refused, step.late, step.failed) == (5, 2, 1, 1, 1)
    assert step.in_time == 1
    assert step.in_time_share == 0.2
    assert step.answered_per_s == 2
    assert step.p99_ms == pytest.approx(30)
    assert step.batch_rows == 4
    assert {name: round(part) for name, part in step.parts_ms.items()} == {
        "queue": 1,
        "batch": 1,
        "runtime": 5,
        "rest": 13,
    }


def test_one_straggler_does_not_lower_the_rate_of_answers() -> None:
    outcomes = [*even(100).outcomes, answer(0.5, 1.5)]

    assert summarize(101, [Run(1.0, outcomes, 0.0)], 50).answered_per_s == pytest.approx(101, rel=0.01)


def test_latency_counts_from_the_scheduled_time() -> None:
    assert answer(1.0, 0.05, late_s=0.04).latency_ms == pytest.approx(50)


def test_an_objective_is_the_limit_in_place_of_the_time_alone() -> None:
    assert limit_ms(3.0) == 15
    assert limit_ms(1.0) == 11
    assert limit_ms(3.0, objective_ms=40) == 40
    assert limit_ms(3.0, objective_ms=2) == 15, "an objective that a request alone misses is not enforced"


def test_the_runs_of_a_rate_count_together() -> None:
    step = summarize(100, [even(100), even(100, 0.04)], within_ms=20)

    assert (step.runs, step.sent, step.in_time) == (2, 200, 100)
    assert step.answered_per_s == pytest.approx(100, rel=0.05)


def test_short_stall_is_distinguished_from_constant_lateness() -> None:
    hiccup = [answer(n / 1000, 0.2 if 400 <= n < 500 else 0.01) for n in range(1000)]
    throughout = [answer(n / 1000, 0.2 if n % 10 == 0 else 0.01) for n in range(1000)]

    assert summarize(1000, [Run(1.0, hiccup, 0.1)], 50).bad_stretches == pytest.approx(0.1)
    assert summarize(1000, [Run(1.0, throughout, 0.1)], 50).bad_stretches == 1


def test_growing_queue_is_detected_before_requests_are_late() -> None:
    growing = [answer(n / 100, 0.01 + 0.3 * n / 100) for n in range(100)]
    hiccup = [answer(n / 100, 0.5 if 80 <= n < 90 else 0.01) for n in range(100)]

    assert summarize(100, [Run(1.0, growing, 0.1)], 1000).backlog == pytest.approx(0.3, rel=0.1)
    assert summarize(100, [Run(1.0, hiccup, 0.1)], 1000).backlog == 0
