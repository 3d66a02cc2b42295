import hypothesis.strategies as st
import pytest
from hypothesis import given

from shoal_proxy.batching.batch import make_batch
from shoal_proxy.batching.latency import LatencyTable
from shoal_proxy.batching.pending import NEVER_S, BatchKey, LaneKey
from shoal_proxy.batching.policy import BatchLimits, CloseBatch, DeviceState, Estimates, WaitUntil, decide_batch
from shoal_proxy.batching.queue import Queue, QueueLimits
from shoal_proxy.batching.selection import BatchCosts
from shoal_schema.resource.traffic import BatchingPolicy
from tests.proxy.signatures import request

A, B = BatchKey(parameters=b"a"), BatchKey(parameters=b"b")
SOLO = BatchKey(solo=1)
TABLE = LatencyTable(8)
Waiting = list[tuple[BatchKey, int, float]]


def outlook(max_rows: int) -> Estimates:
    """No estimates of the runtime, and no client about to return."""
    return Estimates(lambda group: BatchCosts(TABLE, 0.0, max_rows), lambda group, costs, device: 0.0)


def queue_of(waiting: Waiting, *, fixed_rows: int | None = None) -> Queue:
    queue = Queue(QueueLimits(10**6, 10**9), None, None if fixed_rows is None else lambda key: fixed_rows)
    for key, rows, arrived_s in waiting:
        queue.add(request(rows, key=key, arrived_s=arrived_s))
    return queue


def decided(waiting: Waiting, *, in_flight: int = 0, delay_s: float = 0.0, slots: int = 1) -> BatchKey | float:
    """Return the key whose batch closes at 10 s, or until when to wait."""
    policy = BatchingPolicy.FIXED if delay_s else BatchingPolicy.ADAPTIVE
    decision = decide_batch(
        queue_of(waiting, fixed_rows=4 if delay_s else None),
        BatchLimits(4, delay_s, slots, policy),
        DeviceState(in_flight, 10.0, 10.0),
        outlook(4),
    )
    return decision.group.key if isinstance(decision, CloseBatch) else decision.until_s


@pytest.mark.parametrize(
    ("waiting", "in_flight", "delay_s", "slots", "expected"),
    [
        pytest.param([], 0, 0, 1, NEVER_S, id="nothing waits"),
        pytest.param([(A, 1, 10)], 0, 0, 1, A, id="an idle runtime gets one row at once"),
        pytest.param([(A, 1, 10)], 1, 0, 1, NEVER_S, id="a partial batch stays while the runtime is busy"),
        pytest.param([(A, 4, 10)], 1, 0, 1, A, id="a full batch is sent ahead"),
        pytest.param([(A, 9, 10)], 2, 0, 1, NEVER_S, id="only one is sent ahead"),
        pytest.param([(A, 1, 10)], 1, 0, 2, A, id="a second slot is free"),
        pytest.param([(A, 4, 10)], 2, 0, 2, A, id="sent ahead of two slots"),
        pytest.param([(A, 9, 10)], 3, 0, 2, NEVER_S, id="two slots and one ahead are taken"),
        pytest.param([(A, 1, 9), (B, 1, 8)], 0, 0, 1, B, id="the oldest head goes first"),
        pytest.param([(B, 1, 8), (A, 4, 9)], 1, 0, 1, B, id="no full group overtakes an older partial one"),
        pytest.param([(B, 1, 8), (A, 3, 9)], 1, 0, 1, NEVER_S, id="which may still grow if nothing full is behind it"),
        pytest.param([(A, 4, 9), (B, 5, 8)], 1, 0, 1, B, id="the oldest of the full groups is sent ahead"),
        pytest.param([(A, 1, 9)], 0, 2, 1, 11.0, id="a delay is counted from the head's arrival"),
        pytest.param([(A, 1, 9), (A, 1, 10)], 0, 1, 1, A, id="the delay is over"),
        pytest.param([(A, 2, 10), (A, 2, 10)], 0, 2, 1, A, id="a full batch does not wait for the delay"),
        pytest.param([(A, 1, 9), (B, 4, 10)], 0, 2, 1, B, id="a full group overtakes one that is not due"),
        pytest.param([(A, 1, 7), (B, 4, 9)], 0, 2, 1, A, id="but none that is"),
        pytest.param([(A, 1, 7), (B, 4, 9)], 1, 2, 1, A, id="not even ahead of a busy runtime"),
        pytest.param([(A, 1, 9), (SOLO, 1, 10)], 0, 2, 1, SOLO, id="a solo request has nothing to wait for"),
        pytest.param([(SOLO, 1, 10)], 1, 0, 1, SOLO, id="a solo request is a full batch"),
        pytest.param([(A, 1, 10)], 1, 2, 1, NEVER_S, id="with a delay, a partial batch stays too while busy"),
    ],
)
def test_when_a_batch_closes(
    waiting: Waiting, in_flight: int, delay_s: float, slots: int, expected: BatchKey | float
) -> None:
    assert decided(waiting, in_flight=in_flight, delay_s=delay_s, slots=slots) == expected


