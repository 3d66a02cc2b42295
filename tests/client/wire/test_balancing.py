"""Which of several addresses is asked, on values alone."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.balancing import (
    MAX_PAUSE_S,
    MAX_REJECTED_PAUSE_S,
    MAX_TRIES,
    MIN_PAUSE_S,
    MIN_REJECTED_PAUSE_S,
    REPORT_EXPIRY_S,
    AddressState,
    choose,
    choose_other,
    expected_wait_s,
    not_run,
)


def first(count: int, drawn: int) -> Sequence[int]:
    return range(count)[:drawn]


def telling(wait_s: float) -> dict[str, str]:
    return {"endpoint-load-metrics": f"TEXT rps_fractional=1, named_metrics.expected_wait_seconds={wait_s}"}


def reported(wait_s: float, now_s: float = 0.0) -> AddressState:
    place = AddressState()
    place.record_response(200, telling(wait_s), now_s)
    return place


def test_shorter_of_two_waits_is_chosen_and_an_unused_address_is_tried() -> None:
    assert choose([reported(0.3), reported(0.1)], 0.0, first) == 1
    assert choose([reported(0.1), reported(0.3)], 0.0, first) == 0
    assert choose([reported(0.1), AddressState()], 0.0, first) == 1


def test_expired_report_is_ignored_and_requests_sent_since_count() -> None:
    assert choose([reported(0.1, 5.0), reported(0.3, 0.0)], 0.0 + REPORT_EXPIRY_S + 4.5, first) == 1
    busy, other = reported(0.1), reported(0.25)
    busy.sent = 2
    assert choose([busy, other], 0.0, first) == 1


def test_one_that_cannot_be_reached_is_left_alone_for_longer_each_time_unless_there_is_no_other() -> None:
    gone, other = AddressState(), reported(9.0)
    pauses = []
    now_s = 0.0
    for _ in range(12):
        gone.record_failure(now_s)
        gone.record_failure(now_s)  # those that were under way together are one failure
        pauses.append(gone.backoff_until_s - now_s)
        assert choose([gone, other], now_s, first) == 1
        assert choose([gone], now_s, first) == 0
        now_s = gone.backoff_until_s
    assert pauses[:3] == [MIN_PAUSE_S, 2 * MIN_PAUSE_S, 4 * MIN_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S
    gone.record_response(200, {}, now_s)
    assert gone.failures == 0


@pytest.mark.parametrize("status", [429, 502, 503])
def test_one_that_refuses_is_left_alone_briefly_whatever_it_promises_and_longer_each_time(status: int) -> None:
    full, other, now_s, pauses = AddressState(), reported(9.0), 0.0, []
    for _ in range(9):
        for _ in range(2):
            full.record_response(status, {"x-shoal-executed": "no", **telling(0.0)}, now_s)
        pauses.append(full.backoff_until_s - now_s)
        assert choose([full, other], now_s, first) == 1
        now_s = full.backoff_until_s
    assert pauses[:3] == pytest.approx([MIN_REJECTED_PAUSE_S, 2 * MIN_REJECTED_PAUSE_S, 4 * MIN_REJECTED_PAUSE_S])
    assert pauses[-1] == pytest.approx(MAX_REJECTED_PAUSE_S)


def test_one_that_loses_a_call_is_left_alone_for_longer_than_one_that_refuses_it() -> None:
    lost = AddressState()
    lost.record_response(503, {"x-shoal-executed": "maybe", **telling(0.0)}, 0.0)
    assert lost.backoff_until_s == MIN_PAUSE_S


@pytest.mark.parametrize("status", [500, 504, 599, 204, 206, 307, 404, 415])
def test_one_that_fails_is_never_preferred_and_left_alone_when_it_fails_again(status: int) -> None:
    failing, other = AddressState(), reported(9.0)
    failing.record_response(status, telling(0.0), 0.0)
    assert choose([failing, other], 0.0, first) == 1
    assert failing.backoff_until_s <= 0.0
    failing.record_response(status, telling(0.0), 0.0)
    assert failing.backoff_until_s == MIN_PAUSE_S


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_is_wrong_with_the_request_is_not_held_against_the_server(status: int) -> None:
    place = AddressState()
    for _ in range(5):
        place.record_response(status, telling(0.1), 0.0)
    assert choose([place, reported(0.2)], 0.0, first) == 0


def test_address_without_a_report_ranks_last() -> None:
    silent = AddressState()
    silent.record_response(200, {"endpoint-load-metrics": "TEXT named_metrics.expected_wait_seconds=nan"}, 0.0)
    assert choose([silent, reported(9.0)], 0.0, first) == 1
    others = [AddressState(), AddressState()]
    for each in others:
        each.record_response(200, {}, 0.0)
    others[0].sent = 1
    assert choose(others, 0.0, first) == 1


def test_one_of_many_clients_probes_an_unused_address() -> None:
    unknown, known = AddressState(), reported(0.5)
    assert choose([unknown, known], 0.0, first) == 0
    unknown.sent = unknown.in_flight = 1
    assert choose([unknown, known], 0.0, first) == 1


def test_what_did_not_run_goes_to_another_that_is_not_left_alone_and_to_a_few_at_most() -> None:
    places = [reported(0.1 * number) for number in range(1, 6)]
    places[1].record_failure(0.0)
    assert choose_other(places, [0], 0.0, first) == 2
    assert choose_other(places[:2], [0], 0.0, first) is None
    assert choose_other(places, list(range(MAX_TRIES)), 0.0, first) is None


def test_only_what_certainly_did_not_run_goes_to_another() -> None:
    assert not_run("POST", 503, {"x-shoal-executed": "no"})
    assert not_run("GET", 503, {})
    for method, status, headers in (
        ("POST", 503, {}),
        ("POST", 503, {"x-shoal-executed": "maybe"}),
        ("POST", 400, {"x-shoal-executed": "no"}),
        ("GET", 404, {}),
        ("POST", 200, {}),
    ):
        assert not not_run(method, status, headers)


@pytest.mark.parametrize(
    "text", ["", "TEXT", "JSON {}", "TEXT named_metrics.expected_wait_seconds=nan", "TEXT expected_wait_seconds=-1"]
)
def test_what_makes_no_sense_is_no_wait(text: str) -> None:
    assert expected_wait_s(text) is None


@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_never_the_worse_of_the_two_that_were_drawn(waits: list[float], random: object) -> None:
    drawn: list[int] = []

    def sample(count: int, size: int) -> Sequence[int]:
        drawn[:] = random.sample(range(count), size)  # type: ignore[attr-defined]
        return drawn

    chosen = choose([reported(wait_s) for wait_s in waits], 0.0, sample)
    assert chosen in drawn
    assert waits[chosen] == pytest.approx(min(waits[number] for number in drawn))
