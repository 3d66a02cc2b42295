"""Which peer gets a request, decided on values alone."""

from itertools import pairwise
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.balance.peers import (
    FIRST_FAILED_PAUSE_S,
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    MAX_REPORT_AGE_S,
    MAX_WAIT_S,
    ForwardingOutcome,
    Peer,
    choose_peer,
    least_recently_polled,
)

ROW_S = 0.001


def promising(wait_s: float | None, reported_s: float = 0.0) -> Peer:
    peer = Peer()
    peer.record_expected_wait(wait_s, reported_s, 0.001)
    return peer


def chosen(
    peers: list[Peer], *, soft_deadline_s: float, now_s: float = 0.0, rows: int = 1, most_rows: int = 64
) -> int | None:
    peer = choose_peer(peers, rows, soft_deadline_s=soft_deadline_s, now_s=now_s, row_s=ROW_S, most_rows=most_rows)
    return None if peer is None else peers.index(peer)


def test_the_one_that_finishes_soonest_is_chosen_and_none_where_all_would_be_late() -> None:
    peers = [promising(0.3), promising(0.1), promising(0.2)]
    assert chosen(peers, soft_deadline_s=1.0) == 1
    assert chosen(peers, soft_deadline_s=0.05) is None
    assert chosen([], soft_deadline_s=1.0) is None


@pytest.mark.parametrize("wait_s", [None, nan, inf, -inf, -0.001, MAX_WAIT_S * 1.01])
def test_what_makes_no_sense_is_no_promise(wait_s: float | None) -> None:
    assert chosen([promising(wait_s)], soft_deadline_s=1e9) is None


def test_without_a_poll_no_peer_is_chosen() -> None:
    assert chosen([Peer()], soft_deadline_s=inf) is None


def test_an_old_promise_counts_no_more() -> None:
    assert chosen([promising(0.1)], soft_deadline_s=inf, now_s=MAX_REPORT_AGE_S) == 0
    assert chosen([promising(0.1)], soft_deadline_s=inf, now_s=MAX_REPORT_AGE_S + 0.01) is None


def test_rows_given_since_a_promise_are_added_to_it() -> None:
    peers = [promising(0.100), promising(0.105)]
    took = []
    for _ in range(20):
        number = chosen(peers, soft_deadline_s=1.0)
        assert number is not None
        peers[number].record_forwarded(1)
        took.append(number)
    assert took[:5] == [0] * 5
    assert sorted(took[5:]) == [0] * 7 + [1] * 8 or sorted(took[5:]) == [0] * 8 + [1] * 7


def test_what_one_peer_has_of_us_is_bounded_but_a_large_request_may_go_alone() -> None:
    peer = promising(0.0)
    peer.record_forwarded(60)
    assert chosen([peer], rows=4, soft_deadline_s=1.0) == 0
    assert chosen([peer], rows=5, soft_deadline_s=1.0) is None
    peer.record_outcome(60, ForwardingOutcome.ANSWERED, 0.0)
    assert chosen([peer], rows=200, soft_deadline_s=1.0) == 0


def test_ourselves_are_never_chosen() -> None:
    peer = promising(0.0)
    peer.is_self = True
    assert chosen([peer], soft_deadline_s=inf) is None
    assert least_recently_polled([peer], 4, 0.0) == []


@pytest.mark.parametrize(
    ("end", "first_s"),
    [
        (ForwardingOutcome.REFUSED, FIRST_PAUSE_S),
        (ForwardingOutcome.LOST, FIRST_FAILED_PAUSE_S),
        (ForwardingOutcome.BROKEN, FIRST_FAILED_PAUSE_S),
    ],
)
def test_a_broken_promise_is_followed_by_a_pause_that_doubles_until_one_is_kept(
    end: ForwardingOutcome, first_s: float
) -> None:
    peer, now_s, pauses = Peer(), 0.0, []
    for _ in range(4):
        peer.record_expected_wait(0.0, now_s)
        peer.record_forwarded(1)
        peer.record_outcome(1, end, now_s)
        peer.record_expected_wait(0.0, now_s)  # whatever it promises
        assert chosen([peer], soft_deadline_s=inf, now_s=now_s) is None
        pauses.append(peer.skipped_until_s - now_s)
        now_s = peer.skipped_until_s
        peer.record_expected_wait(0.0, now_s)
        assert chosen([peer], soft_deadline_s=inf, now_s=now_s) == 0
    assert pauses == pytest.approx([first_s, 2 * first_s, 4 * first_s, 8 * first_s])
    peer.record_forwarded(1)
    peer.record_outcome(1, ForwardingOutcome.ANSWERED, now_s)
    peer.record_forwarded(1)
    peer.record_outcome(1, end, now_s)
    assert peer.skipped_until_s - now_s == pytest.approx(first_s)


def test_a_model_that_fails_one_request_is_retried_and_one_that_fails_two_in_a_row_is_left_alone() -> None:
    peer = promising(0.0)
    peer.record_outcome(0, ForwardingOutcome.FAILED, 0.0)
    assert chosen([peer], soft_deadline_s=inf) == 0
    peer.record_outcome(0, ForwardingOutcome.ANSWERED, 0.0)
    peer.record_outcome(0, ForwardingOutcome.FAILED, 0.0)
    assert chosen([peer], soft_deadline_s=inf) == 0
    peer.record_outcome(0, ForwardingOutcome.FAILED, 0.0)
    assert chosen([peer], soft_deadline_s=inf) is None
    assert peer.skipped_until_s == FIRST_FAILED_PAUSE_S


