"""The whole scheduler, driven by hand: in any order of events each request has one outcome, of its own rows."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal_proxy.access.control import AccessControl
from shoal_proxy.access.control import AuthenticatedClient as Charged
from shoal_proxy.access.limits import ClientLimits, ClientQuota
from shoal_proxy.batching.batch import BatchResult
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.order import FairShares
from shoal_proxy.batching.pending import NEVER_S, BatchKey, Delivery, LaneKey, Outcome, PendingRequest, RequestResult
from shoal_proxy.batching.policy import BatchLimits, WaitUntil
from shoal_proxy.batching.quarantine import MAX_HELD
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.scheduler import Scheduler, SchedulerStep
from shoal_proxy.errors import (
    BatchTooLarge,
    DeadlineExceeded,
    Draining,
    InvalidRequest,
    LimitReached,
    ModelFailed,
    NotExecuted,
    Overloaded,
    ProxyError,
    RuntimeLost,
)
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.resource.traffic import BatchingPolicy
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError
from tests.fakes import tensor
from tests.proxy.signatures import deliver_outcome, request, signature

MODEL = signature([tensor("x", "INT64", [-1, 1])], [tensor("y", "INT64", [-1, 1])])
MAX_ROWS = 4


def make_scheduler(*, coalesce: bool = False) -> Scheduler:
    return Scheduler(Batcher(QueueLimits(64, 10**9), BatchLimits(MAX_ROWS)), coalesce=coalesce)


def row(value: int, *, arrived_s: float = 0.0, deadline_s: float = 60.0) -> PendingRequest:
    return request({"x": np.array([[value]])}, arrived_s=arrived_s, deadline_s=deadline_s)


def sent(scheduler: Scheduler, now_s: float = 0.0) -> RunningBatch:
    step = scheduler.next_batch(now_s)
    assert isinstance(step, SchedulerStep)
    assert step.running is not None
    return step.running


def answer(scheduler: Scheduler, running: RunningBatch, now_s: float = 1.0) -> list[Delivery]:
    """Let the model, y = 3 x, answer a batch that is not released yet."""
    scheduler.record_finished(running, now_s)
    return scheduler.complete_batch(
        running, BatchResult({"y": 3 * rows_of(running)}, forward_s=0.01), MODEL, completed_s=now_s
    )


def rows_of(running: RunningBatch) -> Array:
    return np.concatenate([part.inputs["x"][part.start : part.stop] for part in running.batch.slices])


def fail(scheduler: Scheduler, running: RunningBatch, error: ProxyError, now_s: float = 1.0) -> list[Delivery]:
    scheduler.record_finished(running, now_s)
    return list(scheduler.fail_batch(running, error, now_s).deliveries)


def test_pieces_of_a_failed_batch_go_before_everything_that_waits() -> None:
    scheduler = make_scheduler()
    first = [row(value) for value in range(2)]
    for pending in first:
        scheduler.admit(pending, 0.0)
    running = sent(scheduler)
    scheduler.admit(row(9), 0.0)

    assert fail(scheduler, running, ModelFailed("no")) == []

    assert sent(scheduler).batch.slices[0].pending is first[0]
    assert isinstance(scheduler.next_batch(0.0), WaitUntil), (
        "one at a time: the next piece may be the culprit's company"
    )


def test_a_request_that_ran_once_is_reported_so_whatever_the_last_error() -> None:
    scheduler = make_scheduler()
    callers = [row(1), row(2)]
    for pending in callers:
        scheduler.admit(pending, 0.0)
    fail(scheduler, sent(scheduler), ModelFailed("no"))

    ((first, error),) = fail(scheduler, sent(scheduler), NotExecuted("restarting"))

    assert first is callers[0]
    assert (error.may_have_run, first.may_have_run) == (False, True)  # type: ignore[union-attr]


def test_requests_of_one_batch_share_a_burst_and_others_do_not() -> None:
    scheduler = make_scheduler()
    first, second, late = row(1), row(2), row(3, deadline_s=0.5)
    for pending in (first, second):
        scheduler.admit(pending, 0.0)
    running = sent(scheduler)
    scheduler.admit(late, 0.0)

    answer(scheduler, running)
    scheduler.expire(1.0)

    assert first.burst is second.burst is not None
    assert late.burst is None


def test_a_request_that_shares_the_row_of_another_may_have_been_executed_too() -> None:
    scheduler, sharing = make_scheduler(coalesce=True), [row(1, deadline_s=1.0) for _ in range(2)]
    for pending in sharing:
        scheduler.admit(pending, 0.0)
    assert sent(scheduler).rows == 1

    deliveries = scheduler.expire(1.0)

    assert [pending for pending, _ in deliveries] == sharing
    assert all(pending.may_have_run for pending in sharing)


def test_a_request_for_a_row_that_runs_has_its_own_deadline() -> None:
    scheduler, first, late = (
        make_scheduler(coalesce=True),
        row(1, deadline_s=1.0),
        row(1, arrived_s=0.9, deadline_s=1.9),
    )
    scheduler.admit(first, 0.0)
    running = sent(scheduler)
    scheduler.admit(late, 0.9)

    assert [pending for pending, _ in fail(scheduler, running, DeadlineExceeded("the batch's time ran out"))] == [first]
    assert sent(scheduler, 1.0).batch.deadline_s == 1.9


def test_the_message_of_a_deadline_states_where_it_passed() -> None:
    scheduler = make_scheduler()
    for pending in (row(1, deadline_s=1.0), row(2, deadline_s=2.0)):
        scheduler.admit(pending, 0.0)
        if pending.deadline_s == 1.0:
            sent(scheduler)

    assert scheduler.next_deadline_s == 1.0
    assert [str(error) for _, error in scheduler.expire(1.0)] == ["the deadline passed while the model ran"]
    assert [str(error) for _, error in scheduler.expire(2.0)] == ["the deadline passed in the queue"]
    assert scheduler.next_deadline_s == NEVER_S


def test_a_full_queue_states_its_limit_and_a_retry_after() -> None:
    scheduler = Scheduler(Batcher(QueueLimits(2, 100), BatchLimits(1)))
    for value in range(2):
        assert scheduler.admit(row(value), 0.0) is None

    refusal = scheduler.admit(row(3), 0.0)
    wide = Scheduler(Batcher(QueueLimits(99, 8), BatchLimits(1)))
    wide.admit(row(1), 0.0)
    too_many_bytes = wide.admit(row(2), 0.0)

    assert refusal is not None
    assert (refusal.message, refusal.reason, refusal.retry_after_s) == (
        "the queue is full (2 rows wait)",
        "queue_rows",
        1,
    )
    assert too_many_bytes is not None
    assert (too_many_bytes.message, too_many_bytes.reason) == ("the queue is full (8 bytes wait)", "queue_bytes")


def test_a_result_that_cannot_be_split_resolves_no_request() -> None:
    scheduler = make_scheduler()
    callers = [row(1), row(2)]
    for pending in callers:
        scheduler.admit(pending, 0.0)
    running = sent(scheduler)
    scheduler.record_finished(running, 1.0)

    with pytest.raises(ModelFailed, match="7 rows of 'y'"):
        scheduler.complete_batch(running, BatchResult({"y": np.zeros((7, 1))}), MODEL, completed_s=1.0)

    assert not any(pending.resolved for pending in callers)
    assert scheduler.fail_batch(running, ModelFailed("cannot be split"), 1.0).pieces == 2


class Breaking(np.ndarray[Any, Any]):
    """An array of which only the first row can be read."""

    def __getitem__(self, rows: Any) -> Any:
        if rows.start:
            raise MemoryError
        return super().__getitem__(rows)


def test_a_response_that_breaks_in_the_middle_leaves_every_request_an_outcome() -> None:
    scheduler = make_scheduler()
    callers = [row(1), row(2)]
    for pending in callers:
        scheduler.admit(pending, 0.0)
    running = sent(scheduler)
    scheduler.record_finished(running, 1.0)

    with pytest.raises(MemoryError):
        scheduler.complete_batch(running, BatchResult({"y": np.zeros((2, 1)).view(Breaking)}), MODEL, completed_s=1.0)

    assert [pending for pending, _ in scheduler.fail_batch(running, ProxyError("internal"), 1.0).deliveries] == callers


def test_at_the_end_every_client_is_rejected_and_running_requests_may_have_run() -> None:
    scheduler = make_scheduler()
    ran, waits = row(1), row(2)
    scheduler.admit(ran, 0.0)
    running = sent(scheduler)
    scheduler.admit(waits, 0.0)

    deliveries = scheduler.reject_all(Draining("stop"), 1.0)

    assert [pending for pending, _ in deliveries] == [ran, waits]
    assert (ran.may_have_run, waits.may_have_run) == (True, False)
    assert scheduler.settled
    assert fail(scheduler, running, Draining("cancelled")) == []


ACCESS_CONTROL = AccessControl(ClientLimits({}, {"alice": 4}))


def charged(pending: PendingRequest, access_control: AccessControl = ACCESS_CONTROL) -> ClientQuota:
    """Charge a request to alice, and return what she has left."""
    pending.client = Charged("alice", "alice", ())
    access_control.charge(pending.client, pending.rows, pending.arrived_s, forwarded=False)
    assert pending.client.quota is not None
    return pending.client.quota


def leave(pending: PendingRequest, access_control: AccessControl = ACCESS_CONTROL) -> None:
    """Let the client go, as the proxy does when its outcome is out, or it has gone."""
    assert pending.client is not None
    access_control.release(pending.client)


def four_of_six(*, coalesce: bool = False) -> tuple[Scheduler, RunningBatch, PendingRequest, ClientQuota]:
    """Return a scheduler that runs four rows of a client's six, while two wait."""
    scheduler, pending = make_scheduler(coalesce=coalesce), request({"x": np.arange(6).reshape(6, 1)}, deadline_s=60.0)
    account = charged(pending)
    scheduler.admit(pending, 0.0)
    return scheduler, sent(scheduler), pending, account