@pytest.mark.parametrize(
    ("waiting", "ahead_s", "expected"),
    [
        pytest.param([(9, 4)], NEVER_S, NEVER_S, id="a full batch gives way while the runtime is busy"),
        pytest.param([(9, 4)], 10.5, 10.5, id="until just in time"),
        pytest.param([(9, 4)], 10.0, A, id="and then goes"),
        pytest.param([(0, 3), (9, 4)], NEVER_S, NEVER_S, id="also with some rows that are served first"),
        pytest.param([(0, 4), (9, 4)], NEVER_S, A, id="but not one of these alone"),
    ],
)
def test_a_batch_of_low_priority_is_sent_ahead_only_just_in_time(
    waiting: list[tuple[int, int]], ahead_s: float, expected: BatchKey | float
) -> None:
    queue = Queue(QueueLimits(10**6, 10**9))
    for level, rows in waiting:
        queue.add(request(rows, key=A, lane=LaneKey(level=level), arrived_s=9.0))
    decision = decide_batch(queue, BatchLimits(4), DeviceState(1, 10.0, 11.0, ahead_s), outlook(4))

    assert (decision.group.key if isinstance(decision, CloseBatch) else decision.until_s) == expected


waitings = st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 11), st.floats(0, 10)), max_size=8)


@given(waitings, st.integers(1, 8), st.integers(1, 3), st.integers(0, 4))
def test_an_idle_runtime_is_never_kept_waiting_and_batches_never_exceed_their_rows(
    waiting: Waiting, max_rows: int, slots: int, in_flight: int
) -> None:
    queue = queue_of(waiting)
    limits = BatchLimits(max_rows, 0.0, slots)
    total = queue.rows

    while isinstance(
        decision := decide_batch(queue, limits, DeviceState(in_flight, 10.0, 10.0), outlook(max_rows)),
        CloseBatch,
    ):
        rows = make_batch(queue.dequeue(decision.group, decision.rows)).rows
        assert 1 <= rows <= max_rows
        assert rows == max_rows or in_flight < slots or queue.rows >= max_rows, "others wait for as much"
        in_flight += 1
        total -= rows
        assert queue.rows == total

    assert isinstance(decision, WaitUntil)
    assert decision.until_s == NEVER_S
    assert not queue.groups or in_flight >= slots
    assert in_flight > slots or all(group.rows < max_rows for group in queue.groups.values())


@given(waitings, st.floats(0.001, 5), st.floats(0, 20))
def test_no_request_waits_beyond_the_delay_while_a_slot_is_free(waiting: Waiting, delay_s: float, now_s: float) -> None:
    queue = queue_of(waiting, fixed_rows=4)

    decision = decide_batch(
        queue, BatchLimits(4, delay_s, 1, BatchingPolicy.FIXED), DeviceState(0, now_s, now_s), outlook(4)
    )

    if isinstance(decision, WaitUntil):
        oldest_s = min((group.oldest_s for group in queue.groups.values()), default=NEVER_S)
        assert decision.until_s == oldest_s + delay_s
        assert now_s < oldest_s + delay_s


@pytest.mark.parametrize(
    ("waiting", "rows"), [([(A, 6, 9)], 4), ([(A, 1, 9), (A, 1, 9)], 1), ([(A, 3, 9), (A, 3, 9)], 3)]
)
def test_without_batching_a_request_goes_alone_in_pieces_that_the_model_takes(waiting: Waiting, rows: int) -> None:
    limits = BatchLimits(4, policy=BatchingPolicy.NONE)

    decision = decide_batch(queue_of(waiting), limits, DeviceState(0, 10.0, 10.0), outlook(4))

    assert isinstance(decision, CloseBatch)
    assert decision.rows == rows


