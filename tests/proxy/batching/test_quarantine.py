"""The scheduler after clients' requests were lost with a runtime: trials, pauses, and other clients meanwhile."""

import numpy as np
import pytest

from shoal_proxy.access.control import AuthenticatedClient
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.client_suspicion import FIRST_PAUSE_S
from shoal_proxy.batching.pending import LaneKey, PendingRequest
from shoal_proxy.batching.policy import BatchLimits, WaitUntil
from shoal_proxy.batching.quarantine import SETTLE_S
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.scheduler import BatchFailure, Scheduler
from shoal_proxy.errors import InvalidRequest, LimitReached, ModelFailed, ProxyError, RuntimeLost
from shoal_schema.interfaces.metrics import RejectionReason
from tests.proxy.batching.test_scheduler import answer, row, rows_of, sent
from tests.proxy.signatures import request


def make_scheduler(*, max_rows: int = 64, idempotent: bool = False, coalesce: bool = False) -> Scheduler:
    batcher = Batcher(QueueLimits(max_rows, 10**9), BatchLimits(8))
    return Scheduler(batcher, idempotent=idempotent, coalesce=coalesce)


def arrive(scheduler: Scheduler, client: str, value: int, now_s: float) -> ProxyError | None:
    """Let a request arrive; return the error of its rejection."""
    pending = of(client, value, now_s)
    refusal = scheduler.screen(pending, now_s)
    return refusal if refusal is not None else scheduler.admit(pending, now_s)


def of(client: str, value: int, now_s: float) -> PendingRequest:
    """Return a request of a client; one in capitals is known by its key, others by the fair-share header."""
    pending = row(value, arrived_s=now_s, deadline_s=now_s + 60.0)
    if client.isupper():
        pending.client = AuthenticatedClient(client, client, ())
    else:
        pending.lane = LaneKey(client.encode())
    return pending


def lose(scheduler: Scheduler, now_s: float) -> BatchFailure:
    """Send the next batch, and lose it."""
    running = sent(scheduler, now_s)
    scheduler.record_finished(running, now_s)
    return scheduler.fail_batch(running, RuntimeLost("crashed"), now_s)


def after_a_shared_loss(**options: bool) -> Scheduler:
    """Return a scheduler after clients a and b have lost a batch at 0 s."""
    scheduler = make_scheduler(**options)
    for client, value in (("a", 1), ("b", 2)):
        assert arrive(scheduler, client, value, 0.0) is None
    lose(scheduler, 0.0)
    return scheduler


def after_a_pause() -> Scheduler:
    """Return a scheduler that has paused client a at 2 s, after two trials."""
    scheduler = after_a_shared_loss()
    for value in (3, 4):
        assert arrive(scheduler, "a", value, value - 2.0) is None
        failure = lose(scheduler, value - 2.0)
    assert failure.offender is not None
    assert (failure.offender.client_name, failure.pause_s) == ("a", FIRST_PAUSE_S)
    return scheduler


def test_clients_of_a_lost_batch_run_alone_until_one_request_of_each_has_succeeded() -> None:
    scheduler = after_a_shared_loss()
    for client, value in (("a", 3), ("a", 4), ("b", 5), ("c", 6), ("c", 7)):
        assert arrive(scheduler, client, value, 1.0) is None

    batches = []
    for _ in range(3):
        running = sent(scheduler, 1.0)
        batches.append(sorted(rows_of(running).ravel().tolist()))
        answer(scheduler, running)

    assert batches == [[3], [4, 6, 7], [5]]
    assert scheduler.settled


def test_queued_requests_of_the_clients_of_a_lost_batch_run_alone() -> None:
    scheduler = make_scheduler()
    assert arrive(scheduler, "a", 1, 0.0) is None
    running = sent(scheduler)
    for client, value in (("b", 2), ("a", 3), ("b", 4)):
        assert arrive(scheduler, client, value, 0.0) is None
    scheduler.record_finished(running, 0.0)
    scheduler.fail_batch(running, RuntimeLost("crashed"), 0.0)

    at_once = sent(scheduler, 0.0)
    assert rows_of(at_once).ravel().tolist() == [2, 4], "no trial begins before the loss has settled"
    answer(scheduler, at_once)
    wait = scheduler.next_batch(0.0)
    assert isinstance(wait, WaitUntil)
    assert wait.until_s == SETTLE_S
    assert rows_of(sent(scheduler, SETTLE_S)).tolist() == [[3]]


