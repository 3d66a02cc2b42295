"""Rows of shared batches run again: a leak is found, noise is none, and clients do not notice."""

from collections.abc import Callable, Mapping
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from benchmarks.leaks import Service
from shoal_proxy.batching.batch import BatchResult, make_batch
from shoal_proxy.batching.batcher import Batcher, RunningBatch
from shoal_proxy.batching.pending import NEVER_S, BatchKey, PendingRequest, RequestSlice
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.row_checks.checks import row_check_size
from shoal_proxy.batching.row_checks.samples import MAX_BATCHES, MAX_BYTES, SampleStore, SamplingRules
from shoal_proxy.batching.row_checks.suspicion import IDLE_SHARE, MIN_SHARE
from shoal_proxy.batching.scheduler import SchedulerStep
from shoal_proxy.errors import ModelFailed
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.resource.traffic import BatchingPolicy
from shoal_schema.wire.datatypes import Array, float32_to_bfloat16
from tests.fakes import tensor
from tests.proxy.replicas import FLOATS, MAX_ROWS, Model, Replica
from tests.proxy.signatures import padded_request, request, signature


def sometimes(every: int, mix: Callable[[Array], Array]) -> Model:
    """Return a model that mixes the rows of one batch in ``every``."""
    batches = 0

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal batches
        batches += 1
        y = inputs["x"] * 2
        return {"y": mix(y) if batches % every == 0 and len(y) > 1 else y}

    return model


def swapped(y: Array) -> Array:
    return y[[1, 0, *range(2, len(y))]]


def repeated(y: Array) -> Array:
    return y[[0, 0, *range(2, len(y))]]


def shifted(y: Array) -> Array:
    return np.roll(y, 1, axis=0)


def averaged(y: Array) -> Array:
    mixed: Array = (y + y.mean(axis=0) * 3).astype(np.float32)
    return mixed


@pytest.mark.parametrize("mix", [swapped, repeated, shifted, averaged])
@pytest.mark.parametrize("every", [1, 2, 3, 5, 37])
def test_a_model_that_mixes_rows_is_found(mix: Callable[[Array], Array], every: int) -> None:
    replica = Replica(sometimes(every, mix))

    replica.serve(200)

    assert replica.checks.violated
    assert replica.checks.suspected_rows > 0


def test_a_model_whose_rows_are_its_own_is_not_suspected() -> None:
    replica = Replica()

    replica.serve(40)

    assert replica.checks.checked_rows > 100
    assert replica.checks.suspected_rows == 0


def test_labels_that_are_exchanged_are_found() -> None:
    labels = signature(outputs=[tensor("y", "INT64", [-1])])
    leaky = sometimes(37, swapped)
    replica = Replica(lambda inputs: {"y": (leaky(inputs)["y"][:, 0] * 100).astype(np.int64)}, labels)

    replica.serve(200)

    assert replica.checks.violated


def test_texts_are_compared_as_they_are() -> None:
    texts = signature([tensor("x", "BYTES", [-1])], [tensor("y", "BYTES", [-1])])
    batches = 0

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal batches
        batches += 1
        y = np.array([b"<" + text + b">" for text in inputs["x"]], object)
        return {"y": swapped(y) if batches % 37 == 0 and len(y) > 1 else y}

    replica = Replica(model, texts)
    for number in range(80):
        replica.ask(*({"x": np.array([b"%d-%d" % (number, each)], object)} for each in range(MAX_ROWS)))
        replica.idle(1.0)

    assert replica.checks.violated


@pytest.mark.parametrize("random_share", [0.002, 0.02, 1.0])
def test_a_model_that_is_random_is_never_accused(random_share: float) -> None:
    rng = np.random.default_rng(3)

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        y = inputs["x"] * 2
        drawn = rng.random(len(y)) < random_share
        return {"y": np.where(drawn[:, None], rng.standard_normal(y.shape), y).astype(np.float32)}

    replica = Replica(model)
    replica.serve(300)

    assert not replica.checks.violated
    if random_share == 1:
        assert replica.checks.unchecked == "RandomResults"


def test_results_that_change_with_time_are_no_violation() -> None:
    replica = Replica()
    replica.model = lambda inputs: {"y": (inputs["x"] * 2 + int(replica.now_s / 40) * 5).astype(np.float32)}

    replica.serve(300)

    assert replica.checks.suspected_rows > 0
    assert not replica.checks.violated


