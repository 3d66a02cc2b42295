from collections.abc import Callable

from shoal_schema.wire.timeouts import STALLED_S, DeadlineTimer, TransferTimeouts


class Loop:
    """An event loop's timers, by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []
        self.looks: list[float] = []
        self.timer = DeadlineTimer(self.call_later, lambda: self.now_s, self.looks.append)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Timer":
        timer = Timer(self, self.now_s + delay_s, callback)
        self.timers.append(timer)
        return timer

    def turn(self, now_s: float) -> None:
        """Let everything happen that is due by then, late as it may be."""
        self.now_s = now_s
        for timer in [each for each in self.timers if each.at_s <= now_s]:
            self.timers.remove(timer)
            timer.callback()


class Timer:
    def __init__(self, loop: Loop, at_s: float, callback: Callable[[], None]) -> None:
        self.loop, self.at_s, self.callback = loop, at_s, callback

    def cancel(self) -> None:
        self.loop.timers.remove(self)


def test_the_earliest_of_all_times_counts_and_one_timer_serves_them() -> None:
    loop = Loop()
    for at_s in (5.0, 3.0, 4.0):
        loop.timer.check_by(at_s, loop.now_s)
        assert len(loop.timers) == 1

    loop.turn(2.9)
    assert loop.looks == []
    loop.turn(3.1)
    assert loop.looks == [3.1]
    assert loop.timers == []


def test_a_check_that_we_are_late_for_is_put_off() -> None:
    loop = Loop()
    loop.timer.check_by(1.0, 0.0)

    loop.turn(1.0 + 2 * STALLED_S)
    assert loop.looks == []
    loop.turn(1.0 + 3 * STALLED_S)
    assert loop.looks == [1.0 + 3 * STALLED_S]


def test_a_check_is_put_off_for_a_second_only_if_it_comes_more_than_a_second_late() -> None:
    loop = Loop()
    loop.timer.check_by(1.0, 0.0)
    loop.turn(2.0)
    assert loop.looks == [2.0]

    loop.timer.check_by(3.0, 2.0)
    loop.turn(4.5)
    loop.turn(5.4)
    assert loop.looks == [2.0]
    loop.turn(5.5)
    assert loop.looks == [2.0, 5.5]


def test_a_time_that_is_over_is_read_next() -> None:
    loop = Loop()
    loop.turn(5.0)
    loop.timer.check_by(4.5, 5.0)

    assert [timer.at_s for timer in loop.timers] == [5.0]


def test_a_peer_keeps_up_as_long_as_each_stretch_has_its_bytes() -> None:
    timeouts = TransferTimeouts(1.0, 1.0, 1.0, 1.0, min_bytes_per_s=100.0)

    assert timeouts.is_fast_enough(200, 2.0)
    assert not timeouts.is_fast_enough(199, 2.0)
    assert timeouts.is_fast_enough(0, 0.0)


def test_after_the_end_nothing_is_read() -> None:
    loop = Loop()
    loop.timer.check_by(1.0, 0.0)
    loop.timer.stop()
    loop.timer.stop()

    assert loop.timers == []
