"""The batcher as a whole, driven by hand: whatever is believed, nothing is lost, and nothing waits for nothing."""

import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal_proxy.batching.batcher import Batcher, FormedBatch, RunningBatch
from shoal_proxy.batching.order import FairShares
from shoal_proxy.batching.pending import NEVER_S, BatchKey, LaneKey, PendingRequest, RequestSlice
from shoal_proxy.batching.policy import BatchLimits, WaitUntil
from shoal_proxy.batching.queue import QueueLimits
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.resource.traffic import BatchingPolicy
from tests.proxy.signatures import come_back, request

PLAIN = BatchKey()
MAX_ROWS = 8


def make_batcher(
    policy: BatchingPolicy = BatchingPolicy.ADAPTIVE, *, objective_s: float = NEVER_S, delay_s: float = 0.0
) -> Batcher:
    return Batcher(QueueLimits(64, 10**9), BatchLimits(MAX_ROWS, delay_s, 1, policy), objective_s=objective_s)


def formed(batcher: Batcher, now_s: float) -> FormedBatch:
    decision = batcher.next_batch(now_s)
    assert isinstance(decision, FormedBatch)
    return decision


def slices(formed: FormedBatch) -> Sequence[RequestSlice]:
    """Return what is in the batch, if there is one."""
    return formed.running.batch.slices if formed.running is not None else ()


def run(batcher: Batcher, running: RunningBatch, took_s: float, done_s: float | None = None) -> float:
    """Let the runtime take ``took_s`` for a batch; return when it is done."""
    done_s = running.sent_s + took_s if done_s is None else done_s
    come_back(batcher, running, took_s, done_s)
    return done_s


def closed_loop(batcher: Batcher, batches: int, *, latency_s: float, now_s: float = 0.0) -> tuple[float, Counter[str]]:
    """Ask one row after another; return the time, and what came of them."""
    outcomes: Counter[str] = Counter()
    for _ in range(batches):
        outcomes[batcher.admit(request(1, arrived_s=now_s), now_s) or "admitted"] += 1
        decision = batcher.next_batch(now_s)
        if isinstance(decision, FormedBatch) and decision.running is not None:
            now_s = run(batcher, decision.running, latency_s)
        else:
            outcomes["stalled"] += 1
        now_s += 0.05
    return now_s, outcomes


@pytest.mark.parametrize("factor", [0.01, 0.1, 10.0, 1000.0])
@pytest.mark.parametrize("objective_s", [0.05, NEVER_S])
def test_a_table_that_is_wrong_rejects_no_request_forever(factor: float, objective_s: float) -> None:
    batcher = make_batcher(objective_s=objective_s)
    now_s, _ = closed_loop(batcher, 50, latency_s=0.01 * factor)

    now_s, outcomes = closed_loop(batcher, 50, latency_s=0.01, now_s=now_s)

    assert outcomes == {"admitted": 50}
    assert batcher.tables[PLAIN].mean_s(1) == pytest.approx(0.01, rel=0.3)
    assert batcher.can_meet_objective(PLAIN)


def test_a_device_that_froze_once_is_trusted_again_within_50_batches() -> None:
    batcher = make_batcher(objective_s=0.05)
    now_s, _ = closed_loop(batcher, 100, latency_s=0.01)
    now_s, _ = closed_loop(batcher, 1, latency_s=30.0, now_s=now_s)

    now_s, outcomes = closed_loop(batcher, 50, latency_s=0.01, now_s=now_s)

    assert outcomes == {"admitted": 50}
    assert batcher.can_meet_objective(PLAIN)


def test_an_objective_that_nothing_can_meet_is_served_as_well_as_can_be() -> None:
    batcher = make_batcher(objective_s=0.005)

    _, outcomes = closed_loop(batcher, 50, latency_s=0.02)

    assert outcomes == {"admitted": 50}
    assert not batcher.can_meet_objective(PLAIN)


def overloaded(batcher: Batcher) -> list[RejectionReason | None]:
    """Learn that a row takes 10 ms and any batch as much, then ask for far too much while one runs."""
    closed_loop(batcher, 50, latency_s=0.01)
    assert batcher.admit(request(MAX_ROWS, arrived_s=100.0), 100.0) is None
    formed(batcher, 100.0)
    return [batcher.admit(request(1, arrived_s=100.0), 100.0) for _ in range(60)]


