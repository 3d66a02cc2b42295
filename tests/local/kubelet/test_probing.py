from hypothesis import given
from hypothesis import strategies as st

from shoal_local.kubelet.probing import ProbeState

PROBE = {"initialDelaySeconds": 5, "periodSeconds": 10, "successThreshold": 2, "failureThreshold": 3}


def follow(gauge: ProbeState, results: list[bool]) -> ProbeState:
    for result in results:
        gauge = gauge.after(success=result, now_s=gauge.scheduled_s)
    return gauge


def test_the_first_attempt_waits_for_the_initial_delay_and_the_next_for_the_period() -> None:
    gauge = ProbeState.begin(PROBE, 100)
    assert gauge.scheduled_s == 105
    assert gauge.after(success=True, now_s=105.4).scheduled_s == 115


def test_an_attempt_that_takes_longer_than_the_period_does_not_pile_up() -> None:
    assert ProbeState.begin(PROBE, 100).after(success=True, now_s=130).scheduled_s == 130


def test_verdicts_need_enough_results_in_a_row() -> None:
    gauge = ProbeState.begin(PROBE, 0)
    assert follow(gauge, [True]).verdict is None
    assert follow(gauge, [True, True]).verdict is True
    assert follow(gauge, [True, True, False, False]).verdict is True
    assert follow(gauge, [True, True, False, False, False]).verdict is False
    assert follow(gauge, [False, False, True, False]).verdict is None


def test_a_probe_that_is_taken_over_keeps_its_verdict_and_is_due_at_once() -> None:
    gauge = ProbeState.begin(PROBE, 100, verdict=True)
    assert (gauge.scheduled_s, gauge.verdict) == (100, True)


@given(st.lists(st.booleans(), max_size=40))
def test_the_verdict_is_the_last_run_of_results_that_was_long_enough(results: list[bool]) -> None:
    expected, count = None, 0
    for n, result in enumerate(results):
        count = count + 1 if n and result == results[n - 1] else 1
        if count >= PROBE["successThreshold" if result else "failureThreshold"]:
            expected = result
    assert follow(ProbeState.begin(PROBE, 0), results).verdict is expected
