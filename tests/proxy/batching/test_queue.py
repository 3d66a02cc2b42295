from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal_proxy.batching.pending import BatchKey, PendingRequest
from shoal_proxy.batching.queue import Queue, QueueLimits
from shoal_schema.interfaces.metrics import RejectionReason
from tests.proxy.signatures import request

KEYS = [BatchKey(parameters=name) for name in (b"a", b"b", b"c")]


def queue_of(*pendings: PendingRequest, max_rows: int = 1000, max_bytes: int = 10**9) -> Queue:
    queue = Queue(QueueLimits(max_rows, max_bytes))
    for pending in pendings:
        queue.add(pending)
    return queue


def only_group(queue: Queue) -> Any:
    (group,) = queue.groups.values()
    return group


@pytest.mark.parametrize(
    ("waiting", "rows", "size_bytes", "reason"),
    [
        pytest.param(6, 4, 0, None, id="exactly full"),
        pytest.param(6, 5, 0, RejectionReason.QUEUE_ROWS, id="one row too many"),
        pytest.param(1, 1, 984, None, id="exactly the bytes"),
        pytest.param(1, 1, 985, RejectionReason.QUEUE_BYTES, id="one byte too many"),
        pytest.param(0, 11, 2000, None, id="larger than everything, alone"),
        pytest.param(1, 10, 2000, RejectionReason.QUEUE_ROWS, id="larger than everything, not alone"),
    ],
)
def test_the_queue_is_bounded_in_rows_and_bytes(
    waiting: int, rows: int, size_bytes: int, reason: RejectionReason | None
) -> None:
    queue = queue_of(*[request(1) for _ in range(waiting)], max_rows=10, max_bytes=1000)

    assert queue.rejection_reason(rows, size_bytes) is reason


def test_requests_of_a_group_leave_in_the_order_they_came() -> None:
    first, second, third = request(1), request(2), request(1)
    queue = queue_of(first, second, third)

    slices = queue.dequeue(only_group(queue), 10)

    assert [(part.pending, part.start, part.stop) for part in slices] == [(first, 0, 1), (second, 0, 2), (third, 0, 1)]
    assert (queue.rows, queue.requests, queue.size_bytes, queue.groups) == (0, 0, 0, {})


def test_a_large_request_is_split_and_its_rest_stays_at_the_head() -> None:
    large, small = request(10), request(1)
    queue = queue_of(large, small)

    taken = [[(p.pending is large, p.start, p.stop) for p in queue.dequeue(only_group(queue), 4)] for _ in range(3)]

    assert taken == [[(True, 0, 4)], [(True, 4, 8)], [(True, 8, 10), (False, 0, 1)]]


def test_a_request_partly_dequeued_is_removed_with_the_rows_that_are_left() -> None:
    large, small = request(10), request(1)
    queue = queue_of(large, small)
    queue.dequeue(only_group(queue), 4)

    assert queue.rows == 7
    assert queue.remove(large)
    assert (queue.rows, queue.requests, queue.size_bytes) == (1, 1, small.size_bytes)
    assert not queue.remove(large)


def test_what_waits_should_take_as_long_as_its_groups_do_and_less_when_some_of_it_leaves() -> None:
    first, second, other = request(3, key=KEYS[0]), request(1, key=KEYS[0]), request(2, key=KEYS[1])
    queue = queue_of(first, second, other)
    assert queue.work_s == 0.0
    one, two = (queue.groups[key] for key in KEYS[:2])
    for group, work_s in ((one, 1.0), (two, 0.5), (one, 2.0)):
        queue.set_work(group, work_s)
    assert (queue.work_s, one.work_s, two.work_s) == (2.5, 2.0, 0.5)

    queue.remove(second)
    assert (queue.work_s, one.work_s) == (2.0, 1.5)
    queue.dequeue(one, 3)
    assert queue.work_s == 0.5
    queue.set_work(two, 0.1)
    queue.dequeue(two, 2)
    assert queue.work_s == 0.0, "whatever rounding has left"


def test_a_request_of_many_rows_counts_with_one_portion_and_others_come_between() -> None:
    queue = Queue(QueueLimits(10, 10**9, portion_rows=4))
    large, small = request(10, arrived_s=1.0), request(1, arrived_s=2.0)
    queue.add(large)
    assert (queue.rows, queue.later_rows, only_group(queue).claimed_rows) == (10, 6, 4)
    assert queue.rejection_reason(9, 0) is None, "a portion of it"
    queue.add(small)

    served: list[tuple[bool, int, int]] = []
    while queue.groups:
        slices = queue.dequeue(only_group(queue), 2, now_s=5.0)
        served.extend((part.pending is large, part.start, part.stop) for part in slices)
        assert queue.later_rows == max(0, large.remaining_rows - 4)
    assert served == [
        (True, 0, 2),
        (True, 2, 4),
        (False, 0, 1),
        (True, 4, 5),
        (True, 5, 7),
        (True, 7, 9),
        (True, 9, 10),
    ]


