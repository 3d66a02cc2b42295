from collections.abc import Callable

import pytest

from shoal.benching.steps import CLOSE_ENOUGH, Answer, Step, bent, knee, next_rate, summarize

PARTS = {"queue": 1.0, "batch": 1.0, "runtime": 5.0}
Server = Callable[[float], Step]


def answer(due_s: float, latency_s: float = 0.01, status: int = 200, late_s: float = 0.0) -> Answer:
    return Answer(due_s, due_s + late_s, due_s + latency_s, status, PARTS if status == 200 else {}, 4)


def server(capacity_per_s: float, alone_s: float = 0.01, busy: float = 0.1) -> Server:
    """A server of one queue: beyond its capacity each request waits for those before it."""

    def measure(rate: float) -> Step:
        answers, free_s = [], 0.0
        for number in range(max(1, round(2 * rate))):
            due_s = number / rate
            free_s = max(free_s, due_s) + 1 / capacity_per_s
            answers.append(answer(due_s, free_s - due_s + alone_s))
        return summarize(rate, 2.0, answers, busy)

    return measure


def climb(measure: Server, alone_ms: float = 10.0) -> list[Step]:
    steps: list[Step] = []
    while (rate := next_rate(steps, alone_ms)) is not None and len(steps) < 40:
        steps.append(measure(rate))
    return steps


@pytest.mark.parametrize("capacity_per_s", [5, 70, 333, 5000])
def test_the_knee_is_found_whatever_the_server_takes(capacity_per_s: float) -> None:
    alone_ms = 10 + 1000 / capacity_per_s
    steps = climb(server(capacity_per_s), alone_ms)
    held = knee(steps, alone_ms)

    assert held is not None
    assert capacity_per_s / 1.4 < held.offered_per_s < 1.3 * capacity_per_s
    assert len(steps) < 15


def test_the_load_doubles_until_the_server_bends_and_then_closes_in() -> None:
    offered = [step.offered_per_s for step in climb(server(333))]

    assert offered[:4] == [50, 100, 200, 400]
    assert all(200 < rate < 400 for rate in offered[4:])
    held, over = (max(r for r in offered if r < 340), min(r for r in offered if r > 340))
    assert over / held < CLOSE_ENOUGH**2


def test_a_load_generator_that_is_the_bound_is_not_driven_further() -> None:
    steps = climb(server(10_000, busy=0.95))

    assert len(steps) == 1
    assert steps[0].generator_bound


def test_a_generator_that_is_late_is_the_bound_though_its_core_is_not_busy() -> None:
    late = [answer(n / 100, 0.03, late_s=0.02) for n in range(100)]

    assert summarize(100, 1.0, late, 0.2).generator_bound
    assert not summarize(100, 1.0, [answer(n / 100) for n in range(100)], 0.2).generator_bound


def test_a_step_counts_who_was_answered_refused_late_and_failed() -> None:
    answers = [answer(0.1), answer(0.2, 0.03), answer(0.3, status=503), answer(0.4, status=0), answer(0.5, status=500)]

    step = summarize(5, 1.0, answers, 0.0)

    assert (step.answered, step.refused, step.late, step.failed) == (2, 1, 1, 1)
    assert step.goodput_per_s == 2
    assert step.p99_ms == pytest.approx(30)
    assert step.batch_rows == 4
    assert {name: round(part) for name, part in step.parts_ms.items()} == {
        "queue": 1,
        "batch": 1,
        "runtime": 5,
        "rest": 13,
    }


def test_one_straggler_does_not_lower_the_goodput() -> None:
    answers = [answer(n / 100) for n in range(100)] + [answer(0.5, 1.5)]

    assert summarize(101, 1.0, answers, 0.0).goodput_per_s == pytest.approx(101, rel=0.01)


def test_latency_counts_from_when_a_request_was_due() -> None:
    assert answer(1.0, 0.05, late_s=0.04).latency_ms == pytest.approx(50)


def test_an_objective_decides_in_place_of_the_time_alone() -> None:
    step = summarize(10, 1.0, [answer(n / 10, 0.03) for n in range(10)], 0.0)

    assert bent(step, 3.0)
    assert not bent(step, 3.0, objective_ms=40)
    assert bent(step, 3.0, objective_ms=20)


def test_a_server_that_never_keeps_up_is_tried_slower_and_then_left() -> None:
    def refusing(rate: float) -> Step:
        return summarize(rate, 2.0, [answer(n / rate, status=503) for n in range(max(1, round(2 * rate)))], 0.0)

    steps = climb(refusing)

    assert knee(steps, 10.0) is None
    assert len(steps) < 10
    assert steps[-1].offered_per_s < steps[0].offered_per_s