def test_a_request_that_would_be_late_is_rejected_at_once() -> None:
    reasons = overloaded(make_batcher(objective_s=0.05))

    assert Counter(reasons)[RejectionReason.LATE] > 20
    assert reasons == sorted(reasons, key=lambda reason: reason is not None), "later requests wait longer"


@pytest.mark.parametrize("policy", [BatchingPolicy.FIXED, BatchingPolicy.NONE])
def test_other_policies_reject_no_client_for_being_late(policy: BatchingPolicy) -> None:
    assert set(overloaded(make_batcher(policy))) == {None}


def test_the_first_whom_nothing_holds_up_is_tried_whatever_is_believed() -> None:
    batcher = make_batcher(objective_s=0.05)
    closed_loop(batcher, 50, latency_s=0.01)
    hurried = request(1, arrived_s=50.0)
    hurried.soft_deadline_s = 50.001

    assert batcher.admit(hurried, 50.0) is None
    assert [part.pending for part in slices(formed(batcher, 50.0))] == [hurried]


def test_requests_are_not_batched_where_that_is_requested() -> None:
    batcher = make_batcher(BatchingPolicy.NONE)
    pendings = [request(1, arrived_s=1.0) for _ in range(3)]
    for pending in pendings:
        assert batcher.admit(pending, 1.0) is None

    assert [[part.pending for part in slices(formed(batcher, 1.0))] for _ in range(2)] == [
        [one] for one in pendings[:2]
    ]
    assert isinstance(batcher.next_batch(1.0), WaitUntil), "one runs, and one is sent ahead"


def test_a_fixed_batch_is_full_or_old() -> None:
    batcher = make_batcher(BatchingPolicy.FIXED, delay_s=0.01)
    batcher.admit(request(1, arrived_s=1.0), 1.0)
    waits = batcher.next_batch(1.0)
    assert isinstance(waits, WaitUntil)
    assert waits.until_s == 1.01
    batcher.admit(request(MAX_ROWS, arrived_s=1.005), 1.005)

    assert sum(part.rows for part in slices(formed(batcher, 1.005))) == MAX_ROWS


RARE = BatchKey(parameters=b"rare")
SLOW = BatchKey(shapes=(("x", (1000,)),))


class Load:
    """Requests of one row at random, and a runtime that takes 10 ms for any batch, and ten times as long for `SLOW`."""

    def __init__(self, batcher: Batcher, rate: float, shares: Mapping[BatchKey, float]) -> None:
        self.batcher, self.rate, self.shares = batcher, rate, shares
        self.chance = random.Random(1)
        self.reasons: Counter[tuple[BatchKey, RejectionReason | None]] = Counter()
        self.waited_s: dict[BatchKey, list[float]] = {key: [] for key in shares}
        self.refused_s: list[float] = []

    def run(self, seconds: float) -> None:
        now_s, arrival_s, running = 0.0, 0.0, deque[tuple[RunningBatch, float]]()
        while now_s < seconds:
            now_s = min(arrival_s, running[0][1]) if running else arrival_s
            if now_s == arrival_s:
                self.arrive(now_s)
                arrival_s += self.chance.expovariate(self.rate)
            else:
                run(self.batcher, done := running.popleft()[0], self.took_s(done.key), now_s)
            while isinstance(decision := self.batcher.next_batch(now_s), FormedBatch):
                self.refused_s.extend(now_s - pending.arrived_s for pending in decision.rejected)
                for part in slices(decision):
                    self.waited_s[part.pending.key].append(now_s - part.pending.arrived_s)
                if decision.running is not None:
                    starts_s = running[-1][1] if running else now_s
                    running.append((decision.running, starts_s + self.took_s(decision.running.key)))

    def arrive(self, now_s: float) -> None:
        (key,) = self.chance.choices(list(self.shares), list(self.shares.values()))
        self.reasons[key, self.batcher.admit(request(1, key=key, arrived_s=now_s), now_s)] += 1

    def took_s(self, key: BatchKey) -> float:
        return 0.1 if key == SLOW else 0.01


