"""A replica's load report: exact over any interval, with a capacity that meets the objective."""

from random import Random

import msgspec
import numpy as np
import pytest

from shoal_proxy.batching.batch import BatchResult
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import NEVER_S, PLAIN_KEY, BatchKey
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.row_checks.checks import RowChecks
from shoal_proxy.batching.scheduler import Scheduler, SchedulerStep
from shoal_proxy.explaining.load import demand, read_load, utilization
from shoal_schema.interfaces.load import MAX_BYTES, Load
from tests.fakes import tensor
from tests.proxy.signatures import request, signature

MODEL = signature([tensor("x", "INT64", [-1, 1])], [tensor("y", "INT64", [-1, 1])])


def make_scheduler(
    base_s: float = 0.005, row_s: float = 0.01, *, objective_s: float = NEVER_S, max_rows: int = 64, in_flight: int = 1
) -> Scheduler:
    """Return a scheduler with measured times: seconds per batch and per row."""
    batcher = Batcher(QueueLimits(8, 10**9), BatchLimits(max_rows, 0.0, in_flight), objective_s=objective_s)
    for rows in batcher.tables[PLAIN_KEY].sizes * 20:
        batcher.tables[PLAIN_KEY].observe(rows, base_s + row_s * rows)
    return Scheduler(batcher)


def ask(scheduler: Scheduler, rows: int, now_s: float) -> bool:
    pending = request({"x": np.zeros((rows, 1), np.int64)}, arrived_s=now_s, deadline_s=now_s + 60)
    return scheduler.admit(pending, now_s) is None


def answer(scheduler: Scheduler, step: object, now_s: float) -> None:
    assert isinstance(step, SchedulerStep)
    assert step.running is not None
    scheduler.record_finished(step.running, now_s)
    scheduler.complete_batch(
        step.running, BatchResult({"y": np.zeros((step.running.rows, 1))}), MODEL, completed_s=now_s
    )
    scheduler.record_delivered(step.running, now_s)


def test_rows_count_from_their_arrival_until_their_batch_is_back() -> None:
    scheduler = make_scheduler(max_rows=4)
    before = read_load(scheduler, 100.0)
    assert ask(scheduler, 3, 100.0)
    step = scheduler.next_batch(100.0)
    assert ask(scheduler, 2, 100.5)
    scheduler.next_batch(100.5)
    during = read_load(scheduler, 101.0)
    answer(scheduler, step, 101.0)
    scheduler.next_batch(101.0)
    after = read_load(scheduler, 102.0)

    assert (during.queued_rows, during.running_rows) == (2, 3)
    assert during.row_seconds - before.row_seconds == pytest.approx(3 * 1.0 + 2 * 0.5)
    assert during.queued_row_seconds - before.queued_row_seconds == pytest.approx(2 * 0.5)
    assert after.row_seconds - during.row_seconds == pytest.approx(2.0)
    assert after.busy_s - before.busy_s == pytest.approx(2.0)
    assert (after.arrived_rows, after.answered_rows) == (5, 3)


def test_what_is_rejected_has_arrived_all_the_same() -> None:
    scheduler = make_scheduler(objective_s=0.2)
    now = [ask(scheduler, 1, 50.0 + at * 1e-4) for at in range(40)]
    scheduler.next_batch(50.01)

    load = read_load(scheduler, 50.02)

    assert load.arrived_rows == 40
    assert load.refused_rows.rows == now.count(False) > 0
    assert load.refused_rows.queue_rows + load.refused_rows.late == load.refused_rows.rows


def test_the_capacity_is_that_of_batches_of_which_two_fit_the_objective() -> None:
    load = read_load(make_scheduler(objective_s=0.2), 1.0)

    assert load.capacity is not None
    # 9 rows take 95 ms: two such batches 190 of 200.
    assert load.capacity.rows_per_s == pytest.approx(9 / 0.095, rel=0.03)
    assert load.capacity.rows == pytest.approx(1.5 * 9, rel=0.03)


@pytest.mark.parametrize(
    "objective_s", [pytest.param(NEVER_S, id="no objective"), pytest.param(0.001, id="one that cannot be met")]
)
def test_without_an_objective_to_keep_the_capacity_is_the_most_there_is(objective_s: float) -> None:
    load = read_load(make_scheduler(objective_s=objective_s), 1.0)

    assert load.capacity is not None
    assert load.capacity.rows_per_s == pytest.approx(64 / 0.645, rel=0.03)


def test_batches_that_run_side_by_side_count_each() -> None:
    one, two = (read_load(make_scheduler(in_flight=count), 1.0).capacity for count in (1, 2))

    assert one is not None
    assert two is not None
    assert two.rows_per_s == pytest.approx(2 * one.rows_per_s)


