import pytest

from shoal_schema.process.restarts import Backoff, after_exit


def test_delays_double_up_to_half_a_minute() -> None:
    backoff = Backoff()
    delays = []
    for _ in range(9):
        backoff = after_exit(backoff, started_s=100.0, now_s=101.0)
        delays.append(backoff.delay_s)

    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert Backoff().delay_s == 0


def test_a_process_that_lived_a_minute_starts_the_delays_anew() -> None:
    tired = Backoff(exits=6)

    assert after_exit(tired, started_s=100.0, now_s=160.0).delay_s == 0.5
    assert after_exit(tired, started_s=100.0, now_s=159.9).delay_s == 30


def test_thousand_exits_do_not_overflow_the_delay() -> None:
    assert Backoff(exits=10_000).delay_s == 30


@pytest.mark.parametrize(
    ("lifetimes_s", "delay_s"), [([], 0.0), ([1], 0.5), ([1, 1], 1.0), ([1] * 20, 30.0), ([1] * 20 + [60], 0.5)]
)
def test_the_delay_before_a_restart_doubles_until_a_process_was_healthy(
    lifetimes_s: list[float], delay_s: float
) -> None:
    backoff = Backoff()
    for lifetime_s in lifetimes_s:
        backoff = after_exit(backoff, started_s=100.0, now_s=100.0 + lifetime_s)

    assert backoff.delay_s == delay_s