@pytest.mark.parametrize("in_flight_known", [True, False])
@pytest.mark.parametrize("policy", BatchingPolicy)
def test_a_rare_key_waits_no_longer_than_the_one_that_fills_every_batch(
    policy: BatchingPolicy, *, in_flight_known: bool
) -> None:
    """The runtime says what forward took, so that batches leave just in time, or it does not."""
    batcher = make_batcher(policy, delay_s=0.005 if policy is BatchingPolicy.FIXED else 0.0)
    if in_flight_known:
        batcher.pace.observe(0.001)
    load = Load(batcher, rate=1.5 * MAX_ROWS / 0.01, shares={PLAIN: 0.95, RARE: 0.05})

    load.run(5.0)

    assert len(load.waited_s[RARE]) > 10
    assert max(load.waited_s[RARE]) <= max(load.waited_s[PLAIN]) + 0.03


@pytest.mark.parametrize("rare", [RARE, SLOW])
def test_a_request_that_is_admitted_under_a_full_key_gets_a_response_and_others_are_rejected_before_queueing(
    rare: BatchKey,
) -> None:
    batcher = Batcher(QueueLimits(10**6, 10**9), BatchLimits(MAX_ROWS), objective_s=1.0)
    for key, time_s in ((PLAIN, 0.01), (rare, 0.1 if rare is SLOW else 0.01)):
        for rows in batcher.tables[key].sizes * 30:
            batcher.tables[key].observe(rows, time_s)
    load = Load(batcher, rate=2 * MAX_ROWS / 0.01, shares={PLAIN: 0.99, rare: 0.01})

    load.run(10.0)

    assert load.reasons[rare, None] > 10
    assert load.reasons[PLAIN, RejectionReason.LATE] > 1000
    served = sum(map(len, load.waited_s.values()))
    assert len(load.refused_s) <= 0.02 * served
    assert max(load.waited_s[rare]) < 1.0


def test_a_huge_request_shares_the_runtime_and_the_queue_with_those_that_come_later() -> None:
    batcher = Batcher(QueueLimits(64, 10**9, portion_rows=2 * MAX_ROWS), BatchLimits(MAX_ROWS))
    huge = request(2000)
    assert not batcher.admit(huge, 0.0)
    first = formed(batcher, 0.0).running

    small = [request(1, arrived_s=1.0) for _ in range(32)]
    assert [batcher.admit(pending, 1.0) for pending in small] == [None] * 32, (
        "one portion is all that it takes of the queue"
    )
    assert batcher.admit(request(2000, arrived_s=1.0), 1.0) is None, "and so would another"
    assert batcher.admit(request(1, arrived_s=1.0), 1.0) is RejectionReason.QUEUE_ROWS

    assert first is not None
    running, order, now_s = deque([first]), [], 1.0
    while batcher.queue.rows:
        now_s = run(batcher, running.popleft(), 0.01, now_s + 0.01)
        while isinstance(decision := batcher.next_batch(now_s), FormedBatch):
            assert decision.running is not None
            running.append(decision.running)
            order.extend([part.pending is huge for part in slices(decision) for _ in range(part.rows)])
            if len(order) < 100:
                batcher.admit(request(1, arrived_s=now_s), now_s)

    assert order.index(False) <= 2 * MAX_ROWS, "others' rows come after its first portion"
    assert order[:80].count(False) >= 32
    assert order.count(True) == 2000 - MAX_ROWS, "and it is served to its end"
    assert any(order[60:140]), "later requests are behind its next portion"


def test_huge_requests_of_one_key_starve_no_other_key() -> None:
    batcher = Batcher(QueueLimits(64, 10**9, portion_rows=2 * MAX_ROWS), BatchLimits(MAX_ROWS))
    batcher.admit(request(2000), 0.0)
    batcher.admit(request(1, key=RARE, arrived_s=0.5), 0.5)
    now_s, batches = 1.0, 0

    while batcher.queue.groups.get(RARE) is not None:
        decision = formed(batcher, now_s)
        assert decision.running is not None
        now_s = run(batcher, decision.running, 0.01, now_s)
        batches += 1

    assert batches <= 3


