"""The scheduler on a failing device, with clients that share rows, expire or cancel: each has one outcome."""

from collections import Counter
from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.errors import BatchTooLarge, InvalidRequest, ModelFailed, NotExecuted, ProxyError, RuntimeLost
from shoal_proxy.simulator.engine import Engine, SimulatedRequest
from shoal_proxy.simulator.shoal import SchedulerDiscipline
from shoal_schema.resource.traffic import BatchingPolicy

Fault = Callable[[Sequence[SimulatedRequest], Sequence[int]], ProxyError | None]
CULPRIT = 13


def linear(rows: int, shape: str = "") -> float:
    return 0.004 + 0.001 * rows


def run(
    requests: Sequence[SimulatedRequest], fault: Fault, *, coalesce: bool = False, idempotent: bool = False
) -> Engine:
    """Let a proxy with batches of up to 8 rows serve ``requests``, and see that it keeps nothing of them."""
    shoal = SchedulerDiscipline(BatchLimits(8), coalesce=coalesce, idempotent=idempotent)
    engine = Engine(shoal, linear, fault=fault)
    engine.run(requests)
    assert_nothing_is_kept(shoal)
    return engine


def assert_nothing_is_kept(shoal: SchedulerDiscipline) -> None:
    scheduler, queue = shoal.scheduler, shoal.scheduler.queue
    assert scheduler.settled
    assert (queue.rows, queue.requests, queue.size_bytes, queue.groups) == (0, 0, 0, {})
    assert (shoal._requests, shoal._pendings, list(shoal._sent)) == ({}, {}, [])
    assert (list(scheduler.running), scheduler._unsettled) == ([], set())
    assert not any(batch.has_unresolved for batch in scheduler._pieces)
    assert scheduler.next_deadline_s == NEVER_S
    if (coalescing := scheduler._coalescing) is not None:
        assert coalescing.empty


def outcomes(request: SimulatedRequest) -> list[str]:
    """Return what became of it; one word, if all is well."""
    return [name for name in ("completed_s", "refused_s", "failed_s", "left_s") if getattr(request, name) is not None]


def has_culprit(batch: Sequence[SimulatedRequest]) -> bool:
    return any(request.payload == CULPRIT for request in batch)


@pytest.mark.parametrize("error", [ModelFailed("no"), InvalidRequest("no"), BatchTooLarge("no")])
def test_a_failing_request_fails_alone(error: ProxyError) -> None:
    requests = [SimulatedRequest(0.0, payload=CULPRIT if number == 5 else number) for number in range(9)]

    engine = run(requests, lambda batch, counts: error if has_culprit(batch) else None)

    assert [outcomes(request) for request in requests] == [
        ["failed_s"] if request.payload == CULPRIT else ["completed_s"] for request in requests
    ]
    assert engine.batches[0] > engine.batches[-1]


def test_a_failing_request_that_comes_back_travels_alone() -> None:
    requests = [SimulatedRequest(number / 2, payload=CULPRIT) for number in range(6)]
    requests += [SimulatedRequest(number / 2, payload=1) for number in range(6)]

    engine = run(requests, lambda batch, counts: ModelFailed("no") if has_culprit(batch) else None)

    assert engine.batches == [2, 1, 1] * 2 + [1, 1] * 4


def test_batches_get_as_small_as_memory_wants() -> None:
    requests = [SimulatedRequest(0.001 * number) for number in range(400)]

    engine = run(requests, lambda batch, counts: BatchTooLarge("no") if sum(counts) > 3 else None)

    assert all(outcomes(request) == ["completed_s"] for request in requests)
    too_large = [rows for rows in engine.batches if rows > 3]
    assert len(too_large) < 0.1 * len(engine.batches)


def test_a_runtime_that_died_runs_nothing_twice_unless_it_is_idempotent() -> None:
    for idempotent in (False, True):
        first = iter([RuntimeLost("gone")])
        request = SimulatedRequest(0.0)

        engine = run([request], lambda batch, counts, first=first: next(first, None), idempotent=idempotent)  # type: ignore[misc]

        assert outcomes(request) == (["completed_s"] if idempotent else ["failed_s"])
        assert engine.batches == ([1, 1] if idempotent else [1])