@pytest.mark.parametrize(("arrived_s", "now_s", "turn_s"), [(1.0, 5.0, 5.0), (1.0, 0.0, 1.0)])
def test_the_rest_of_a_large_request_takes_its_turn_as_if_it_came_now(
    arrived_s: float, now_s: float, turn_s: float
) -> None:
    queue = Queue(QueueLimits(10, 10**9, portion_rows=4))
    large = request(10, arrived_s=arrived_s)
    queue.add(large)

    queue.dequeue(only_group(queue), 3, now_s)
    assert only_group(queue).oldest_s == arrived_s
    queue.dequeue(only_group(queue), 1, now_s)
    assert only_group(queue).oldest_s == turn_s


@pytest.mark.parametrize(
    ("soft_deadline_s", "in_order"), [((1.0, 2.0), False), ((2.0, 2.0), True), ((3.0, 2.0), False)]
)
def test_a_large_request_that_falls_behind_those_with_later_deadlines_is_served_out_of_order(
    soft_deadline_s: tuple[float, float], *, in_order: bool
) -> None:
    queue = Queue(QueueLimits(10, 10**9, portion_rows=2))
    pendings = request(4), request(1)
    for pending, each_s in zip(pendings, soft_deadline_s, strict=True):
        pending.soft_deadline_s = each_s
        queue.add(pending)
    queue.dequeue(only_group(queue), 2)

    dues = [pending.soft_deadline_s for pending in only_group(queue).requests()]
    assert not only_group(queue).in_deadline_order or dues == sorted(dues)
    assert only_group(queue).in_deadline_order is in_order


def test_a_group_determines_whether_it_could_fill_a_batch() -> None:
    queue = Queue(QueueLimits(1000, 10**9), None, lambda key: 4)
    rest, whole, solo = request(2, key=KEYS[0]), request(2, key=KEYS[0]), request(1, key=BatchKey(solo=1))
    for pending in (rest, whole, solo, request(3, key=KEYS[1])):
        queue.add(pending)
    assert list(queue.full) == [KEYS[0], solo.key], "a request that travels alone fills its batch"

    queue.add(third := request(1, key=KEYS[0]))
    queue.remove(third)
    assert list(queue.full) == [KEYS[0], solo.key]
    queue.remove(rest)
    assert list(queue.full) == [solo.key]
    queue.dequeue(queue.groups[solo.key], 1)
    assert list(queue.full) == []


def test_a_group_that_could_fill_another_batch_waits_behind_the_others_that_are_full() -> None:
    queue = Queue(QueueLimits(1000, 10**9), None, lambda key: 4)
    for key, rows in ((KEYS[0], 9), (KEYS[1], 4)):
        queue.add(request(rows, key=key))
    for expected in ([KEYS[1], KEYS[0]], [KEYS[1]]):
        queue.dequeue(queue.groups[KEYS[0]], 4)
        assert list(queue.full) == expected


class QueueMachine(RuleBasedStateMachine):
    """The queue against a list of [pending, key, rows left]."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(QueueLimits(10**6, 10**9))
        self.model: list[list[Any]] = []

    @rule(rows=st.integers(1, 9), key=st.sampled_from(KEYS))
    def add(self, rows: int, key: BatchKey) -> None:
        pending = request(rows, key=key)
        self.queue.add(pending)
        self.model.append([pending, key, rows])

    @precondition(lambda self: self.model)
    @rule(data=st.data(), max_rows=st.integers(1, 12))
    def take(self, data: st.DataObject, max_rows: int) -> None:
        key = data.draw(st.sampled_from([entry[1] for entry in self.model]))
        slices = self.queue.dequeue(self.queue.groups[key], max_rows)
        expected, room = [], max_rows
        for entry in [entry for entry in self.model if entry[1] == key]:
            count = min(room, entry[2])
            if count:
                start = entry[0].rows - entry[2]
                expected.append((entry[0], start, start + count))
                entry[2] -= count
                room -= count
        self.model = [entry for entry in self.model if entry[2]]
        assert [(part.pending, part.start, part.stop) for part in slices] == expected

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.model) - 1))
        pending = self.model.pop(index)[0]
        assert self.queue.remove(pending)
        assert not self.queue.remove(pending)

    @invariant()
    def counts_equal_a_recount(self) -> None:
        queue = self.queue
        assert queue.rows == sum(entry[2] for entry in self.model) == sum(g.rows for g in queue.groups.values())
        assert queue.requests == len(self.model)
        assert queue.size_bytes == sum(entry[0].size_bytes for entry in self.model)
        for key, group in queue.groups.items():
            assert list(group.requests()) == [entry[0] for entry in self.model if entry[1] == key]
            assert group.lanes, "an empty group must not stay"


QueueMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestQueueAgainstAModel = QueueMachine.TestCase
