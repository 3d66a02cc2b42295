import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.simulator.arrivals import poisson
from shoal_proxy.simulator.balance import Balance
from shoal_proxy.simulator.latencies import Latencies, parse_document, parse_terms
from shoal_proxy.simulator.report import lines
from shoal_proxy.simulator.study import SimulatedService, simulate, study
from shoal_proxy.simulator.trace import TraceEntry

SERVICE = SimulatedService(parse_terms("4ms+1ms"), BatchLimits(16), objective_s=0.05)


def trace(rate: float, count: int = 600) -> list[TraceEntry]:
    return [TraceEntry(time) for time in poisson(rate, count, seed=1).tolist()]


def test_below_capacity_every_client_is_in_time() -> None:
    result = study(trace(300), SERVICE)

    assert result.outcome.in_time == 600
    assert result.outcome.late == result.outcome.refused == 0
    assert result.capacity_per_s is not None
    assert result.capacity_per_s > 300
    assert 0 < result.outcome.busy <= 1


def test_deadlines_that_all_requests_meet_leave_the_device_as_busy_as_it_was() -> None:
    patient = study(trace(300), replace(SERVICE, timeout_s=3600.0))

    assert patient.outcome.failed == 0
    assert patient.outcome.busy == pytest.approx(study(trace(300), SERVICE).outcome.busy)


def test_above_it_the_rest_is_rejected_and_the_bound_is_nearly_reached() -> None:
    result = study(trace(2000), SERVICE)

    assert result.best_in_time is not None
    assert 0.85 * result.best_in_time <= result.outcome.in_time <= result.best_in_time
    assert result.outcome.in_time + result.outcome.late + result.outcome.refused == 600
    assert result.capacity_per_s is not None
    assert result.best_capacity_per_s is not None
    assert result.capacity_per_s <= result.best_capacity_per_s < 2000


def test_two_replicas_bear_about_twice_as_much() -> None:
    one = study(trace(300), SERVICE).capacity_per_s
    two = study(trace(300), replace(SERVICE, replicas=2)).capacity_per_s

    assert one is not None
    assert two is not None
    assert 1.5 * one < two < 2.2 * one


def test_a_second_runtime_doubles_the_capacity() -> None:
    one = study(trace(300), SERVICE)
    again = study(trace(300), replace(SERVICE, instances=1))
    two = study(trace(300), replace(SERVICE, instances=2))

    assert again == one
    assert one.capacity_per_s is not None
    assert two.capacity_per_s is not None
    assert 1.9 * one.capacity_per_s < two.capacity_per_s < 2.2 * one.capacity_per_s
    assert two.device_per_s == pytest.approx(1600)
    # The optimum is that of one device.
    assert two.best_in_time is None


@pytest.mark.parametrize("instances", [2, 8])
def test_several_runtimes_reject_no_request_for_which_there_is_time(instances: int) -> None:
    service = replace(SERVICE, latencies=parse_terms("20ms+0.1ms"), instances=instances)
    rate = 0.9 * service.device_per_s([TraceEntry(0.0)])
    result = simulate([each.request(0.05) for each in trace(rate, 2000 * instances)], service)

    assert result.in_time > 0.98 * result.offered
    assert 0.85 < result.busy < 1


def test_runtimes_may_end_their_batches_in_any_order() -> None:
    noisy = replace(SERVICE, latencies=parse_document({"1": 0.004, "16": 0.02}), instances=3, failing=0.02)
    shapes = Latencies({"": noisy.latencies.sizes(""), "long": parse_terms("40ms+1ms").sizes("")})
    arrivals = [replace(each, shape="long" if number % 3 else "") for number, each in enumerate(trace(300))]
    outcome = simulate([each.request(1.0) for each in arrivals], replace(noisy, latencies=shapes, objective_s=1.0))

    assert outcome.in_time + outcome.late + outcome.refused + outcome.failed == 600
    assert outcome.in_time > 500


def test_without_an_objective_there_is_no_capacity() -> None:
    result = study(trace(300), replace(SERVICE, objective_s=float("inf")))

    assert (result.capacity_per_s, result.best_in_time) == (None, None)
    assert result.outcome.in_time == 600


def test_an_objective_that_nothing_meets_is_reported() -> None:
    result = study(trace(300, count=100), replace(SERVICE, objective_s=0.001))

    assert result.outcome.in_time == 0
    assert (result.capacity_per_s, result.met_at_any_rate) == (None, False)
    assert "none: the objective was missed" in "\n".join(lines(result, SERVICE))


def test_an_objective_met_at_any_rate_differs_from_one_never_met() -> None:
    patient = replace(SERVICE, objective_s=3600.0)
    result = study(trace(300, count=20), patient)

    # 16 rows in 20 ms are all that the device can do, whatever 20 requests may wait for.
    assert result.capacity_per_s == result.device_per_s == pytest.approx(800)
    assert "at most 800/s" in "\n".join(lines(result, patient))
    shared = replace(patient, identical=1.0)
    result = study(trace(300, count=20), shared)
    assert (result.capacity_per_s, result.met_at_any_rate, result.device_per_s) == (None, True, None)
    assert "more than 1," in "\n".join(lines(result, shared))
    assert "met at every rate" in "\n".join(lines(result, shared))
    at_once = study([TraceEntry(0.0), TraceEntry(0.0)], SERVICE)
    assert "have no rate" in "\n".join(lines(at_once, SERVICE))


