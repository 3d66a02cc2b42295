"""Long work in turns: everyone gets theirs, a turn has an end, and a fault is its own."""

import asyncio
from typing import Any

from shoal_proxy.bodies.rotation import TURN_COST, Rotation


class Counting:
    """A job of so many steps."""

    def __init__(self, name: str, steps: int, cost: int, rotation: Rotation, log: list[str]) -> None:
        self.scheduled = False
        self._name, self._left, self._cost, self._rotation, self._log = name, steps, cost, rotation, log

    def step(self) -> int:
        self._log.append(self._name)
        self._left -= 1
        if self._left < 0:
            raise ValueError(self._name)
        if self._left:
            self._rotation.schedule(self)
        return self._cost


def ran(*jobs: tuple[str, int, int]) -> tuple[list[str], list[int], list[Any]]:
    """Return the order of steps, how many there were by each turn of the loop, and what was raised."""
    log: list[str] = []
    turns: list[int] = []
    raised: list[Any] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context["exception"]))
        rotation = Rotation()
        for name, steps, cost in jobs:
            job = Counting(name, steps, cost, rotation, log)
            rotation.schedule(job)
            rotation.schedule(job)  # once is enough
        for _ in range(12):
            await asyncio.sleep(0)
            turns.append(len(log))

    asyncio.run(run())
    return log, turns, raised


def test_jobs_take_turns_and_each_turn_of_the_loop_has_its_end() -> None:
    log, turns, _ = ran(("a", 3, TURN_COST), ("b", 2, TURN_COST))
    assert log == ["a", "b", "a", "b", "a"]
    assert turns[:6] == [1, 2, 3, 4, 5, 5]


def test_small_steps_share_a_turn() -> None:
    log, turns, _ = ran(*((name, 1, TURN_COST // 4) for name in "abcdef"))
    assert log == [*"abcdef"]
    assert turns[:3] == [4, 6, 6]


def test_a_step_that_raises_blocks_no_other_job() -> None:
    log, _, raised = ran(("a", 0, 1), ("b", 2, TURN_COST))
    assert log == ["a", "b", "b"]
    assert [str(each) for each in raised] == ["a"]