def test_a_client_is_paused_when_a_second_payload_of_it_is_lost_alone() -> None:
    scheduler = after_a_pause()

    rejection = arrive(scheduler, "a", 5, 3.0)

    assert isinstance(rejection, LimitReached)
    assert rejection.retry_after_s == FIRST_PAUSE_S - 1
    assert rejection.reason is RejectionReason.LIMIT
    assert not rejection.may_have_run
    assert arrive(scheduler, "b", 6, 3.0) is None
    assert arrive(scheduler, "a", 7, 2.0 + FIRST_PAUSE_S) is None


def test_waiting_requests_of_a_client_are_rejected_when_it_is_paused() -> None:
    scheduler = after_a_shared_loss()
    for value in (3, 4, 5, 6):
        assert arrive(scheduler, "a", value, 1.0) is None
    assert not any(isinstance(error, LimitReached) for _, error in lose(scheduler, 1.0).deliveries)

    deliveries = lose(scheduler, 2.0).deliveries

    rejected = [pending for pending, error in deliveries if isinstance(error, LimitReached)]
    assert [pending.may_have_run for pending in rejected] == [False, False]
    assert scheduler.settled


@pytest.mark.parametrize("idempotent", [False, True])
def test_the_same_payload_again_pauses_no_client(*, idempotent: bool) -> None:
    scheduler = after_a_shared_loss(idempotent=idempotent)
    if idempotent:
        lose(scheduler, 1.0)
        answer(scheduler, sent(scheduler, 2.0))
    else:
        for now_s in (1.0, 2.0):
            assert arrive(scheduler, "a", 1, now_s) is None
            lose(scheduler, now_s)

    assert arrive(scheduler, "a", 9, 3.0) is None


def test_a_payload_of_many_clients_is_an_offence_of_the_first_only() -> None:
    scheduler = after_a_shared_loss()
    for client, now_s in (("b", 1.0), ("c", 2.0)):
        assert arrive(scheduler, client, 1, now_s) is None
        lose(scheduler, now_s)

    for client, value in (("b", 3), ("c", 4)):
        pending = of(client, value, 3.0)
        assert scheduler.screen(pending, 3.0) is None
        assert pending.suspect == (client == "b")


@pytest.mark.parametrize("error", [ModelFailed("no"), InvalidRequest("no")])
def test_a_trial_ends_with_an_error_of_the_model_too(error: ProxyError) -> None:
    scheduler = after_a_shared_loss()
    assert arrive(scheduler, "a", 3, 1.0) is None
    trial = sent(scheduler, 1.0)
    scheduler.record_finished(trial, 1.0)
    scheduler.fail_batch(trial, error, 1.0)

    for value in (4, 5):
        assert arrive(scheduler, "a", value, 2.0) is None

    assert rows_of(sent(scheduler, 2.0)).ravel().tolist() == [4, 5]


def test_requests_without_a_name_share_batches_after_a_loss() -> None:
    scheduler = make_scheduler()
    assert arrive(scheduler, "", 1, 0.0) is None
    lose(scheduler, 0.0)

    for value in (2, 3):
        assert arrive(scheduler, "", value, 1.0) is None

    assert rows_of(sent(scheduler, 1.0)).ravel().tolist() == [2, 3]


@pytest.mark.parametrize("coalesce", [False, True])
def test_a_client_is_known_by_its_key(*, coalesce: bool) -> None:
    scheduler = make_scheduler(coalesce=coalesce)
    for value in (1, 2, 3):
        assert arrive(scheduler, "KEY", value, float(value)) is None
        lose(scheduler, float(value))

    assert arrive(scheduler, "key", 4, 4.0) is None
    assert isinstance(arrive(scheduler, "KEY", 4, 4.0), LimitReached)


def test_a_batch_of_several_clients_in_one_request_is_of_no_client() -> None:
    pending = of("a", 1, 0.0)
    pending.shadow = True

    assert pending.client_name == ""


def test_requests_on_trial_may_be_forwarded_until_a_trial_was_lost() -> None:
    scheduler = after_a_shared_loss()
    first, second = of("a", 3, 1.0), of("a", 4, 2.0)
    assert scheduler.screen(first, 1.0) is None
    assert not first.must_not_forward
    assert scheduler.admit(first, 1.0) is None
    lose(scheduler, 1.0)

    assert scheduler.screen(second, 2.0) is None
    assert second.must_not_forward


