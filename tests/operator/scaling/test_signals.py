"""Rates of readings: exact over any interval, one minute of memory for who falls silent."""

from collections.abc import Iterable
from dataclasses import replace as replaced
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal_operator.scaling.signals import LONG_S, MAX_WEIGHT, LoadHistory, Signals
from shoal_operator.scaling.targets import ScalingTargets
from shoal_schema.interfaces.load import Capacity
from tests.operator.loads import NOTHING, Pod, holding

TARGETS = ScalingTargets(minimum=1, maximum=50, target_queue_depth=None, objective_s=0.2)


def heard(memory: LoadHistory, said: dict[str, Pod], now_s: float) -> Signals:
    signals = memory.record({uid: pod.load for uid, pod in said.items()}, now_s, TARGETS)
    assert signals is not None
    return signals


@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=10))
def test_a_mean_is_exact_however_seldom_it_is_read(pauses_s: list[float]) -> None:
    memory, pod, now_s = LoadHistory(), Pod(), 0.0
    heard(memory, {"a": pod}, now_s)
    for pause_s in pauses_s:
        now_s += pause_s
        pod.passes(pause_s / 2, rows=4)
        pod.passes(pause_s / 2, rows=12)
        signals = heard(memory, {"a": pod}, now_s)

    assert signals.last.rows == pytest.approx(8)
    assert signals.short.rows == pytest.approx(8, rel=0.02)
    assert signals.long.rows == pytest.approx(8, rel=0.02)


def test_the_short_window_sees_a_step_in_six_seconds_and_the_long_one_in_sixty() -> None:
    memory, pod = LoadHistory(), Pod()
    for tick in range(120):
        pod.passes(2.0, rows=10 if tick < 90 else 40)
        signals = heard(memory, {"a": pod}, tick * 2.0)
        if tick == 92:
            assert signals.short.rows == pytest.approx(40)
            assert signals.long.rows == pytest.approx(10 + 30 * 6 / 60)
    assert signals.long.rows == pytest.approx(40)


def test_pods_add_up_and_what_was_forwarded_counts_where_it_went() -> None:
    memory, pods = LoadHistory(), {"a": Pod(), "b": Pod()}
    heard(memory, pods, 0.0)
    for pod in pods.values():
        pod.passes(10.0, rows=3, offered=20, refused=5)
    pods["a"].load = replace(pods["a"].load, forwarded_rows=100)
    signals = heard(memory, pods, 10.0)

    assert signals.last.rows == pytest.approx(6)
    assert signals.last.offered_rows_per_s == pytest.approx(20 + 10)
    assert signals.last.rejected_rows_per_s == pytest.approx(10)


def test_first_reading_yields_only_current_rows() -> None:
    pod = Pod()
    pod.passes(5000.0, rows=100, offered=50)
    pod.load = replace(pod.load, queued_rows=7, running_rows=2)

    signals = heard(LoadHistory(), {"a": pod}, 10.0)

    assert signals.long.rows == 9
    assert signals.long.offered_rows_per_s == 0


@pytest.mark.parametrize("name", ["time_s", "arrived_rows", "answered_rows", "row_seconds"])
def test_a_pod_whose_counters_went_back_has_begun_again(name: str) -> None:
    memory, pod = LoadHistory(), Pod()
    pod.passes(100.0, rows=50, offered=30)
    heard(memory, {"a": pod}, 0.0)
    pod.passes(2.0, rows=50, offered=30, queued=3)
    pod.load = replace(pod.load, **{name: type(getattr(NOTHING, name))(1)})

    signals = heard(memory, {"a": pod}, 2.0)

    assert signals.last.rows == pod.load.queued_rows + pod.load.running_rows


