"""Many replicas: the figures that forwarding is built on, and what holds whatever happens to them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.simulator.arrivals import gamma, requests
from shoal_proxy.simulator.balance import Balance, Connections, choose_replica, forwarder
from shoal_proxy.simulator.engine import Engine, EventQueue, SimulatedRequest
from shoal_proxy.simulator.fleet import Fleet
from shoal_proxy.simulator.latencies import parse_terms
from shoal_proxy.simulator.report import lines
from shoal_proxy.simulator.shoal import SchedulerDiscipline
from shoal_proxy.simulator.study import SimulatedService, StudyResult, TraceOutcome, simulate

OBJECTIVE_S = 0.1
EIGHT = SimulatedService(
    parse_terms("20ms+0.5ms"), BatchLimits(32), OBJECTIVE_S, replicas=8, max_queue_rows=1024, balance=Balance.PINNED
)
SATURATION = 8 * 32 / 0.036


def run(service: SimulatedService, load: float, count: int = 4_000, cv: float = 1.0, seed: int = 1) -> TraceOutcome:
    arrivals = gamma(load * SATURATION / 8 * service.replicas, count, cv=cv, seed=seed)
    return simulate(requests(arrivals, service.objective_s), replace(service, seed=seed))


@cache
def in_time(balance: Balance, load: float, cv: float = 1.0, slow: float = 1.0) -> float:
    """Return the share in time, mean over two ways in which chance may spread the connections."""
    outcomes = [run(replace(EIGHT, balance=balance, slow=slow), load, cv=cv, seed=seed) for seed in (2, 4)]
    return sum(each.in_time for each in outcomes) / sum(each.offered for each in outcomes)


@pytest.mark.parametrize(
    ("balance", "load", "cv", "slow", "least", "most"),
    [
        (Balance.PINNED, 0.9, 1, 1, 0.78, 0.92),
        (Balance.RANDOM, 0.9, 1, 1, 0.99, 1),
        (Balance.SOONEST_FINISH, 0.9, 1, 1, 0.995, 1),
        (Balance.REQUEST_FORWARDING, 0.9, 1, 1, 0.995, 1),
        (Balance.PINNED, 1.0, 1, 1, 0.72, 0.88),
        (Balance.RANDOM, 1.0, 1, 1, 0.96, 0.995),
        (Balance.REQUEST_FORWARDING, 1.0, 1, 1, 0.98, 1),
        (Balance.REQUEST_FORWARDING, 0.9, 4, 1, 0.98, 1),
        (Balance.PINNED, 0.9, 1, 1.5, 0.75, 0.89),
        (Balance.SOONEST_FINISH, 0.9, 1, 1.5, 0.99, 1),
        (Balance.REQUEST_FORWARDING, 0.9, 1, 1.5, 0.97, 1),
    ],
)
def test_eight_replicas_meet_the_deadlines_of_what_was_published(
    balance: Balance, load: float, cv: float, slow: float, least: float, most: float
) -> None:
    assert least <= in_time(balance, load, cv, slow) <= most


@pytest.mark.parametrize("replicas", [2, 64])
def test_request_forwarding_helps_fleets_of_any_size(replicas: int) -> None:
    pinned, second = (
        run(replace(EIGHT, replicas=replicas, balance=balance), 0.9, count=max(2_000, 100 * replicas))
        for balance in (Balance.PINNED, Balance.REQUEST_FORWARDING)
    )

    assert second.in_time > 0.98 * second.offered
    assert second.in_time > 1.04 * pinned.in_time


@pytest.mark.parametrize("load", [1.5, 3.0])
def test_beyond_saturation_request_forwarding_rejects_no_request_more(load: float) -> None:
    pinned, second = (
        run(replace(EIGHT, balance=balance), load) for balance in (Balance.PINNED, Balance.REQUEST_FORWARDING)
    )

    assert second.refused <= pinned.refused
    assert second.in_time >= pinned.in_time


def test_a_dead_pod_loses_what_it_held_and_its_clients_connect_elsewhere() -> None:
    service = replace(EIGHT, balance=Balance.REQUEST_FORWARDING, death_s=0.3, start_s=0.2)
    outcome = run(service, 0.6)

    held = OBJECTIVE_S * SATURATION / 8
    assert 0 < outcome.failed < held
    assert outcome.in_time >= 0.99 * (outcome.offered - outcome.failed)


def test_a_client_that_disconnects_after_a_forwarding_leaves_the_peer() -> None:
    fleet = make_fleet(Balance.REQUEST_FORWARDING, replicas=2, connections=1)
    crowd = [SimulatedRequest(0.0, 0.1, rows=32, leaves_s=0.01) for _ in range(4)]

    fleet.run(crowd)

    assert fleet.forwarded > 0
    assert_everybody_has_one_outcome(crowd, fleet)


def test_a_drained_replica_completes_what_it_has_and_gets_nothing_new() -> None:
    fleet = make_fleet(Balance.PINNED, replicas=2, connections=8)
    first, second = fleet.replicas
    early = [SimulatedRequest(0.0, 1.0) for _ in range(20)]
    late = [SimulatedRequest(0.01, 1.0) for _ in range(20)]
    fleet.agenda.at(0.005, fleet.drain, first)

    fleet.run([*early, *late])

    assert all(request.in_time for request in (*early, *late))
    assert first.ended_s is not None
    assert first.engine.free_s <= first.ended_s < 0.2
    assert second.ended_s is None
    assert sum(second.engine.batches) >= 20


def test_a_replica_serves_once_it_has_started() -> None:
    fleet = make_fleet(Balance.RANDOM, replicas=0)
    fleet.add(after_s=1.0)
    early, late = SimulatedRequest(0.5, 2.0), SimulatedRequest(1.5, 2.0)

    fleet.run([early, late])

    assert early.failed_s == 0.5
    assert late.in_time


def test_old_connections_are_opened_anew_so_that_a_new_replica_gets_its_share() -> None:
    def rows_of_the_last(max_age_s: float) -> int:
        fleet = make_fleet(Balance.PINNED, replicas=7, connections=32, max_age_s=max_age_s)
        fleet.agenda.at(0.5, lambda _: fleet.add(), None)
        fleet.run(requests(gamma(2_000, 4_000, cv=1, seed=3), 1.0))
        return sum(fleet.replicas[-1].engine.batches)

    assert rows_of_the_last(NEVER_S) == 0
    assert rows_of_the_last(0.5) > 4_000 / 8 / 2.5


def test_rules_choose_by_what_they_know() -> None:
    class Fixed:
        def __init__(self, rows: int, finish_s: float) -> None:
            self.rows = rows
            self.finish_s = finish_s

        def expected_finish_s(self, request: SimulatedRequest, now_s: float) -> float:
            return self.finish_s

    short, soon, neither = Fixed(1, 3.0), Fixed(5, 2.0), Fixed(9, 9.0)
    fleet, request = [neither, short, soon], SimulatedRequest(0.0, 2.5)
    pick = random.Random(1).randrange

    assert choose_replica(Balance.LEAST_ROWS, fleet, request, 0.0, pick) is short
    assert choose_replica(Balance.SOONEST_FINISH, fleet, request, 0.0, pick) is soon
    assert {choose_replica(Balance.RANDOM, fleet, request, 0.0, pick).rows for _ in range(50)} == {1, 5, 9}
    assert [choose_replica(Balance.POWER_OF_TWO, fleet, request, 0.0, pick).rows for _ in range(200)].count(9) < 50
    assert forwarder(fleet, request, 0.0, pick) is soon
    assert forwarder([short, neither], request, 0.0, pick) is None, "no peer promises to be in time"
    assert forwarder(fleet, replace_request(request), 0.0, pick) is None, "it had its request forwarding"


def replace_request(request: SimulatedRequest) -> SimulatedRequest:
    return SimulatedRequest(request.arrived_s, request.soft_deadline_s, forwarded=True)


def test_a_connection_stays_where_it_leads_while_that_serves() -> None:
    kept: Connections[str] = Connections(1, random.Random(1).randrange)
    first = kept.next(["a", "b", "c"], 0.0)

    assert {kept.next(["a", "b", "c"], 9.0) for _ in range(20)} == {first}
    assert kept.next(["d"], 9.0) == "d"


def test_the_table_states_how_requests_came_and_how_many_were_forwarded() -> None:
    service = replace(EIGHT, balance=Balance.REQUEST_FORWARDING)
    text = "\n".join(lines(StudyResult(run(service, 1.0, count=1_000), None, None, None), service))

    assert "RequestForwarding, 4 connections a replica; " in text
    assert "forwarded" in text


def make_fleet(
    balance: Balance, *, replicas: int, connections: int = 4, max_age_s: float = NEVER_S, hop_s: float = 0.0
) -> Fleet:
    def engine(number: int, agenda: EventQueue) -> Engine:
        shoal = SchedulerDiscipline(BatchLimits(32), objective_s=OBJECTIVE_S, max_queue_rows=200)
        shoal.scheduler.set_model(None, (), tuple((rows, linear(rows)) for rows in (1, 2, 4, 8, 16, 32)))
        return Engine(shoal, lambda rows, shape: linear(rows), agenda=agenda)

    pick = random.Random(1).randrange
    fleet = Fleet(engine, balance, pick, connections=connections, max_age_s=max_age_s, hop_s=hop_s)
    for _ in range(replicas):
        fleet.add()
    return fleet


def linear(rows: int) -> float:
    return 0.020 + 0.0005 * rows


def assert_everybody_has_one_outcome(arrived: Sequence[SimulatedRequest], fleet: Fleet) -> None:
    for request in arrived:
        outcomes = [request.completed_s, request.refused_s, request.failed_s, request.left_s]
        assert len([at_s for at_s in outcomes if at_s is not None]) == 1
    for replica in fleet.replicas:
        assert replica.shoal.scheduler.settled
        assert replica.rows == 0 or replica.engine.lost


@given(
    balance=st.sampled_from(Balance),
    gaps_s=st.lists(st.floats(0, 0.01), min_size=1, max_size=150),
    changes=st.lists(st.tuples(st.floats(0, 0.5), st.sampled_from(["add", "drain", "kill"])), max_size=6),
    leaves_s=st.sampled_from([NEVER_S, 0.04]),
    hop_s=st.sampled_from([0.0, 0.002]),
    rows=st.integers(1, 40),
)
@example(Balance.REQUEST_FORWARDING, [0.0] * 4, [(0.001953125, "kill")], NEVER_S, 0.002, 22)
@settings(deadline=None, max_examples=40)
def test_whatever_becomes_of_pods_every_request_has_one_outcome(
    balance: Balance,
    gaps_s: list[float],
    changes: list[tuple[float, str]],
    leaves_s: float,
    hop_s: float,
    rows: int,
) -> None:
    fleet = make_fleet(balance, replicas=3, hop_s=hop_s)

    def change(what: str) -> None:
        if what == "add":
            fleet.add(after_s=0.05)
        elif fleet.serving:
            getattr(fleet, what)(fleet.serving[0])

    for at_s, what in changes:
        fleet.agenda.at(at_s, change, what)
    arrived, now_s = [], 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        arrived.append(SimulatedRequest(now_s, now_s + OBJECTIVE_S, rows=rows, leaves_s=now_s + leaves_s))
    fleet.run(arrived)

    assert_everybody_has_one_outcome(arrived, fleet)
    assert fleet.forwarded == sum(request.forwarded for request in arrived)
