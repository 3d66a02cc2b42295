"""Records: one state of each class per object, closed once when it leaves."""

from dataclasses import dataclass, field

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.loop.workqueue import Outcome, Schedule, WorkQueue

CAT, DOG = Key("default", "cat"), Key("default", "dog")


@dataclass
class Count:
    number: int = 0


@dataclass
class Task:
    closed: list[str] = field(default_factory=list)
    name: str = ""

    def close(self) -> None:
        self.closed.append(self.name)


def test_one_state_of_each_class_per_object() -> None:
    records = Records()
    records.get(CAT, Count).number = 3
    records.put(CAT, Task(name="a"))

    assert records.get(CAT, Count) is records.find(CAT, Count)
    assert records.find(DOG, Count) is None
    assert [(key, state.number) for key, state in records.of(Count)] == [(CAT, 3)]
    records.put(CAT, Count(5))
    assert records.get(CAT, Count).number == 5


def test_a_state_is_closed_once_when_it_is_removed_or_dropped() -> None:
    closed: list[str] = []
    records = Records()
    for key, name in ((CAT, "cat"), (DOG, "dog")):
        records.put(key, Task(closed, name))
    records.remove(CAT, Task)
    records.remove(CAT, Task)
    assert closed == ["cat"]
    records.drop(DOG)
    assert (closed, list(records.of(Task))) == (["cat", "dog"], [])


def test_states_to_keep_survive_and_an_iteration_survives_removals() -> None:
    records = Records()
    for key in (CAT, DOG):
        records.get(key, Count)
        records.get(key, Task)
    records.drop(CAT, keep=(Count,))
    assert (records.find(CAT, Task), records.find(CAT, Count)) == (None, Count())
    for key, _ in records.of(Count):
        records.drop(key)
    assert list(records.of(Count)) == []


def test_states_of_a_deleted_object_are_not_those_of_the_next_object_of_its_name() -> None:
    records = Records()
    records.identify(CAT, "uid-1", keep=(Task,))
    for kind in (Count, Task):
        records.get(CAT, kind)
    records.identify(CAT, "uid-1", keep=(Task,))
    assert records.find(CAT, Count) is not None
    records.identify(CAT, "uid-2", keep=(Task,))

    assert (records.find(CAT, Count), records.find(CAT, Task)) == (None, Task())


def test_the_queue_drops_the_record_of_an_object_that_is_gone_but_keeps_a_mark_made_meanwhile() -> None:
    queue = WorkQueue(600)
    for key in (CAT, DOG):
        queue.mark(key, 0.0)
        queue.records.get(key, Count)
        assert queue.take(0.0) == key
    queue.mark(DOG, 1.0)
    for key in (CAT, DOG):
        queue.finish(key, Outcome.GONE, 1.0, jitter=0.0)

    assert list(queue.records.of(Count)) == []
    assert [key for key, _ in queue.records.of(Schedule)] == [DOG]
    assert queue.take(1.0) == DOG