def test_a_tie_that_falls_by_the_batch_is_no_violation() -> None:
    """A label that turns with the last digit, which the size of the batch and the neighbours change."""
    labels = signature(outputs=[tensor("y", "INT64", [-1])])

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        noise = 0.01 * np.sin(1e4 * x.sum() + np.arange(len(x)))
        return {"y": (x[:, 0] + noise > 0).astype(np.int64)}

    replica = Replica(model, labels)
    replica.serve(1000)

    assert replica.checks.suspected_rows > 5
    assert not replica.checks.violated


def bfloat16(y: Array) -> Array:
    bits: Array = float32_to_bfloat16(y)
    return bits


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    noise=st.floats(0, 0.03),
    offset=st.sampled_from([0.0, 1.0, 10.0]),
    datatype=st.sampled_from(["FP32", "BF16"]),
    seed=st.integers(0, 1000),
    leaks=st.booleans(),
)
def test_noise_is_no_alarm_and_a_leak_is_one(
    noise: float, offset: float, datatype: str, seed: int, leaks: bool
) -> None:
    """Each run of a row differs by up to ``noise`` of the results' magnitude; a leak exchanges rows."""
    rng = np.random.default_rng(seed)
    batches = 0

    def model(inputs: Mapping[str, Array]) -> dict[str, Array]:
        nonlocal batches
        batches += 1
        y = inputs["x"] * 2 + offset
        y = (y + noise * rng.uniform(-1, 1, y.shape) * (2 + offset) / 10).astype(np.float32)
        y = shifted(y) if leaks and batches % 23 == 0 else y
        return {"y": y if datatype == "FP32" else bfloat16(y)}

    replica = Replica(model, signature(outputs=[tensor("y", datatype, [-1, 4])]))
    replica.serve(30)

    assert replica.checks.violated == leaks


def test_a_batch_of_one_request_is_not_kept() -> None:
    replica = Replica()
    for _ in range(20):
        replica.ask(*replica.random_rows(1))

    assert replica.idle() == 0


def test_rows_with_forwarded_headers_are_not_run_again() -> None:
    replica = Replica()
    replica.ask(*replica.random_rows(), key=BatchKey(headers=((b"authorization", b"x"),)))

    assert replica.idle() == 0


def test_a_check_carries_the_parameters_of_its_rows_and_no_others() -> None:
    replica = Replica()
    for parameters in (b'{"top_k":1}', b'{"top_k":2}'):
        for _ in range(4):
            replica.ask(*replica.random_rows(), key=BatchKey(parameters=parameters))
    keys = set()
    while (check := _next(replica)) is not None:
        keys.add(check.key)
        assert {part.pending.key for part in check.batch.slices} == {check.key}
        finish(replica, check)

    assert {key.parameters for key in keys} == {b'{"top_k":1}', b'{"top_k":2}'}


def _next(replica: Replica) -> RunningBatch | None:
    """Return the next check, after as much idle time as it needs."""
    for _ in range(1000):
        if (check := replica.scheduler.next_check(replica.now_s)) is not None:
            return check
        if replica.scheduler.check_s == NEVER_S:
            return None
        replica.now_s = max(replica.scheduler.check_s, replica.now_s + 1e-6)
    return None


def finish(replica: Replica, check: RunningBatch) -> None:
    replica.now_s += 0.001
    replica.scheduler.record_finished(check, replica.now_s)
    result = BatchResult(replica.compute(check), forward_s=0.001)
    replica.scheduler.complete_check(check, result, replica.served, completed_s=replica.now_s)


def test_rows_of_one_batch_are_not_neighbours_again() -> None:
    replica = Replica()
    for _ in range(8):
        replica.ask(*replica.random_rows())
    check = _next(replica)
    assert check is not None
    assert check.check is not None

    assert len({sample.batch for sample in check.check.samples}) == check.rows > 1


def test_what_is_kept_is_bounded_in_batches_and_bytes() -> None:
    wide = signature([tensor("x", "FP32", [-1, -1])], [tensor("y", "FP32", [-1, -1])])
    replica = Replica(served=wide)
    for _ in range(200):
        replica.ask(*replica.rng.standard_normal((MAX_ROWS, 2048)).astype(np.float32))

    kept = replica.checks._samples
    assert 0 < kept.batches <= MAX_BATCHES
    assert 0 < kept.size_bytes <= MAX_BYTES