def test_a_request_behind_a_queue_waits_less_where_several_batches_run_at_a_time() -> None:
    waits_s = []
    for count in (1, 4):
        scheduler = make_scheduler(max_rows=4, in_flight=count)
        for _ in range(8):
            assert ask(scheduler, 1, 1.0)
        waits_s.append(read_load(scheduler, 1.0).expected_wait_s)

    # Two batches of 45 ms before it, or free executors.
    assert waits_s == [pytest.approx(0.105, abs=0.005), pytest.approx(0.015, abs=0.005)]


def test_before_any_measurement_there_is_no_capacity() -> None:
    load = read_load(Scheduler(Batcher(QueueLimits(8, 10**9), BatchLimits(4))), 1.0)

    assert load.capacity is None
    assert load.objective_attainable


def test_of_several_shapes_the_capacity_is_that_of_their_mix() -> None:
    scheduler = make_scheduler(0.0, 0.01)
    long = BatchKey(shapes=(("x", (9,)),))
    for rows in scheduler.batcher.tables[long].sizes * 20:
        scheduler.batcher.tables[long].observe(rows, 0.03 * rows)

    load = read_load(scheduler, 1.0)

    assert load.capacity is not None
    assert load.capacity.rows_per_s == pytest.approx(1 / 0.02, rel=0.03)


def test_the_expected_wait_grows_with_the_queue_and_is_none_where_nothing_is_accepted() -> None:
    scheduler = make_scheduler(max_rows=4)
    idle = read_load(scheduler, 10.0).expected_wait_s
    for _ in range(2):
        ask(scheduler, 4, 10.0)
    scheduler.next_batch(10.0)
    busy = read_load(scheduler, 10.0).expected_wait_s

    assert idle == pytest.approx(0.015, rel=0.05)
    # The batch that runs, the one that waits, and its own.
    assert busy == pytest.approx(0.045 + 0.045 + 0.015, rel=0.05)
    assert read_load(scheduler, 10.0, taking=False).expected_wait_s is None


def test_utilization_is_demand_divided_by_capacity() -> None:
    scheduler = make_scheduler(0.0, 0.01)
    read_load(scheduler, 10.0)
    for each in range(8):
        ask(scheduler, 5, 10.0 + each / 10)
    assert utilization(scheduler, 11.0) == pytest.approx(0.4, rel=0.03)

    scheduler.traffic.arrived_rows += 10**6
    assert utilization(scheduler, 12.0) == 1.0


def test_demand_is_in_replicas_has_no_bound_and_leaves_out_what_a_peer_got() -> None:
    scheduler = make_scheduler(0.0, 0.01)
    assert demand(scheduler, 10.0) == 0
    for each in range(8):
        ask(scheduler, 5, 10.0 + each / 10)
    scheduler.traffic.arrived_rows += 2960
    assert demand(scheduler, 16.0) == pytest.approx(5.0, rel=0.03)  # 500 rows a second at 100 rows a second

    scheduler.traffic.arrived_rows += 3000
    scheduler.traffic.forwarded_rows += 1500
    assert demand(scheduler, 22.0) == pytest.approx(2.5, rel=0.03)
    assert demand(scheduler, 28.0) == 0


def test_the_document_is_small_and_reads_back() -> None:
    load = read_load(make_scheduler(objective_s=0.2), 123456.789)
    document = msgspec.json.encode(load)

    assert msgspec.json.decode(document, type=Load) == load
    assert len(document) < MAX_BYTES / 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("queued_rows", b"-1"),
        ("queued_rows", b"1.5"),
        ("queued_rows", b'"3"'),
        ("arrived_rows", b"99999999999999999999999"),
        ("row_seconds", b"-0.5"),
        ("row_seconds", b"NaN"),
        ("busy_s", b"1e999"),
        ("utilization", b"1.01"),
        ("draining", b"1"),
        ("capacity", b'{"rows_per_s": 0, "rows": 1}'),
        ("capacity", b"[]"),
        ("refused_rows", b'{"late": 1}'),
        ("time_s", b"null"),
    ],
)
def test_a_value_that_no_proxy_can_have_is_not_read(key: str, value: bytes) -> None:
    document = msgspec.json.encode(read_load(make_scheduler(), 1.0))
    fields = msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    assert key in fields
    lie = msgspec.json.encode({**fields, key: msgspec.Raw(value)})

    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(lie, type=Load)


@pytest.mark.parametrize("reason", ["RandomResults", "ChangingResults", "NoModel"])
def test_rows_that_are_not_checked_keep_a_document_that_older_operators_decode(reason: str) -> None:
    """They read ``independent`` as true or false, and the reason as a text of up to 64 characters."""
    checks = RowChecks(Random(1).randrange)
    checks.unchecked = reason
    scheduler = Scheduler(make_scheduler().batcher, checks=checks)

    written = msgspec.json.decode(msgspec.json.encode(read_load(scheduler, 1.0)))

    assert written["rows"]["independent"] is True
    assert written["rows"]["unchecked"] == reason
    assert len(reason) <= 64
