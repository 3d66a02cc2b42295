"""How much is asked at once of a service that has callers of its own."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.limiter import DEFAULT_PAUSE_S, MAX_CONCURRENCY, MAX_PAUSE_S, ConcurrencyLimiter


def test_limit_starts_at_one_and_grows_with_successes() -> None:
    limiter = ConcurrencyLimiter()
    assert limiter.wait_s(running=0, now_s=0.0) == 0.0
    assert limiter.wait_s(running=1, now_s=0.0) is None

    for _ in range(1000):
        limiter.record_success()
    assert limiter.limit == MAX_CONCURRENCY
    assert limiter.wait_s(running=MAX_CONCURRENCY - 1, now_s=0.0) == 0.0
    assert limiter.wait_s(running=MAX_CONCURRENCY, now_s=0.0) is None


def test_nonsense_about_when_to_come_back_does_not_end_it() -> None:
    limiter = ConcurrencyLimiter()
    limiter.record_rejection(10.0, 1e30)

    assert limiter.wait_s(0, 10.0) == MAX_PAUSE_S


def test_rejection_halves_the_limit_and_honors_retry_after() -> None:
    limiter = ConcurrencyLimiter(limit=8.0)
    limiter.record_rejection(10.0, 3.0)

    assert limiter.limit == 4.0
    assert limiter.wait_s(running=0, now_s=10.0) == 3.0
    assert limiter.wait_s(running=0, now_s=13.0) == 0.0


def test_concurrent_rejections_count_once() -> None:
    limiter = ConcurrencyLimiter(limit=8.0)
    for _ in range(4):
        limiter.record_rejection(10.0, None)

    assert limiter.limit == 4.0
    assert limiter.wait_s(running=0, now_s=10.0) == DEFAULT_PAUSE_S


@given(st.lists(st.one_of(st.none(), st.tuples(st.floats(0, 5), st.floats(0, 10)))))
def test_one_request_is_always_tried_in_the_end(events: list[tuple[float, float] | None]) -> None:
    limiter, now_s = ConcurrencyLimiter(), 0.0
    for event in events:
        if event is None:
            limiter.record_success()
        else:
            now_s += event[0]
            limiter.record_rejection(now_s, event[1])

    assert 1.0 <= limiter.limit <= MAX_CONCURRENCY
    assert limiter.wait_s(running=0, now_s=max(now_s, limiter.closed_until_s)) == 0.0
