import random
from collections import Counter, deque
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.batch import Batch, make_batch, unresolved_requests
from shoal_proxy.batching.pending import Outcome, PendingRequest, RequestSlice
from shoal_proxy.batching.recovery import EARNED_TRIES, MAX_TRIES, BatchRetries, halve_rows
from shoal_proxy.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    ModelFailed,
    NotExecuted,
    ProxyError,
    RowsFailed,
    RuntimeLost,
    RuntimeUnavailable,
)
from shoal_schema.wire.row_errors import RowError
from tests.proxy.signatures import deliver_outcome, request

Rows = list[tuple[int, int]]


def whole(pending: PendingRequest) -> RequestSlice:
    return RequestSlice(pending, 0, pending.rows, pending.inputs)


def batch_of(*sizes: int, attempts: int = 0) -> Batch:
    return make_batch([whole(request(size)) for size in sizes], attempts)


def rows_of(slices: list[RequestSlice]) -> list[tuple[int, int]]:
    return [(id(part.pending), row) for part in slices for row in range(part.start, part.stop)]


def sizes(batches: object) -> list[int]:
    assert isinstance(batches, list | tuple)
    return [batch.rows for batch in batches]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_halving_keeps_every_row_once_and_in_order(requests: list[int]) -> None:
    slices = list(batch_of(*requests).slices)

    halves = halve_rows(slices)

    if sum(requests) == 1:
        assert halves == []
        return
    first, second = (rows_of(half) for half in halves)
    assert first + second == rows_of(slices)
    assert 0 <= len(first) - len(second) <= 1


@given(st.lists(st.integers(1, 9), min_size=2, max_size=9), st.data())
def test_bisecting_keeps_every_client_that_still_waits_once(requests: list[int], data: st.DataObject) -> None:
    batch = batch_of(*requests)
    gone = data.draw(st.sets(st.sampled_from(range(len(requests)))))
    for index in gone:
        batch.slices[index].pending.abandon()

    pieces = BatchRetries().batches_to_retry(batch, ModelFailed("no"))

    waiting = [part for part in batch.slices if not part.pending.resolved]
    assert [part for piece in pieces for part in piece.slices] == waiting
    assert all(piece.attempts == 1 for piece in pieces)


@pytest.mark.parametrize(
    ("error", "idempotent", "attempts", "expected"),
    [
        pytest.param(BatchTooLarge("no"), False, 0, [4, 3], id="out of memory: half the rows"),
        pytest.param(BatchTooLarge("no"), False, 5, [4, 3], id="out of memory again"),
        pytest.param(ModelFailed("no"), False, 0, [2, 5], id="the model failed: half the callers"),
        pytest.param(InvalidRequest("no"), False, 0, [2, 5], id="the model refused"),
        pytest.param(NotExecuted("no"), False, 0, [7], id="it never ran"),
        pytest.param(NotExecuted("no"), False, 1, [], id="it never ran, again"),
        pytest.param(RuntimeLost("no"), False, 0, [], id="it may have run"),
        pytest.param(RuntimeLost("no"), True, 0, [2, 5], id="it may run twice: each request alone"),
        pytest.param(RuntimeLost("no"), True, 1, [2, 5], id="parts of a failed batch, lost"),
        pytest.param(RuntimeUnavailable("no"), True, 0, [], id="the runtime is away"),
        pytest.param(DeadlineExceeded("no"), True, 0, [], id="too late"),
        pytest.param(Draining("no"), True, 0, [], id="stopping"),
        pytest.param(RowsFailed([RowError(0, 400, "no")]), True, 0, [], id="rows failed on their own"),
    ],
)
def test_what_is_tried_again(error: ProxyError, *, idempotent: bool, attempts: int, expected: list[int]) -> None:
    assert (
        sizes(BatchRetries(idempotent=idempotent).batches_to_retry(batch_of(2, 5, attempts=attempts), error))
        == expected
    )


