from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.scalers import cluster, exact
from benchmarks.scalers.balancing import NORMAL, ONE_SLOW, Job, Load, goodput, joining
from benchmarks.scalers.balancing import markdown as balance_table
from benchmarks.scalers.balancing import measure as measure_balance
from benchmarks.scalers.cluster import Course, Pods, foreseen, needed
from benchmarks.scalers.ours import Shoal
from benchmarks.scalers.readings import Law, Reading, Service, Window
from benchmarks.scalers.report import PINNED, SLOW, at_cost, closing, curve, markdown, point, rows, times_fewer
from benchmarks.scalers.rivals import HorizontalPodAutoscaler, Keda, Knative, Plan, RayServe, Static
from benchmarks.scalers.scenarios import UNIT, WARM_S, Scenario, scenarios
from benchmarks.scalers.trials import (
    ORACLE,
    PRESENT,
    RIVALS,
    SHOAL,
    STATIC,
    SWEPT,
    Figures,
    Trial,
    figures,
    measure,
    trials,
)
from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.balance import Balance

SERVICE = Service()
TARGET = 10.0


def reading(now_s: float, rows: float, replicas: int, *, ready: int | None = None, refused: int = 0) -> Reading:
    """Return what is read of a service that has always held so many rows."""
    ready = replicas if ready is None else ready
    return Reading(now_s, replicas, ready, 0, round(rows), 0, 0, refused, rows * now_s, 0.0, 0.0)


def settle(law: Law, rows: float, replicas: int, until_s: float, since_s: float = 0.0) -> list[tuple[float, int]]:
    """Ask ``law`` at each of its periods, scale at once as it says, and return what it decided anew."""
    decided = []
    for number in range(round((until_s - since_s) / law.period_s)):
        now_s = since_s + number * law.period_s
        wanted = law.decide(reading(now_s, rows, replicas), now_s)
        if wanted != replicas:
            decided.append((now_s, wanted))
            replicas = wanted
    return decided


def test_a_window_gives_the_mean_over_its_length_and_counts_what_was_refused() -> None:
    window = Window(10.0, held_s=0.5)
    for now_s in range(0, 41, 2):
        window.add(reading(now_s, 7.0, 1, refused=4 * now_s))

    assert window.mean_rows == pytest.approx(7.0 + 4 * 0.5)


def test_knative_wants_rows_over_target_and_at_most_halves_at_once() -> None:
    assert settle(Knative(SERVICE, TARGET), 61.0, 7, 200) == []
    assert settle(Knative(SERVICE, TARGET), 15.0, 16, 30) == [(0.0, 8), (2.0, 4), (4.0, 2)]


def test_knative_panics_at_twice_what_is_ready_and_does_not_go_down_for_a_minute() -> None:
    law, ready, row_s = Knative(SERVICE, TARGET), 1, 0.0
    decided: dict[int, int] = {}
    for now_s in range(0, 200, 2):
        decided[now_s] = law.decide(Reading(now_s, ready, ready, 0, 0, 0, 0, 0, row_s, 0.0, 0.0), now_s)
        ready = decided[now_s] if now_s >= 76 else 1
        row_s += 2 * (100.0 if 60 <= now_s < 70 else 10.0)

    assert [decided[now_s] for now_s in (60, 62, 64, 66, 70)] == [1, 4, 7, 10, 10]
    assert decided[130] == 10, "it panics still"
    assert [decided[now_s] for now_s in (136, 138, 140, 142)] == [5, 2, 1, 1], "half at most"


@pytest.mark.parametrize(("rows", "wanted"), [(65.0, 5), (95.0, 10)])
def test_knative_goes_by_its_short_window_from_twice_what_is_ready(rows: float, wanted: int) -> None:
    law, row_s = Knative(SERVICE, TARGET), 0.0
    for now_s in range(0, 68, 2):
        decided = law.decide(Reading(now_s, 4, 4, 0, 0, 0, 0, 0, row_s, 0.0, 0.0), now_s)
        row_s += 2 * (rows if now_s >= 60 else 40.0)

    assert decided == wanted