def test_where_requests_fail_here_as_well_it_takes_more_failures_to_be_the_peers_fault() -> None:
    for own, in_a_row in ((0.0, 2), (0.3, 3), (0.5, 5), (0.9, 29)):
        peer = promising(0.0)
        for number in range(1, in_a_row + 1):
            assert chosen([peer], soft_deadline_s=inf) == 0, (own, number)
            peer.record_outcome(0, ForwardingOutcome.FAILED, 0.0, own_failures=own)
        assert chosen([peer], soft_deadline_s=inf) is None, own
    fails_alike = promising(0.0)
    for _ in range(1000):
        fails_alike.record_outcome(0, ForwardingOutcome.FAILED, 0.0, own_failures=1.0)
    assert chosen([fails_alike], soft_deadline_s=inf) == 0


def test_rows_that_the_model_rejects_are_not_held_against_the_peer() -> None:
    peer = promising(0.0)
    for _ in range(100):
        peer.record_outcome(0, ForwardingOutcome.ERROR, 0.0)
    assert chosen([peer], soft_deadline_s=inf) == 0


@pytest.mark.parametrize("end", [ForwardingOutcome.LOST, ForwardingOutcome.BROKEN, ForwardingOutcome.FAILED])
def test_one_that_was_left_alone_for_failing_gets_one_request_at_a_time_until_it_responds_to_one(
    end: ForwardingOutcome,
) -> None:
    peer = promising(0.0)
    for _ in range(2):
        peer.record_outcome(0, end, 0.0)
    now_s = peer.skipped_until_s
    peer.record_expected_wait(0.0, now_s)
    assert chosen([peer], soft_deadline_s=inf, now_s=now_s) == 0
    peer.record_forwarded(1)
    assert chosen([peer], soft_deadline_s=inf, now_s=now_s) is None
    peer.record_outcome(1, ForwardingOutcome.ANSWERED, now_s)
    peer.record_forwarded(1)
    assert chosen([peer], soft_deadline_s=inf, now_s=now_s) == 0


def test_many_rejections_at_once_are_one_failure() -> None:
    peer = promising(0.0)
    peer.record_forwarded(50)
    for _ in range(50):
        peer.record_outcome(1, ForwardingOutcome.REFUSED, 1.0)
    assert peer.skipped_until_s == pytest.approx(1.0 + FIRST_PAUSE_S)


def test_a_disconnect_does_not_count_against_the_peer() -> None:
    peer = promising(0.0)
    peer.record_forwarded(1)
    peer.record_outcome(1, ForwardingOutcome.CANCELLED, 0.0)
    assert chosen([peer], soft_deadline_s=inf) == 0


def test_those_that_have_been_silent_longest_are_requested_first() -> None:
    peers = [promising(0.1, reported_s=3.0), promising(0.1, reported_s=1.0), Peer(), promising(0.1, reported_s=2.0)]
    assert [peers.index(each) for each in least_recently_polled(peers, 3, 4.0)] == [2, 1, 3]


@given(
    st.lists(st.tuples(st.floats(allow_nan=True), st.integers(0, 100), st.booleans(), st.floats(0, 5)), max_size=12),
    st.integers(1, 40),
    st.floats(0, 10),
)
def test_the_chosen_peer_is_expected_in_time_and_no_peer_earlier(
    reports: list[tuple[float, int, bool, float]], rows: int, soft_deadline_s: float
) -> None:
    now_s, peers = 5.0, []
    for wait_s, has, is_self, reported_s in reports:
        peer = promising(wait_s, reported_s)
        peer.record_forwarded(has)
        peer.is_self = is_self
        peers.append(peer)
    best = choose_peer(peers, rows, soft_deadline_s=now_s + soft_deadline_s, now_s=now_s, row_s=ROW_S, most_rows=64)
    fitting = [each for each in peers if not each.forwarded_rows or each.forwarded_rows + rows <= 64]
    finishes = [each.finish_s(now_s, ROW_S) + (rows - 1) * ROW_S for each in fitting]
    if best is None:
        assert all(finish_s >= now_s + soft_deadline_s for finish_s in finishes)
    else:
        assert best in fitting
        assert best.finish_s(now_s, ROW_S) + (rows - 1) * ROW_S == min(finishes) < now_s + soft_deadline_s


@given(st.integers(1, 8), st.integers(50, 2000))
def test_peers_that_lie_cost_few_futile_tries(count: int, asked_per_s: int) -> None:
    """All of them promise to be idle and refuse: whatever the rate, tries are bounded by the pauses."""
    peers = [Peer() for _ in range(count)]
    tries, seconds = 0, 10
    for number in range(seconds * asked_per_s):
        now_s = number / asked_per_s
        for each in peers:
            each.record_expected_wait(0.0, now_s)
        best = choose_peer(peers, 1, soft_deadline_s=now_s + 0.1, now_s=now_s, row_s=ROW_S, most_rows=64)
        if best is not None:
            tries += 1
            best.record_forwarded(1)
            best.record_outcome(1, ForwardingOutcome.REFUSED, now_s)
    assert tries <= count * (8 + seconds / MAX_PAUSE_S + 1)


def test_addresses_without_a_response_do_not_keep_others_from_being_tried() -> None:
    peers, asked = [Peer() for _ in range(20)], list[int]()
    for tick in range(40):
        now_s = tick / 2
        for each in least_recently_polled(peers, 4, now_s):
            number = peers.index(each)
            if number == 19:
                asked.append(tick)
                each.record_expected_wait(0.1, now_s)
            else:
                each.record_no_report(now_s)
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert asked[0] <= 5
    assert max(gaps) <= 5
