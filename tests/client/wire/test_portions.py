import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import errors
from shoal.wire.frames import Rows
from shoal.wire.portions import FIRST_ROWS, MAX_BYTES, MAX_IN_FLIGHT, Portion, Portions, Times
from shoal.wire.signature import Tensor
from shoal_schema.wire.row_errors import RowError
from tests.client.wire.signatures import ADDER, signature

BATCHES = replace(ADDER, max_batch_size=32)
PATIENT = Times(math.inf, 30.0)


def full() -> errors.Overloaded:
    return errors.Overloaded("the queue is full", retry_after_s=2.0, status=503)


def portions(rows: int, times: Times = PATIENT, sign: Any = BATCHES) -> Portions:
    items = np.arange(rows, dtype="f4")[:, None].repeat(3, axis=1)
    return Portions(Rows(items, lambda item: item), sign, times)


def answer(portion: Portion) -> Any:
    return portion.tensors["x"] + 1


def take(plan: Portions, now_s: float = 0.0) -> Portion:
    taken = plan.take(now_s)
    assert taken is not None
    return taken


def sizes_until_done(plan: Portions, took_s: float) -> tuple[list[int], list[int]]:
    """Answer each round of portions after ``took_s``; return rows of each portion, and portions of each round."""
    now_s, rows, rounds = 0.0, [], []
    while not plan.done:
        taken = []
        while portion := plan.take(now_s):
            taken.append(portion)
        assert taken
        now_s += took_s
        rounds.append(len(taken))
        for portion in taken:
            rows.append(portion.rows)
            plan.ended(portion, answer(portion), now_s)
    return rows, rounds


def test_what_fits_a_batch_is_one_call() -> None:
    assert sizes_until_done(portions(32), 0.01) == ([32], [1])


def test_portions_begin_small_and_grow_to_the_models_batch_and_then_go_several_at_a_time() -> None:
    rows, rounds = sizes_until_done(portions(1000), 0.01)

    assert rows[:3] == [FIRST_ROWS, 16, 32]
    assert max(rows) == 32
    assert max(rounds) == MAX_IN_FLIGHT
    assert sum(rows) == 1000


def test_slow_portions_stay_small_and_alone() -> None:
    rows, rounds = sizes_until_done(portions(100), 10.0)

    assert set(rounds) == {1}
    assert rows[:4] == [8, 4, 2, 1]


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.randoms(use_true_random=False))
def test_answers_come_in_order_however_they_end(rows: int, batch: int, chance: Any) -> None:
    plan = portions(rows, sign=replace(ADDER, max_batch_size=batch))
    running: list[Portion] = []
    now_s = 0.0
    while not plan.done:
        while portion := plan.take(now_s):
            running.append(portion)
        now_s += 0.5 + plan.pause_s(now_s)
        if running:
            ended = running.pop(chance.randrange(len(running)))
            refusal: Any = chance.choice([None, None, errors.TooLarge("too large"), full()])
            certain = refusal is None or ended.rows == 1 or ended.refusals or rows <= batch
            plan.ended(ended, answer(ended) if certain else refusal, now_s)

    assert plan.result()[:, 0].tolist() == [row + 1 for row in range(rows)]


def test_what_is_too_large_goes_in_halves_and_so_does_all_that_follows() -> None:
    plan = portions(100)
    plan.ended(take(plan), errors.TooLarge("over the limit", status=413), 1.0)

    assert [(each.start, each.rows) for each in (take(plan, 1.0),)] == [(0, 4)]
    assert plan.error is None


def test_one_row_that_is_too_large_fails_with_its_number() -> None:
    plan = portions(100, sign=replace(ADDER, max_batch_size=1))
    plan.ended(first := take(plan), answer(first), 0.1)
    plan.ended(take(plan, 0.1), errors.TooLarge("over the limit", status=413), 0.2)

    with pytest.raises(errors.TooLarge, match="rows 1 to 1: over the limit") as caught:
        plan.result()
    assert caught.value.may_have_run, "the first row has"