def test_keda_sees_only_what_it_polls() -> None:
    law = Keda(SERVICE, TARGET)
    decided = {}
    for now_s in range(0, 91, 15):
        row_s = 20.0 * now_s + 180.0 * max(0, now_s - 30)
        decided[now_s] = law.decide(Reading(now_s, 2, 2, 0, 0, 0, 0, 0, row_s, 0.0, 0.0), now_s)

    assert decided == {0: 0, 15: 0, 30: 2, 45: 2, 60: 6, 75: 6, 90: 6}


@pytest.mark.parametrize("law", [HorizontalPodAutoscaler, Keda])
def test_the_hpa_adds_four_or_doubles_and_comes_down_after_five_minutes(law: Callable[[Service, float], Law]) -> None:
    asked = law(SERVICE, TARGET)
    up = settle(asked, 200.0, 2, 90)

    assert [replicas for _, replicas in up] == [6, 12, 20]
    assert settle(asked, 200.0, 20, 390, since_s=90) == []
    ((down_s, replicas),) = settle(asked, 50.0, 20, 900, since_s=390)
    assert (675 <= down_s <= 735, replicas) == (True, 5), "five minutes after the last that said twenty"


def test_the_hpa_leaves_alone_what_is_within_a_tenth() -> None:
    assert settle(HorizontalPodAutoscaler(SERVICE, TARGET), 109.0, 10, 300) == []
    assert settle(HorizontalPodAutoscaler(SERVICE, TARGET), 112.0, 10, 16) == [(0.0, 12)]


def test_ray_serve_waits_half_a_minute_to_add_and_ten_to_remove() -> None:
    assert settle(RayServe(SERVICE, TARGET), 55.0, 2, 60) == [(30.0, 6)]
    assert settle(RayServe(SERVICE, TARGET), 15.0, 6, 700) == [(600.0, 2)]


def test_pods_that_start_are_the_first_to_go() -> None:
    pods = Pods([0.0, 0.0])
    pods.scale(5, 10.0, 30.0)
    pods.scale(3, 12.0, 30.0)

    assert (pods.ready(39.0), pods.ready(40.0), len(pods.ready_s)) == (2, 3, 3)


def test_needed_replicas_serve_everybody_and_foreseen_ones_are_there_in_time() -> None:
    scenario = Scenario("", UNIT * np.concatenate([np.full(50, 1.0), np.full(100, 8.0)]))
    counts = scenario.counts(1).tolist()
    need = needed(SERVICE, counts)
    plan = foreseen(SERVICE, need)
    course = cluster.run(Plan(plan), SERVICE, counts, plan[0])

    assert sum(course.violated) < 0.001 * sum(course.offered)
    assert plan[WARM_S + 50 - 30] >= 7 > plan[WARM_S + 10]
    assert figures(course, need, scenario).cost < 1.4


def test_a_replica_that_has_too_much_refuses_what_it_cannot_serve() -> None:
    scenario = Scenario("", np.full(60, 2 * SERVICE.rows_per_s))
    course = cluster.run(Static(1), SERVICE, scenario.counts(1).tolist(), 1)

    assert sum(course.violated) / sum(course.offered) == pytest.approx(0.5, abs=0.02)
    assert set(course.replicas) == {1}