def test_the_last_ready_runtime_runs_trials_unless_one_was_lost() -> None:
    scheduler = make_scheduler()
    scheduler.batcher.set_concurrency(2)
    for client, value in (("a", 1), ("b", 2)):
        assert arrive(scheduler, client, value, 0.0) is None
    lose(scheduler, 0.0)
    scheduler.batcher.set_concurrency(1)
    assert arrive(scheduler, "a", 3, 1.0) is None
    lose(scheduler, 1.0)
    for client, value in (("a", 4), ("b", 5)):
        assert arrive(scheduler, client, value, 2.0) is None

    trial = sent(scheduler, 2.0)

    assert rows_of(trial).tolist() == [[5]]
    answer(scheduler, trial, 3.0)
    wait = scheduler.next_batch(3.0)
    assert isinstance(wait, WaitUntil)
    assert wait.until_s == 32.0, "half of the request's time"


def test_parts_of_a_large_request_on_trial_let_others_pass() -> None:
    scheduler = after_a_shared_loss()
    large = request({"x": np.arange(20).reshape(20, 1)}, arrived_s=1.0, deadline_s=61.0)
    large.lane = LaneKey(b"a")
    assert scheduler.screen(large, 1.0) is None
    assert scheduler.admit(large, 1.0) is None
    assert arrive(scheduler, "b", 50, 1.0) is None

    batches = []
    for _ in range(4):
        running = sent(scheduler, 1.0)
        batches.append(rows_of(running).ravel().tolist())
        deliveries = answer(scheduler, running)

    assert batches == [[*range(8)], [50], [*range(8, 16)], [*range(16, 20)]]
    assert [pending for pending, _ in deliveries] == [large]
    assert scheduler.settled


def test_requests_of_clients_on_trial_are_bounded_as_the_queue() -> None:
    scheduler = make_scheduler(max_rows=8)
    for client in ("a", "b"):
        assert arrive(scheduler, client, 1, 0.0) is None
    lose(scheduler, 0.0)
    assert arrive(scheduler, "c", 2, 1.0) is None

    rejections = [arrive(scheduler, "a", value, 1.0) for value in range(10, 19)]

    assert rejections[:7] == [None] * 7
    assert [rejection.reason for rejection in rejections[7:] if rejection] == [RejectionReason.QUEUE_ROWS] * 2


def test_a_trial_that_is_lost_with_another_runtime_is_no_offence() -> None:
    scheduler = after_a_shared_loss()
    scheduler.batcher.set_concurrency(2)
    for client, value in (("a", 3), ("c", 4)):
        assert arrive(scheduler, client, value, 1.0) is None
    trial, other = sent(scheduler, 1.0), sent(scheduler, 1.0)
    for running, now_s in ((other, 1.1), (trial, 1.15)):
        scheduler.record_finished(running, now_s)
        scheduler.fail_batch(running, RuntimeLost("crashed"), now_s)

    pending = of("a", 5, 2.0)
    assert scheduler.screen(pending, 2.0) is None
    assert (pending.on_trial, pending.suspect) == (True, False)


def test_a_request_that_was_alone_by_chance_is_no_offence() -> None:
    scheduler = make_scheduler()
    assert arrive(scheduler, "a", 1, 0.0) is None
    lose(scheduler, 0.0)

    pending = of("a", 2, 1.0)
    assert scheduler.screen(pending, 1.0) is None
    assert (pending.on_trial, pending.suspect) == (True, False)


def test_the_same_payload_again_adds_no_trials() -> None:
    scheduler = after_a_shared_loss()
    for now_s in (1.0, 2.0):
        assert arrive(scheduler, "a", 1, now_s) is None
        lose(scheduler, now_s)

    for value in (10, 11):
        assert arrive(scheduler, "a", value, 3.0) is None
        answer(scheduler, sent(scheduler, 3.0))
    for value in (12, 13):
        assert arrive(scheduler, "a", value, 3.0) is None

    assert rows_of(sent(scheduler, 3.0)).ravel().tolist() == [12, 13]


def test_of_a_lost_part_only_its_own_rows_run_alone() -> None:
    scheduler = make_scheduler(idempotent=True)
    large = request({"x": np.arange(20).reshape(20, 1)}, deadline_s=60.0)
    assert scheduler.admit(large, 0.0) is None
    lose(scheduler, 0.0)

    rows, delivered = [], []
    for _ in range(3):
        running = sent(scheduler, 1.0)
        rows.extend(rows_of(running).ravel().tolist())
        delivered.extend(answer(scheduler, running))

    assert sorted(rows) == [*range(20)]
    assert [pending for pending, _ in delivered] == [large]
    assert isinstance(scheduler.next_batch(1.0), WaitUntil)