def test_a_silent_pod_keeps_its_rates_for_a_minute_and_is_no_complete_data() -> None:
    memory, talks, silent = LoadHistory(), Pod(), Pod()
    heard(memory, {"a": talks, "b": silent}, 0.0)
    silent.passes(2.0, rows=30)
    heard(memory, {"a": talks, "b": silent}, 2.0)
    for tick in range(2, 40):
        talks.passes(2.0, rows=1)
        signals = memory.record({"a": talks.load, "b": None}, tick * 2.0, TARGETS)
        assert signals is not None
        assert not signals.complete
        assert signals.last.rows == pytest.approx(31 if tick * 2.0 < 2.0 + LONG_S else 1)


def test_a_pod_that_is_gone_counts_no_more_at_once() -> None:
    memory, stays, goes = LoadHistory(), Pod(), Pod()
    heard(memory, {"a": stays, "b": goes}, 0.0)
    goes.passes(2.0, rows=30)
    stays.passes(2.0, rows=1)
    heard(memory, {"a": stays, "b": goes}, 2.0)
    stays.passes(2.0, rows=1)

    signals = heard(memory, {"a": stays}, 4.0)

    assert signals.last.rows == pytest.approx(1)
    assert signals.complete


def test_no_readings_yield_no_signals() -> None:
    memory = LoadHistory()
    assert memory.record({}, 0.0, TARGETS) is None
    assert memory.record({"a": None}, 2.0, TARGETS) is None
    assert memory.record({"a": holding(5)}, 4.0, TARGETS) is not None
    assert memory.record({"a": None}, 6.0, TARGETS) is None


def test_wrong_capacity_of_one_pod_is_limited_by_the_median() -> None:
    memory = LoadHistory()
    said = {
        "a": replace(NOTHING, capacity=Capacity(100.0, 10.0)),
        "b": replace(NOTHING, capacity=Capacity(90.0, 9.0)),
        "liar": replace(NOTHING, capacity=Capacity(1e9, 1e9)),
        "new": NOTHING,
    }

    signals = memory.record(said, 0.0, TARGETS)

    assert signals is not None
    assert signals.capacity == Capacity(100.0, 10.0)


def test_slow_pod_clock_does_not_inflate_rates() -> None:
    memory, pod = LoadHistory(), Pod()
    heard(memory, {"a": pod}, 0.0)
    pod.load = replace(pod.load, time_s=pod.load.time_s + 1e-9, arrived_rows=100)

    assert heard(memory, {"a": pod}, 2.0).last.offered_rows_per_s == pytest.approx(100)


def test_a_reading_with_nothing_new_changes_nothing() -> None:
    memory, pod = LoadHistory(), Pod()
    heard(memory, {"a": pod}, 0.0)
    pod.passes(2.0, rows=30)
    before = heard(memory, {"a": pod}, 2.0)

    assert heard(memory, {"a": pod}, 2.0).last == before.last


def test_load_history_holds_one_window() -> None:
    memory, pod = LoadHistory(), Pod()
    for tick in range(1000):
        pod.passes(2.0)
        heard(memory, {"a": pod}, tick * 2.0)

    assert len(memory._ticks) <= LONG_S / 2 + 1


def dispersion_of(counts: Iterable[int]) -> float:
    """Return what is known of arrivals of which so many come in each tick of 2 s."""
    memory, pod = LoadHistory(), Pod()
    for tick, count in enumerate(counts):
        pod.passes(2.0, offered=count / 2)
        signals = heard(memory, {"a": pod}, 2.0 * tick)
    return signals.dispersion


def arriving(chance: np.random.Generator, rows: float, clump: int = 1) -> int:
    """Return how many rows come where so many do on average, in clumps that come independently."""
    return clump * int(chance.poisson(rows / clump))


@pytest.mark.parametrize("clump", [1, 4, 16, 64])
def test_dispersion_is_how_many_rows_come_at_once(clump: int) -> None:
    chance = np.random.default_rng(clump)

    found = [dispersion_of(arriving(chance, 1000, clump) for _ in range(31)) for _ in range(60)]

    assert mean(found) == pytest.approx(clump, rel=0.15)