def learned(batcher: Batcher, base_s: float = 0.01, row_s: float = 0.001, key: BatchKey = PLAIN) -> None:
    """Know what batches of every size take, without having run any."""
    for rows in batcher.tables[key].sizes * 100:
        batcher.tables[key].observe(rows, base_s + row_s * rows)


@pytest.mark.parametrize(
    ("models_own", "expected"), [(None, MAX_ROWS), (MAX_ROWS - 3, MAX_ROWS - 3), (2 * MAX_ROWS, MAX_ROWS)]
)
def test_a_batch_holds_what_both_the_settings_and_the_model_allow(models_own: int | None, expected: int) -> None:
    batcher = make_batcher()
    batcher.set_model(models_own)
    batcher.set_model(models_own)
    batcher.admit(request(3 * MAX_ROWS), 0.0)

    assert batcher.limits.max_rows == expected
    assert sum(part.rows for part in slices(formed(batcher, 0.0))) == expected


@pytest.mark.parametrize(("objective_s", "attainable"), [(0.011, True), (0.0109, False)])
def test_an_objective_is_attainable_if_one_row_alone_just_meets_it(objective_s: float, *, attainable: bool) -> None:
    batcher = make_batcher(objective_s=objective_s)
    learned(batcher)
    alone_s = batcher.tables[PLAIN].p95_s(1)
    batcher.objective_s = alone_s if attainable else alone_s - 1e-9

    assert batcher.can_meet_objective(PLAIN) is attainable


def test_without_timeouts_no_request_has_a_deadline() -> None:
    batcher = make_batcher()
    learned(batcher)
    pending = request(1)
    batcher.admit(pending, 0.0)

    assert pending.soft_deadline_s == NEVER_S


@pytest.mark.parametrize(("objective_s", "within"), [(0.5, 0.5), (0.001, None), (0.03, 0.03)])
def test_an_admitted_request_has_a_deadline_by_the_objective_or_by_two_full_batches_if_none_can_meet_it(
    objective_s: float, within: float | None
) -> None:
    batcher = make_batcher(objective_s=objective_s)
    learned(batcher)
    first, pending = request(1, arrived_s=1.0), request(1, arrived_s=1.0)
    batcher.admit(first, 1.0)
    batcher.admit(pending, 1.0)

    two_s = 2 * batcher.tables[PLAIN].p95_s(MAX_ROWS)
    assert pending.soft_deadline_s - 1.0 == pytest.approx(two_s if within is None else within)


@pytest.mark.parametrize(("would_wait_s", "within_s"), [(0.02, 0.02), (10.0, 0.03)])
def test_how_long_a_client_would_wait_moves_its_deadline_earlier_and_never_later(
    would_wait_s: float, within_s: float
) -> None:
    batcher = make_batcher(objective_s=0.03)
    learned(batcher)
    pending = request(1, arrived_s=1.0)
    pending.soft_deadline_s = 1.0 + would_wait_s

    assert batcher.soft_deadline_for(pending) - 1.0 == pytest.approx(within_s)
    batcher.admit(pending, 1.0)
    assert pending.soft_deadline_s - 1.0 == pytest.approx(within_s)


def test_clients_that_would_wait_for_long_are_rejected_like_all_others_where_there_is_an_objective() -> None:
    batcher = make_batcher(objective_s=0.05)
    learned(batcher)
    patient = [request(1, arrived_s=0.0) for _ in range(40)]
    for pending in patient:
        pending.soft_deadline_s = 30.0

    assert [batcher.admit(pending, 0.0) for pending in patient][-1] is RejectionReason.LATE


def test_the_first_request_of_a_key_has_none_of_its_key_before_it() -> None:
    batcher = make_batcher(objective_s=0.045)
    learned(batcher)
    batcher.admit(request(MAX_ROWS, arrived_s=5.0), 5.0)
    formed(batcher, 5.0)

    assert batcher.admit(request(MAX_ROWS, arrived_s=5.0), 5.0) is None, "the batch after the one that runs"
    assert batcher.admit(request(MAX_ROWS, arrived_s=5.0), 5.0) is RejectionReason.LATE