@pytest.mark.parametrize("load", [0.4, 0.9, 1.5])
def test_the_coarse_cluster_holds_and_refuses_what_the_proxys_own_code_does(load: float) -> None:
    class Spy(Static):
        period_s = 1.0

        def decide(self, reading: Reading, now_s: float) -> int:
            self.last = reading
            return super().decide(reading, now_s)

    rates = np.full(20, load * 3 * SERVICE.rows_per_s)
    times = np.sort(np.random.default_rng(1).uniform(0, 20, int(rates.sum())))
    counts = np.histogram(times, bins=200, range=(0, 20))[0].tolist()
    coarse_spy, fine_spy = Spy(3), Spy(3)
    coarse = cluster.run(coarse_spy, SERVICE, counts, 3)
    fine = exact.run(fine_spy, SERVICE, times.tolist(), 3)

    shares = [sum(each.violated) / sum(each.offered) for each in (coarse, fine)]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
    held = [spy.last.row_seconds / spy.last.now_s for spy in (coarse_spy, fine_spy)]
    assert held[0] == pytest.approx(held[1], rel=0.2)
    assert coarse_spy.last.refused == pytest.approx(fine_spy.last.refused, abs=0.02 * sum(rates))


def test_the_exact_cluster_starts_and_drains_replicas_as_it_is_told() -> None:
    times = np.arange(0, 20, 0.02).tolist()
    course = exact.run(Plan([1] * 5 + [3] * 10 + [1] * 10), Service(start_s=2.0), times, 1)

    assert course.decided == [(5.0, 3), (15.0, 1)]
    assert (course.replicas[3], course.replicas[8], course.replicas[18]) == (1, 3, 1)
    assert sum(course.violated) == 0


def test_a_replica_that_starts_is_taken_away_before_one_that_serves() -> None:
    times = np.arange(0, 20, 0.02).tolist()
    course = exact.run(Plan([1] * 5 + [3] * 5 + [1] * 15), Service(start_s=30.0), times, 1)

    assert course.replicas[7] == 3
    assert course.replicas[12] == 1
    assert sum(course.violated) == 0


def test_shoals_law_is_told_what_its_proxies_would_tell() -> None:
    law = Shoal(SERVICE, 0.8 * SERVICE.rows)
    for now_s in range(0, 12, 2):
        rows = Reading(
            now_s, 2, 2, 20, 28, 1000 * now_s, 240 * now_s, 760 * now_s, 48.0 * now_s, 20.0 * now_s, 2.0 * now_s
        )
        decided = law.decide(rows, now_s)
    loads = [pod.load for pod in law._pods]

    assert decided == 11, "1,000 rows a second, at 0.8 of what a replica serves"
    assert len(loads) == 2
    assert (loads[0].arrived_rows, loads[0].answered_rows, loads[0].refused_rows.rows) == (5000, 1200, 3800)
    assert (loads[0].row_seconds, loads[0].queued_row_seconds, loads[0].busy_s) == (240.0, 100.0, 10.0)
    assert (loads[0].queued_rows, loads[0].running_rows) == (10, 14)
    assert loads[0].capacity is not None
    assert loads[0].capacity.rows_per_s == pytest.approx(SERVICE.rows_per_s)


def test_figures_leave_out_what_was_before_the_scenario() -> None:
    scenario = Scenario("", np.full(40, 10.0), step_s=5.0)
    course = Course([10.0] * (WARM_S + 40), [10.0] * WARM_S + [0.0] * 5 + [5.0, 0.0, 5.0] + [0.0] * 32)
    course.replicas = [9] * WARM_S + [2] * 40
    course.decided = [(1.0, 9), (WARM_S - 1.0, 2), (WARM_S + 7.0, 4), (WARM_S + 9.0, 3), (WARM_S + 12.0, 5)]

    found = figures(course, [1] * (WARM_S + 40), scenario)

    assert (found.violations, found.cost) == (10 / 400, 2.0)
    assert (found.reversals, found.recovery_s, found.decided_s) == (2, 3, 2.0)


def test_scenarios_have_the_rates_that_their_names_say() -> None:
    by_name = {each.name: each for each in scenarios()}

    assert by_name["step"].rates[[0, -1]].tolist() == [100.0, 1000.0]
    assert by_name["Azure LLM 2023"].rates.mean() == pytest.approx(400.0)
    for each in scenarios():
        counts = each.counts(1)
        offered = float(each.rates.sum() + WARM_S * each.rates[0])
        assert counts.sum() == pytest.approx(offered, rel=0.01 * each.cv + 0.01)
        assert len(counts) == 10 * each.length_s
    clumped, smooth = (by_name[name].counts(1)[3000:] for name in ("Gamma CV 8", "constant"))
    assert clumped.std() > 3 * smooth.std()


