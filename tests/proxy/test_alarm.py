from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from shoal_proxy.alarm import Alarm


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test)


@pytest.mark.parametrize("delay_s", [-1.0, 0.0, 0.0003, 0.01])
def test_it_rings_once_and_never_early(delay_s: float) -> None:
    async def test() -> None:
        rang: list[float] = []
        ring = asyncio.Event()

        def note() -> None:
            rang.append(time.monotonic())
            ring.set()

        alarm = Alarm(asyncio.get_running_loop(), note)
        at_s = time.monotonic() + delay_s
        alarm.set(at_s)
        await asyncio.wait_for(ring.wait(), 10)
        alarm.set(time.monotonic() + 0.001)
        ring.clear()
        await asyncio.wait_for(ring.wait(), 10)
        alarm.close()
        assert len(rang) == 2
        assert rang[0] >= at_s

    run(test())


def test_the_time_set_last_counts() -> None:
    async def test() -> None:
        rang: list[float] = []
        ring = asyncio.Event()

        def note() -> None:
            rang.append(time.monotonic())
            ring.set()

        alarm = Alarm(asyncio.get_running_loop(), note)
        alarm.set(time.monotonic())
        later_s = time.monotonic() + 0.02
        alarm.set(later_s)
        await asyncio.wait_for(ring.wait(), 10)
        alarm.close()
        assert rang[0] >= later_s
        assert len(rang) == 1

    run(test())


def test_a_cleared_alarm_is_silent() -> None:
    async def test() -> None:
        rang: list[float] = []
        alarm = Alarm(asyncio.get_running_loop(), lambda: rang.append(time.monotonic()))
        alarm.set(time.monotonic())
        alarm.clear()
        witness = asyncio.Event()
        other = Alarm(asyncio.get_running_loop(), witness.set)
        other.set(time.monotonic() + 0.005)
        await asyncio.wait_for(witness.wait(), 10)
        alarm.close()
        alarm.close()
        other.close()
        assert rang == []

    run(test())