@pytest.mark.parametrize(("within_s", "refusal"), [(0.03, None), (0.04, RejectionReason.LATE)])
def test_where_there_is_no_time_for_two_batches_a_later_request_may_be_worth_more(
    within_s: float, refusal: RejectionReason | None
) -> None:
    batcher = make_batcher()
    learned(batcher)
    for _ in range(3):
        batcher.admit(request(MAX_ROWS, arrived_s=5.0), 5.0)
    hurried = request(1, arrived_s=5.0)
    hurried.soft_deadline_s = 5.0 + within_s

    assert batcher.admit(hurried, 5.0) is refusal


@pytest.mark.parametrize(
    ("rows", "soft_deadline_s", "refusal"),
    [
        pytest.param(7, 5.03, None, id="it joins a batch with as much time"),
        pytest.param(8, 5.03, RejectionReason.LATE, id="it does not fit in beside it"),
        pytest.param(7, 5.029, RejectionReason.LATE, id="it has less time"),
    ],
)
def test_a_request_that_joins_an_admitted_batch_waits_for_no_other_key(
    rows: int, soft_deadline_s: float, refusal: RejectionReason | None
) -> None:
    batcher = make_batcher()
    learned(batcher)
    head, joining = (request(count, key=RARE, arrived_s=5.0) for count in (1, rows))
    head.soft_deadline_s, joining.soft_deadline_s = 5.03, soft_deadline_s
    assert batcher.admit(head, 5.0) is None
    batcher.admit(request(3 * MAX_ROWS, arrived_s=5.0), 5.0)

    assert batcher.admit(joining, 5.0) is refusal


@pytest.mark.parametrize(
    ("runs", "spare_s", "refusal"), [(True, 0.001, None), (False, 0.001, RejectionReason.LATE), (False, 0.006, None)]
)
def test_behind_what_runs_a_row_is_alone_and_behind_what_waits_it_must_have_time_to_spare(
    spare_s: float, refusal: RejectionReason | None, *, runs: bool
) -> None:
    batcher = make_batcher()
    learned(batcher)
    learned(batcher, 0.1, 0.0, SLOW)
    batcher.admit(request(1, key=SLOW, arrived_s=5.0), 5.0)
    if runs:
        formed(batcher, 5.0)
    pending = request(1, arrived_s=5.0)
    pending.soft_deadline_s = 5.0 + 0.1 + 0.011 + spare_s

    assert batcher.admit(pending, 5.0) is refusal


def test_a_response_is_expected_when_the_runtime_is_free_and_has_taken_its_time() -> None:
    batcher = make_batcher()
    learned(batcher)
    batcher.pace.observe(0.002)
    for _ in range(2 * MAX_ROWS):
        batcher.admit(request(1, arrived_s=5.0), 5.0)
    first, second = formed(batcher, 5.0).running, formed(batcher, 5.0).running
    assert first is not None
    assert second is not None
    forward_s = batcher.tables[PLAIN].p95_s(MAX_ROWS)

    assert first.finish_s == pytest.approx(5.0 + forward_s + 0.002, abs=1e-4)
    assert second.finish_s == pytest.approx(5.0 + 0.001 + 2 * forward_s + 0.002, abs=1e-4)
    assert (first.alone, second.alone, first.guessed) == (True, False, False)
    assert batcher.free_s(5.0) == pytest.approx(5.0 + 2 * forward_s, abs=1e-4)
    assert batcher.free_s(9.0) == 9.0, "it should have been through by then"


def test_what_was_a_guess_does_not_affect_the_lateness_estimate() -> None:
    batcher = make_batcher()
    closed_loop(batcher, 1, latency_s=0.5)
    assert batcher.slack.value == 0.0

    closed_loop(batcher, 1, latency_s=0.9, now_s=10.0)
    assert batcher.slack.value > 0.0


def test_only_a_batch_that_found_the_runtime_free_reports_what_the_host_takes() -> None:
    batcher = make_batcher()
    learned(batcher)
    for _ in range(2 * MAX_ROWS):
        batcher.admit(request(1), 0.0)
    alone, behind = formed(batcher, 0.0).running, formed(batcher, 0.0).running
    assert alone is not None
    assert behind is not None

    come_back(batcher, alone, 0.018, 0.020)
    assert batcher.pace.overhead_s == pytest.approx(0.002)
    come_back(batcher, behind, 0.018, 0.060)
    assert batcher.pace.overhead_s == pytest.approx(0.002)
    assert batcher.rate.retry_after_s(1) == 1
    assert batcher.rate.row_s == pytest.approx((0.020 + 0.2 * (0.040 - 0.020)) / MAX_ROWS)


