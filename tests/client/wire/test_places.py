"""Which of several addresses is asked, on values alone."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.places import BELIEVED_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, Place, choose, expected_wait_s


def first(count: int, drawn: int) -> Sequence[int]:
    return range(count)[:drawn]


def told(wait_s: float, now_s: float = 0.0) -> Place:
    place, text = Place(), f"TEXT rps_fractional=1, named_metrics.expected_wait_seconds={wait_s}"
    place.answered({"endpoint-load-metrics": text}, now_s)
    return place


def test_the_shorter_wait_of_two_is_chosen_and_one_that_was_not_asked_is_tried() -> None:
    assert choose([told(0.3), told(0.1)], 0.0, first) == 1
    assert choose([told(0.1), told(0.3)], 0.0, first) == 0
    assert choose([told(0.1), Place()], 0.0, first) == 1


def test_an_old_wait_says_nothing_and_requests_sent_since_count() -> None:
    assert choose([told(0.1, 5.0), told(0.3, 0.0)], 0.0 + BELIEVED_S + 4.5, first) == 1
    busy, other = told(0.1), told(0.25)
    busy.sent = 2
    assert choose([busy, other], 0.0, first) == 1


def test_one_that_cannot_be_reached_is_left_alone_for_longer_each_time_unless_there_is_no_other() -> None:
    gone, other = Place(), told(9.0)
    pauses = []
    for _ in range(12):
        gone.failed(100.0)
        pauses.append(gone.shunned_until_s - 100.0)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    assert choose([gone, other], 100.0, first) == 1
    assert choose([gone], 100.0, first) == 0
    gone.answered({}, 101.0)
    assert gone.failures == 0


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

    chosen = choose([told(wait_s) for wait_s in waits], 0.0, sample)
    assert chosen in drawn
    assert waits[chosen] == pytest.approx(min(waits[number] for number in drawn))
