import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from shoal_proxy.dispatch.alarm import Alarm


class Bell:
    """What an alarm rings: it notes when, and can be waited for."""

    def __init__(self) -> None:
        self.rang_s: list[float] = []
        self._ring = asyncio.Event()

    def ring(self) -> None:
        self.rang_s.append(time.monotonic())
        self._ring.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self._ring.wait(), 10)
        self._ring.clear()


def alarm_of(bell: Bell) -> Alarm:
    return Alarm(asyncio.get_running_loop(), bell.ring)


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


@pytest.mark.parametrize("delay_s", [-1.0, 0.0, 0.0003, 0.01])
def test_it_rings_once_and_never_early(delay_s: float) -> None:
    async def test() -> None:
        bell = Bell()
        alarm = alarm_of(bell)
        at_s = time.monotonic() + delay_s
        alarm.set(at_s)
        await bell.wait()
        alarm.set(time.monotonic() + 0.001)
        await bell.wait()
        alarm.close()
        assert len(bell.rang_s) == 2
        assert bell.rang_s[0] >= at_s

    run(test())


def test_the_time_set_last_counts() -> None:
    async def test() -> None:
        bell = Bell()
        alarm = alarm_of(bell)
        alarm.set(time.monotonic())
        later_s = time.monotonic() + 0.02
        alarm.set(later_s)
        await bell.wait()
        alarm.close()
        assert bell.rang_s[0] >= later_s
        assert len(bell.rang_s) == 1

    run(test())


def test_a_cleared_alarm_does_not_fire() -> None:
    async def test() -> None:
        bell, witness = Bell(), Bell()
        alarm, other = alarm_of(bell), alarm_of(witness)
        alarm.set(time.monotonic())
        alarm.clear()
        other.set(time.monotonic() + 0.005)
        await witness.wait()
        alarm.close()
        alarm.close()
        other.close()
        assert bell.rang_s == []

    run(test())