def test_with_several_executors_the_next_batch_waits_for_the_one_that_ends_first() -> None:
    batcher = Batcher(QueueLimits(64, 10**9), BatchLimits(MAX_ROWS, 0.0, 2))
    learned(batcher)
    for _ in range(3 * MAX_ROWS):
        batcher.admit(request(1), 0.0)
    for now_s in (0.0, 0.001):
        formed(batcher, now_s)
    batch_s = batcher.tables[PLAIN].mean_s(MAX_ROWS)

    assert batcher.free_s(0.002) == pytest.approx(batch_s)
    formed(batcher, 0.002)
    assert batcher.free_s(0.002) == pytest.approx(0.001 + batch_s, rel=0.1)


def test_what_waits_of_each_key_is_tracked_from_the_second_key_with_a_deadline_on() -> None:
    batcher = make_batcher(objective_s=10.0)
    learned(batcher)
    third = BatchKey(parameters=b"third")

    def mean_s(rows: int) -> float:
        table, (full, rest) = batcher.tables[PLAIN], divmod(rows, MAX_ROWS)
        return full * table.mean_s(MAX_ROWS) + (table.mean_s(rest) if rest else 0.0)

    for key in (PLAIN, PLAIN, PLAIN, RARE, PLAIN, *[third] * 9, RARE, *[PLAIN] * 5):
        batcher.admit(request(1, key=key), 0.0)
        groups = batcher.queue.groups.values()
        if len(groups) > 1:
            assert [group.work_s for group in groups] == pytest.approx([mean_s(group.rows) for group in groups])
            assert batcher.queue.work_s == pytest.approx(sum(group.work_s for group in groups))
    formed(batcher, 0.0)
    assert [group.work_s for group in groups] == pytest.approx([mean_s(group.rows) for group in groups])


@pytest.mark.parametrize(("spare_s", "held"), [(0.0001, False), (0.0003, True)])
def test_a_batch_is_held_for_the_rest_of_a_clump_unless_its_head_would_be_late(spare_s: float, *, held: bool) -> None:
    batcher, now_s = make_batcher(), 1.0
    learned(batcher)
    for _ in range(200):
        now_s += 0.00001
        batcher.clumps.arrived(now_s)
    pending = request(1, arrived_s=now_s)
    pending.soft_deadline_s = now_s + batcher.tables[PLAIN].p95_s(1) + spare_s
    batcher.admit(pending, now_s)

    decision = batcher.next_batch(now_s)
    assert isinstance(decision, WaitUntil) is held
    if isinstance(decision, WaitUntil):
        assert decision.until_s == pytest.approx(now_s + 0.0002)


