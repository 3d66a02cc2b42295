"""Findings about single rows become a violation when they are no longer chance."""

from math import exp, factorial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shoal_proxy.batching.row_checks.evidence import RANDOM, BatchTally, Evidence, RowFinding, at_least_by_chance


@given(found=st.integers(1, 30), expected=st.floats(1e-6, 20))
def test_the_tail_of_a_poisson_distribution(found: int, expected: float) -> None:
    exact = sum(exp(-expected) * expected**each / factorial(each) for each in range(found, found + 120))

    tail = at_least_by_chance(found, expected)

    assert tail == (1.0 if expected > found else pytest.approx(exact, rel=1e-6))


def test_an_exchange_is_enough() -> None:
    assert Evidence(checked=1).add(RowFinding.EXCHANGED, BatchTally(8))


def test_two_foreign_rows_of_one_batch_are_enough_where_they_are_rare() -> None:
    for checked, enough in ((100, False), (100_000, True)):
        evidence, tally = Evidence(checked=checked), BatchTally(8)
        assert not evidence.add(RowFinding.FOREIGN, tally)
        assert evidence.add(RowFinding.FOREIGN, tally) == enough


def test_foreign_rows_one_by_one_are_reported_and_no_violation() -> None:
    evidence = Evidence(checked=100_000)

    assert not any(evidence.add(RowFinding.FOREIGN, BatchTally(8)) for _ in range(100))
    assert evidence.varies == 100


def test_clumps_of_foreign_rows_add_up() -> None:
    evidence = Evidence(checked=3000)
    found = []
    for _ in range(6):
        tally = BatchTally(8)
        found += [evidence.add(RowFinding.FOREIGN, tally), evidence.add(RowFinding.FOREIGN, tally)]

    assert not any(found[:2])
    assert found[-1]


@pytest.mark.parametrize("share", [0.001, 0.01, 0.03])
@pytest.mark.parametrize("rows", [2, 8, 32])
def test_rows_that_are_foreign_by_chance_are_no_violation(share: float, rows: int) -> None:
    """In 30 services of 20,000 rows, whose rows are foreign one by one."""
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(30):
        evidence = Evidence()
        for batch in rng.random((20_000 // rows, rows)) < share:
            evidence.checked += rows
            tally = BatchTally(rows)
            alarms += any(evidence.add(RowFinding.FOREIGN, tally) for foreign in batch if foreign)

    assert alarms == 0


def test_results_that_follow_the_batch_are_a_violation_only_where_ties_do_not_explain_them() -> None:
    for suspected, expected in ((30, False), (500, True)):
        evidence = Evidence(checked=1000, suspected=suspected)
        assert any(evidence.add(RowFinding.VARIED, BatchTally(8)) for _ in range(20)) == expected
        assert evidence.varies > 0


def test_results_that_follow_the_batch_prove_nothing_of_a_model_that_is_random() -> None:
    evidence = Evidence(checked=1000, suspected=500)
    evidence.add(RowFinding.RANDOM, BatchTally(8))

    assert not any(evidence.add(RowFinding.VARIED, BatchTally(8)) for _ in range(20))


def test_two_rows_that_depend_on_their_neighbours_are_enough() -> None:
    evidence = Evidence(checked=10)

    assert not evidence.add(RowFinding.DEPENDENT, BatchTally(8))
    assert evidence.add(RowFinding.DEPENDENT, BatchTally(8))


@pytest.mark.parametrize(
    ("finding", "reason"),
    [
        (RowFinding.RANDOM, "RandomResults"),
        (RowFinding.CHANGING, "ChangingResults"),
        (RowFinding.UNSTEADY, ""),
        (RowFinding.NOISE, ""),
        (RowFinding.FOREIGN, ""),
    ],
)
def test_only_what_differs_in_the_same_batch_ends_the_checks(finding: RowFinding, reason: str) -> None:
    evidence = Evidence(checked=1000)
    for _ in range(RANDOM):
        assert not evidence.unchecked
        assert not evidence.add(finding, BatchTally(8))

    assert evidence.unchecked == reason