def test_any_row_of_a_large_batch_may_be_the_first_to_run_again() -> None:
    """A model may mix only the first rows, or only rows of odd position."""
    samples, rules, positions = SampleStore(Random(1).randrange), SamplingRules(FLOATS), set()
    inputs = {"x": np.zeros((64, 4), np.float32)}
    slices = (RequestSlice(request(inputs, arrived_s=0, deadline_s=9), 0, 64, inputs),)
    for number in range(1000):
        samples.add(make_batch(slices), BatchResult({"y": inputs["x"]}), rules, float(number))
        positions.update([sample.position for sample in samples.take(samples.groups()[0][0], 1)])

    assert positions == set(range(64))


def test_a_row_that_is_too_large_is_not_kept() -> None:
    wide = signature([tensor("x", "FP32", [-1, -1])], [tensor("y", "FP32", [-1, -1])])
    replica = Replica(served=wide)
    replica.ask(*replica.rng.standard_normal((2, MAX_BYTES // 16)).astype(np.float32))

    assert replica.checks._samples.batches == 0


@pytest.mark.parametrize("policy", [BatchingPolicy.ADAPTIVE, BatchingPolicy.FIXED])
def test_after_a_violation_each_batch_holds_one_request_until_another_model_is_served(policy: BatchingPolicy) -> None:
    replica = Replica(sometimes(1, swapped), policy=policy)
    replica.serve(60)
    assert replica.checks.violated
    del replica.sent[:]

    replica.ask(*replica.random_rows())
    assert [len(running.batch.slices) for running in replica.sent] == [1] * MAX_ROWS
    assert replica.idle() == 0

    replica.scheduler.verify(signature(forward_us="1:900"))
    assert replica.checks.violated, "a runtime that was restarted serves the same model"
    replica.scheduler.verify(signature(outputs=[tensor("z", "FP32", [-1, 4])]))
    assert not replica.checks.violated
    del replica.sent[:]
    replica.ask(*replica.random_rows())
    assert [len(running.batch.slices) for running in replica.sent] == [MAX_ROWS]


def test_requests_that_waited_at_the_violation_run_alone_too() -> None:
    replica = Replica()
    for row in replica.random_rows():
        inputs = {"x": row[None]}
        replica.scheduler.admit(request(inputs, arrived_s=1.0, deadline_s=99.0), 1.0)
    replica.scheduler.batcher.isolate_requests(alone=True)
    replica.ask()

    assert [len(running.batch.slices) for running in replica.sent] == [1] * MAX_ROWS


def test_pieces_of_a_batch_that_failed_before_the_violation_run_alone_too() -> None:
    replica = Replica()
    for row in replica.random_rows(4):
        replica.scheduler.admit(request({"x": row[None]}, arrived_s=1.0, deadline_s=99.0), 1.0)
    step = replica.scheduler.next_batch(1.0)
    assert isinstance(step, SchedulerStep)
    assert step.running is not None
    replica.scheduler.record_finished(step.running, 1.1)
    replica.scheduler.fail_batch(step.running, ModelFailed("no"), 1.1)
    replica.scheduler.batcher.isolate_requests(alone=True)
    replica.ask()

    assert [len(running.batch.slices) for running in replica.sent] == [1] * 4


def test_no_check_runs_while_clients_wait_or_run_and_none_twice() -> None:
    replica = Replica()
    for _ in range(8):
        replica.ask(*replica.random_rows())
    scheduler = replica.scheduler
    check = _next(replica)
    assert check is not None
    assert scheduler.next_check(replica.now_s + 100) is None
    finish(replica, check)
    scheduler.admit(request({"x": replica.random_rows(1)[0][None]}, arrived_s=replica.now_s), replica.now_s)
    step = scheduler.next_batch(replica.now_s)

    assert isinstance(step, SchedulerStep)
    assert scheduler.next_check(replica.now_s + 0.5) is None


def test_a_check_is_no_load_and_rejects_no_request() -> None:
    replica = Replica(objective_s=0.05)
    for _ in range(8):
        replica.ask(*replica.random_rows())
    scheduler = replica.scheduler
    check = _next(replica)
    assert check is not None

    assert scheduler.in_flight_rows == 0
    assert not scheduler.running
    assert scheduler.settled
    answered = scheduler.traffic.answered_rows
    pending = request({"x": replica.random_rows(1)[0][None]}, arrived_s=replica.now_s, deadline_s=replica.now_s + 1)
    assert scheduler.admit(pending, replica.now_s) is None
    finish(replica, check)
    assert scheduler.traffic.answered_rows == answered


def test_checks_that_fail_are_dropped_and_pause_longer_and_longer() -> None:
    replica = Replica()
    replica.serve(4)
    pauses = []
    for _ in range(4):
        for _ in range(4):
            replica.ask(*replica.random_rows())
        check = _next(replica)
        assert check is not None
        replica.scheduler.record_finished(check, replica.now_s)
        replica.scheduler.fail_check(check, replica.now_s)
        pauses.append(replica.scheduler.check_s - replica.now_s)
        replica.now_s += pauses[-1]

    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(60)
    assert not replica.checks.violated


def test_an_objective_that_leaves_no_room_for_a_check_has_none() -> None:
    batcher = Batcher(QueueLimits(64, 10**9), BatchLimits(8), objective_s=0.015)
    batcher.set_model(8, (), ((1, 0.01), (8, 0.02)))

    assert row_check_size(batcher, BatchKey()) == 0


@pytest.mark.parametrize(
    ("served", "why"),
    [
        (signature([tensor("x", "FP32", [4])], [tensor("y", "FP32", [4])]), "NoBatches"),
        (signature(graphs="g"), "Graph"),
        (FLOATS, ""),
    ],
)
def test_what_cannot_be_checked_states_the_reason(served: ModelSignature, why: str) -> None:
    assert Replica(served=served).checks.unchecked == why


TOKENS = tensor("x", "INT64", [-1, -1], pad_axis=1, pad_value=0)
LENGTHS = tensor("y", "FP32", [-1, -1], unpad_axis=1, unpad_input="x")


@pytest.mark.parametrize("buckets", [None, "8,16"])
def test_rows_of_different_lengths_are_compared_at_their_own(buckets: str | None) -> None:
    """The model's results follow the padded length, which is no other row's result."""
    rules = {"pad_buckets": buckets} if buckets else {}
    served = signature([{**TOKENS, "parameters": {**TOKENS["parameters"], **rules}}], [LENGTHS])
    replica = Replica(lambda inputs: {"y": (inputs["x"] * inputs["x"].shape[1]).astype(np.float32)}, served)
    width = 8

    def padded(running: RunningBatch) -> dict[str, Array]:
        slices = running.batch.slices
        target = width if buckets else max(part.inputs["x"].shape[1] for part in slices)
        rows = [np.pad(part.inputs["x"][0], (0, target - part.inputs["x"].shape[1])) for part in slices]
        return replica.model({"x": np.stack(rows)})

    replica.compute = padded  # type: ignore[method-assign]
    for _ in range(60):
        lengths = replica.rng.integers(1, width + 1, 4)
        rows = [replica.rng.integers(1, 1000, (1, length)) for length in lengths]
        for row, length in zip(rows, lengths, strict=True):
            pending = padded_request({"x": row}, served, x=[int(length)])
            pending.arrived_s, pending.deadline_s = replica.now_s, replica.now_s + 60
            replica.scheduler.admit(pending, replica.now_s)
        replica.ask()
        replica.idle(1.0)

    assert replica.checks.checked_rows > 50
    assert replica.checks.suspected_rows == 0


def test_checks_stay_within_their_share_of_the_device() -> None:
    idle, busy = Service(2e-3, 1e-4, 500, seed=2), Service(2e-3, 1e-4, 4500, seed=2)
    for service in (idle, busy):
        service.run(5)
        assert service.checks is not None
        assert service.checks.checked_rows > 0
    assert idle.checks is not None
    assert busy.checks is not None

    assert idle.checks.device_s / 5 < MIN_SHARE + IDLE_SHARE
    assert busy.checks.device_s < 0.01 * busy.busy_s


def test_a_rare_leak_among_500_rows_a_second_is_found() -> None:
    service = Service(4e-3, 1.5e-4, 500, leak_every=500, seed=5)
    service.run(60)

    assert service.found_s is not None
    assert service.checks is not None
    assert service.checks.violated


def test_a_stand_in_is_no_clients() -> None:
    replica = Replica()
    for _ in range(8):
        replica.ask(*replica.random_rows())
    check = _next(replica)
    assert check is not None

    owners = {id(part.pending) for running in replica.sent for part in running.batch.slices}
    assert not owners & {id(part.pending) for part in check.batch.slices}
    assert all(isinstance(part.pending, PendingRequest) for part in make_batch(check.batch.slices).slices)
