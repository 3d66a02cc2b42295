"""What happened between two looks at a service's pods."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.watching.cells import COLUMNS, GAP, LESS, cells, curve, document, duration, fitting, rate
from shoal.watching.figures import between
from shoal.watching.samples import MAX_PODS, Histories, ServiceSample, cluster_sample
from shoal_schema.interfaces.load import LATENCY_BOUNDS_S, Capacity, RejectedRows
from tests.operator.loads import NOTHING

NEW = NOTHING
LATER = replace(
    NEW,
    time_s=NEW.time_s + 2,
    queued_rows=3,
    running_rows=4,
    arrived_rows=220,
    answered_rows=200,
    refused_rows=RejectedRows(0, 0, 20, 0),
    row_seconds=10.0,
    queued_row_seconds=4.0,
    busy_s=1.0,
    batches=50,
    expected_wait_s=0.03,
    capacity=Capacity(120.0, 8.0),
)


def test_rates_and_means_are_those_of_the_time_between() -> None:
    seen = between({"a": NEW}, {"a": LATER})

    assert (seen.asked_per_s, seen.answered_per_s, seen.refused_per_s) == (110, 100, 10)
    assert (seen.batch_rows, seen.busy) == (4, 0.5)
    assert seen.time_ms == pytest.approx(50)
    assert seen.queued_ms == pytest.approx(20)
    assert (seen.queued_rows, seen.running_rows, seen.expected_ms, seen.capacity_per_s) == (3, 4, 30, 120)


def counted(**of_bucket: int) -> tuple[int, ...]:
    """Return counts of latencies, by index of the bucket."""
    return tuple(of_bucket.get(f"b{at}", 0) for at in range(len(LATENCY_BOUNDS_S) + 1))


def test_percentiles_are_those_of_the_requests_between_the_samples_of_all_pods() -> None:
    before, slow = counted(b2=500), counted(b2=500, b8=10)
    after = counted(b2=500, b4=90)
    loads = [replace(NEW, latency_counts=before), replace(LATER, latency_counts=after)]
    slower = [replace(NEW, latency_counts=before), replace(LATER, latency_counts=slow)]
    seen = between({"a": loads[0], "b": slower[0]}, {"a": loads[1], "b": slower[1]})

    # 90 requests of 5 to 10 ms and 10 of 100 to 200 ms.
    assert seen.p50_ms == pytest.approx(5 + 5 * 50 / 90)
    assert seen.p99_ms == pytest.approx(100 + 100 * 9 / 10)
    assert between({"a": loads[0]}, {"a": replace(LATER, latency_counts=before)}).p99_ms is None
    # A proxy of an older release reports no counts.
    assert between({"a": NEW}, {"a": loads[1]}).p50_ms is None


def test_latencies_beyond_the_last_bound_count_as_that() -> None:
    first, last = counted(), counted(**{f"b{len(LATENCY_BOUNDS_S)}": 3})
    seen = between({"a": replace(NEW, latency_counts=first)}, {"a": replace(LATER, latency_counts=last)})
    assert seen.p50_ms == 1000 * LATENCY_BOUNDS_S[-1]


def judged(candidate: str = "bbbb", **figures: str) -> dict[str, object]:
    said = {"type": "CandidateJudged", "status": "False", "reason": "Comparing", "message": "step 1 of 2"}
    rollout = {"stable": "aaaa", "candidate": candidate, "figures": figures}
    return {"status": {"rollout": rollout, "conditions": [said]}}


def test_a_rollout_has_the_figures_of_both_revisions() -> None:
    watched = Histories()
    for time_s, load in ((0.0, NEW), (2.0, LATER)):
        sample = cluster_sample(judged(errors="0.01", disagreement="0.2"), {"a": load}, {"c": load})
        watched.add({"cat": sample}, time_s)
    _, last = watched.services["cat"].intervals

    assert last.candidate is not None
    assert (last.service.answered_per_s, last.candidate.answered_per_s) == (100, 100)
    assert (last.errors, last.disagreement) == (0.01, 0.2)
    rollout = watched.services["cat"].last.rollout
    assert rollout is not None
    assert (rollout.stable, rollout.candidate, rollout.says) == ("aaaa", "bbbb", "step 1 of 2")
    # Rates of another candidate start anew, and those of none are absent.
    watched.add({"cat": cluster_sample(judged("cccc"), {"a": LATER}, {"c": replace(LATER, time_s=9.0)})}, 4.0)
    newer = watched.services["cat"].intervals[-1].candidate
    assert newer is not None
    assert newer.answered_per_s is None
    watched.add({"cat": cluster_sample(judged(), {"a": LATER})}, 6.0)
    assert watched.services["cat"].intervals[-1].candidate is None


def test_first_sample_has_only_queued_and_running_rows() -> None:
    seen = between({}, {"a": LATER, "b": None})

    assert (seen.pods, seen.silent, seen.queued_rows, seen.running_rows) == (2, 1, 3, 4)
    assert seen.asked_per_s is seen.batch_rows is seen.time_ms is None


def test_forwarded_row_counts_once() -> None:
    gave = replace(LATER, forwarded_rows=20, refused_rows=RejectedRows(0, 0, 0, 0))
    took = replace(LATER, arrived_rows=20, answered_rows=20, refused_rows=RejectedRows(0, 0, 0, 0))

    assert between({"a": NEW, "b": NEW}, {"a": gave, "b": took}).asked_per_s == 110


def test_a_process_that_began_anew_adds_no_rate() -> None:
    again = replace(NEW, time_s=3.0, queued_rows=1)

    assert between({"a": LATER}, {"a": again}).asked_per_s is None
    assert between({"a": LATER, "b": NEW}, {"a": again, "b": LATER}).asked_per_s == 110


def test_what_pods_can_serve_is_told_where_all_know() -> None:
    assert between({}, {"a": LATER, "b": LATER}).capacity_per_s == 240
    assert between({}, {"a": LATER, "b": NEW}).capacity_per_s is None


def test_services_that_are_gone_are_forgotten() -> None:
    watched = Histories()
    watched.add({"a": ServiceSample({"p": NEW}), "b": ServiceSample({"p": NEW})}, time_s=1.0)
    watched.add({"b": ServiceSample({"p": LATER}, wanted=2)}, time_s=3.0)

    [(name, history)] = watched.sorted
    assert name == "b"
    assert history.now.asked_per_s == 110
    assert dict(zip(COLUMNS, cells(name, history), strict=True))["replicas"] == "1/2"
    assert [each.time_s for each in history.intervals] == [1.0, 3.0]
    assert [each["looks"] for each in document(watched)["services"]] == [[asdict(history.now)]]


def test_each_pod_has_figures_up_to_a_limit() -> None:
    watched = Histories()
    watched.add({"a": ServiceSample({"p": NEW, "q": NEW})}, time_s=1.0)
    watched.add({"a": ServiceSample({"p": LATER, "q": None, "r": LATER})}, time_s=3.0)
    watched.add({"a": ServiceSample({f"p{number:02}": NEW for number in range(MAX_PODS + 1)})}, time_s=5.0)

    first, second, third = (each.pods for each in watched.services["a"].intervals)
    assert list(first) == ["p", "q"]
    assert second["p"] == between({"p": NEW}, {"p": LATER})
    assert (second["q"].silent, second["q"].asked_per_s, second["r"].asked_per_s) == (1, None, None)
    assert (len(third), max(third)) == (MAX_PODS, f"p{MAX_PODS - 1:02}")


@pytest.mark.parametrize(
    ("resource", "state", "well", "says"),
    [
        ({}, "Unseen", False, ""),
        (
            {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "X", "message": "m"}]}},
            "X",
            False,
            "m",
        ),
        (
            {
                "status": {
                    "conditions": [
                        {"type": "Ready", "status": "True", "reason": "Ready", "message": "m"},
                        {"type": "ScalingActive", "status": "True", "message": "2 replicas: why"},
                    ]
                }
            },
            "Ready",
            True,
            "2 replicas: why",
        ),
    ],
)
def test_a_service_says_what_is_wrong_else_why_it_has_so_many_pods(
    resource: dict[str, object], state: str, well: bool, says: str
) -> None:
    seen = cluster_sample(resource, {})
    assert (seen.state, seen.well, seen.says) == (state, well, says)


def test_figures_are_short() -> None:
    assert [rate(each) for each in (None, 0, 0.25, 12.4, 12345)] == ["-", "0", "0.2", "12", "12,345"]
    assert [duration(each) for each in (None, 0.5, 41.23, 1234)] == ["-", "0.5 ms", "41.2 ms", "1.23 s"]


@given(st.lists(st.floats(0, 1e9), max_size=30))
def test_a_curve_has_a_block_for_each_value_and_hides_none(values: list[float]) -> None:
    drawn = curve(values)

    assert len(drawn) == len(values)
    assert all((block == " ") == (value == 0) for block, value in zip(drawn, values, strict=True))


def test_a_narrow_terminal_omits_the_least_important_columns() -> None:
    whole = sum(len(name) + GAP for name in COLUMNS) - GAP

    assert fitting([], whole) == list(range(len(COLUMNS)))
    assert [COLUMNS[at] for at in fitting([], whole - 1)] == [name for name in COLUMNS if name != LESS[0]]
    assert [COLUMNS[at] for at in fitting([], 1)] == [name for name in COLUMNS if name not in LESS]
