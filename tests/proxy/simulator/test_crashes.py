"""Rows that crash the runtime, with several runtimes: few runtimes are lost, and other requests are served."""

from collections import Counter
from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.client_suspicion import FIRST_PAUSE_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.quarantine import LOSSES_PER_PAYLOAD
from shoal_proxy.batching.recovery import ALONE_S
from shoal_proxy.errors import ModelFailed, NotExecuted, ProxyError, RuntimeLost
from shoal_proxy.simulator.engine import Engine, SendBatch, SimulatedRequest, SleepUntil
from shoal_proxy.simulator.shoal import SchedulerDiscipline
from shoal_schema.resource.traffic import BatchingPolicy
from tests.proxy.simulator.test_faults import assert_nothing_is_kept, linear, outcomes

POISON = 1000
"""Payloads from here on crash the runtime."""


class Crashes:
    """Fault of an engine: a batch with poison is lost. Counts the losses of each poison payload."""

    def __init__(self) -> None:
        self.losses: Counter[int] = Counter()
        self.innocent: Counter[SimulatedRequest] = Counter()
        """Losses of each request without poison."""

    def __call__(self, batch: Sequence[SimulatedRequest], counts: Sequence[int]) -> ProxyError | None:
        poison = {request.payload for request in batch if request.payload >= POISON}
        if not poison:
            return None
        self.losses.update(poison)
        self.innocent.update(request for request in batch if request.payload < POISON)
        return RuntimeLost("it crashed")


def run(
    requests: Sequence[SimulatedRequest],
    instances: int,
    fault: Callable[[Sequence[SimulatedRequest], Sequence[int]], ProxyError | None],
    *,
    idempotent: bool = True,
    max_rows: int = 8,
    policy: BatchingPolicy = BatchingPolicy.ADAPTIVE,
) -> Engine:
    limits = BatchLimits(max_rows, in_flight=instances, policy=policy)
    shoal = SchedulerDiscipline(limits, idempotent=idempotent)
    engine = Engine(shoal, linear, instances=instances, fault=fault)
    engine.run(requests)
    assert_nothing_is_kept(shoal)
    return engine


def traffic(payload_of: Callable[[int], int], count: int = 400, gap_s: float = 0.001) -> list[SimulatedRequest]:
    return [SimulatedRequest(gap_s * number, payload=payload_of(number)) for number in range(count)]


@pytest.mark.parametrize("instances", [1, 2, 4])
@pytest.mark.parametrize("policy", BatchingPolicy)
def test_of_an_idempotent_model_only_the_poison_fails(instances: int, policy: BatchingPolicy) -> None:
    # The client of the poison sends it again and again.
    requests = traffic(lambda number: POISON if number % 40 == 20 else number)
    crashes = Crashes()

    run(requests, instances, crashes, policy=policy)

    for request in requests:
        expected = ["completed_s"] if request.payload < POISON else ["failed_s"], ["refused_s"]
        assert outcomes(request) in expected
    assert 0 < crashes.losses[POISON] <= LOSSES_PER_PAYLOAD


@pytest.mark.parametrize("instances", [1, 2, 4])
def test_without_idempotency_other_requests_fail_in_the_first_batch_only(instances: int) -> None:
    requests = traffic(lambda number: POISON if number % 40 == 20 else number)
    crashes = Crashes()

    run(requests, instances, crashes, idempotent=False)

    failed = [request for request in requests if request.payload < POISON and outcomes(request) != ["completed_s"]]
    assert sorted(map(id, failed)) == sorted(map(id, crashes.innocent))
    assert len(failed) < 8, "those of one batch"
    assert 0 < crashes.losses[POISON] <= LOSSES_PER_PAYLOAD


@pytest.mark.parametrize("instances", [1, 3])
def test_several_poisons_in_one_batch_cost_that_many_losses_each(instances: int) -> None:
    requests = [SimulatedRequest(0.0, payload=POISON + number if number % 3 == 0 else number) for number in range(24)]
    crashes = Crashes()

    run(requests, instances, crashes)

    assert all(outcomes(request) == ["completed_s"] for request in requests if request.payload < POISON)
    assert max(crashes.losses.values()) <= LOSSES_PER_PAYLOAD
    assert set(crashes.innocent.values()) == {1}, "others are lost with the shared batch only"


def test_a_large_lost_batch_is_isolated_in_two_steps() -> None:
    requests = [SimulatedRequest(0.0, payload=POISON if number == 300 else number) for number in range(512)]
    crashes = Crashes()

    engine = run(requests, 2, crashes, max_rows=512)

    assert [outcomes(request) for request in requests].count(["completed_s"]) == 511
    assert crashes.losses[POISON] <= LOSSES_PER_PAYLOAD + 1
    assert len(engine.batches) < 100