def awaited_s(decision: CloseBatch | WaitUntil) -> float:
    assert isinstance(decision, WaitUntil)
    return decision.until_s


def test_by_default_nothing_is_delayed_and_one_batch_runs_at_a_time() -> None:
    fixed = BatchLimits(4, policy=BatchingPolicy.FIXED)
    queue = queue_of([(A, 1, 10.0)], fixed_rows=4)

    assert isinstance(decide_batch(queue, fixed, DeviceState(0, 10.0, 10.0), outlook(4)), CloseBatch)
    assert awaited_s(decide_batch(queue, fixed, DeviceState(1, 10.0, 10.0), outlook(4))) == NEVER_S


def timed(
    soft_deadline_s: list[float], device: DeviceState, *, hold_s: float = 0.0, allowed: tuple[int, ...] = ()
) -> CloseBatch | WaitUntil:
    """Decide for requests of one row, of a runtime that takes 10 ms and 1 ms for each row, at most 8."""
    table = LatencyTable(8, allowed)
    for size in table.sizes * 30:
        table.observe(size, 0.01 + 0.001 * size)
    queue = Queue(QueueLimits(10**6, 10**9))
    for each_s in soft_deadline_s:
        pending = request(1, key=A)
        pending.soft_deadline_s = each_s
        queue.add(pending)
    known = Estimates(lambda group: BatchCosts(table, 0.0, 8), lambda group, costs, device: hold_s)
    return decide_batch(queue, BatchLimits(8), device, known)


FREE, BUSY = DeviceState(0, 10.0, 10.0), DeviceState(1, 10.0, 10.02)


def closed(decision: CloseBatch | WaitUntil) -> tuple[int, list[float]]:
    assert isinstance(decision, CloseBatch)
    return decision.rows, [pending.soft_deadline_s for pending in decision.rejected]


def test_a_request_that_is_too_late_is_rejected_whatever_the_order_of_their_deadlines() -> None:
    assert closed(timed([NEVER_S, 10.001, NEVER_S], FREE)) == (2, [10.001])
    assert closed(timed([10.001, NEVER_S, NEVER_S], FREE)) == (2, [10.001])
    assert closed(timed([60.0, 61.0, 62.0], FREE)) == (3, [])


def test_a_batch_just_above_a_padded_size_is_trimmed() -> None:
    assert closed(timed([60.0] * 5, FREE, allowed=(1, 2, 4, 8))) == (4, [])
    assert closed(timed([60.0] * 7, FREE, allowed=(1, 2, 4, 8))) == (7, [])


def test_clients_about_to_return_are_waited_for_unless_a_request_would_be_late() -> None:
    assert awaited_s(timed([60.0], FREE, hold_s=0.5)) == 10.5
    assert closed(timed([10.001, 60.0], FREE, hold_s=0.5)) == (1, [10.001])


def test_a_full_batch_is_sent_ahead_unless_what_may_still_happen_could_change_it() -> None:
    assert closed(timed([60.0] * 8, BUSY)) == (8, [])
    assert awaited_s(timed([10.021, *[60.0] * 8], BUSY)) == NEVER_S
    assert awaited_s(timed([10.021, *[60.0] * 7], BUSY)) == NEVER_S


def test_a_partial_batch_leaves_when_its_time_has_come() -> None:
    assert awaited_s(timed([60.0], DeviceState(1, 10.0, 10.02, 10.01))) == 10.01
    assert closed(timed([60.0], DeviceState(1, 10.01, 10.02, 10.01))) == (1, [])


def test_a_fixed_batch_never_holds_more_than_the_model_accepts() -> None:
    fixed = BatchLimits(4, policy=BatchingPolicy.FIXED)
    for rows, expected in ((9, 4), (3, 3)):
        decision = decide_batch(queue_of([(A, rows, 10.0)], fixed_rows=4), fixed, FREE, outlook(4))
        assert isinstance(decision, CloseBatch)
        assert decision.rows == expected
