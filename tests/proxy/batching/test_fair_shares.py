import random
from collections import Counter
from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.order import FairShares
from shoal_proxy.batching.pending import LaneKey, PendingRequest
from shoal_proxy.batching.queue import Queue, QueueLimits
from tests.proxy.signatures import request


def waiting(lane: LaneKey, rows: int = 1, arrived_s: float = 0.0) -> PendingRequest:
    pending = request(rows, arrived_s=arrived_s)
    pending.lane = lane
    return pending


def queue_of(pendings: Iterable[PendingRequest], shares: FairShares | None = None) -> Queue:
    queue = Queue(QueueLimits(10**9, 10**12), shares or FairShares())
    for pending in pendings:
        queue.add(pending)
    return queue


def served(queue: Queue, max_rows: int) -> list[PendingRequest]:
    (group,) = queue.groups.values()
    return [part.pending for part in queue.dequeue(group, max_rows)]


def test_classes_get_rows_by_their_weights_however_much_each_requests() -> None:
    lanes = {b"ann": 900, b"bob": 300, b"cem": 300}
    pendings = [waiting(LaneKey(name)) for name, count in lanes.items() for _ in range(count)]
    queue = queue_of(pendings, FairShares({b"ann": 2.0, b"bob": 1.0}))

    counts = Counter(pending.lane.share for _ in range(20) for pending in served(queue, 20))

    assert counts == {b"ann": 200, b"bob": 100, b"cem": 100}


def test_rows_are_shared_and_not_requests() -> None:
    large = [waiting(LaneKey(b"large"), rows=10) for _ in range(50)]
    small = [waiting(LaneKey(b"small")) for _ in range(500)]
    queue = queue_of([*large, *small])

    rows: Counter[bytes] = Counter()
    for _ in range(20):
        for pending in served(queue, 20):
            rows[pending.lane.share] += pending.rows

    assert rows[b"large"] == pytest.approx(rows[b"small"], abs=20)


def test_a_class_that_was_absent_does_not_catch_up() -> None:
    queue = queue_of(waiting(LaneKey(b"ann")) for _ in range(300))
    for _ in range(10):
        served(queue, 10)
    for _ in range(100):
        queue.add(waiting(LaneKey(b"bob")))

    counts = Counter(pending.lane.share for pending in served(queue, 40))

    assert counts[b"ann"] == pytest.approx(20, abs=1)


def test_a_class_that_leaves_for_a_moment_keeps_its_debt() -> None:
    queue = queue_of(waiting(LaneKey(b"bob"), arrived_s=1) for _ in range(50))
    queue.add(waiting(LaneKey(b"ann"), rows=20))
    assert Counter(pending.lane.share for pending in served(queue, 20))[b"ann"] == 1

    queue.add(waiting(LaneKey(b"ann"), rows=20))

    assert {pending.lane.share for pending in served(queue, 15)} == {b"bob"}


def test_a_class_pays_for_what_ran_again_because_of_it() -> None:
    shares = FairShares()
    queue = queue_of([waiting(LaneKey(name)) for name in (b"ann", b"bob") for _ in range(40)], shares)

    shares.charge_retry(b"bob", 10)

    assert [Counter(pending.lane.share for pending in served(queue, 10)) for _ in range(2)] == [
        {b"ann": 10},
        {b"ann": 5, b"bob": 5},
    ]


def test_what_ran_again_without_a_waiting_client_is_forgotten() -> None:
    shares = FairShares()
    shares.charge_retry(b"bob", 10)
    FairShares(classes=False).charge_retry(b"", 10)

    assert shares._had == {}


def test_the_first_level_goes_first_and_the_others_wait_no_longer_than_they_age() -> None:
    queue = queue_of([waiting(LaneKey(level=9), arrived_s=0.0)], FairShares(ageing_s=1.0))
    turn = 0
    for second in range(20):
        queue.add(waiting(LaneKey(level=0), arrived_s=float(second)))
        turn += 1
        if served(queue, 1)[0].lane.level == 9:
            break

    assert turn == 10, "it precedes requests that arrive nine seconds later"


def test_without_ageing_time_the_level_does_not_matter() -> None:
    queue = queue_of(
        [waiting(LaneKey(level=5), arrived_s=1.0), waiting(LaneKey(level=0), arrived_s=2.0)], FairShares(ageing_s=0.0)
    )

    assert [pending.lane.level for pending in served(queue, 2)] == [5, 0]


lanes = st.builds(LaneKey, st.sampled_from([b"", b"a", b"b"]), st.integers(0, 2))


@given(
    st.lists(st.tuples(lanes, st.integers(1, 4), st.floats(0, 5)), min_size=1, max_size=25),
    st.lists(st.integers(1, 6), max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_the_order_that_is_planned_with_is_the_order_of_serving(
    arrivals: list[tuple[LaneKey, int, float]], batches: list[int]
) -> None:
    queue = queue_of(waiting(*arrival) for arrival in sorted(arrivals, key=lambda arrival: arrival[2]))
    for rows in batches:  # so that the classes have had something each
        if queue.groups:
            served(queue, rows)
    if not queue.groups:
        return
    (group,) = queue.groups.values()
    planned = list(group.requests())
    assert len(planned) == queue.requests
    assert group.head is planned[0]

    one_by_one = []
    while queue.groups:
        head = group.head
        one_by_one.extend(served(queue, head.remaining_rows))

    assert one_by_one == planned


@given(st.lists(st.tuples(lanes, st.booleans()), min_size=1, max_size=60))
def test_whatever_happens_no_request_is_forgotten_and_nothing_is_left(steps: list[tuple[LaneKey, bool]]) -> None:
    shares = FairShares({b"a": 3.0})
    queue, here = queue_of([], shares), 0
    for number, (lane, take) in enumerate(steps):
        queue.add(waiting(lane, arrived_s=float(number)))
        here += 1
        if take:
            here -= len(served(queue, 2))
        assert queue.requests == here

    while queue.groups:
        served(queue, 3)

    assert (queue.rows, queue.size_bytes, shares._waiting, shares._had) == (0, 0, {}, {})


def test_any_number_of_classes_cost_bounded_memory() -> None:
    shares = FairShares()
    queue = queue_of([waiting(LaneKey(b"always"), rows=10**6)], shares)
    most = 0
    for number in range(20_000):
        pending = waiting(LaneKey(b"%d" % number), arrived_s=float(number))
        queue.add(pending)
        if number % 3:
            served(queue, 1)
        else:
            queue.remove(pending)
        most = max(most, len(shares._had))

    assert most < 3000
    assert len(shares._waiting) == queue.requests


@pytest.mark.skipif(not hasattr(FairShares.serving_order, "__code__"), reason="a compiled class cannot be counted in")
def test_many_lanes_are_looked_through_once_a_batch() -> None:
    class Counting(FairShares):
        looks = 0

        def serving_order(self, lanes: object) -> object:  # type: ignore[override]
            self.looks += 1
            return super().serving_order(lanes)  # type: ignore[arg-type]

    shares = Counting()
    chance = random.Random(1)
    queue = queue_of((waiting(LaneKey(b"%d" % n), arrived_s=chance.random()) for n in range(256)), shares)

    assert len(served(queue, 32)) == 32
    assert shares.looks == 1
