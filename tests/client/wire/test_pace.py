"""How much is asked at once of a service that has callers of its own."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.pace import LONGEST_PAUSE_S, MOST, USUAL_PAUSE_S, Pace


def test_it_begins_with_one_and_asks_for_more_while_it_is_answered() -> None:
    pace = Pace()
    assert pace.wait_s(running=0, now_s=0.0) == 0.0
    assert pace.wait_s(running=1, now_s=0.0) is None

    for _ in range(1000):
        pace.answered()
    assert pace.limit == MOST
    assert pace.wait_s(running=MOST - 1, now_s=0.0) == 0.0
    assert pace.wait_s(running=MOST, now_s=0.0) is None


def test_nonsense_about_when_to_come_back_does_not_end_it() -> None:
    pace = Pace()
    pace.refused(10.0, 1e30)

    assert pace.wait_s(0, 10.0) == LONGEST_PAUSE_S


def test_where_it_is_refused_it_asks_for_half_and_comes_back_when_told_to() -> None:
    pace = Pace(limit=8.0)
    pace.refused(10.0, 3.0)

    assert pace.limit == 4.0
    assert pace.wait_s(running=0, now_s=10.0) == 3.0
    assert pace.wait_s(running=0, now_s=13.0) == 0.0


def test_refusals_that_come_together_count_once() -> None:
    pace = Pace(limit=8.0)
    for _ in range(4):
        pace.refused(10.0, None)

    assert pace.limit == 4.0
    assert pace.wait_s(running=0, now_s=10.0) == USUAL_PAUSE_S


@given(st.lists(st.one_of(st.none(), st.tuples(st.floats(0, 5), st.floats(0, 10)))))
def test_one_request_is_always_tried_in_the_end(events: list[tuple[float, float] | None]) -> None:
    pace, now_s = Pace(), 0.0
    for event in events:
        if event is None:
            pace.answered()
        else:
            now_s += event[0]
            pace.refused(now_s, event[1])

    assert 1.0 <= pace.limit <= MOST
    assert pace.wait_s(running=0, now_s=max(now_s, pace.closed_until_s)) == 0.0
