"""The order of batch keys, compared with a full search; and that no full search is needed."""

import sys
from collections import Counter
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shoal_proxy.batching.batcher import Batcher, FormedBatch
from shoal_proxy.batching.order import FairShares, Group, ServingOrder
from shoal_proxy.batching.pending import BatchKey, LaneKey, PendingRequest
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import Queue, QueueLimits
from shoal_schema.resource.traffic import BatchingPolicy
from tests.proxy.signatures import come_back, request

KEYS = [BatchKey(parameters=b"%d" % number) for number in range(4)]
LANES = [LaneKey(share, level) for share in (b"", b"a", b"b") for level in (0, 1)]


def waiting(key: BatchKey, lane: LaneKey, rows: int, arrived_s: float) -> PendingRequest:
    pending = request(rows, key=key, arrived_s=arrived_s)
    pending.lane = lane
    return pending


class LineMachine(RuleBasedStateMachine):
    """Requests of all keys and lanes come, leave and are served in any order."""

    @initialize(classes=st.booleans(), ageing_s=st.sampled_from([0.0, 1.5]), portion_rows=st.sampled_from([3, 1 << 62]))
    def begin(self, *, classes: bool, ageing_s: float, portion_rows: int) -> None:
        self.shares = FairShares({b"a": 2.0}, ageing_s, classes=classes)
        self.queue = Queue(QueueLimits(10**6, 10**9, portion_rows), self.shares)
        self.now_s = 0.0
        self.all: list[PendingRequest] = []

    @rule(key=st.sampled_from(KEYS), lane=st.sampled_from(LANES), rows=st.integers(1, 9))
    def add(self, key: BatchKey, lane: LaneKey, rows: int) -> None:
        self.now_s += 1.0
        self.all.append(waiting(key, lane if self.shares.classes else lane._replace(share=b""), rows, self.now_s))
        self.queue.add(self.all[-1])

    @precondition(lambda self: self.queue.requests)
    @rule(rows=st.integers(1, 12), mine=st.booleans(), data=st.data())
    def take(self, rows: int, data: st.DataObject, *, mine: bool) -> None:
        group = self.queue.first() if mine else data.draw(st.sampled_from(list(self.queue.groups.values())))
        self.queue.dequeue(group, rows, self.now_s, 1.5)

    @precondition(lambda self: self.queue.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.queue.remove(data.draw(st.sampled_from([one for one in self.all if one in self.queue_of(one)])))

    def queue_of(self, pending: PendingRequest) -> Any:
        return self.queue.groups.get(pending.key, ())

    @invariant()
    def the_first_is_who_would_be_found_by_looking_at_everybody(self) -> None:
        if not self.queue.groups:
            return
        heads: list[tuple[float, float, Group]] = [
            (self.shares.served_rows(key.share), self.shares.turn(key, next(iter(lane))), group)
            for group in self.queue.groups.values()
            for key, lane in group.lanes.items()
        ]
        least = min(had for had, _, _ in heads)
        # Of several classes that have had the same any may go first.
        classes: dict[bytes, list[tuple[float, Group]]] = {}
        for group in self.queue.groups.values():
            for key, lane in group.lanes.items():
                if self.shares.served_rows(key.share) == least:
                    share = key.share if self.shares.classes else b""
                    classes.setdefault(share, []).append((self.shares.turn(key, next(iter(lane))), group))
        firsts = [group for turns in classes.values() for turn, group in turns if turn == min(t for t, _ in turns)]
        assert len(self.queue.groups) == 1 or self.queue.first() in firsts

    @invariant()
    def rows_are_counted_right(self) -> None:
        queue, portion_rows = self.queue, self.queue.limits.portion_rows
        here = [one for one in self.all if one in self.queue_of(one)]
        assert queue.rows == sum(one.remaining_rows for one in here)
        assert queue.rows - queue.later_rows == sum(min(one.remaining_rows, portion_rows) for one in here)
        for group in queue.groups.values():
            assert group.claimed_rows == sum(
                min(one.remaining_rows, portion_rows) for one in here if one.key == group.key
            )


LineMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLineAgainstLookingAtEverybody = LineMachine.TestCase


@pytest.mark.parametrize("what", ["keys", "classes", "levels of classes"])
def test_repeated_connections_cost_bounded_memory(what: str) -> None:
    queue = Queue(QueueLimits(10**6, 10**9))
    queue.add(waiting(BatchKey(), LaneKey(), 10**6, 0.0))
    most = 0
    for number in range(5000):
        name = b"%d" % number
        key = BatchKey(parameters=name) if what == "keys" else BatchKey()
        lane = LaneKey() if what == "keys" else LaneKey(name, number % 10 if what == "levels of classes" else 0)
        pending = waiting(key, lane, 1, float(number))
        queue.add(pending)
        queue.remove(pending)
        line: Any = queue._line
        most = max(most, len(line._heads), len(line._classes), sum(map(len, line._heads.values())))

    assert most <= 256 + 2 * 2
    assert queue.first().key == BatchKey()


def first(formed: FormedBatch) -> PendingRequest:
    """Return the first request of a batch."""
    assert formed.running is not None
    return formed.running.batch.slices[0].pending


def serve(batcher: Batcher, batches: int, now_s: float = 100.0) -> list[FormedBatch]:
    """Let the runtime take 10 ms a batch; return the batches."""
    served: list[FormedBatch] = []
    running: list[FormedBatch] = []
    while len(served) < batches:
        while isinstance(formed := batcher.next_batch(now_s), FormedBatch):
            if formed.running is not None:
                running.append(formed)
        if not running:
            break
        now_s += 0.01
        served.append(running.pop(0))
        assert served[-1].running is not None
        come_back(batcher, served[-1].running, 0.01, now_s)
    return served


def test_a_class_with_a_new_key_for_each_request_gets_its_share_of_the_runtime_and_no_more() -> None:
    batcher = Batcher(QueueLimits(10**6, 10**9), BatchLimits(8))
    for number in range(400):
        assert not batcher.admit(waiting(BatchKey(), LaneKey(b"fair"), 1, 0.0), 0.0)
        key = BatchKey(parameters=b"%d" % number)
        assert not batcher.admit(waiting(key, LaneKey(b"greedy"), 1, 0.0), 0.0)

    batches = Counter(first(formed).lane.share for formed in serve(batcher, 60))

    assert batches[b"fair"] == pytest.approx(batches[b"greedy"], abs=4)


def test_the_levels_of_all_keys_are_served_in_their_order() -> None:
    batcher = Batcher(QueueLimits(10**6, 10**9), BatchLimits(8), shares=FairShares(ageing_s=10.0))
    for number in range(12):
        batcher.admit(waiting(KEYS[number % 4], LaneKey(level=number % 3), 1, number / 100), number / 100)

    levels = [first(formed).lane.level for formed in serve(batcher, 12)]

    assert levels == sorted(levels)


def work_per_arrival(policy: BatchingPolicy, keys: int) -> int:
    """Return how many instructions the batcher needs for an arrival and a batch while ``keys`` keys wait."""
    batcher = Batcher(
        QueueLimits(10**6, 10**9),
        BatchLimits(8, 1.0 if policy is BatchingPolicy.FIXED else 0.0, 1, policy),
        objective_s=1e6 if policy is BatchingPolicy.ADAPTIVE else float("inf"),
        shares=FairShares(classes=False),
    )
    batcher.set_model(None, (), ((1, 0.01), (8, 0.02)))
    arrivals = [request(1, key=BatchKey(parameters=b"%d" % n), arrived_s=n / 1e6) for n in range(keys + 20)]
    for pending in arrivals[:keys]:
        assert not batcher.admit(pending, pending.arrived_s)
    now_s = 5.0
    serve(batcher, 3, now_s)
    count = 0

    def step(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        count += event == "opcode"
        frame.f_trace_opcodes = True
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        for pending in arrivals[keys:]:
            pending.arrived_s = pending.turn_s = now_s
            batcher.admit(pending, now_s)
            batcher.next_batch(now_s)
        serve(batcher, 20, now_s)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.skipif(
    not hasattr(ServingOrder.first, "__code__"), reason="the instructions of a compiled batcher cannot be counted"
)
@pytest.mark.parametrize("policy", BatchingPolicy)
def test_an_arrival_costs_the_same_however_many_keys_wait(policy: BatchingPolicy) -> None:
    few, many = work_per_arrival(policy, 20), work_per_arrival(policy, 500)

    assert many <= 1.5 * few
