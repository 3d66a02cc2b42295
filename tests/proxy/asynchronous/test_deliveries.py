"""The queue of webhooks: whose turn it is, and what is held."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal_proxy.asynchronous.callbacks import Callback
from shoal_proxy.asynchronous.deliveries import MAX_RUNNING, MAX_RUNNING_PER_HOST, Delivery, DeliveryQueue


def delivery(host: str = "a", size_bytes: int = 1, job_id: str = "job") -> Delivery:
    return Delivery(job_id, Callback("https", host, 443, "/"), 200, (), (bytes(size_bytes),), size_bytes)


@pytest.fixture
def queue() -> DeliveryQueue:
    return DeliveryQueue(1000, 1000)


def test_a_receiver_gets_its_share_and_others_their_own(queue: DeliveryQueue) -> None:
    for _ in range(100):
        queue.add(delivery("slow"), 0.0)
    assert [each.callback.host for each in queue.start(0.0)] == ["slow"] * MAX_RUNNING_PER_HOST
    queue.add(delivery("fast"), 0.0)
    assert [each.callback.host for each in queue.start(0.0)] == ["fast"]
    assert queue.start(0.0) == []


def test_receivers_take_turns(queue: DeliveryQueue) -> None:
    names = [f"host-{number}" for number in range(MAX_RUNNING + 4)]
    for name in names:
        for _ in range(2):
            queue.add(delivery(name), 0.0)
    first = queue.start(0.0)
    assert [each.callback.host for each in first] == names[:MAX_RUNNING]
    for each in first[:5]:
        queue.remove(each)
    assert [each.callback.host for each in queue.start(0.0)] == [*names[MAX_RUNNING:], names[0]]


def test_a_retry_waits_for_its_time(queue: DeliveryQueue) -> None:
    queue.add(delivery(), 5.0)
    (first,) = queue.start(5.0)
    assert queue.next_start_s() is None
    queue.retry(first, 9.0)
    assert queue.next_start_s() == 9.0
    assert queue.start(8.9) == []
    assert queue.start(9.0) == [first]
    assert (first.tries, first.first_s) == (2, 5.0)
    queue.remove(first)
    assert (queue.held, queue.size_bytes) == (0, 0)


def test_deliveries_and_bytes_are_limited() -> None:
    queue = DeliveryQueue(2, 10)
    assert not queue.has_room(11)
    queue.add(delivery(size_bytes=8), 0.0)
    assert queue.has_room(2)
    assert not queue.has_room(3)
    queue.add(delivery(size_bytes=0), 0.0)
    assert not queue.has_room(0)
    for each in queue.start(0.0):
        queue.remove(each)
    assert queue.has_room(10)


def test_a_receiver_that_holds_the_most_makes_room_for_others() -> None:
    queue = DeliveryQueue(10, 1000)
    for number in range(10):
        queue.add(delivery("slow", job_id=str(number)), float(number))
    assert queue.make_room(delivery("slow")) == []
    assert not queue.has_room(1)
    for number in range(5):
        new = delivery("fast")
        assert [each.job_id for each in queue.make_room(new)] == [str(9 - number)]
        queue.add(new, 0.0)
    assert queue.make_room(delivery("fast")) == []
    # Running ones stay.
    assert [each.job_id for each in queue.start(0.0) if each.callback.host == "slow"] == ["0"]


def test_a_receiver_that_holds_the_most_bytes_makes_room_for_others() -> None:
    queue = DeliveryQueue(1000, 100)
    for number in range(9):
        queue.add(delivery("large", 10, str(number)), float(number))
    queue.add(delivery("small", 10), 0.0)
    new = delivery("other", 15)
    assert [each.job_id for each in queue.make_room(new)] == ["8", "7"]
    assert queue.has_room(15)
    assert queue.make_room(delivery("other", 90)) == []
    assert queue.held == 8


class Queues(RuleBasedStateMachine):
    """Any order of additions, ends and retries."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = DeliveryQueue(40, 10_000)
        self.now_s = 0.0
        self.added = 0
        self.waiting: dict[int, float] = {}
        self.running: list[Delivery] = []
        self.all: dict[int, Delivery] = {}

    @rule(host=st.sampled_from("abcdefg"), count=st.integers(1, 9))
    def add(self, host: str, count: int) -> None:
        for _ in range(count):
            each = delivery(host, job_id=str(self.added))
            self.added += 1
            own = sum(other.receiver == each.receiver for other in self.all.values())
            for removed in self.queue.make_room(each):
                assert sum(other.receiver == removed.receiver for other in self.all.values()) > own + 1
                del self.waiting[id(removed)], self.all[id(removed)]
            if not self.queue.has_room(each.size_bytes):
                assert len(self.all) == 40
                continue
            self.all[id(each)] = each
            self.waiting[id(each)] = self.now_s
            self.queue.add(each, self.now_s)

    @rule()
    def start(self) -> None:
        for each in self.queue.start(self.now_s):
            assert self.waiting.pop(id(each)) <= self.now_s
            self.running.append(each)
        # Nothing that could run waits.
        for key, at_s in self.waiting.items():
            held = sum(other.receiver == self.all[key].receiver for other in self.running)
            assert at_s > self.now_s or len(self.running) == MAX_RUNNING or held == MAX_RUNNING_PER_HOST

    @precondition(lambda self: self.running)
    @rule(data=st.data(), again=st.booleans(), pause_s=st.floats(0, 100))
    def end(self, data: st.DataObject, again: bool, pause_s: float) -> None:
        each = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if again:
            self.waiting[id(each)] = self.now_s + pause_s
            self.queue.retry(each, self.now_s + pause_s)
        else:
            self.queue.remove(each)
            del self.all[id(each)]

    @rule(pause_s=st.floats(0, 100))
    def wait(self, pause_s: float) -> None:
        self.now_s += pause_s

    @invariant()
    def limits_hold(self) -> None:
        receivers = [each.receiver for each in self.running]
        assert len(receivers) <= MAX_RUNNING
        assert all(receivers.count(each) <= MAX_RUNNING_PER_HOST for each in receivers)
        assert self.queue.held == self.queue.size_bytes == len(self.running) + len(self.waiting)
        assert self.queue.untried == sum(self.all[key].tries == 0 for key in self.waiting)
        next_s = self.queue.next_start_s()
        assert next_s is None or next_s in self.waiting.values()


TestQueues = Queues.TestCase