def test_bytes_bound_a_portion_too() -> None:
    pictures = signature((Tensor("image", "BYTES", (-1,)),))
    plan = Portions(Rows([bytes(MAX_BYTES // 3)] * 16, lambda item: item), pictures, PATIENT)

    sizes, starts = [], []
    while not plan.done:
        portion = take(plan)
        sizes.append(portion.rows)
        starts.append(portion.start)
        plan.ended(portion, np.zeros(portion.rows), 0.0)

    assert max(sizes) == 2
    assert starts == sorted(starts)
    assert sum(sizes) == 16


def test_a_full_queue_is_given_time_and_fewer_portions() -> None:
    plan = portions(100)
    now_s = 0.0
    while plan.allowed < 2:
        plan.ended(ended := take(plan, now_s), answer(ended), now_s)
    refused, other = take(plan, 5.0), take(plan, 5.0)

    plan.ended(refused, full(), 6.0)

    assert plan.allowed == 1
    assert plan.pause_s(6.0) == 2.0
    plan.ended(other, answer(other), 7.0)
    assert plan.take(7.0) is None, "not before the server asked for"
    assert take(plan, 8.0) is refused


def test_a_queue_that_stays_full_is_not_waited_for_longer_than_a_portion_may_take() -> None:
    plan = portions(100, Times(math.inf, 5.0))
    now_s = 0.0
    while not plan.done:
        plan.ended(take(plan, now_s), full(), now_s)
        now_s += plan.pause_s(now_s)

    assert now_s == 4.0
    with pytest.raises(errors.Overloaded, match="rows 0 to 7: the queue is full"):
        plan.result()


def test_one_call_that_is_refused_is_the_callers_to_repeat() -> None:
    plan = portions(5)
    plan.ended(take(plan), full(), 1.0)

    with pytest.raises(errors.Overloaded, match=r"^the queue is full"):
        plan.result()


def test_what_may_have_run_is_not_sent_again() -> None:
    plan = portions(100)
    lost = errors.Overloaded("the runtime was lost", retry_after_s=1.0, may_have_run=True)
    plan.ended(take(plan), lost, 1.0)

    assert plan.error is lost


def test_each_portion_has_its_own_time_and_the_call_may_have_one_too() -> None:
    plan = portions(100, Times(ends_s=50.0, portion_s=30.0))

    portion = take(plan, 10.0)
    assert plan.time_of(portion) == 30.0
    plan.ended(portion, answer(portion), 40.0)
    portion = take(plan, 40.0)
    assert plan.time_of(portion) == 10.0
    plan.ended(portion, answer(portion), 50.0)

    assert plan.take(50.0) is None
    with pytest.raises(errors.DeadlineExceeded, match="12 of 100 rows"):
        plan.result()


def test_failed_rows_are_numbered_as_the_caller_knows_them() -> None:
    plan = portions(100)
    plan.ended(first := take(plan), answer(first), 0.0)
    bad = errors.InvalidInput("row 3: one row failed", status=400, errors=(RowError(3, 400, "no picture"),))
    plan.ended(take(plan), bad, 0.0)

    with pytest.raises(errors.InvalidInput, match=r"^row 11: one row failed$") as caught:
        plan.result()
    assert [row.row for row in caught.value.errors] == [11]


def test_an_item_that_does_not_fit_is_named_by_its_own_row() -> None:
    items = [[1.0, 2.0, 3.0]] * 60 + [["a", "b", "c"]]
    plan = Portions(Rows(items, lambda item: item), BATCHES, PATIENT)
    while not plan.done:
        if portion := plan.take(0.0):
            plan.ended(portion, answer(portion), 0.0)

    with pytest.raises(errors.InvalidInput, match=r"^row 60: input x: takes FP32, not text"):
        plan.result()


def test_answers_of_different_shapes_are_no_array() -> None:
    plan = portions(40)
    while not plan.done:
        portion = take(plan)
        plan.ended(portion, np.zeros((portion.rows, portion.rows)), 0.0)

    with pytest.raises(errors.InvalidInput, match="different shapes"):
        plan.result()
