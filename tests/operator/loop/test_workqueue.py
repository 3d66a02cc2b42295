"""The queue: one reconciliation for many marks, one worker per key, backoff after failures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.children.observation import Key
from shoal_operator.loop.workqueue import AGE_S, SPACING_S, Outcome, Priority, WorkQueue

CAT, DOG = Key("default", "cat"), Key("default", "dog")


def test_many_marks_are_one_reconciliation() -> None:
    queue = WorkQueue(resync_s=600)
    for now_s in (3.0, 1.0, 2.0):
        queue.mark(CAT, now_s)

    assert queue.take(1.0) == CAT
    assert queue.take(100.0) is None


def test_no_key_is_returned_before_its_time() -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 5.0)

    assert queue.take(4.9) is None
    assert queue.next_due_s() == 5.0
    assert queue.take(5.0) == CAT


def test_mark_during_a_reconciliation_leads_to_another_one_afterwards() -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 0.0)
    assert queue.take(0.0) == CAT
    queue.mark(CAT, 1.0, Priority.CHANGED)

    assert queue.take(1.0) is None
    queue.finish(CAT, Outcome.DONE, 2.0, jitter=0.0)
    assert queue.take(2.0) == CAT


def test_failures_are_tried_again_ever_later_until_a_success() -> None:
    queue = WorkQueue(resync_s=600)
    now_s, delays = 0.0, []
    queue.mark(CAT, now_s)
    for _ in range(8):
        assert queue.take(now_s) == CAT
        queue.finish(CAT, Outcome.FAILED, now_s, jitter=0.0)
        due_s = queue.next_due_s()
        assert due_s is not None
        delays.append(due_s - now_s)
        now_s = due_s

    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert queue.take(now_s) == CAT
    queue.finish(CAT, Outcome.DONE, now_s, jitter=0.0)
    assert queue.next_due_s() == now_s + 600


def test_a_change_does_not_wait_for_the_next_try() -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 0.0)
    queue.take(0.0)
    queue.finish(CAT, Outcome.FAILED, 0.0, jitter=0.0)
    queue.mark(CAT, 0.1, Priority.CHANGED)

    assert queue.take(0.1) == CAT


def test_a_service_that_is_gone_is_forgotten() -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 0.0)
    queue.take(0.0)
    queue.finish(CAT, Outcome.GONE, 0.0, jitter=0.0)

    assert queue.next_due_s() is None
    assert len(queue) == 0


def test_oldest_running_reconciliation_is_returned() -> None:
    queue = WorkQueue(resync_s=600)
    for key, now_s in ((CAT, 1.0), (DOG, 2.0)):
        queue.mark(key, now_s)
        queue.take(now_s)

    assert queue.oldest_running_s() == 1.0
    queue.finish(CAT, Outcome.DONE, 3.0, jitter=0.5)
    assert queue.oldest_running_s() == 2.0


@pytest.mark.parametrize("jitter", [0.0, 0.5, 0.999])
def test_jitter_only_shortens_and_never_below_a_second(jitter: float) -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 0.0)
    queue.take(0.0)
    queue.finish(CAT, Outcome.FAILED, 0.0, jitter=jitter)

    assert queue.next_due_s() == 1.0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("mark"), st.sampled_from([CAT, DOG]), st.floats(0, 5)),
        st.tuples(st.just("take"), st.none(), st.floats(0, 1)),
        st.tuples(st.just("finish"), st.sampled_from(list(Outcome)), st.floats(0, 1)),
    ),
    max_size=40,
)


@given(STEPS)
def test_no_mark_is_lost_and_no_key_is_taken_twice(steps: list[tuple[str, object, float]]) -> None:
    queue, now_s, taken, waiting = WorkQueue(resync_s=600), 0.0, [], set()
    for step, what, amount in steps:
        now_s += amount if step != "mark" else 0
        if step == "mark" and isinstance(what, Key):
            queue.mark(what, now_s + amount)
            waiting.add(what)
        elif step == "take" and (key := queue.take(now_s)):
            assert key not in taken
            taken.append(key)
            waiting.discard(key)
        elif step == "finish" and taken and isinstance(what, Outcome):
            queue.finish(taken.pop(), what, now_s, jitter=0.0)
    for key in taken:
        queue.finish(key, Outcome.GONE, now_s, jitter=0.0)
    left = set()
    while key := queue.take(now_s + 10_000):
        left.add(key)
    assert waiting <= left


def test_waiting_service_is_reconciled_again_within_seconds() -> None:
    queue = WorkQueue(600)
    queue.mark(CAT, 0.0)
    assert queue.take(0.0) == CAT
    queue.finish(CAT, Outcome.WAITING, 0.0, jitter=0.9)

    assert queue.next_due_s() == 5.0


@pytest.mark.parametrize(("jitter", "due_s"), [(0.0, 600.0), (0.5, 540.0)])
def test_successful_reconciliations_are_spread(jitter: float, due_s: float) -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 0.0)
    queue.take(0.0)
    queue.finish(CAT, Outcome.DONE, 0.0, jitter=jitter)

    assert queue.next_due_s() == due_s


def test_a_later_mark_changes_nothing_and_an_earlier_one_counts_once() -> None:
    queue = WorkQueue(resync_s=600)
    for due_s in (5.0, 5.0, 7.0, 3.0):
        queue.mark(CAT, due_s)
    assert (len(queue), queue.waiting(), queue.next_due_s()) == (1, (CAT,), 3.0)

    assert queue.take(3.0) == CAT
    assert queue.oldest_running_s() == 3.0
    assert queue.next_due_s() is None
    assert queue.take(10.0) is None


def test_due_keys_that_are_not_running_are_returned_with_their_age() -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 1.0)
    queue.mark(DOG, 9.0)
    assert (queue.due_since_s(0.5), queue.due_since_s(3.0)) == ([], [1.0])

    queue.take(3.0)
    queue.mark(CAT, 4.0)
    assert queue.due_since_s(9.5) == [9.0]


def test_objects_of_one_name_are_not_reconciled_concurrently() -> None:
    queue = WorkQueue(resync_s=600)
    service, graph, other = Key("shop", "one"), Key("shop", "one", "inferencegraphs"), Key("shop", "two")
    for key in (service, graph, other):
        queue.mark(key, 0)
    first = queue.take(0)
    assert {first, queue.take(0)} <= {service, graph, other}
    assert queue.take(0) is None
    (left,) = {service, graph} & set(queue.waiting())
    held = service if left is graph else graph
    queue.finish(held, Outcome.DONE, 1, jitter=0)
    assert queue.take(1) == left
    queue.finish(left, Outcome.DONE, 1, jitter=0)
    assert queue.take(1) is None


def test_a_changed_spec_is_taken_before_what_has_been_due_for_longer_and_nothing_waits_for_ever() -> None:
    queue = WorkQueue(resync_s=600)
    others = [Key("default", f"other-{number}") for number in range(100)]
    for number, key in enumerate(others):
        queue.mark(key, number / 100, Priority.REST)
    queue.mark(DOG, 1.0, Priority.FAILING)
    queue.mark(CAT, 1.5, Priority.CHANGED)

    assert [queue.take(2.0) for _ in range(3)] == [CAT, DOG, others[0]]
    queue.mark(Key("default", "late"), AGE_S * Priority.REST + 1.0, Priority.CHANGED)
    assert queue.take(60.0) == others[1]


def test_pod_events_are_batched_per_second_and_a_changed_spec_is_immediate() -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 0.0)
    assert queue.take(0.0) == CAT
    queue.finish(CAT, Outcome.DONE, 0.1, jitter=0.0)
    for hundredth in range(20, 50):
        queue.mark(CAT, hundredth / 100)

    assert queue.take(0.1 + SPACING_S - 0.01) is None
    assert queue.next_due_s() == 0.1 + SPACING_S
    queue.mark(CAT, 0.5, Priority.SCALING)
    assert queue.take(0.5) == CAT


def test_a_key_keeps_the_sooner_time_and_the_more_urgent_reason() -> None:
    queue = WorkQueue(resync_s=600)
    queue.mark(CAT, 5.0, Priority.CHANGED)
    queue.mark(CAT, 1.0, Priority.REST)
    queue.mark(DOG, 1.0, Priority.FAILING)

    assert [queue.take(1.0), queue.take(1.0)] == [CAT, DOG]