def test_each_step_is_reported() -> None:
    steps: list[str] = []

    study(trace(300, count=50), SERVICE, steps.append)

    assert steps[0] == "50 requests"
    assert any("capacity" in each for each in steps)
    assert any("optimum" in each for each in steps)


def test_the_bound_is_left_out_where_it_is_not_defined() -> None:
    assert study([TraceEntry(0.0, rows=2), TraceEntry(0.1)], SERVICE).best_in_time is None
    assert study([TraceEntry(0.0), TraceEntry(0.001, deadline_ms=10)], SERVICE).best_in_time is None


def test_one_arrival_is_a_trace() -> None:
    assert study([TraceEntry(5.0)], SERVICE).outcome.in_time == 1


def test_the_host_works_before_and_after_each_batch() -> None:
    latencies = replace(SERVICE.latencies, overhead_s=0.01)

    assert study([TraceEntry(0.0)], replace(SERVICE, latencies=latencies)).outcome.p50_s == pytest.approx(0.015)


def test_the_table_states_all_outcomes() -> None:
    text = "\n".join(lines(study(trace(2000), SERVICE), SERVICE))

    for word in ("offered", "in time", "rejected", "p99", "device busy", "capacity at 99%", "optimum"):
        assert word in text


def test_failing_requests_fail_alone_and_the_rest_is_served() -> None:
    outcome = study(trace(100), replace(SERVICE, failing=0.05)).outcome

    assert 10 < outcome.failed < 60
    assert outcome.in_time > 0.9 * (600 - outcome.failed)
    assert outcome.in_time + outcome.late + outcome.refused + outcome.failed == 600


def test_identical_requests_bear_a_load_that_others_do_not() -> None:
    alone, shared = (study(trace(2000), replace(SERVICE, identical=share)).outcome for share in (0.0, 0.9))

    assert alone.in_time < 500
    assert shared.in_time > 590


def test_a_request_that_aborts_gets_an_error_and_is_in_the_table() -> None:
    result = study(trace(2000), replace(SERVICE, objective_s=float("inf"), timeout_s=0.02))

    assert result.outcome.failed > 100
    assert result.outcome.in_time + result.outcome.failed == 600
    assert "failed" in "\n".join(lines(result, SERVICE))


@settings(max_examples=30)
@given(
    rate=st.floats(5, 20_000),
    count=st.integers(2, 60),
    balance=st.sampled_from(Balance),
    replicas=st.integers(1, 6),
    slow=st.sampled_from([0.5, 1.0, 3.0]),
    objective_s=st.sampled_from([0.01, 0.1, 10.0]),
)
def test_no_capacity_is_beyond_what_the_devices_can_do(
    rate: float, count: int, balance: Balance, replicas: int, slow: float, objective_s: float
) -> None:
    service = replace(SERVICE, balance=balance, replicas=replicas, slow=slow, objective_s=objective_s)
    result = study(trace(rate, count), service)

    most_per_s = 800 * (replicas - 1 + 1 / slow)
    assert result.device_per_s == pytest.approx(most_per_s)
    assert (result.capacity_per_s or 0) <= most_per_s * 1.000001
    assert (result.best_capacity_per_s or 0) <= most_per_s * 1.000001


def test_what_devices_can_do_is_that_of_their_best_batches() -> None:
    table = parse_document({"1": 0.004, "2": 0.005, "4": 0.02})

    def most(entries: list[TraceEntry], **changes: float) -> float:
        return replace(SERVICE, latencies=table, limits=BatchLimits(4), **changes).device_per_s(entries)  # type: ignore[arg-type]

    assert most([TraceEntry(0.0)]) == pytest.approx(400), "two rows in 5 ms, not four in 20"
    assert most([TraceEntry(0.0, rows=3), TraceEntry(1.0)]) == pytest.approx(200)
    assert most([TraceEntry(0.0)], identical=0.5) == pytest.approx(800)
    assert most([TraceEntry(0.0)], identical=1.0) == math.inf


def test_a_trace_too_short_for_its_capacity_states_how_long_it_should_be() -> None:
    short = study(trace(300, 100), SERVICE)
    assert short.capacity_per_s is not None
    assert short.enough_requests is not None
    assert short.enough_requests == pytest.approx(20 * SERVICE.objective_s * short.capacity_per_s, abs=1)
    last = lines(short, SERVICE)[-1]
    assert f"{short.enough_requests:,} (--requests" in last

    long = study(trace(300, short.enough_requests), SERVICE)
    assert long.enough_requests is None
    assert "too short" not in lines(long, SERVICE)[-1]