def test_one_suspect_runs_at_a_time_and_no_batch_waits_behind_it() -> None:
    shoal = SchedulerDiscipline(BatchLimits(8, in_flight=3), idempotent=True)
    running: list[int] = []

    def fault(batch: Sequence[SimulatedRequest], counts: Sequence[int]) -> ProxyError | None:
        held = shoal.scheduler.running
        suspects = sum(each.batch.suspect for each in held)
        assert suspects <= 1
        assert not suspects or len(held) <= 3
        running.append(suspects)
        return Crashes()(batch, counts)

    Engine(shoal, linear, instances=3, fault=fault).run(traffic(lambda number: POISON if number == 50 else number))

    assert 1 in running


def test_a_suspect_that_succeeds_shares_batches_again() -> None:
    first = iter([RuntimeLost("killed by something else")])
    requests = [SimulatedRequest(0.0) for _ in range(4)] + [SimulatedRequest(1.0) for _ in range(8)]

    engine = run(requests, 1, lambda batch, counts: next(first, None), idempotent=False)

    assert engine.batches[0] in (1, 4)
    assert sum(outcomes(request) == ["completed_s"] for request in requests[4:]) == 8
    assert engine.batches[-1] > 1, "after one success alone, the others share a batch"


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("instances", [1, 2, 3])
@pytest.mark.parametrize("policy", [BatchingPolicy.NONE, BatchingPolicy.ADAPTIVE])
def test_copies_of_a_payload_that_are_lost_with_all_runtimes_at_once_do_not_block_it(
    policy: BatchingPolicy, instances: int, *, idempotent: bool
) -> None:
    # All runtimes end within 0.1 s, as with their container, while each runs the same payload alone.
    shoal = SchedulerDiscipline(BatchLimits(8, in_flight=instances + 1, policy=policy), idempotent=idempotent)
    engine = Engine(
        shoal,
        linear,
        instances=instances,
        fault=lambda batch, counts: RuntimeLost("killed") if engine.now_s < 0.1 else None,
    )
    first = [SimulatedRequest(0.0, payload=7) for _ in range(instances + 1)]
    later = [SimulatedRequest(1.0 + number, payload=7) for number in range(3)]

    engine.run([*first, *later])

    assert {*map(str, map(outcomes, first))} == {str(["completed_s" if idempotent else "failed_s"])}
    assert [outcomes(request) for request in later] == [["completed_s"]] * 3
    assert_nothing_is_kept(shoal)


def test_a_rejected_payload_runs_again_after_a_while() -> None:
    cured_s = 60.0
    requests = [SimulatedRequest(at_s, payload=POISON) for at_s in (0.0, 1.0, 2.0, cured_s, ALONE_S + 10.0)]
    losses = iter([RuntimeLost("it crashed")] * 2)

    run(requests, 2, lambda batch, counts: next(losses, None), idempotent=False)

    assert [outcomes(request) for request in requests] == [
        ["failed_s"], ["failed_s"], ["refused_s"], ["refused_s"], ["completed_s"],
    ]  # fmt: skip


def test_a_suspect_that_did_not_run_is_sent_again() -> None:
    errors = iter([RuntimeLost("it crashed"), NotExecuted("nothing listens"), NotExecuted("nothing listens")])
    requests = [SimulatedRequest(0.0, payload=number) for number in range(3)]

    run(requests, 2, lambda batch, counts: next(errors, None))

    assert all(outcomes(request) == ["completed_s"] for request in requests)


@given(
    payloads=st.lists(st.sampled_from([1, 2, 3, 4, POISON, POISON + 1]), max_size=60),
    rows=st.lists(st.integers(1, 12), min_size=60, max_size=60),
    instances=st.integers(1, 4),
    gap_s=st.sampled_from([0.0, 0.001, 0.02]),
    idempotent=st.booleans(),
    others=st.lists(st.sampled_from([None, None, None, ModelFailed("no"), NotExecuted("no")]), max_size=20),
    clients=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=150)
def test_whatever_arrives_each_payload_ends_few_runtimes(
    payloads: list[int],
    rows: list[int],
    instances: int,
    gap_s: float,
    others: list[ProxyError | None],
    clients: list[str],
    *,
    idempotent: bool,
) -> None:
    requests = [
        SimulatedRequest(gap_s * number, payload=payload, rows=rows[number], client=clients[number % len(clients)])
        for number, payload in enumerate(payloads)
    ]
    crashes, coming = Crashes(), iter(others)

    run(requests, instances, lambda batch, counts: crashes(batch, counts) or next(coming, None), idempotent=idempotent)

    assert [len(outcomes(request)) for request in requests] == [1] * len(requests)
    at_once = instances + 1
    for payload, lost in crashes.losses.items():
        sizes = {request.rows for request in requests if request.payload == payload}
        # Batches that were sent before the first loss was known are lost too.
        assert lost <= len(sizes) * (LOSSES_PER_PAYLOAD + at_once)


