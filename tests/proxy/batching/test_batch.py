from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.batch import Batch, BatchResult, make_batch, merge, split
from shoal_proxy.batching.pending import Outcome, PendingRequest, RequestResult
from shoal_proxy.batching.queue import Queue, QueueLimits
from shoal_proxy.errors import ModelFailed, RowsFailed
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError
from tests.fakes import tensor
from tests.proxy.signatures import deliver_outcome, request, signature

MODEL = signature([tensor("x", "INT64", [-1, 2])], [tensor("y", "INT64", [-1, 2]), tensor("z", "INT64", [-1])])


@dataclass
class Client:
    """A request and every outcome that was delivered for it."""

    pending: PendingRequest
    rows: Array
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def answer(self) -> RequestResult:
        (outcome,) = self.outcomes
        assert isinstance(outcome, RequestResult)
        return outcome


def client(rows: Array) -> Client:
    outcomes: list[Outcome] = []
    return Client(request({"x": rows}, deliver=outcomes.append), rows, outcomes)


def clients(*sizes: int) -> list[Client]:
    """Return clients whose rows are numbered through, so that no two rows are alike."""
    starts = np.cumsum([0, *sizes])
    return [
        client(np.stack([np.arange(start, start + size)] * 2, axis=1))
        for start, size in zip(starts[:-1].tolist(), sizes, strict=True)
    ]


def batches_of(everyone: list[Client], max_rows: int) -> list[Batch]:
    queue = Queue(QueueLimits(10**6, 10**9))
    for one in everyone:
        queue.add(one.pending)
    batches = []
    while queue.groups:
        batches.append(make_batch(queue.dequeue(next(iter(queue.groups.values())), max_rows)))
    return batches


def run(batch: Batch, failing: frozenset[int] = frozenset()) -> BatchResult:
    """Execute the row-wise model y = 3 x + 1, z = x[0], on the merged rows; rows numbered in ``failing`` fail."""
    merged = merge(batch, MODEL).inputs["x"]
    x = np.concatenate(merged) if isinstance(merged, tuple) else merged
    assert len(x) == batch.rows
    bad = [row for row, number in enumerate(x[:, 0].tolist()) if number in failing]
    good = np.delete(x, bad, axis=0)
    errors = [RowError(row, 400, f"number {x[row, 0]}") for row in bad]
    return BatchResult({"y": 3 * good + 1, "z": good[:, 0]}, errors)


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    max_rows=st.integers(1, 8),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_each_client_gets_exactly_its_own_rows(sizes: list[int], max_rows: int, data: st.DataObject) -> None:
    everyone = clients(*sizes)
    failing = data.draw(st.frozensets(st.integers(0, sum(sizes) - 1), max_size=4))
    gone = data.draw(st.sets(st.sampled_from(range(len(sizes))), max_size=2))
    batches = data.draw(st.permutations(batches_of(everyone, max_rows)))
    leaves_before = data.draw(st.integers(0, len(batches)))

    for number, batch in enumerate(batches):
        if number == leaves_before:
            for index in gone:
                everyone[index].pending.abandon()
        deliver_outcome(split(batch, run(batch, failing), MODEL))

    for index, one in enumerate(everyone):
        if index in gone and not one.outcomes:
            continue
        (outcome,) = one.outcomes
        numbers = one.rows[:, 0].tolist()
        own_failures = [row for row, number in enumerate(numbers) if number in failing]
        if own_failures:
            assert isinstance(outcome, RowsFailed)
            assert [(e.row, e.message) for e in outcome.errors] == [(r, f"number {numbers[r]}") for r in own_failures]
        else:
            assert isinstance(outcome, RequestResult)
            np.testing.assert_array_equal(outcome.outputs["y"], 3 * one.rows + 1)
            np.testing.assert_array_equal(outcome.outputs["z"], one.rows[:, 0])


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), wrong=st.integers(-3, 3).filter(bool))
def test_a_wrong_row_count_fails_the_batch_and_resolves_no_request(sizes: list[int], wrong: int) -> None:
    everyone = clients(*sizes)
    (batch,) = batches_of(everyone, 100)
    rows = max(0, batch.rows + wrong) if batch.rows + wrong != 0 else 0
    answer = run(batch)

    with pytest.raises(ModelFailed, match="of 'z'"):
        deliver_outcome(split(batch, BatchResult({**answer.outputs, "z": np.zeros(rows, np.int64)}), MODEL))

    assert [one.outcomes for one in everyone] == [[]] * len(everyone)


