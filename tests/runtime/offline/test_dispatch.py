"""The order of batches after any failures: every row has one outcome."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.offline.dispatch import BatchDispatcher, WorkUnit
from shoal_schema.wire.engine_messages import OUT_OF_MEMORY


class World:
    """Engines: rows in ``kills`` end one, rows in ``fails`` fail a batch, more rows than ``memory`` end it."""

    def __init__(self, rows: int, limit: int, engines: int, kills: set[int], fails: set[int], memory: int) -> None:
        self.dispatch = BatchDispatcher(limit, 2)
        self.dispatch.enqueue(WorkUnit(1, np.arange(rows)[at : at + limit]) for at in range(0, rows, limit))
        self.running: list[tuple[int, int, WorkUnit]] = []
        self.engines = engines
        self.kills, self.fails, self.memory = kills, fails, memory
        self.answered: list[int] = []
        self.blamed: dict[int, str] = {}
        self.starts = 0

    def feed(self) -> None:
        for engine in range(self.engines):
            while (taken := self.dispatch.next_batch(engine)) is not None:
                self.running.append((engine, *taken))

    def step(self, choice: int) -> None:
        engine, number, work = self.running.pop(choice % len(self.running))
        rows = set(work.rows.tolist())
        if rows & self.kills or len(rows) > self.memory:
            self.running.append((engine, number, work))
            self.end(engine)
        elif rows & self.fails:
            self.note(self.dispatch.fail(number, "FORWARD_FAILED"), "failed")
        else:
            done = self.dispatch.complete(number)
            self.answered += done.rows.tolist() if done else []

    def end(self, engine: int) -> None:
        self.starts += 1
        self.running = [each for each in self.running if each[0] != engine]
        self.note(self.dispatch.engine_ended(engine), "killed")

    def note(self, blamed: WorkUnit | None, how: str) -> None:
        if blamed is not None:
            assert len(blamed.rows) == 1
            assert int(blamed.rows[0]) not in self.blamed
            self.blamed[int(blamed.rows[0])] = how


@given(
    rows=st.integers(1, 40),
    limit=st.integers(1, 16),
    engines=st.integers(1, 3),
    kills=st.sets(st.integers(0, 39), max_size=3),
    fails=st.sets(st.integers(0, 39), max_size=3),
    memory=st.sampled_from([1, 3, 1000]),
    choices=st.lists(st.integers(0, 100), max_size=30),
)
def test_every_row_has_one_result_or_one_error(  # noqa: PLR0917 (Hypothesis gives them)
    rows: int, limit: int, engines: int, kills: set[int], fails: set[int], memory: int, choices: list[int]
) -> None:
    world = World(rows, limit, engines, kills, fails, memory)
    for step in range(5000):
        world.feed()
        if world.dispatch.idle:
            break
        world.step(choices[step] if step < len(choices) else 0)

    assert world.dispatch.idle
    there = set(range(rows))
    assert set(world.blamed) == (kills | fails) & there
    assert {row for row, how in world.blamed.items() if how == "killed"} == kills & there
    assert sorted(world.answered) == sorted(there - kills - fails)


@given(st.sets(st.integers(0, 31), min_size=1, max_size=3))
def test_a_process_restarts_about_once_per_row_that_ends_it(kills: set[int]) -> None:
    world = World(32, 8, 1, kills, set(), 1000)
    while not world.dispatch.idle:
        world.feed()
        world.step(0)

    # One end of the batch, or of two that ran together, and one of the row alone.
    assert world.starts <= 2 * len(kills)


def test_good_rows_are_computed_in_their_original_batches() -> None:
    world = World(8, 4, 1, {5}, set(), 1000)
    batches = []
    while not world.dispatch.idle:
        world.feed()
        before = len(world.answered)
        world.step(0)
        batches.append(world.answered[before:])

    assert [batch for batch in batches if batch] == [[0, 1, 2, 3], [4, 6, 7]]


def test_a_batch_too_large_for_memory_is_halved_and_the_limit_lowered() -> None:
    dispatch = BatchDispatcher(8, 2)
    dispatch.enqueue([WorkUnit(1, np.arange(8))])
    taken = dispatch.next_batch(0)
    assert taken is not None

    assert dispatch.fail(taken[0], OUT_OF_MEMORY) is None
    assert dispatch.limit == 4
    halves = [dispatch.next_batch(0), dispatch.next_batch(0)]
    assert [each[1].rows.tolist() for each in halves if each] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_an_engine_holds_a_limited_number_of_batches(in_flight: int) -> None:
    dispatch = BatchDispatcher(1, in_flight)
    dispatch.enqueue(WorkUnit(1, np.array([row])) for row in range(9))

    assert sum(dispatch.next_batch(0) is not None for _ in range(9)) == in_flight
    assert sum(dispatch.next_batch(1) is not None for _ in range(9)) == in_flight