@pytest.mark.parametrize("coalesce", [False, True])
@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_rows_that_run_count_for_a_disconnected_client_until_their_batch_ends(end: str, *, coalesce: bool) -> None:
    scheduler, running, pending, account = four_of_six(coalesce=coalesce)
    assert account.rows == 6

    if end == "cancelled":
        scheduler.cancel(pending)
    else:
        assert [one for one, _ in scheduler.expire(60.0)] == [pending]
    leave(pending)
    assert account.rows == 4, "those that only waited are given back at once"

    scheduler.record_finished(running, 61.0)
    assert account.rows == 4
    scheduler.complete_batch(running, BatchResult({"y": 3 * rows_of(running)}), MODEL, completed_s=61.0)
    assert account.rows == 0


@pytest.mark.parametrize("error", [ModelFailed("no"), NotExecuted("restarting"), DeadlineExceeded("stuck")])
def test_rows_that_ran_are_released_when_their_batch_fails(error: ProxyError) -> None:
    scheduler, running, pending, account = four_of_six()
    scheduler.cancel(pending)
    leave(pending)

    fail(scheduler, running, error)

    assert account.rows == 0


def test_a_client_that_disconnects_repeatedly_has_no_more_running_than_is_allowed() -> None:
    """A limit of four: the second, sent when the first has gone but still runs, is refused; the third is not."""
    scheduler, running, pending, account = four_of_six()
    scheduler.cancel(pending)
    leave(pending)

    with pytest.raises(LimitReached, match="has 4 rows queued"):
        charged(row(1))
    answer(scheduler, running)
    charged(last := row(1))
    assert account.rows == 1
    leave(last)


