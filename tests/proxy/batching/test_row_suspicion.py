"""What further runs of one row say: whose fault a difference was, and what is random."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from shoal_proxy.batching.batch import BatchResult, make_batch
from shoal_proxy.batching.pending import RequestSlice
from shoal_proxy.batching.row_checks.distance import ResultDistance, Row
from shoal_proxy.batching.row_checks.evidence import BatchTally, RowFinding
from shoal_proxy.batching.row_checks.samples import ROWS_OF_BATCH, SampledBatch, SampleStore, SamplingRules
from shoal_proxy.batching.row_checks.suspicion import BURST_S, GROSS, RerunKind, RowCheckBudget, Suspicion
from tests.proxy.batching.families import LABELS
from tests.proxy.signatures import request

ROWS = 8
Answer = Callable[[RerunKind, int], int]


def kept(labels: list[int], at_s: float = 1.0) -> SampledBatch:
    """Return a kept batch whose clients got these labels."""
    inputs = [{"x": np.full((1, 4), number, np.float32)} for number in range(len(labels))]
    slices = [RequestSlice(request(each, arrived_s=0, deadline_s=9), 0, 1, each) for each in inputs]
    samples = SampleStore(Random(1).randrange)
    samples.add(make_batch(tuple(slices)), BatchResult({"y": np.array(labels)}), SamplingRules(LABELS), at_s)
    [batch] = {sample.batch for sample in samples.take(samples.groups()[0][0], 1)}
    return batch


def run(given: int, again: int, answer: Answer) -> tuple[RowFinding, list[RerunKind]]:
    """Return what is concluded of a row, and the runs; ``answer`` has the label of the copy ``place`` in a trial."""
    batch = kept([given] + [0] * (ROWS - 1))
    row = batch.whole[0]
    suspicion = Suspicion(row, [row, batch.whole[1]], 0, label(again), tally=BatchTally(2), gross=GROSS)
    ruler, trials = ResultDistance({"y": "INT64"}), []
    while (trial := suspicion.trial(ruler)) is not None:
        trials.append(trial)
        rows = ROWS if trial is RerunKind.COPIES else 2
        suspicion.ran(trial, [label(answer(trial, place)) for place in range(rows)], 0)
    return suspicion.conclude(ruler), trials


def label(value: int) -> Row:
    return {"y": np.array([value])}


def test_all_agree_but_the_clients_or_the_checks() -> None:
    assert run(1, 0, lambda *_: 0)[0] is RowFinding.FOREIGN
    assert run(0, 1, lambda *_: 0)[0] is RowFinding.FOREIGN_CHECK


def test_the_clients_batch_as_it_was_is_the_reference() -> None:
    """A tie that falls by the batch is repeated there, and is no foreign result."""
    finding, trials = run(1, 0, lambda trial, _: int(trial is RerunKind.ORIGINAL))

    assert finding is RowFinding.VARIED
    assert trials.count(RerunKind.ORIGINAL) == 1


def test_a_batch_that_was_not_kept_whole_is_no_reference() -> None:
    assert kept([0] * ROWS_OF_BATCH).whole
    assert not kept([0] * (ROWS_OF_BATCH + 1)).whole


def test_the_same_batch_with_other_results_is_random() -> None:
    rng = np.random.default_rng(0)

    assert run(1, 0, lambda *_: int(rng.integers(3)))[0] is RowFinding.RANDOM


@pytest.mark.parametrize("of", [RerunKind.REPEATED, RerunKind.SIZED, RerunKind.ORIGINAL])
def test_other_batches_with_other_results_are_not_random(of: RerunKind) -> None:
    rng = np.random.default_rng(0)

    finding, _ = run(1, 0, lambda trial, _: int(rng.integers(3)) if trial is of else 0)

    assert finding not in {RowFinding.RANDOM, RowFinding.CHANGING}


def test_copies_that_differ_by_their_place_are_not_random() -> None:
    finding, _ = run(1, 0, lambda trial, place: place % 2 if trial is RerunKind.COPIES else 0)

    assert finding is not RowFinding.RANDOM


def test_copies_that_change_together_are_changing_and_one_odd_run_is_unsteady() -> None:
    runs = iter(range(1000))

    def by_run(_: RerunKind, place: int) -> int:
        return (next(runs) if place == 0 else 0) if _ is not RerunKind.COPIES else 7

    def odd(trial: RerunKind, _: int) -> int:
        return int(trial is RerunKind.ALONE and next(runs) % 100 == 0)

    assert run(1, 0, by_run)[0] is RowFinding.CHANGING
    runs = iter(range(100, 10_000))
    assert run(1, 0, odd)[0] is RowFinding.UNSTEADY


def test_a_budget_is_earned_up_to_a_burst_and_waited_for() -> None:
    budget = RowCheckBudget()
    assert budget.wait_s(0.0) > 0
    budget.earn(0.0, 0.0)
    budget.earn(0.0, 1000.0)

    assert budget.left_s == BURST_S
    assert budget.wait_s(0.0) == 0
    budget.spend(BURST_S + 0.0086)
    assert budget.spent_s == pytest.approx(BURST_S + 0.0086)
    assert budget.wait_s(0.0) == pytest.approx(0.1)
    assert budget.wait_s(1.0) > budget.wait_s(0.9) > 1
