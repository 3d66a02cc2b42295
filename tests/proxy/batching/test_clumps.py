import random

import pytest

from shoal_proxy.batching.early_batches import MAX_HOLD_S, PATIENCE_S, Clumps


def after(gaps_s: list[float]) -> tuple[Clumps, float]:
    clumps, now_s = Clumps(), 100.0
    for gap_s in gaps_s:
        now_s += gap_s
        clumps.arrived(now_s)
    return clumps, now_s


def test_arrivals_in_clumps_are_worth_a_moment_of_patience() -> None:
    clumps, now_s = after([0.05, 0.00001, 0.00001, 0.00001] * 100)

    assert clumps.hold_s(now_s, now_s) == pytest.approx(PATIENCE_S)
    assert clumps.hold_s(now_s + PATIENCE_S / 2, now_s) == pytest.approx(PATIENCE_S / 2)
    assert clumps.hold_s(now_s + PATIENCE_S, now_s) == pytest.approx(0, abs=1e-9)


def test_the_first_of_a_clump_waits_a_millisecond_at_most() -> None:
    clumps, now_s = after([0.05, 0.00001, 0.00001, 0.00001] * 100)

    assert clumps.hold_s(now_s, now_s - MAX_HOLD_S) == 0


def test_independent_arrivals_are_never_held_for() -> None:
    chance = random.Random(1)
    clumps, now_s = after([chance.expovariate(1000) for _ in range(1000)])

    assert clumps.hold_s(now_s, now_s) == 0


def test_a_first_request_finds_no_patience() -> None:
    clumps, now_s = after([1.0])

    assert clumps.hold_s(now_s, now_s) == 0


def test_what_is_left_of_the_millisecond_is_all_that_a_clump_is_held_for() -> None:
    clumps, now_s = after([0.05, 0.00001, 0.00001, 0.00001] * 100)

    assert clumps.hold_s(now_s, now_s - 0.0009) == pytest.approx(0.0001)


def test_one_clump_is_no_habit() -> None:
    clumps, now_s = after([*[0.05] * 20, *[0.00001] * 10])

    assert clumps.hold_s(now_s, now_s) == 0