def test_equal_rows_run_once_and_all_their_clients_get_responses() -> None:
    requests = [
        SimulatedRequest(0.0, payload=0),
        *[SimulatedRequest(0.001, payload=number % 3) for number in range(30)],
    ]

    engine = run(requests, lambda batch, counts: None, coalesce=True)

    assert all(outcomes(request) == ["completed_s"] for request in requests)
    assert engine.batches == [1, 3], "the first had begun when the others came"


def test_a_client_that_disconnects_takes_no_row_from_those_that_share_it() -> None:
    leaving, staying, alone = (
        SimulatedRequest(0.0, leaves_s=0.001),
        SimulatedRequest(0.0),
        SimulatedRequest(0.002, payload=1, leaves_s=0.003),
    )

    engine = run([leaving, staying, alone], lambda batch, counts: None, coalesce=True)

    assert [outcomes(request) for request in (leaving, staying, alone)] == [["left_s"], ["completed_s"], ["left_s"]]
    assert engine.batches == [1]


def test_deadlines_pass_in_the_queue_and_in_flight() -> None:
    running, waiting, patient = (
        SimulatedRequest(0.0, deadline_s=0.002),
        SimulatedRequest(0.001, deadline_s=0.003),
        SimulatedRequest(0.001),
    )

    engine = run([running, waiting, patient], lambda batch, counts: None)

    assert (running.failed_s, waiting.failed_s) == (0.002, 0.003)
    assert outcomes(patient) == ["completed_s"]
    assert engine.batches == [1, 1], "a request that was cancelled in the queue does not run"


ERRORS = (ModelFailed("no"), BatchTooLarge("no"), NotExecuted("no"), RuntimeLost("no"), InvalidRequest("no"))
REQUESTS = st.lists(
    st.builds(
        SimulatedRequest,
        arrived_s=st.floats(0, 0.1),
        rows=st.integers(1, 12),
        shape=st.sampled_from(["a", "a", "b"]),
        payload=st.integers(0, 4),
        deadline_s=st.sampled_from([NEVER_S, NEVER_S, 0.02, 0.2]),
        leaves_s=st.sampled_from([NEVER_S, NEVER_S, 0.03, 0.3]),
    ),
    max_size=40,
)


@given(
    requests=REQUESTS,
    failures=st.lists(st.sampled_from([None, None, *ERRORS]), max_size=60),
    policy=st.sampled_from(BatchingPolicy),
    objective_s=st.sampled_from([NEVER_S, 0.05]),
    coalesce=st.booleans(),
    idempotent=st.booleans(),
)
@settings(deadline=None, max_examples=150)
def test_whatever_happens_every_request_has_one_outcome_and_nothing_runs_twice_that_should_not(
    requests: list[SimulatedRequest],
    failures: list[ProxyError | None],
    policy: BatchingPolicy,
    objective_s: float,
    *,
    coalesce: bool,
    idempotent: bool,
) -> None:
    for request in requests:
        request.deadline_s = max(request.deadline_s, request.arrived_s)
        request.leaves_s = max(request.leaves_s, request.arrived_s)
    coming = iter(failures)
    succeeded: Counter[SimulatedRequest] = Counter()
    perhaps_run: Counter[SimulatedRequest] = Counter()

    def fault(batch: Sequence[SimulatedRequest], counts: Sequence[int]) -> ProxyError | None:
        error = next(coming, None)
        for request, count in zip(batch, counts, strict=True):
            assert perhaps_run[request] + succeeded[request] + count <= request.rows or idempotent
            if error is None:
                succeeded[request] += count
            elif isinstance(error, RuntimeLost):
                perhaps_run[request] += count
        return error

    shoal = SchedulerDiscipline(
        BatchLimits(8, 0.002 if policy is BatchingPolicy.FIXED else 0.0, policy=policy),
        objective_s=objective_s,
        max_queue_rows=100,
        coalesce=coalesce,
        idempotent=idempotent,
    )
    Engine(shoal, linear, fault=fault).run(requests)

    assert [len(outcomes(request)) for request in requests] == [1] * len(requests)
    assert all(count <= request.rows for request, count in succeeded.items()), "no row succeeds twice"
    if not coalesce:
        assert all(succeeded[request] == request.rows for request in requests if request.completed_s is not None)
    assert_nothing_is_kept(shoal)
