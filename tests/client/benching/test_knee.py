from collections.abc import Callable

import pytest

from shoal.benching.knee import CLOSE_ENOUGH, MAX_RUNS, MIN_REQUESTS, StepVerdict, find, judge, next_rate, run_s
from shoal.benching.steps import LoadStep, Run, limit_ms, summarize
from tests.client.benching.test_advice import step
from tests.client.benching.test_steps import answer

Server = Callable[[float, float], Run]


def server(capacity_per_s: float, alone_s: float = 0.01, busy: float = 0.1) -> Server:
    """A server of one queue: beyond its capacity each request waits for those before it."""

    def measure(rate: float, seconds: float) -> Run:
        outcomes, free_s = [], 0.0
        for number in range(max(1, round(seconds * rate))):
            due_s = number / rate
            free_s = max(free_s, due_s) + 1 / capacity_per_s
            outcomes.append(answer(due_s, free_s - due_s + alone_s))
        return Run(seconds, outcomes, busy)

    return measure


def stalling(quiet: Server, *, stalls: int) -> Server:
    """The same on a machine that stands still for a tenth of each of the first runs, whatever the rate."""
    runs = 0

    def measure(rate: float, seconds: float) -> Run:
        nonlocal runs
        runs += 1
        run = quiet(rate, seconds)
        if runs > stalls:
            return run
        ends_s = 0.5 * seconds
        begins_s = 0.4 * seconds
        late = [
            answer(each.due_s, ends_s - each.due_s + 0.1) if begins_s <= each.due_s < ends_s else each
            for each in run.outcomes
        ]
        return Run(seconds, late, run.busy)

    return measure


def climb(measure: Server, alone_ms: float = 10.0, whole_s: float = 30.0) -> list[LoadStep]:
    """Measure as the command does, with as much time as it takes."""
    runs: dict[float, list[Run]] = {}
    steps: list[LoadStep] = []
    while (rate := next_rate(steps, alone_ms)) is not None:
        seconds = run_s(rate, step_s=whole_s / 10, whole_s=whole_s)
        runs.setdefault(rate, []).append(measure(rate, seconds))
        steps = [summarize(each, of_rate, limit_ms(alone_ms)) for each, of_rate in runs.items()]
        assert sum(map(len, runs.values())) < 60
    return steps


@pytest.mark.parametrize("capacity_per_s", [20, 70, 333, 5000])
def test_the_knee_is_found_whatever_the_server_takes(capacity_per_s: float) -> None:
    alone_ms = 10 + 1000 / capacity_per_s
    steps = climb(server(capacity_per_s), alone_ms)
    knee = find(steps)

    assert knee.found
    assert knee.held is not None
    assert capacity_per_s / 1.3 < knee.held.offered_per_s < 1.3 * capacity_per_s
    assert len(steps) < 15


def test_the_load_doubles_until_the_server_bends_and_then_closes_in() -> None:
    offered = [each.offered_per_s for each in climb(server(333))]

    assert offered[:4] == [50, 100, 200, 400]
    assert all(200 < rate < 400 for rate in offered[4:])


def test_what_decides_is_run_twice() -> None:
    knee = find(climb(server(333)))

    assert knee.held is not None
    assert knee.bent is not None
    assert (knee.held.runs, knee.bent.runs) == (2, 2)


@pytest.mark.parametrize("stalls", [1, 3, 5, 9])
def test_a_machine_that_stands_still_for_a_moment_moves_no_knee(stalls: int) -> None:
    knee = find(climb(stalling(server(333), stalls=stalls)))

    assert knee.held is not None
    assert knee.bent is not None
    assert 200 < knee.held.offered_per_s < 400
    assert 300 < knee.bent.offered_per_s < 500


def test_a_machine_that_is_never_quiet_gives_a_range_or_none() -> None:
    steps = climb(stalling(server(333), stalls=1000))
    knee = find(steps)

    assert not knee.found
    assert {judge(each) for each in knee.unsure} == {StepVerdict.NOISY}
    assert max(each.runs for each in steps) <= MAX_RUNS