def test_a_piece_of_a_failed_batch_goes_without_requests_cancelled_while_it_waited() -> None:
    scheduler, callers = make_scheduler(), [row(value) for value in range(4)]
    for pending in callers:
        scheduler.admit(pending, 0.0)
    fail(scheduler, sent(scheduler), ModelFailed("no"))
    first = sent(scheduler)

    scheduler.cancel(callers[3])
    answer(scheduler, first)

    assert [part.pending for part in sent(scheduler).batch.slices] == [callers[2]]


def test_at_the_end_of_a_drain_no_client_is_charged() -> None:
    scheduler, running, _, account = four_of_six()

    for pending, _ in scheduler.reject_all(Draining("stop"), 1.0):
        leave(pending)
    assert account.rows == 0

    fail(scheduler, running, Draining("cancelled"))
    assert account.rows == 0, "and nothing is given back twice"


@dataclass(eq=False)
class AuthenticatedClient:
    """A request, and all that it was given."""

    pending: PendingRequest
    values: list[int]
    outcomes: list[Outcome] = field(default_factory=list)


ERRORS = (ModelFailed, BatchTooLarge, NotExecuted, RuntimeLost, InvalidRequest)


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, go and expire; batches succeed, fail and come back in any order; the clock only ever goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.open: dict[PendingRequest, AuthenticatedClient] = {}
        self.running: list[RunningBatch] = []
        self.succeeded: Counter[tuple[int, int]] = Counter()
        """How often which row of which inputs was answered."""
        self.access_control = AccessControl(ClientLimits({}, {"alice": 10**6}))
        account = self.access_control._limits.quota("alice", 0.0, forwarded=False)
        assert account is not None
        self.quota = account
        self.kept: list[object] = []
        """Those inputs, lest others get their identity."""

    @initialize(
        policy=st.sampled_from(BatchingPolicy),
        in_flight=st.integers(1, 2),
        objective_s=st.sampled_from([0.02, NEVER_S, NEVER_S]),
        coalesce=st.booleans(),
        idempotent=st.booleans(),
    )
    def begin(
        self, policy: BatchingPolicy, in_flight: int, objective_s: float, *, coalesce: bool, idempotent: bool
    ) -> None:
        self.coalesce = coalesce
        batcher = Batcher(
            QueueLimits(24, 10**9, portion_rows=6),
            BatchLimits(MAX_ROWS, 0.01 if policy is BatchingPolicy.FIXED else 0.0, in_flight, policy),
            objective_s=objective_s,
            shares=FairShares({b"a": 2.0}),
        )
        self.scheduler = Scheduler(batcher, idempotent=idempotent, coalesce=coalesce)

    @rule(
        values=st.lists(st.integers(0, 2), min_size=1, max_size=9),
        key=st.sampled_from([BatchKey(), BatchKey(), BatchKey(parameters=b"rare")]),
        share=st.sampled_from([b"", b"a"]),
        within_s=st.sampled_from([0.005, 0.5, 60.0]),
    )
    def arrive(self, values: list[int], key: BatchKey, share: bytes, within_s: float) -> None:
        inputs = {"x": np.array([values]).T}
        pending = request(inputs, key=key, arrived_s=self.now_s, deadline_s=self.now_s + within_s)
        pending.lane = LaneKey(share)
        caller = AuthenticatedClient(pending, values)
        pending.deliver = caller.outcomes.append
        charged(pending, self.access_control)
        refusal = self.scheduler.admit(pending, self.now_s)
        if refusal is None:
            self.open[pending] = caller
        else:
            assert isinstance(refusal, Overloaded)
            assert not pending.resolved
            leave(pending, self.access_control)

    @rule()
    def look(self) -> None:
        while isinstance(step := self.scheduler.next_batch(self.now_s), SchedulerStep):
            assert step.rejected or step.running is not None
            self.settle(step.rejected)
            if step.running is not None:
                assert step.running.rows <= MAX_ROWS
                assert step.running.batch.has_unresolved, "no batch runs without a client"
                self.running.append(step.running)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle(self.scheduler.expire(self.now_s))
        assert self.scheduler.next_deadline_s > self.now_s

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(["answered", "answered", "a row", "unsplittable", *ERRORS]))
    def come_back(self, data: st.DataObject, outcome: str | type[ProxyError]) -> None:
        running = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.scheduler.record_finished(running, self.now_s)
        if not isinstance(outcome, str):
            self.settle(self.scheduler.fail_batch(running, outcome("no"), self.now_s).deliveries)
            return
        rows = rows_of(running)
        result = BatchResult({"y": 3 * rows})
        if outcome == "a row":
            result = BatchResult({"y": 3 * rows[1:]}, [RowError(0, 400, "bad")])
        elif outcome == "unsplittable":
            result = BatchResult({"y": np.zeros((99, 1))})
        try:
            deliveries = self.scheduler.complete_batch(running, result, MODEL, completed_s=self.now_s)
        except ModelFailed as error:
            self.settle(self.scheduler.fail_batch(running, error, self.now_s).deliveries)
            return
        for part in running.batch.slices:
            self.kept.append(part.inputs)
            self.succeeded.update((id(part.inputs), number) for number in range(part.start, part.stop))
        self.settle(deliveries)
        self.scheduler.record_delivered(running, self.now_s)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(list(self.open)))
        caller = self.open.pop(pending)
        assert self.scheduler.cancel(pending)
        assert not self.scheduler.cancel(pending)
        leave(pending, self.access_control)
        assert caller.outcomes == []

    @rule()
    def stop(self) -> None:
        self.settle(self.scheduler.reject_all(Draining("stop"), self.now_s))
        assert not self.open
        assert self.scheduler.settled

    def settle(self, deliveries: object) -> None:
        assert isinstance(deliveries, list | tuple)
        deliver_outcome(deliveries)
        for pending, outcome in deliveries:
            caller = self.open.pop(pending)
            leave(pending, self.access_control)
            assert caller.outcomes == [outcome]
            if isinstance(outcome, RequestResult):
                assert outcome.outputs["y"].ravel().tolist() == [3 * value for value in caller.values]
            if isinstance(outcome, DeadlineExceeded):
                assert pending.deadline_s <= self.now_s

    @invariant()
    def the_books_are_right(self) -> None:
        scheduler = self.scheduler
        assert list(scheduler.running) == self.running
        assert max(self.succeeded.values(), default=0) <= 1, "no row succeeds twice"
        assert all(not pending.resolved for pending in self.open)
        if not self.coalesce:
            assert scheduler.queue.requests <= len(self.open)
        runs = [part for running in scheduler._unsettled for part in running.batch.slices]
        for_nobody = [part.rows for part in runs if part.pending not in self.open]
        if self.coalesce:
            assert self.quota.rows >= sum(part.rows for part in runs), "running rows are charged to a client"
        else:
            assert self.quota.rows == sum(for_nobody) + sum(pending.rows for pending in self.open)
        if not self.open and not self.running:
            assert self.quota.rows == 0
            assert scheduler.settled
            assert (scheduler.queue.rows, scheduler.queue.groups, scheduler.queue.shares._waiting) == (0, {}, {})
            assert scheduler.next_deadline_s == NEVER_S
            assert scheduler._coalescing is None or scheduler._coalescing.empty

    def teardown(self) -> None:
        """Once the runtime continues, every remaining request is answered or rejected soon."""
        for _ in range(200):
            if not self.open:
                break
            self.look()
            self.now_s += 0.02
            self.settle(self.scheduler.expire(self.now_s))
            if self.running:
                running = self.running.pop(0)
                self.settle(answer(self.scheduler, running, self.now_s))
                self.scheduler.record_delivered(running, self.now_s)
        assert not self.open


SchedulerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestSchedulerInAnyOrder = SchedulerMachine.TestCase


def test_it_is_settled_when_nothing_waits_nothing_runs_and_nothing_is_to_be_tried_again() -> None:
    scheduler = make_scheduler()
    assert scheduler.settled
    for value in (1, 2):
        scheduler.admit(row(value), 0.0)
    assert not scheduler.settled, "they wait"
    running = sent(scheduler)
    assert not scheduler.settled, "they run"
    fail(scheduler, running, ModelFailed("no"))
    assert not scheduler.settled, "they are tried again"
    for _ in range(2):
        answer(scheduler, sent(scheduler))
    assert scheduler.settled


def test_a_request_that_was_alone_by_chance_when_its_batch_failed_is_no_suspect() -> None:
    scheduler = make_scheduler()
    for number in range(5):
        scheduler.admit(row(7), float(number))
        fail(scheduler, sent(scheduler, float(number)), ModelFailed("no"), float(number))

    scheduler.admit(row(7), 9.0)
    scheduler.admit(row(8), 9.0)
    assert sent(scheduler, 9.0).rows == 2


def two_runtimes_of_which_one_was_lost() -> tuple[Scheduler, RunningBatch]:
    """Return a scheduler whose batch of two requests was lost, and the batch that runs at the other runtime."""
    scheduler = Scheduler(Batcher(QueueLimits(64, 10**9), BatchLimits(MAX_ROWS)), idempotent=True)
    scheduler.batcher.set_concurrency(2)
    for value in (1, 2):
        assert scheduler.admit(row(value), 0.0) is None
    lost = sent(scheduler)
    assert scheduler.admit(row(3), 0.0) is None
    other = sent(scheduler)
    assert fail(scheduler, lost, RuntimeLost("crashed")) == []
    scheduler.batcher.set_concurrency(1)
    return scheduler, other


