import numpy as np
import pytest

from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.simulator.arrivals import ClosedLoop, poisson, requests
from shoal_proxy.simulator.engine import Engine, SimulatedRequest
from shoal_proxy.simulator.optimum import most_in_time
from shoal_proxy.simulator.shoal import SchedulerDiscipline
from shoal_schema.resource.traffic import BatchingPolicy


def linear(rows: int, shape: str = "") -> float:
    return 0.004 + 0.001 * rows


def test_a_request_completes_when_its_last_row_is_back() -> None:
    request = SimulatedRequest(1.0, rows=2)

    Engine(SchedulerDiscipline(BatchLimits(1)), linear, host_s=0.5).run([request])

    assert request.completed_s == pytest.approx(1.0 + 0.5 + 2 * 0.005 + 0.5)


def test_every_request_has_one_outcome_whatever_the_load() -> None:
    for load in (0.5, 1.5, 5.0):
        batch = requests(poisson(load * 500, 2_000, seed=1), 0.03)
        Engine(SchedulerDiscipline(BatchLimits(8), objective_s=0.03), linear).run(batch)

        assert all((each.completed_s is None) != (each.refused_s is None) for each in batch)


def test_no_policy_beats_the_optimum() -> None:
    arrived = poisson(900, 1_500, seed=2)
    batch = requests(arrived, 0.03)
    Engine(SchedulerDiscipline(BatchLimits(16), objective_s=0.03), linear).run(batch)

    best = most_in_time(arrived, arrived + 0.03, [linear(rows) for rows in range(1, 17)])
    assert 0.9 * best <= sum(each.in_time for each in batch) <= best


def test_a_request_larger_than_a_batch_travels_in_several() -> None:
    request = SimulatedRequest(0.0, rows=20)
    engine = Engine(SchedulerDiscipline(BatchLimits(8)), linear)

    engine.run([request])

    assert engine.batches == [8, 8, 4]
    assert request.completed_s == pytest.approx(2 * linear(8) + linear(4))


def test_shapes_share_no_batch() -> None:
    engine = Engine(SchedulerDiscipline(BatchLimits(8)), linear)

    engine.run([SimulatedRequest(0.0, shape="a"), SimulatedRequest(0.0, shape="b")])

    assert engine.batches == [1, 1]


def test_the_fixed_policy_waits_and_none_never_batches() -> None:
    fixed = Engine(SchedulerDiscipline(BatchLimits(8, max_delay_s=0.1, policy=BatchingPolicy.FIXED)), linear)
    none = Engine(SchedulerDiscipline(BatchLimits(8, policy=BatchingPolicy.NONE)), linear)
    first = SimulatedRequest(0.0)

    fixed.run([first, SimulatedRequest(0.09)])
    none.run([SimulatedRequest(0.0), SimulatedRequest(0.0)])

    assert fixed.batches == [2]
    assert first.completed_s == pytest.approx(0.1 + linear(2))
    assert none.batches == [1, 1]


def test_clients_in_a_closed_loop_never_have_two_requests_under_way() -> None:
    random = np.random.default_rng(1)
    loop = ClosedLoop(5, lambda: random.exponential(0.001), until_s=0.5, objective_s=1.0)
    engine = Engine(SchedulerDiscipline(BatchLimits(8)), linear, following=loop.following)

    engine.run(loop.start())

    assert len(loop.sent) > 100
    for request in loop.sent:
        if request.previous is not None:
            assert request.previous.completed_s is not None
            assert request.previous.completed_s <= request.arrived_s