def test_edges_of_bursts_and_a_ramp_are_not_dispersion() -> None:
    chance = np.random.default_rng(1)
    for rates in ([200] * 15 + [2000] * 16, [200] * 5 + [600] + [1200] * 19 + [600] + [200] * 5, range(200, 2060, 60)):
        found = [dispersion_of(arriving(chance, rate) for rate in rates) for _ in range(20)]
        assert mean(found) < 8, rates


def test_dispersion_is_unknown_with_too_few_ticks_or_without_arrivals() -> None:
    assert dispersion_of([0, 900] * 5) == 0
    assert dispersion_of([0, 900] * 6) > 100
    assert dispersion_of([0] * 31) == 0
    assert dispersion_of([500] * 31) == pytest.approx(0, abs=0.01)


CAPACITY = Capacity(100.0, 14.0)
LIES = {
    "asks for 10^9 rows/s": {"offered": 1e9, "refused": 1e9 - 90, "rows": 18.0},
    "holds 10^5 rows": {"offered": 90.0, "rows": 1e5, "queued": 1e5},
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("others", [2, 3, 20])
def test_wrong_load_of_one_pod_counts_for_a_few_replicas_at_most(lie: str, others: int) -> None:
    memory, liar, honest = LoadHistory(), Pod(CAPACITY), [Pod(CAPACITY) for _ in range(others)]
    for tick in range(40):
        liar.passes(2.0, busy=1, **LIES[lie])
        for pod in honest:
            pod.passes(2.0, offered=50, rows=5, busy=0.5)
        signals = heard(memory, {"liar": liar} | {f"{at}": pod for at, pod in enumerate(honest)}, tick * 2.0)
    assert signals.long.offered_rows_per_s <= 50 * others + MAX_WEIGHT * CAPACITY.rows_per_s + 1e-6
    assert signals.long.rows <= 5 * others + MAX_WEIGHT * 0.8 * CAPACITY.rows + 1e-6
    assert signals.queued_rows <= MAX_WEIGHT * 0.8 * CAPACITY.rows


def test_hot_pod_among_idle_ones_counts_with_its_full_load() -> None:
    memory, pods = LoadHistory(), {name: Pod(CAPACITY) for name in "abcd"}
    heard(memory, pods, 0.0)
    pods["a"].passes(10.0, offered=390, refused=290, rows=18)
    for name in "bcd":
        pods[name].passes(10.0)
    signals = heard(memory, pods, 10.0)
    assert signals.last.offered_rows_per_s == pytest.approx(390)
    assert signals.last.rejected_rows_per_s == pytest.approx(290)
    assert signals.last.rows == pytest.approx(18)


def test_a_burst_that_all_pods_see_counts_whole_however_large_it_is() -> None:
    memory, pods = LoadHistory(), {name: Pod(CAPACITY) for name in "abc"}
    heard(memory, pods, 0.0)
    for pod in pods.values():
        pod.passes(10.0, offered=5000, refused=4900, rows=900)
    signals = heard(memory, pods, 10.0)
    assert signals.last.offered_rows_per_s == pytest.approx(15000)
    assert signals.last.rows == pytest.approx(2700)


def test_no_pod_counts_for_more_rows_than_it_can_hold() -> None:
    targets, pod = replaced(TARGETS, most_rows=1100), Pod()
    memory = LoadHistory()
    memory.record({"a": pod.load}, 0.0, targets)
    signals = memory.record({"a": pod.passes(2.0, rows=1e6, queued=1e6)}, 2.0, targets)
    assert signals is not None
    assert (signals.last.rows, signals.last.queued_rows, signals.queued_rows) == (1100, 1100, 1100)
    first = LoadHistory().record({"a": pod.load}, 0.0, targets)
    assert first is not None
    assert first.last.rows == 1100
