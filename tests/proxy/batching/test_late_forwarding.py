"""The scheduler with request forwarding: requests that may be forwarded, and forwarded ones."""

import numpy as np
import pytest

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import PLAIN_KEY, PendingRequest
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.scheduler import Scheduler, SchedulerStep
from shoal_proxy.errors import NotExecuted, Overloaded, RuntimeLost, RuntimeUnavailable
from shoal_schema.interfaces.metrics import RejectionReason
from tests.proxy.signatures import request

OBJECTIVE_S = 1.0
START_S, ROW_S = 0.1, 0.1
"""A batch of four takes half the objective."""


def make_scheduler(*, forwards_late: bool = True, coalesce: bool = False) -> Scheduler:
    batcher = Batcher(QueueLimits(64, 10**9), BatchLimits(8), objective_s=OBJECTIVE_S)
    scheduler = Scheduler(batcher, coalesce=coalesce)
    scheduler.forwards_late = forwards_late
    table = batcher.tables[PLAIN_KEY]
    for rows in table.sizes * 50:
        table.observe(rows, START_S + ROW_S * rows)
    return scheduler


def row(at_s: float, *, guest: bool = False, value: int = 1) -> PendingRequest:
    pending = request({"x": np.array([[value]])}, arrived_s=at_s, deadline_s=at_s + 60.0)
    pending.forwarded = guest
    return pending


def busy(scheduler: Scheduler, waiting: int) -> list[PendingRequest]:
    """Let a row run since time 0, and so many wait."""
    assert scheduler.admit(row(0.0), 0.0) is None
    step = scheduler.next_batch(0.0)
    assert isinstance(step, SchedulerStep)
    assert step.running is not None
    rows = [row(0.0) for _ in range(waiting)]
    assert [scheduler.admit(each, 0.0) for each in rows] == [None] * waiting
    return rows


def test_a_request_that_fits_into_the_next_batch_stays_and_one_that_would_make_the_first_late_is_forwarded() -> None:
    scheduler = make_scheduler()
    busy(scheduler, 3)
    assert not scheduler.would_be_late(row(0.1), 0.1)
    assert scheduler.has_room(PLAIN_KEY, 0.1)
    scheduler = make_scheduler()
    busy(scheduler, 7)
    assert scheduler.would_be_late(row(0.1), 0.1)
    assert not scheduler.has_room(PLAIN_KEY, 0.1)


def test_an_idle_replica_has_room_and_without_any_objective_no_request_is_late() -> None:
    assert make_scheduler().has_room(PLAIN_KEY, 0.0)
    scheduler = Scheduler(Batcher(QueueLimits(64, 10**9), BatchLimits(4)))
    for _ in range(60):
        assert scheduler.admit(row(0.0), 0.0) is None
    assert not scheduler.would_be_late(row(0.0), 0.0)


def test_where_identical_requests_share_a_row_no_request_is_rejected_early() -> None:
    scheduler = make_scheduler(coalesce=True)
    busy(scheduler, 1)
    for number in range(2, 9):
        assert scheduler.admit(row(0.0, value=number), 0.0) is None
    assert not scheduler.would_be_late(row(0.1), 0.1)


def test_a_forwarded_request_is_rejected_where_a_direct_one_is_admitted() -> None:
    scheduler = make_scheduler()
    busy(scheduler, 7)
    refusal = scheduler.admit(row(0.05, guest=True), 0.05)
    assert isinstance(refusal, Overloaded)
    assert refusal.reason is RejectionReason.LATE
    assert scheduler.admit(row(0.05), 0.05) is None


@pytest.mark.parametrize("forwards_late", [True, False])
def test_a_request_that_is_late_when_a_batch_forms_is_kept_only_for_forwarding(forwards_late: bool) -> None:
    scheduler = make_scheduler(forwards_late=forwards_late)
    waiting = busy(scheduler, 3)
    waiting[0].forwarded = True
    waiting[1].returned_by_peer = True
    (running,) = scheduler.running
    scheduler.record_finished(running, 0.95)
    step = scheduler.next_batch(0.95)  # the runtime took much longer than it should
    assert isinstance(step, SchedulerStep)
    if not forwards_late:
        assert not step.late
        assert {pending for pending, _ in step.rejected} == set(waiting)
        assert scheduler.traffic.refused_rows == {RejectionReason.LATE: 3}
        return
    assert list(step.late) == waiting[2:]
    assert {pending for pending, _ in step.rejected} == set(waiting[:2])
    assert not waiting[2].resolved
    assert scheduler.traffic.refused_rows == {RejectionReason.LATE: 2}
    assert step.error is not None
    ((refused, error),) = scheduler.reject(waiting[2], step.error)
    assert (refused, error) == (waiting[2], step.error)
    assert scheduler.traffic.refused_rows == {RejectionReason.LATE: 3}


def guests(scheduler: Scheduler, count: int) -> list[PendingRequest]:
    """Admit forwarded requests that return a second before their deadline."""
    rows = [row(0.0, guest=True, value=value) for value in range(2, 2 + count)]
    for each in rows:
        each.deadline_s, each.return_s = 10.0, 9.0
        assert scheduler.admit(each, 0.0) is None
    return rows


@pytest.mark.parametrize("coalesce", [False, True])
def test_a_forwarded_request_that_has_not_begun_returns_before_its_deadline(*, coalesce: bool) -> None:
    scheduler = make_scheduler(coalesce=coalesce)
    busy(scheduler, 0)
    (waiting,) = guests(scheduler, 1)
    assert scheduler.next_deadline_s == 9.0

    ((pending, outcome),) = scheduler.expire(9.0)

    assert pending is waiting
    assert isinstance(outcome, Overloaded)
    assert not pending.may_have_run
    assert scheduler.queue.requests == 0


def test_a_forwarded_request_that_has_begun_keeps_its_deadline() -> None:
    scheduler = make_scheduler()
    (begun,) = guests(scheduler, 1)
    assert isinstance(scheduler.next_batch(0.0), SchedulerStep)

    assert scheduler.expire(9.0) == []

    assert scheduler.next_deadline_s == 10.0
    assert [pending for pending, _ in scheduler.expire(10.0)] == [begun]


@pytest.mark.parametrize("coalesce", [False, True])
def test_without_a_runtime_forwarded_requests_return_and_others_wait(*, coalesce: bool) -> None:
    scheduler = make_scheduler(coalesce=coalesce)
    busy(scheduler, 1)
    waiting = guests(scheduler, 2)

    deliveries = scheduler.reject_forwarded(RuntimeUnavailable("gone"))

    assert [pending for pending, _ in deliveries] == waiting
    assert not any(pending.may_have_run for pending in waiting)
    assert scheduler.queue.requests == 1


@pytest.mark.parametrize(("error", "may_have_run"), [(NotExecuted("away"), False), (RuntimeLost("gone"), True)])
def test_a_forwarded_request_that_would_be_retried_returns(*, error: RuntimeUnavailable, may_have_run: bool) -> None:
    scheduler = Scheduler(Batcher(QueueLimits(64, 10**9), BatchLimits(8)), idempotent=True)
    (begun,) = guests(scheduler, 1)
    step = scheduler.next_batch(0.0)
    assert isinstance(step, SchedulerStep)
    assert step.running is not None
    assert scheduler.reject_forwarded(error) == []  # it is at the runtime
    scheduler.record_finished(step.running, 1.0)
    assert scheduler.fail_batch(step.running, error, 1.0).pieces == 1

    assert [pending for pending, _ in scheduler.reject_forwarded(error)] == [begun]

    assert begun.may_have_run is may_have_run
    assert scheduler.settled