class Restarting(SchedulerDiscipline):
    """A proxy with a single runtime, which is away for a while after each loss: arrivals are rejected meanwhile."""

    def __init__(self, restart_s: Callable[[int], float], *, idempotent: bool) -> None:
        super().__init__(BatchLimits(8), idempotent=idempotent)
        self._restart_s = restart_s
        self._back_s = 0.0
        self.lost_s: list[float] = []

    def arrive(self, request: SimulatedRequest, now_s: float) -> Sequence[SimulatedRequest]:
        return (request,) if now_s < self._back_s else super().arrive(request, now_s)

    def decide(self, now_s: float) -> SendBatch | SleepUntil:
        return SleepUntil(self._back_s) if now_s < self._back_s else super().decide(now_s)

    def failed(self, batch: Sequence[SimulatedRequest], error: ProxyError, now_s: float) -> Sequence[SimulatedRequest]:
        self._back_s = now_s + self._restart_s(len(self.lost_s))
        self.lost_s.append(now_s)
        return super().failed(batch, error, now_s)


def hostile_and_honest(seconds: int, *, named: bool) -> tuple[list[SimulatedRequest], list[SimulatedRequest]]:
    """Return requests of a client whose rows always crash, new ones every 100 ms, and of three others."""
    hostile = [
        SimulatedRequest(number / 10, payload=POISON + number, client="hostile" if named else "")
        for number in range(10 * seconds)
    ]
    honest = [
        SimulatedRequest(number / 60 + 0.003, payload=number % 7, client=f"honest-{number % 3}" if named else "")
        for number in range(60 * seconds)
    ]
    return hostile, honest


def served_share(requests: Sequence[SimulatedRequest]) -> float:
    return sum(request.completed_s is not None for request in requests) / len(requests)


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize(
    ("restart_s", "served"),
    [
        pytest.param(lambda losses: 2.0, 0.97, id="2 s"),
        pytest.param(lambda losses: 2.0 + min(300.0, 10.0 * losses), 0.65, id="back-off of 10 s for each restart"),
    ],
)
def test_a_client_with_new_poison_each_time_ends_few_runtimes(
    restart_s: Callable[[int], float], served: float, *, idempotent: bool
) -> None:
    proxy = Restarting(restart_s, idempotent=idempotent)
    hostile, honest = hostile_and_honest(seconds=500, named=True)

    Engine(proxy, linear, fault=Crashes()).run(sorted([*hostile, *honest], key=lambda request: request.arrived_s))

    assert served_share(honest) > served
    assert proxy.lost_s[-1] > 2 * FIRST_PAUSE_S, "it runs again after a pause"
    in_first_pause = [lost_s for lost_s in proxy.lost_s if lost_s < FIRST_PAUSE_S]
    assert len(in_first_pause) == 3
    assert len(proxy.lost_s) - len(in_first_pause) == 2
    assert_nothing_is_kept(proxy)


def test_a_client_without_a_name_is_not_told_apart() -> None:
    proxy = Restarting(lambda losses: 2.0, idempotent=False)
    hostile, honest = hostile_and_honest(seconds=60, named=False)

    Engine(proxy, linear, fault=Crashes()).run(sorted([*hostile, *honest], key=lambda request: request.arrived_s))

    # Every other client is as unknown, so that pausing them all would serve even fewer.
    assert 0 < served_share(honest) < 0.1


def test_a_client_that_also_sends_good_rows_is_paused_once_two_of_its_trials_were_lost() -> None:
    proxy = Restarting(lambda losses: 2.0, idempotent=False)
    hostile, honest = hostile_and_honest(seconds=120, named=True)
    for number, request in enumerate(hostile):
        request.payload = POISON + number if number % 4 == 0 else number % 7

    Engine(proxy, linear, fault=Crashes()).run(sorted([*hostile, *honest], key=lambda request: request.arrived_s))

    assert served_share(honest) > 0.8
    assert len(proxy.lost_s) < 10


class EndsByItself:
    """Fault of an engine: the first batch after each 5 s is lost, whatever its rows."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._next_s = 5.0

    def __call__(self, batch: Sequence[SimulatedRequest], counts: Sequence[int]) -> ProxyError | None:
        assert self.engine is not None
        if self.engine.now_s < self._next_s:
            return None
        self._next_s += 5.0
        return RuntimeLost("it ran out of memory")


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_runtime_that_ends_by_itself_costs_clients_with_names_no_more_than_others(*, idempotent: bool) -> None:
    shares = []
    for name in ("", "team-"):
        proxy, fault = Restarting(lambda losses: 1.0, idempotent=idempotent), EndsByItself()
        # The runtime can run 666 rows per second in full batches, and 200 alone.
        requests = [
            SimulatedRequest(number / 400, payload=number, client=name and f"{name}{number % 3}")
            for number in range(400 * 60)
        ]
        fault.engine = Engine(proxy, linear, fault=fault)
        fault.engine.run(requests)
        assert len(proxy.lost_s) > 10
        shares.append(served_share(requests))

    assert shares[1] == pytest.approx(shares[0], abs=0.01), shares