@pytest.mark.parametrize("error", [ModelFailed("no"), InvalidRequest("no")])
def test_a_client_that_is_alone_gets_the_error(error: ProxyError) -> None:
    assert sizes(BatchRetries().batches_to_retry(batch_of(7), error)) == []


def test_a_single_row_that_does_not_fit_gets_the_error() -> None:
    assert sizes(BatchRetries().batches_to_retry(batch_of(1), BatchTooLarge("no"))) == []


@pytest.mark.parametrize(("attempts", "expected"), [(0, [7]), (1, [])])
def test_a_request_that_is_lost_alone_is_retried_once(attempts: int, expected: list[int]) -> None:
    pieces = BatchRetries(idempotent=True).batches_to_retry(batch_of(7, attempts=attempts), RuntimeLost("no"))

    assert sizes(pieces) == expected
    assert all(piece.suspect for piece in pieces)


def test_a_remaining_request_is_not_blamed_for_a_cancelled_one() -> None:
    batch = batch_of(1, 1)
    batch.slices[0].pending.abandon()

    (alone,) = BatchRetries().batches_to_retry(batch, ModelFailed("no"))

    assert alone.slices == (batch.slices[1],)
    assert sizes(BatchRetries().batches_to_retry(alone, ModelFailed("no"))) == []


@pytest.mark.parametrize("error", [ModelFailed("no"), BatchTooLarge("no"), NotExecuted("no"), RuntimeLost("no")])
def test_nothing_runs_for_clients_that_have_all_gone(error: ProxyError) -> None:
    batch = batch_of(2, 2)
    for part in batch.slices:
        part.pending.abandon()

    assert sizes(BatchRetries(idempotent=True).batches_to_retry(batch, error)) == []


def settle(recovery: BatchRetries, batches: list[Batch], outcome_of: Callable[[Batch], ProxyError | None]) -> int:
    """Run ``batches`` and whatever is tried again; return how many batches the runtime got."""
    waiting, ran = deque(batches), 0
    while waiting:
        batch = waiting.popleft()
        ran += 1
        if (error := outcome_of(batch)) is None:
            recovery.record_success(batch)
            for part in batch.slices:
                part.pending.parts.append((part.start, {}))
                if (outcome := part.pending.finish(part.rows)) is not None:
                    deliver_outcome([part.pending.resolve(outcome)])
        elif pieces := recovery.batches_to_retry(batch, error):
            waiting.extendleft(reversed(pieces))
        else:
            deliver_outcome([pending.resolve(error) for pending in unresolved_requests(batch)])
    return ran


@pytest.mark.parametrize("error", [ModelFailed("no"), BatchTooLarge("no"), NotExecuted("no"), RuntimeLost("no")])
def test_a_model_that_always_fails_costs_little_more_than_its_load(error: ProxyError) -> None:
    ran = settle(BatchRetries(idempotent=True), [batch_of(*[1] * 32) for _ in range(100)], lambda batch: error)

    assert ran <= 100 + MAX_TRIES


def test_a_rejection_is_given_to_no_other_client_though_no_tries_are_left() -> None:
    recovery = BatchRetries()
    settle(recovery, [batch_of(*[1] * 32) for _ in range(10)], lambda batch: ModelFailed("no"))
    assert sizes(recovery.batches_to_retry(batch_of(1, 1), ModelFailed("no"))) == []

    culprit, *innocent = requests = [request(1) for _ in range(32)]
    batch = make_batch([whole(pending) for pending in requests])

    def outcome_of(batch: Batch) -> ProxyError | None:
        return InvalidRequest("no") if any(part.pending is culprit for part in batch.slices) else None

    ran = settle(recovery, [batch], outcome_of)

    assert ran == 11
    assert all(pending.finished == 1 for pending in innocent)
    assert culprit.finished == 0


