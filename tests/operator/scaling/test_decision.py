"""Decisions: up at once, down to the highest recommendation of five minutes, hold without data."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal_operator.scaling.decision import AutoscalerState, ScalingContext, ScalingLimit, decide
from shoal_operator.scaling.limits import rounded_up
from shoal_operator.scaling.recommendation import recommend
from shoal_operator.scaling.signals import LoadHistory, Rates, Signals
from shoal_operator.scaling.targets import ScalingTargets
from shoal_schema.interfaces.load import Capacity
from shoal_schema.resource.conditions import Reason
from tests.operator.loads import Pod, Service

TARGETS = ScalingTargets(minimum=1, maximum=8, target_queue_depth=10)
OBJECTIVE = ScalingTargets(minimum=1, maximum=20, target_queue_depth=None, full_batch_rows=32, objective_s=0.2)
"""With replicas that serve 94.7 rows a second: 5 ms a batch and 10 ms a row."""


def steady(rows: float, *, complete: bool = True, ready: int = 1) -> Signals:
    rates = Rates(rows)
    return Signals(rates, rates, rates, 0, None, ready, complete)


class Scale:
    """A scale that is what the law last said, unless a person says otherwise; every tick sees the rows of its own."""

    def __init__(self, replicas: int = 1, targets: ScalingTargets = TARGETS) -> None:
        self.replicas, self.targets, self.state = replicas, targets, AutoscalerState()

    def at(self, now_s: float, rows: float | None, *, complete: bool = True, window_s: float = 300.0) -> int:
        signals = None if rows is None else steady(rows, complete=complete, ready=self.replicas)
        decision, self.state = decide(self.targets, signals, self.replicas, self.state, now_s, window_s=window_s)
        self.replicas = decision.replicas
        return self.replicas


@pytest.mark.parametrize(
    ("rows", "replicas"),
    [(0, 1), (1, 1), (10, 1), (11, 2), (75, 8), (1000, 8)],
)
def test_the_count_is_the_total_over_the_target_within_the_bounds(rows: int, replicas: int) -> None:
    assert Scale().at(0, rows) == replicas


def test_replicas_rise_at_once_and_fall_by_half_per_minute_to_the_highest_recommendation() -> None:
    scale = Scale()

    assert scale.at(0, 70) == 7
    assert scale.at(100, 25) == 7
    assert scale.at(200, 0) == 7
    assert scale.at(299, 0) == 7
    assert scale.at(301, 0) == 4
    assert scale.at(359, 0) == 4
    assert scale.at(361, 0) == 3
    assert scale.at(501, 0) == 2
    assert scale.at(561, 0) == 1


def test_a_shorter_window_lets_the_count_fall_sooner() -> None:
    scale = Scale()
    scale.at(0, 45, window_s=61)

    assert scale.at(60, 0, window_s=61) == 5
    assert scale.at(122, 0, window_s=61) == 3
    assert scale.at(181, 0, window_s=61) == 3
    assert scale.at(183, 0, window_s=61) == 2


def test_noise_around_a_whole_number_takes_no_replica_away() -> None:
    scale = Scale()
    counts = [scale.at(tick * 2.0, 30 + (2 if tick % 3 else -2)) for tick in range(1000)]

    assert set(counts[1:]) == {4}


def test_a_restart_of_the_operator_keeps_the_scale_for_five_minutes() -> None:
    scale = Scale(replicas=6)

    assert scale.at(1000, 0) == 6
    assert scale.at(1299, 0) == 6
    assert scale.at(1301, 0) == 3


def test_with_a_short_window_all_that_holds_the_count_is_as_short() -> None:
    scale = Scale(replicas=6)
    counts = [scale.at(1000 + second, 0, window_s=4) for second in range(0, 14, 2)]

    assert counts == [6, 6, 3, 3, 2, 2, 1]


def test_replicas_set_by_a_user_are_accepted_at_once_and_held() -> None:
    scale = Scale()
    scale.at(0, 75)
    scale.replicas = 3

    assert scale.at(2, 5) == 3
    assert scale.at(301, 5) == 3
    assert scale.at(303, 5) == 2


def test_load_overrides_replicas_set_by_a_user_that_are_too_low() -> None:
    scale = Scale()
    scale.at(0, 75)
    scale.replicas = 1

    assert scale.at(2, 75) == 8


def test_replicas_set_by_a_user_outside_the_bounds_are_corrected() -> None:
    assert Scale(replicas=20).at(0, 0) == 8
    assert Scale(replicas=0).at(0, 0) == 1


def test_without_data_the_count_holds_and_is_not_lost_afterwards() -> None:
    scale = Scale()
    scale.at(0, 75)

    assert scale.at(1000, None) == 8
    assert scale.at(1002, 0) == 8
    assert scale.at(1303, 0) == 4


def test_with_partial_data_the_count_may_rise_but_not_fall() -> None:
    scale = Scale()
    scale.at(0, 40)

    assert scale.at(1000, 5, complete=False) == 4
    assert scale.at(1002, 60, complete=False) == 6


def test_only_a_long_gap_in_the_data_is_reported() -> None:
    decision, state = decide(TARGETS, steady(5), 1, AutoscalerState(), 0)
    assert (decision.replicas, decision.reason) == (1, Reason.FOLLOWING_LOAD)
    decision, state = decide(TARGETS, None, 1, state, 2)
    assert decision.reason is None
    decision, state = decide(TARGETS, None, 1, state, 32)
    assert decision.reason is Reason.NO_LOAD_DATA
    decision, _ = decide(TARGETS, steady(5), 1, state, 34)
    assert decision.reason is Reason.FOLLOWING_LOAD


def test_replicas_do_not_fall_during_a_rollout_or_panic() -> None:
    for context, rates in ((ScalingContext(rolling=True), Rates(0)), (ScalingContext(), Rates(160))):
        state = AutoscalerState(decided=8, recommendations=((0.0, 8),))
        signals = Signals(short=rates, long=Rates(0), last=rates, queued_rows=0, capacity=None, ready=8, complete=True)
        decision, state = decide(TARGETS, signals, 8, state, 1000, context)
        assert decision.replicas == 8
    decision, _ = decide(TARGETS, steady(0), 8, state, 1059)
    assert decision.replicas == 8  # a minute after what made it panic
    decision, _ = decide(TARGETS, steady(0), 8, AutoscalerState(decided=8, recommendations=((0.0, 8),)), 1000)
    assert decision.replicas == 4  # otherwise it falls


def test_every_decision_says_why_in_a_sentence() -> None:
    targets = ScalingTargets(1, 8, 32)
    said = [decide(targets, steady(rows, complete=False), 4, AutoscalerState(4), 0.0)[0].sentence for rows in (118, 20)]

    assert said[0] == "4 replicas: 118 rows in flight, 32 per replica, stable window"
    assert said[1] == (
        "4 replicas: 20 rows in flight, 32 per replica, stable window; 1 would suffice, and replicas fall if the load"
        " stays low"
    )


@pytest.mark.parametrize(
    ("targets", "replicas", "words"),
    [
        (ScalingTargets(1, 8, 32), 1, "; scaling.minReplicas allows no fewer"),
        (ScalingTargets(3, 8, 32), 3, "; scaling.minReplicas allows no fewer"),
        (ScalingTargets(3, 8, 32), 5, "; 3 would suffice, and replicas fall if the load stays low"),
        (ScalingTargets(0, 8, 32), 2, "; 1 would suffice, and replicas fall if the load stays low"),
        (ScalingTargets(0, 8, 32), 1, "; the last one stops after scaling.scaleToZeroDelaySeconds without requests"),
        (ScalingTargets(1, 1, 32), 1, "; scaling.minReplicas allows no fewer"),
    ],
)
def test_explanation_states_no_fewer_replicas_than_the_minimum(
    targets: ScalingTargets, replicas: int, words: str
) -> None:
    said = decide(targets, steady(0), replicas, AutoscalerState(replicas, recommendations=((0.0, replicas),)), 1.0)[
        0
    ].sentence

    noun = "replica" if replicas == 1 else "replicas"
    assert said == f"{replicas} {noun}: 0 rows in flight, 32 per replica, stable window{words}"


def test_explanation_states_how_long_replicas_set_by_a_user_are_held() -> None:
    scale, said = Scale(), dict[float, str]()
    scale.at(0, 75)
    scale.replicas = 3
    for now_s in (2, 301, 303):
        decision, scale.state = decide(TARGETS, steady(5), scale.replicas, scale.state, now_s)
        scale.replicas, said[now_s] = decision.replicas, decision.sentence

    held = (
        "3 replicas: 5 rows in flight, 10 per replica, stable window; set by another writer, and held for 300 s"
        " unless the load requires more"
    )
    assert (said[2], said[301]) == (held, held)
    assert said[303] == "2 replicas: 5 rows in flight, 10 per replica, stable window"


def test_replicas_that_load_overrides_no_longer_count_as_set_by_a_user() -> None:
    scale = Scale()
    scale.at(0, 75)
    scale.replicas = 1
    decision, state = decide(TARGETS, steady(75), 1, scale.state, 2)

    assert "outside" not in decision.sentence
    assert state.manual_since_s is None


def test_limit_of_the_count_is_reported() -> None:
    decision, _ = decide(TARGETS, steady(500), 8, AutoscalerState(8), 0.0)
    assert (decision.replicas, decision.limit) == (8, ScalingLimit.MAXIMUM)

    decision, _ = decide(TARGETS, steady(70), 4, AutoscalerState(4), 0.0, ScalingContext(unschedulable=1))
    assert (decision.replicas, decision.limit) == (4, ScalingLimit.CAPACITY)

    assert decide(TARGETS, steady(30), 4, AutoscalerState(4), 0.0)[0].limit is None


def test_rejected_rows_count_as_demand() -> None:
    """300 requests/s at replicas of 94.7: admission keeps their queues far below any target."""
    service = Service(OBJECTIVE)
    service.run(4, 300)
    assert service.replicas == 4

    service.run(60, 300)
    assert service.replicas == 4
    assert service.refused_per_s == 0


def test_load_step_changes_the_count_at_the_next_tick() -> None:
    service = Service(OBJECTIVE)
    service.run(120, 60)
    assert service.replicas == 1
    service.run(2, 600)
    first = service.replicas
    service.run(4, 600)

    assert first >= 3
    assert service.replicas == 8
    assert service.counts[-4:][0] == 1


def test_pods_that_start_do_not_make_it_run_away() -> None:
    service = Service(OBJECTIVE, start_s=200)
    service.run(190, 300)

    assert len(service.pods) == 1
    assert service.refused_per_s > 200
    # As many as the load asks for, though all of it is refused for minutes; one pod's rows never become many pods.
    assert service.replicas == 4


def test_constant_load_moves_nothing() -> None:
    for offered in (40, 75, 77, 150, 300, 700):
        service = Service(OBJECTIVE)
        service.run(120, offered)
        settled = service.replicas
        service.run(1800, offered)
        assert set(service.counts[60:]) == {settled}, offered


def of_clumps(offered: float, dispersion: float, busiest: float = 5000.0) -> Signals:
    rates = Rates(offered_rows_per_s=offered)
    return Signals(rates, rates, rates, 0, Capacity(100.0, 14.0), 6, True, dispersion, busiest)


@pytest.mark.parametrize(
    ("offered", "dispersion", "replicas"),
    [(400, 0, 5), (400, 1, 5), (400, 8, 5), (400, 16, 6), (400, 64, 9), (1200, 64, 18), (0, 64, 1), (0, 0, 1)],
)
def test_bursty_arrivals_require_spare_replicas_and_single_rows_do_not(
    offered: float, dispersion: float, replicas: int
) -> None:
    decision, _ = decide(OBJECTIVE, of_clumps(offered, dispersion), 1, AutoscalerState(), 0.0)
    assert decision.replicas == min(replicas, 11)  # by ten at a time
    assert decision.recommendation is not None
    assert OBJECTIVE.within(rounded_up(decision.recommendation.replicas)) == replicas


def test_long_objective_absorbs_bursty_arrivals() -> None:
    patient = replace(OBJECTIVE, objective_s=20.0)
    signals = of_clumps(400, 64)

    assert recommend(patient, signals, signals.long, None).replicas == pytest.approx(5)


def test_bursty_arrivals_require_no_more_than_the_busiest_tick() -> None:
    signals = of_clumps(400, 1000, busiest=600)

    assert recommend(OBJECTIVE, signals, signals.long, None).replicas == pytest.approx(600 / 80)


def test_rejected_rows_that_need_no_replicas_add_none() -> None:
    # One caller keeps all its connections to one pod, and that refuses; the other three idle.
    memory, state, pods = LoadHistory(), AutoscalerState(), [Pod(Capacity(100.0, 14.0)) for _ in range(4)]
    for tick in range(60):
        said = {
            f"{at}": pod.passes(2.0, rows=18, offered=190, refused=90, busy=1)
            if at == 0
            else pod.passes(2.0, rows=0.1, offered=5, busy=0.1)
            for at, pod in enumerate(pods)
        }
        decision, state = decide(OBJECTIVE, memory.record(said, tick * 2.0, OBJECTIVE), 4, state, tick * 2.0)
        assert decision.replicas == 4


@pytest.mark.parametrize("cycle", [False, True])
def test_wrong_load_of_one_of_three_pods_does_not_raise_replicas_to_the_maximum(cycle: bool) -> None:
    targets, memory, state, pods = (
        ScalingTargets(1, 50, None, objective_s=0.2),
        LoadHistory(),
        AutoscalerState(),
        [Pod(Capacity(100.0, 14.0)) for _ in range(3)],
    )
    replicas = 3
    for tick in range(60):
        liar = pods[0].passes(2.0, rows=1e5, queued=1e5, offered=1e9, refused=1e9, busy=1)
        if cycle and tick % 3 == 2:
            pods[0] = Pod(Capacity(100.0, 14.0))
        said = {"liar": liar} | {
            f"{at}": pod.passes(2.0, rows=5, offered=50, busy=0.5) for at, pod in enumerate(pods[1:])
        }
        decision, state = decide(targets, memory.record(said, tick * 2.0, targets), replicas, state, tick * 2.0)
        replicas = decision.replicas
    assert replicas <= 3 + 4 / 0.8


def test_strain_adds_one_replica_where_capacity_says_there_is_enough() -> None:
    memory, state, pod = LoadHistory(), AutoscalerState(), Pod(Capacity(1000.0, 14.0))  # it says ten times what it can
    counts = []
    targets = ScalingTargets(1, 20, 1000, objective_s=0.2)
    for tick in range(8):
        load = pod.passes(2.0, rows=18, offered=800, refused=700, queued=10, busy=1.0)
        decision, state = decide(targets, memory.record({"a": load}, tick * 2.0, targets), 1, state, tick * 2.0)
        counts.append(decision.replicas)

    assert counts[:3] == [1, 1, 1]
    assert counts[4:] == [2, 2, 2, 2]


def test_unreachable_pod_counts_for_a_minute_and_replicas_do_not_fall() -> None:
    service = Service(OBJECTIVE)
    service.run(60, 300)
    assert service.replicas == 4
    service.run(700, 300, silent=1)
    assert service.replicas == 4
    service.run(700, 300, silent=4)
    assert service.replicas == 4


def test_after_a_burst_it_comes_back_to_what_is_needed() -> None:
    service = Service(OBJECTIVE)
    service.run(60, 60)
    service.run(60, 600)
    assert service.replicas == 8
    service.run(290, 60)
    assert service.replicas == 8
    service.run(300, 60)
    assert service.replicas == 1
    service.run(600, 60)
    assert service.replicas == 1


def test_an_operator_that_is_killed_in_panic_comes_back_at_the_scale_that_is_there() -> None:
    service = Service(OBJECTIVE)
    service.run(10, 600)
    assert service.replicas == 8
    service.restart_operator()
    service.run(60, 10)
    assert service.replicas == 8


def test_full_cluster_gets_no_more_replicas_until_nodes_have_capacity() -> None:
    service = Service(OBJECTIVE)
    service.run(30, 150)
    assert service.replicas == 2
    service.run(30, 600, full=1)
    assert service.replicas == 2
    assert service.decisions[-1].limit is ScalingLimit.CAPACITY
    service.run(10, 600)
    assert service.replicas == 8


@given(
    st.lists(st.tuples(st.floats(0, 200), st.none() | st.integers(0, 500), st.booleans()), max_size=30),
    st.integers(0, 20),
)
def test_count_is_within_bounds_and_never_below_the_recommendation(
    ticks: list[tuple[float, int | None, bool]], start: int
) -> None:
    scale, now_s = Scale(replicas=start), 0.0
    for delay_s, rows, complete in ticks:
        now_s += delay_s
        replicas = scale.at(now_s, rows, complete=complete)
        assert 1 <= replicas <= 8
        if rows is not None:
            assert replicas >= TARGETS.within(-(-rows // 10))


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_load_history_is_bounded(loads: list[int]) -> None:
    scale = Scale()
    for tick, rows in enumerate(loads * 20):
        scale.at(tick * 2.0, rows)
    assert len(scale.state.recommendations) <= TARGETS.maximum


@pytest.mark.parametrize("bad", [(-1, 1, 1), (2, 1, 1), (0, 0, 1), (1, 1, 0)])
def test_contradictory_scaling_targets_are_rejected(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="minReplicas"):
        ScalingTargets(*bad)


def test_target_of_one_row_per_replica_is_valid() -> None:
    assert ScalingTargets(1, 1, 1).within(5) == 1


@example([(0.0, 1), (1042.0, 9)], 1.0)
@example([(95.0, 1), (569.0, 6)], 1.0)
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 3000), st.integers(1, 40)), min_size=1, max_size=6),
    st.floats(1, 120),
)
def test_replicas_converge_to_the_recommendation_for_any_load(phases: list[tuple[float, int]], start_s: float) -> None:
    service = Service(OBJECTIVE, start_s=start_s)
    # The most that is ever asked for, refused or not, and one for strain.
    most = int(max(offered for offered, _ in phases) / (0.8 * 94.7)) + 2
    for offered, ticks in phases:
        for _ in range(ticks):
            # Pods that refuse a little are full: they hold 18 rows each, where 10.8 are wanted.
            # A refusal asks for one more.
            full = math.ceil(service.replicas * 18 / 10.8) + 1
            service.run(2, offered)
            most = max(most, full) if service.refused_per_s else most
            assert 1 <= service.replicas <= OBJECTIVE.within(most)
    last = phases[-1][0]
    service.run(700, last)
    assert service.refused_per_s == 0 or service.replicas == 20
    assert service.replicas <= OBJECTIVE.within(int(1.1 * last / (0.8 * 94.7)) + 1)