def test_violations_are_compared_at_the_same_cost() -> None:
    points = [(1.0, 0.4), (2.0, 0.2), (3.0, 0.3), (4.0, 0.1)]

    assert at_cost(points, 2.0) == pytest.approx(0.2)
    assert at_cost(points, 1.5) == pytest.approx(0.3)
    assert at_cost(points, 3.0) == pytest.approx(0.15), "a mixture of the second and the fourth"
    assert at_cost(points, 0.5) == 0.4
    assert at_cost(points, 9.0) == 0.1


def results(shoal: float, rival: float) -> dict[Trial, Figures]:
    laws = dict.fromkeys((*RIVALS, STATIC), rival) | {SHOAL: shoal, ORACLE: 0.0, PRESENT: 0.0}
    return {
        Trial(scenario, law, setting, 1): Figures(violations, 1.5, 0, 3.0, 2.0 if scenario == "step" else None)
        for scenario in ("step", "constant")
        for law, violations in laws.items()
        for setting in (0.8, 1.0)
    }


def test_marks_are_met_or_not() -> None:
    good = rows(results(0.01, 0.03), {PINNED: [0.98, 1.0], SLOW: [0.96]}, [0.5])
    assert closing(good) == "8 of 9 marks met", "with one slow pod it is not enough"
    assert closing(rows(results(0.01, 0.02), {}, [])) == "2 of 9 marks met", "a mark without a measurement is not met"

    table = "\n".join(markdown(results(0.01, 0.03)))
    assert "| step | Shoal | 1.00% | 1.50 |" in table
    assert "|  | HPA | 3.00% | 1.50 | 0 | 3 | 3.00% | 3 |" in table
    assert times_fewer(results(0.01, 0.03), "HPA", "step") == pytest.approx(3.0)
    assert point(results(0.01, 0.03), SHOAL, 0.8) == (1.5, 0.01)
    assert curve(results(0.01, 0.03), STATIC) == [(1.5, 0.03), (1.5, 0.03)]


def test_every_law_is_tried_on_every_load_at_every_setting() -> None:
    planned = trials(2, (0.5, 0.8))

    assert {trial.law for trial in planned} == {*SWEPT, STATIC, ORACLE, PRESENT}
    assert len([trial for trial in planned if trial.law == SHOAL]) == 2 * 2 * len(scenarios())


@pytest.mark.parametrize("law", [*SWEPT, PRESENT, ORACLE])
def test_every_law_follows_a_step(law: str) -> None:
    found = measure(Trial("step", law, 0.8, 1))

    assert 0 <= found.violations < 0.3
    assert 1 <= found.cost < 3
    if law == ORACLE:
        assert found.violations < 0.001


def test_request_forwarding_is_nearly_as_good_as_one_large_replica() -> None:
    job = Job(NORMAL, Balance.REQUEST_FORWARDING, 1, 2_000)
    shares = {job: measure_balance(job)}

    assert 0.99 < goodput(shares, NORMAL)[0] <= 1
    assert goodput(shares, ONE_SLOW) == []
    assert Load("", 1.2).pooled(10**9) == pytest.approx(1 / 1.2)
    table = balance_table({Job(each.load, rule, 1, 9): 0.5 for each in all_loads() for rule in Balance})
    assert "| 1.0 | 0.500 |" in "\n".join(table)


def all_loads() -> list[Job]:
    from benchmarks.scalers.balancing import LOADS

    return [Job(load, Balance.RANDOM, 1, 9) for load in LOADS]


def test_a_pod_that_joins_gets_requests_only_where_connections_end() -> None:
    assert joining(NEVER_S, seeds=1, within_s=10.0) == 0.0
    assert joining(5.0, seeds=2, within_s=10.0) > 0.3