class BatcherMachine(RuleBasedStateMachine):
    """Requests come and go and batches run in any order and for any time; the clock only ever goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.waiting: dict[PendingRequest, int] = {}
        self.running: list[RunningBatch] = []

    @initialize(
        policy=st.sampled_from(BatchingPolicy),
        in_flight=st.integers(1, 3),
        objective_s=st.sampled_from([0.0005, 0.02, NEVER_S]),
        allowed=st.sampled_from([(), (2, 4, 8)]),
        portion_rows=st.sampled_from([5, 1 << 62]),
        measured=st.sampled_from([(), ((1, 0.01), (8, 0.02)), ((1, 10.0), (8, 20.0)), ((1, 1e-6),)]),
    )
    def begin(
        self,
        policy: BatchingPolicy,
        in_flight: int,
        objective_s: float,
        allowed: tuple[int, ...],
        portion_rows: int,
        measured: tuple[tuple[int, float], ...],
    ) -> None:
        delay_s = 0.01 if policy is BatchingPolicy.FIXED else 0.0
        limits = BatchLimits(MAX_ROWS, delay_s, in_flight, policy)
        shares = FairShares({b"a": 2.0})
        self.batcher = Batcher(QueueLimits(64, 10**9, portion_rows), limits, objective_s=objective_s, shares=shares)
        self.batcher.set_model(None, allowed, measured)

    @rule(
        rows=st.integers(1, 12),
        key=st.sampled_from([PLAIN, PLAIN, RARE, SLOW, BatchKey(solo=1)]),
        lane=st.builds(LaneKey, st.sampled_from([b"", b"a"]), st.integers(0, 1)),
        allowed_s=st.sampled_from([NEVER_S, NEVER_S, 0.001, 0.1]),
    )
    def arrive(self, rows: int, key: BatchKey, lane: LaneKey, allowed_s: float) -> None:
        pending = request(rows, key=key, arrived_s=self.now_s)
        pending.lane, pending.soft_deadline_s = lane, self.now_s + allowed_s
        before = self.batcher.queue.requests
        reason = self.batcher.admit(pending, self.now_s)
        assert reason in (None, RejectionReason.LATE, RejectionReason.QUEUE_ROWS)
        if reason is None:
            self.waiting[pending] = rows
        assert self.batcher.queue.requests == before + (reason is None)
        assert not (reason is RejectionReason.LATE and not self.running and not before), (
            "an idle runtime rejects no request"
        )

    @rule()
    def look(self) -> None:
        while isinstance(decision := self.batcher.next_batch(self.now_s), FormedBatch):
            assert decision.rejected or slices(decision)
            for pending in decision.rejected:
                del self.waiting[pending]
            rows = 0
            for part in slices(decision):
                assert part.pending.rows - part.start == self.waiting[part.pending], "rows leave in order, once"
                self.waiting[part.pending] -= part.rows
                rows += part.rows
                if not self.waiting[part.pending]:
                    del self.waiting[part.pending]
            assert rows <= MAX_ROWS
            assert (decision.running is not None) == (rows > 0)
            if decision.running is not None:
                assert decision.running.rows == rows
                self.running.append(decision.running)
        if self.waiting and not self.running:
            assert decision.until_s < NEVER_S, "only a timer keeps waiting requests from an idle runtime"
            assert decision.until_s - self.now_s < 0.05

    @rule(seconds=st.sampled_from([0.0, 0.0001, 0.001, 0.01, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        forward_s=st.sampled_from([None, 0.0, 1e-6, 0.005, 5.0]),
        succeeds=st.booleans(),
    )
    def come_back(self, data: st.DataObject, forward_s: float | None, *, succeeds: bool) -> None:
        running = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if not succeeds:
            self.batcher.record_finished(running, self.now_s)
            return
        come_back(self.batcher, running, forward_s, self.now_s)
        burst = self.batcher.returns.burst(self.now_s)
        burst.add_response(running.rows)
        burst.record_return(running.rows, self.now_s)

    @precondition(lambda self: self.running)
    @rule(rows=st.integers(1, MAX_ROWS))
    def run_out_of_memory(self, rows: int) -> None:
        self.batcher.tables.ran_out_of_memory(PLAIN, rows)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        pending = data.draw(st.sampled_from(list(self.waiting)))
        del self.waiting[pending]
        pending.abandon()
        assert self.batcher.queue.remove(pending)

    @invariant()
    def the_books_are_right(self) -> None:
        batcher = self.batcher
        assert batcher.queue.rows == sum(self.waiting.values())
        assert batcher.queue.requests == len(self.waiting)
        assert batcher.queue.work_s == pytest.approx(
            sum(group.work_s for group in batcher.queue.groups.values()), abs=1e-9
        )
        assert all(group.work_s >= 0 for group in batcher.queue.groups.values())
        assert list(batcher.running) == self.running
        assert len(self.running) <= batcher.limits.in_flight + 1
        assert batcher.free_s(self.now_s) >= self.now_s

    def teardown(self) -> None:
        """Whatever was learned, each waiting request is answered or rejected soon after the runtime continues."""
        for _ in range(10 * len(self.waiting) + 30):
            if not self.waiting and not self.running:
                break
            self.look()
            if self.running:
                self.come_back_first()
            self.now_s += 0.02
        assert not self.waiting

    def come_back_first(self) -> None:
        running = self.running.pop(0)
        self.now_s += 0.001
        come_back(self.batcher, running, 0.001, self.now_s)


BatcherMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBatcherInAnyOrder = BatcherMachine.TestCase
