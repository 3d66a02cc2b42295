"""The deadline of each state of a connection, without a clock or a socket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.http.connection_state import BODY, HEAD, IGNORED, NOTHING, ConnectionState
from shoal_schema.http.timeouts import BUSY_CHECK_S, TransferTimeouts

START_S = 1000.0
TIMEOUTS = TransferTimeouts(head_s=2.0, body_s=4.0, write_s=6.0, idle_s=100.0, min_bytes_per_s=10)


def check(
    state: ConnectionState,
    after_s: float,
    *,
    body_bytes: int = 0,
    unread_bytes: int | None = None,
    paused: bool = False,
    busy: bool = False,
) -> float:
    """Return the deadline, in seconds from the start."""
    now_s = START_S + after_s
    return state.check(now_s, body_bytes=body_bytes, unread_bytes=unread_bytes, paused=paused, busy=busy) - START_S


def in_phase(phase: int) -> ConnectionState:
    state = ConnectionState(TIMEOUTS, START_S)
    if phase != NOTHING:
        state.begin_head(START_S)
        state.phase = phase
    return state


@pytest.mark.parametrize(
    ("phase", "busy", "due_s"),
    [
        (NOTHING, False, 2.0),
        (HEAD, False, 2.0),
        (BODY, True, 4.0),
        (NOTHING, True, 1.0 + BUSY_CHECK_S),
        (IGNORED, False, 1.0 + BUSY_CHECK_S),
    ],
)
def test_each_phase_has_its_deadline(phase: int, busy: bool, due_s: float) -> None:
    assert check(in_phase(phase), 1.0, busy=busy) == due_s


def test_after_a_response_the_connection_may_be_idle_for_longer() -> None:
    state = in_phase(NOTHING)
    state.begin_idle(START_S + 1.0)
    assert check(state, 3.0) == 101.0


@pytest.mark.parametrize("phase", [NOTHING, HEAD, BODY, IGNORED])
def test_a_client_that_does_not_read_times_out_in_any_phase(phase: int) -> None:
    state = in_phase(phase)
    assert check(state, 1.0, unread_bytes=500, busy=True) == 7.0
    assert check(state, 7.0, unread_bytes=500, busy=True) == 7.0


def test_a_client_that_reads_at_the_rate_is_given_more_time_from_the_last_check() -> None:
    state = in_phase(NOTHING)
    state.begin_unread(500, START_S)
    assert check(state, 6.0, unread_bytes=440) == 12.0
    assert check(state, 12.0, unread_bytes=400) == 12.0


def test_a_body_at_the_rate_is_given_more_time_and_a_stall_is_not() -> None:
    state = in_phase(BODY)
    assert check(state, 4.0, body_bytes=1000) == 8.0
    # The bytes before the last check do not count again.
    assert check(state, 8.0, body_bytes=1000) == 8.0


def test_a_head_is_never_given_more_time() -> None:
    assert check(in_phase(HEAD), 2.0, body_bytes=1000) == 2.0


@pytest.mark.parametrize(("phase", "due_s"), [(HEAD, 7.0), (BODY, 9.0)])
def test_while_reading_is_paused_the_client_is_not_slow(phase: int, due_s: float) -> None:
    assert check(in_phase(phase), 5.0, paused=True) == due_s


def test_the_next_head_starts_all_measurements_anew() -> None:
    state = in_phase(BODY)
    check(state, 4.0, body_bytes=1000)
    state.phase = NOTHING
    state.begin_head(START_S + 5.0)
    state.phase = BODY
    assert state.requests == 2
    assert check(state, 9.0, body_bytes=40) == 13.0


@given(st.lists(st.tuples(st.integers(1, 10), st.integers(0, 200)), max_size=20))
def test_a_body_times_out_at_the_first_check_past_its_deadline_below_the_rate(steps: list[tuple[int, int]]) -> None:
    state = in_phase(BODY)
    now_s = body_bytes = since_s = marked_bytes = 0
    for elapsed_s, more_bytes in steps:
        now_s, body_bytes = now_s + elapsed_s, body_bytes + more_bytes
        due_s = check(state, now_s, body_bytes=body_bytes)
        if now_s - since_s < TIMEOUTS.body_s:
            assert due_s == since_s + TIMEOUTS.body_s
        elif body_bytes - marked_bytes < TIMEOUTS.min_bytes_per_s * (now_s - since_s):
            assert due_s <= now_s
            return
        else:
            since_s, marked_bytes = now_s, body_bytes
            assert due_s == now_s + TIMEOUTS.body_s
