from collections.abc import Callable

import pytest

from benchmarks.policies.cells import LOADS, MODELS, RIVALS, SHOAL, Cell, Figures, bisect_rate, goodput, optimum, shoal
from benchmarks.policies.report import Result, markdown, mean_result, misses, over
from benchmarks.policies.rivals import BentoML, BestRate, Eager, Setting, Symphony, TimerFromFree, TimerFromHead
from shoal_proxy.simulator.engine import Discipline, Engine, SimulatedRequest

SETTING = Setting([0.010, 0.011, 0.012, 0.013], 0.040)
CELL = Cell(MODELS[0], 5.0, "Poisson")


def run(discipline: Discipline, *arrived_s: float) -> tuple[Engine, list[SimulatedRequest]]:
    requests = [SimulatedRequest(time, time + SETTING.objective_s) for time in arrived_s]
    engine = Engine(discipline, lambda rows, shape: SETTING.lat(rows))
    engine.run(requests)
    return engine, requests


def test_saturation_is_what_two_batches_within_the_objective_sustain() -> None:
    assert SETTING.sustained == 4
    assert SETTING.saturation == pytest.approx(4 / 0.013)
    assert [SETTING.most_within(time) for time in (0.009, 0.0115, 1.0)] == [0, 2, 4]


@pytest.mark.parametrize(
    ("rule", "starts_s"),
    [
        pytest.param(Eager, 0.0, id="at once"),
        pytest.param(TimerFromHead, 0.010, id="a quarter of the objective later"),
        pytest.param(TimerFromFree, 0.010, id="the same, on an idle worker"),
        pytest.param(Symphony, 0.029, id="when a second row would make it late"),
        pytest.param(BentoML, 0.0, id="at once, having no reason to wait"),
    ],
)
def test_a_lone_request_leaves_when_the_rule_says(rule: Callable[[Setting], Discipline], starts_s: float) -> None:
    _, (request,) = run(rule(SETTING), 0.0)

    assert request.completed_s == pytest.approx(starts_s + 0.010)


def test_a_timer_from_free_makes_old_requests_wait_again() -> None:
    head, _ = run(TimerFromHead(SETTING), 0.0, 0.011)
    free, _ = run(TimerFromFree(SETTING), 0.0, 0.011)

    assert head.now_s == pytest.approx(0.031)
    assert free.now_s == pytest.approx(0.040)


def test_the_best_rate_gives_up_the_oldest_for_a_full_batch() -> None:
    rule = BestRate(SETTING)
    requests = [SimulatedRequest(0.0, due) for due in (0.0105, 0.02, 0.02, 0.02, 0.02)]
    Engine(rule, lambda rows, shape: SETTING.lat(rows)).run(requests)

    assert requests[0].refused_s == 0.0
    assert all(each.in_time for each in requests[1:])


@pytest.mark.parametrize("rule", [*RIVALS.values(), shoal])
@pytest.mark.parametrize("load", [0.5, 3.0])
def test_every_rule_settles_every_request(rule: Callable[[Setting], Discipline], load: float) -> None:
    arrivals = CELL.arrivals(400, 1) / load
    requests = [SimulatedRequest(time, time + CELL.setting.objective_s) for time in arrivals.tolist()]
    Engine(rule(CELL.setting), CELL.model.latency_s).run(requests)

    assert all((each.completed_s is None) != (each.refused_s is None) for each in requests)


def test_no_rule_exceeds_the_optimum() -> None:
    arrivals = CELL.arrivals(500, 1)
    best = optimum(CELL, arrivals)

    for rule in (*RIVALS.values(), shoal):
        assert goodput(lambda rule=rule: rule(CELL.setting), CELL, arrivals) <= best.goodput[1]  # type: ignore[misc]


def test_the_largest_feasible_rate_is_found() -> None:
    assert bisect_rate(lambda rate: rate <= 3.0, 10.0) == pytest.approx(3.0, abs=0.02)
    assert bisect_rate(lambda rate: True, 10.0) == 10.0
    assert bisect_rate(lambda rate: False, 10.0) == 0.0


def result(mine: float, other: float, *, capacity: float = 1.0) -> Result:
    ratios = {"capacity": mine} | {f"goodput at {load:g}": mine for load in LOADS}
    return Result(
        "cell", "Poisson", Figures(capacity, [1.0] * 4), {SHOAL: ratios, "other": dict.fromkeys(ratios, other)}
    )


def test_what_keeps_all_marks_misses_none() -> None:
    assert list(misses(result(0.97, 0.98))) == []


def test_a_mark_that_is_missed_is_named_with_whoever_did_better() -> None:
    assert any("capacity 0.910 of the optimum, wanted 0.92" in line for line in misses(result(0.91, 0.91)))
    assert any("goodput at 2 0.960, other 1.000" in line for line in misses(result(0.96, 1.0)))


def test_a_cell_in_which_nobody_can_be_in_time_has_no_capacity() -> None:
    assert "capacity" not in over(Figures(0.0, [0.5] * 4), Figures(0.0, [1.0] * 4))
    assert over(Figures(1.0, [0.5] * 4), Figures(2.0, [1.0] * 4)) == {
        "capacity": 0.5,
        **{f"goodput at {load:g}": 0.5 for load in LOADS},
    }


def test_seeds_are_averaged_and_tabled() -> None:
    both = mean_result([result(0.9, 1.0), result(1.0, 1.0)])

    assert both.ratios[SHOAL]["capacity"] == pytest.approx(0.95)
    assert f"| {SHOAL} | .95 (.95) / .95 .95 .95 .95 |" in markdown([both])
