"""The law: up at once, down to the highest want of five minutes, hold without data."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.autoscaler.law import Decision, Law, Load, State, decide
from shoal_schema.conditions import Reason

LAW = Law(minimum=1, maximum=8, target_queue_depth=10)


class Service:
    """A service whose scale is what the law last said, unless a person says otherwise."""

    def __init__(self, replicas: int = 1, law: Law = LAW) -> None:
        self.replicas, self.law, self.state = replicas, law, State()

    def at(self, now_s: float, rows: int | None, *, complete: bool = True) -> int:
        load = None if rows is None else Load(rows, complete)
        decision, self.state = decide(self.law, load, self.replicas, self.state, now_s)
        self.replicas = decision.replicas
        return self.replicas


@pytest.mark.parametrize(
    ("rows", "replicas"),
    [(0, 1), (1, 1), (10, 1), (11, 2), (75, 8), (1000, 8)],
)
def test_the_count_is_the_total_over_the_target_within_the_bounds(rows: int, replicas: int) -> None:
    assert Service().at(0, rows) == replicas


def test_up_at_once_and_down_to_the_highest_want_of_five_minutes() -> None:
    service = Service()

    assert service.at(0, 45) == 5
    assert service.at(100, 25) == 5
    assert service.at(200, 0) == 5
    assert service.at(299, 0) == 5
    assert service.at(301, 0) == 3
    assert service.at(401, 0) == 1


def test_a_shorter_window_lets_the_count_fall_sooner() -> None:
    _, state = decide(LAW, Load(45, complete=True), 1, State(), 0, window_s=5)
    idle = Load(0, complete=True)

    assert decide(LAW, idle, 5, state, 4, window_s=5)[0].replicas == 5
    assert decide(LAW, idle, 5, state, 6, window_s=5)[0].replicas == 1


def test_a_restart_of_the_operator_keeps_the_scale_for_five_minutes() -> None:
    service = Service(replicas=6)

    assert service.at(1000, 0) == 6
    assert service.at(1299, 0) == 6
    assert service.at(1301, 0) == 1


def test_a_number_set_by_hand_is_taken_at_once_and_held() -> None:
    service = Service()
    service.at(0, 75)
    service.replicas = 3

    assert service.at(2, 5) == 3
    assert service.at(301, 5) == 3
    assert service.at(303, 5) == 1


def test_load_overrules_a_number_set_by_hand_that_is_too_low() -> None:
    service = Service()
    service.at(0, 75)
    service.replicas = 1

    assert service.at(2, 75) == 8


def test_a_number_set_by_hand_outside_the_bounds_is_brought_back() -> None:
    assert Service(replicas=20).at(0, 0) == 8
    assert Service(replicas=0).at(0, 0) == 1


def test_without_data_the_count_holds_and_is_not_lost_afterwards() -> None:
    service = Service()
    service.at(0, 75)

    assert service.at(1000, None) == 8
    assert service.at(1002, 0) == 8
    assert service.at(1303, 0) == 1


def test_with_half_the_data_the_count_may_rise_and_not_fall() -> None:
    service = Service()
    service.at(0, 40)

    assert service.at(1000, 5, complete=False) == 4
    assert service.at(1002, 60, complete=False) == 6


def test_a_short_gap_is_nobodys_business_and_a_long_one_is_told() -> None:
    decision, state = decide(LAW, Load(5, complete=True), 1, State(), 0)
    assert decision == Decision(1, Reason.FOLLOWING_LOAD)
    decision, state = decide(LAW, None, 1, state, 2)
    assert decision.reason is None
    decision, state = decide(LAW, None, 1, state, 32)
    assert decision.reason is Reason.NO_LOAD_DATA
    decision, _ = decide(LAW, Load(5, complete=True), 1, state, 34)
    assert decision.reason is Reason.FOLLOWING_LOAD


@given(
    st.lists(st.tuples(st.floats(0, 200), st.none() | st.integers(0, 500), st.booleans()), max_size=30),
    st.integers(0, 20),
)
def test_the_count_is_always_within_bounds_and_never_below_what_complete_load_wants(
    ticks: list[tuple[float, int | None, bool]], start: int
) -> None:
    service, now_s = Service(replicas=start), 0.0
    for delay_s, rows, complete in ticks:
        now_s += delay_s
        replicas = service.at(now_s, rows, complete=complete)
        assert 1 <= replicas <= 8
        if rows is not None:
            assert replicas >= LAW.within(-(-rows // 10))


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_the_memory_stays_small(loads: list[int]) -> None:
    service = Service()
    for tick, rows in enumerate(loads * 20):
        service.at(tick * 2.0, rows)
    assert len(service.state.wants) <= LAW.maximum


@pytest.mark.parametrize("bad", [(0, 1, 1), (2, 1, 1), (1, 1, 0)])
def test_a_law_that_makes_no_sense_is_refused(bad: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="minReplicas"):
        Law(*bad)


def test_one_replica_for_each_row_is_a_law() -> None:
    assert Law(1, 1, 1).within(5) == 1