def test_each_response_earns_retries() -> None:
    recovery = BatchRetries()
    poison = [batch_of(*[1] * 32) for _ in range(10)]
    settle(recovery, poison, lambda batch: ModelFailed("no"))
    assert sizes(recovery.batches_to_retry(batch_of(1, 1), ModelFailed("no"))) == []

    settle(recovery, [batch_of(1)], lambda batch: None)

    for _ in range(EARNED_TRIES // 2):
        assert sizes(recovery.batches_to_retry(batch_of(1, 1), ModelFailed("no"))) == [1, 1]
    assert sizes(recovery.batches_to_retry(batch_of(1, 1), ModelFailed("no"))) == []


@pytest.mark.parametrize("error", [ModelFailed("no"), BatchTooLarge("no")])
@pytest.mark.parametrize("culprits", [1, 2, 3, 8, 16])
def test_failing_requests_in_every_batch_take_no_innocent_with_them(culprits: int, error: ProxyError) -> None:
    chance = random.Random(1)
    failed: Counter[bool] = Counter()

    def made(*, guilty: bool) -> PendingRequest:
        def deliver(outcome: Outcome) -> None:
            failed[guilty] += isinstance(outcome, ProxyError)

        return request({"x": np.full((1, 1), guilty)}, deliver=deliver)

    recovery, ran, batches = BatchRetries(), 0, 300
    for _ in range(batches):
        guilty = set(chance.sample(range(32), culprits))
        batch = make_batch([whole(made(guilty=number in guilty)) for number in range(32)])
        ran += settle(
            recovery, [batch], lambda batch: error if any(part.inputs["x"].any() for part in batch.slices) else None
        )

    assert failed == {True: culprits * batches, False: 0}
    assert ran <= batches * (1 + 10 * culprits)


def test_a_model_that_responds_to_few_requests_costs_no_more_than_they_are_worth() -> None:
    chance = random.Random(1)
    answered: list[Outcome] = []
    batches = [make_batch([whole(request(1, deliver=answered.append)) for _ in range(32)]) for _ in range(300)]

    ran = settle(BatchRetries(), batches, lambda batch: ModelFailed("no") if chance.random() < 0.97 else None)

    served = sum(not isinstance(outcome, ProxyError) for outcome in answered)
    assert len(answered) == 300 * 32
    assert ran <= 300 + MAX_TRIES + EARNED_TRIES * served


@given(
    requests=st.lists(st.integers(1, 5), min_size=1, max_size=16),
    holds=st.integers(1, 40),
    data=st.data(),
)
@settings(deadline=None)
def test_every_request_ends_with_exactly_one_outcome_and_only_the_failing_requests_fail(
    requests: list[int], holds: int, data: st.DataObject
) -> None:
    outcomes: Counter[int] = Counter()
    failed: set[int] = set()
    poison = data.draw(st.sets(st.sampled_from(range(len(requests))), max_size=2))

    def made(index: int, rows: int) -> PendingRequest:
        def deliver(outcome: Outcome) -> None:
            outcomes[index] += 1
            if isinstance(outcome, ProxyError):
                failed.add(index)

        return request({"x": np.full((rows, 1), index)}, deliver=deliver)

    def outcome_of(batch: Batch) -> ProxyError | None:
        if batch.rows > holds:
            return BatchTooLarge("too large")
        hit = any(int(part.inputs["x"][0, 0]) in poison for part in batch.slices)
        return ModelFailed("poison") if hit else None

    settle(BatchRetries(), [make_batch([whole(made(*item)) for item in enumerate(requests)])], outcome_of)

    assert outcomes == dict.fromkeys(range(len(requests)), 1)
    assert poison <= failed
    if holds >= sum(requests):
        assert failed == poison


def test_each_client_that_gets_a_response_pays_for_a_few_tries() -> None:
    recovery, pair = BatchRetries(), batch_of(1, 1)
    while recovery.batches_to_retry(pair, ModelFailed("no")):
        pass
    recovery.record_success(batch_of(1, 1, 1))

    attempts = 0
    while recovery.batches_to_retry(pair, ModelFailed("no")):
        attempts += 2
    assert 3 <= attempts <= 3 * 8