def test_a_slow_server_in_a_short_time_has_no_knee_but_a_reason() -> None:
    """3 requests/s, in 6 seconds: a handful each."""
    knee = find(climb(server(3, alone_s=0.0), alone_ms=330.0, whole_s=6.0))

    assert not knee.found
    assert knee.held is None
    assert knee.unsure
    assert all(each.sent < MIN_REQUESTS for each in knee.unsure)


def test_a_load_generator_that_is_the_bound_is_not_driven_further() -> None:
    steps = climb(server(10_000, busy=0.95))

    assert len(steps) == 1
    assert steps[0].generator_bound
    assert find(steps).bent is None


def test_a_machine_too_busy_to_send_on_time_is_not_driven_further_and_no_knee() -> None:
    def crowded(rate: float, seconds: float) -> Run:
        late_s = 0.0 if rate < 300 else 0.1
        number = round(rate * seconds)
        return Run(seconds, [answer(n / rate, late_s + 0.01, late_s=late_s) for n in range(number)], 0.1)

    steps = climb(crowded)
    knee = find(steps)

    assert knee.bent is None
    assert knee.held is not None
    assert knee.held.offered_per_s == 200
    assert judge(steps[-1]) is StepVerdict.GENERATOR


def test_server_that_rejects_all_requests_is_measured_slower_and_then_abandoned() -> None:
    def refusing(rate: float, seconds: float) -> Run:
        return Run(seconds, [answer(n / rate, status=503) for n in range(round(seconds * rate))], 0.0)

    steps = climb(refusing)

    assert find(steps).held is None
    assert len(steps) < 10
    assert steps[-1].offered_per_s < steps[0].offered_per_s


@pytest.mark.parametrize(
    ("measured", "verdict"),
    [
        pytest.param(step(100), StepVerdict.HELD, id="all in time"),
        pytest.param(step(100, in_time=95), StepVerdict.HELD, id="95 in 100"),
        pytest.param(step(100, in_time=94, bad_stretches=0.6), StepVerdict.BENT, id="late throughout"),
        pytest.param(step(100, in_time=94, bad_stretches=0.1), StepVerdict.NOISY, id="late in a moment"),
        pytest.param(
            step(100, in_time=94, bad_stretches=0.6, runs=1), StepVerdict.NOISY, id="late throughout, but once"
        ),
        pytest.param(step(100, in_time=40, bad_stretches=0.9, runs=1), StepVerdict.BENT, id="most of them late"),
        pytest.param(step(100, backlog=0.2), StepVerdict.BENT, id="queue grows"),
        pytest.param(step(3, sent=9, in_time=9), StepVerdict.FEW, id="a handful"),
        pytest.param(step(3, sent=9, in_time=2), StepVerdict.FEW, id="a handful, late"),
        pytest.param(step(3, sent=20, in_time=18), StepVerdict.FEW, id="few, one of ten late"),
        pytest.param(step(3, sent=20, in_time=2), StepVerdict.BENT, id="few, and nearly all late"),
        pytest.param(step(100, in_time=50, bad_stretches=1.0, busy=0.95), StepVerdict.GENERATOR, id="generator"),
        pytest.param(step(100, busy=0.95), StepVerdict.HELD, id="in time though the generator was busy"),
    ],
)
def test_a_step_tells_only_what_it_measured(measured: LoadStep, verdict: StepVerdict) -> None:
    assert judge(measured) is verdict


def test_the_knee_is_below_all_that_bent_and_what_is_between_is_named() -> None:
    few, late = step(150, sent=20, in_time=19), {"in_time": 10, "bad_stretches": 1.0}
    knee = find([step(100), step(400, **late), few, step(800), step(300, **late)])

    assert knee.held is not None
    assert knee.bent is not None
    assert (knee.held.offered_per_s, knee.bent.offered_per_s) == (100, 300)
    assert knee.unsure == (few,)
    assert not knee.found
    assert find([step(100), step(100 * CLOSE_ENOUGH, **late)]).found


def test_a_run_is_as_long_as_its_requests_take_and_no_longer_than_a_third() -> None:
    assert run_s(1000, step_s=3, whole_s=30) == 3
    assert run_s(10, step_s=3, whole_s=30) == 5
    assert run_s(1, step_s=3, whole_s=30) == 10