@pytest.mark.parametrize(
    ("outputs", "rows", "message"),
    [
        pytest.param({"y": np.zeros((2, 2))}, [3], "range", id="a row behind the batch"),
        pytest.param({"y": np.zeros((2, 2))}, [-1], "range", id="a negative row"),
        pytest.param({"y": np.zeros((1, 2))}, [1, 1], "duplicate", id="a row twice"),
        pytest.param({"y": np.zeros((3, 2))}, [1], "3 rows of 'y'", id="rows and errors add up to too many"),
        pytest.param({"y": np.zeros(())}, [], "no rows of 'y'", id="a scalar"),
        pytest.param({}, [], "no outputs", id="no output"),
        pytest.param({"y": np.zeros((3, 2)), "z": np.zeros(2)}, [], "2 rows of 'z'", id="one output of two is short"),
    ],
)
def test_a_result_that_would_need_guessing_is_rejected(
    outputs: dict[str, Array], rows: list[int], message: str
) -> None:
    everyone = clients(2, 1)
    (batch,) = batches_of(everyone, 100)

    with pytest.raises(ModelFailed, match=message):
        deliver_outcome(split(batch, BatchResult(outputs, [RowError(row, 400, "bad") for row in rows]), MODEL))

    assert [one.outcomes for one in everyone] == [[], []]


def test_a_row_that_fails_leaves_the_other_clients_alone() -> None:
    first, second, third = everyone = clients(2, 2, 1)
    (batch,) = batches_of(everyone, 100)

    deliver_outcome(split(batch, run(batch, frozenset({3})), MODEL))

    np.testing.assert_array_equal(first.answer.outputs["z"], [0, 1])
    np.testing.assert_array_equal(third.answer.outputs["z"], [4])
    (outcome,) = second.outcomes
    assert isinstance(outcome, RowsFailed)
    assert (outcome.status, outcome.errors) == (400, (RowError(1, 400, "number 3"),))


def test_all_rows_may_fail_and_leave_no_output() -> None:
    (one,) = clients(2)
    (batch,) = batches_of([one], 100)

    deliver_outcome(split(batch, BatchResult({}, [RowError(1, 422, "b"), RowError(0, 400, "a")]), MODEL))

    (outcome,) = one.outcomes
    assert isinstance(outcome, RowsFailed)
    assert (outcome.message, outcome.status) == ("row 0: a", 400)


def test_a_client_that_disconnects_between_closing_and_merging_does_not_change_the_other_rows() -> None:
    leaving, staying = clients(2, 3)
    (batch,) = batches_of([leaving, staying], 100)
    leaving.pending.abandon()

    deliver_outcome(split(batch, run(batch), MODEL))

    assert leaving.outcomes == []
    np.testing.assert_array_equal(staying.answer.outputs["z"], [2, 3, 4])


def test_the_pieces_of_a_split_request_must_fit_together() -> None:
    (one,) = clients(3)
    first, second = batches_of([one], 2)
    deliver_outcome(split(first, BatchResult({"y": np.zeros((2, 5))}), MODEL))

    deliver_outcome(split(second, BatchResult({"y": np.zeros((1, 4))}), MODEL))

    (outcome,) = one.outcomes
    assert isinstance(outcome, ModelFailed)
    assert "2 batches" in outcome.message
    assert "unpad_axis" in outcome.message


def test_a_whole_request_alone_travels_without_a_copy() -> None:
    (one,) = clients(3)
    (batch,) = batches_of([one], 100)

    assert merge(batch, MODEL).inputs["x"] is one.rows


@pytest.mark.parametrize(("columns", "apart"), [(250, False), (16_000, True)], ids=["2 KB", "128 KB"])
def test_large_rows_travel_from_where_they_lie_and_small_ones_are_copied_together(columns: int, *, apart: bool) -> None:
    everyone = [client(np.ones((1, columns))) for _ in range(3)]

    merged = merge(batches_of(everyone, 100)[0], MODEL).inputs["x"]

    assert isinstance(merged, tuple) is apart


def test_merging_counts_elements() -> None:
    merged = merge(batches_of(clients(3, 2), 100)[0], MODEL)

    assert (merged.elements, merged.padded_elements) == (10, 0)


class TestAModelThatDoesNotBatch:
    model = signature([tensor("x", "FP32", [3])], [tensor("y", "FP32", [5, 2])])

    def batch(self) -> tuple[Client, Batch]:
        one = client(np.zeros(3, np.float32))
        one.pending.rows = 1
        (batch,) = batches_of([one], 100)
        return one, batch

    def test_gives_its_whole_output_to_its_only_client(self) -> None:
        one, batch = self.batch()

        deliver_outcome(split(batch, BatchResult({"y": np.ones((5, 2))}), self.model))

        assert one.answer.outputs["y"].shape == (5, 2)

    def test_may_fail_its_row(self) -> None:
        one, batch = self.batch()

        deliver_outcome(split(batch, BatchResult({}, [RowError(0, 400, "too dark")]), self.model))

        (outcome,) = one.outcomes
        assert isinstance(outcome, RowsFailed)

    @pytest.mark.parametrize(
        "result",
        [
            pytest.param(BatchResult({}), id="no output"),
            pytest.param(BatchResult({"y": np.ones((5, 2))}, [RowError(1, 400, "?")]), id="an error of another row"),
        ],
    )
    def test_cannot_respond_with_neither_output_nor_error(self, result: BatchResult) -> None:
        one, batch = self.batch()

        with pytest.raises(ModelFailed):
            deliver_outcome(split(batch, result, self.model))

        assert one.outcomes == []