def test_the_last_ready_runtime_runs_no_suspect_until_half_of_its_time_has_passed() -> None:
    scheduler, other = two_runtimes_of_which_one_was_lost()
    answer(scheduler, other)
    assert scheduler.admit(row(4), 2.0) is None
    unsuspected = sent(scheduler, 2.0)
    assert rows_of(unsuspected).tolist() == [[4]]
    answer(scheduler, unsuspected, 3.0)

    wait = scheduler.next_batch(3.0)

    assert isinstance(wait, WaitUntil)
    assert wait.until_s == 30.0
    assert rows_of(sent(scheduler, 30.0)).tolist() == [[1]]


def test_suspects_run_one_by_one_when_the_lost_runtime_is_back() -> None:
    scheduler, other = two_runtimes_of_which_one_was_lost()
    scheduler.batcher.set_concurrency(2)

    first = sent(scheduler, 2.0)
    assert rows_of(first).tolist() == [[1]]
    assert scheduler.admit(row(4), 2.0) is None
    assert isinstance(scheduler.next_batch(2.0), WaitUntil), "nothing is sent behind a suspect"
    answer(scheduler, other, 2.0)
    assert rows_of(sent(scheduler, 2.0)).tolist() == [[4]]
    answer(scheduler, first, 3.0)
    assert rows_of(sent(scheduler, 3.0)).tolist() == [[2]]


@pytest.mark.parametrize(
    ("max_bytes", "held", "reason"),
    [(10**9, MAX_HELD, RejectionReason.QUEUE_ROWS), (20, 2, RejectionReason.QUEUE_BYTES)],
)
def test_suspects_that_wait_are_bounded(max_bytes: int, held: int, reason: RejectionReason) -> None:
    scheduler = Scheduler(Batcher(QueueLimits(1000, max_bytes), BatchLimits(MAX_ROWS)))
    assert scheduler.admit(row(1), 0.0) is None
    fail(scheduler, sent(scheduler), RuntimeLost("crashed"))

    for number in range(held + 1):
        suspect = row(1, arrived_s=1.0)
        assert scheduler.screen(suspect, 1.0) is None
        rejection = scheduler.admit(suspect, 1.0)
        assert (rejection is None) == (number < held)
    assert rejection is not None
    assert rejection.reason is reason
