"""When a batch runs again on the stable replica, in time that the test drives."""

import numpy as np

from shoal_proxy.batching.pending import PLAIN_KEY
from shoal_proxy.batching.row_checks.suspicion import RowCheckBudget
from shoal_proxy.rollout.repeats import OVERDUE_S, POLL_S, SUSPECTED_SHARE, RepeatSchedule
from tests.proxy.replicas import Replica
from tests.proxy.signatures import request


def first_due_s(schedule: RepeatSchedule, replica: Replica, within_s: float = 10.0) -> float:
    """Return when a batch is to run, if no client sends anything; infinite if it is not."""
    begun_s = replica.now_s
    while replica.now_s < begun_s + within_s:
        if schedule.is_due(replica.scheduler, PLAIN_KEY, 8, replica.now_s):
            return replica.now_s - begun_s
        replica.now_s += POLL_S
    return float("inf")


def test_a_batch_runs_once_the_device_has_been_idle_for_a_moment() -> None:
    replica, schedule = Replica(), RepeatSchedule()
    assert POLL_S <= first_due_s(schedule, replica) <= 5 * POLL_S


def test_what_ran_is_paid_for_before_the_next_one() -> None:
    replica, schedule = Replica(), RepeatSchedule()
    first_due_s(schedule, replica)
    schedule.record_run(0.05)
    assert first_due_s(schedule, replica) > 0.4


def test_a_batch_waits_while_clients_keep_the_device_busy_but_not_for_ever() -> None:
    replica, schedule = Replica(), RepeatSchedule()
    begun_s = replica.now_s
    while not schedule.is_due(replica.scheduler, PLAIN_KEY, 8, replica.now_s):
        replica.ask(*replica.random_rows(1))
        replica.now_s += POLL_S
    assert OVERDUE_S <= replica.now_s - begun_s < OVERDUE_S + 1


def test_a_batch_does_not_make_a_request_late() -> None:
    replica, schedule = Replica(), RepeatSchedule()
    first_due_s(schedule, replica)
    now_s = replica.now_s = replica.now_s + 2 * OVERDUE_S
    # It waits: its batch is not sent in this test.
    inputs = {"x": np.zeros((1, 4), np.float32)}
    soon = request(inputs, arrived_s=now_s, deadline_s=now_s + 60)
    soon.soft_deadline_s = now_s + 0.0025
    assert replica.scheduler.admit(soon, now_s) is None
    assert not schedule.is_due(replica.scheduler, PLAIN_KEY, 8, now_s)


def test_a_suspected_candidate_gets_a_share_of_the_device_at_any_load() -> None:
    usual, suspected = RowCheckBudget(), RowCheckBudget()
    for now_s in range(20):
        usual.earn(1.0, float(now_s))
        suspected.earn(1.0, float(now_s), SUSPECTED_SHARE)
        if suspected.wait_s(1.0) == 0:
            suspected.spend(0.05)
    assert usual.left_s == 0
    assert 19 * SUSPECTED_SHARE - 0.1 <= suspected.spent_s <= 19 * SUSPECTED_SHARE + 0.05


def test_under_suspicion_a_batch_runs_again_sooner() -> None:
    replica, due_s = Replica(), []
    for suspected in (False, True):
        schedule = RepeatSchedule()
        schedule.record_run(0.05)
        begun_s = replica.now_s
        while not schedule.is_due(replica.scheduler, PLAIN_KEY, 8, replica.now_s, suspected=suspected):
            replica.now_s += POLL_S
        due_s.append(replica.now_s - begun_s)
    assert due_s[1] < 0.9 * due_s[0]
