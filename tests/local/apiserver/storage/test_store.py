from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_local.apiserver.storage.store import Change, Store, TooOldError, Verb
from shoal_local.objects import key_of

KEY = "/configmaps"


def obj(name: str, value: int = 0, namespace: str = "a") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "value": value}


steps = st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30)


def play(store: Store, moves: list[tuple[str, bool]]) -> None:
    """Write or remove by name."""
    for number, (name, remove) in enumerate(moves):
        known = store.get(KEY, ("a", name))
        if remove and known:
            store.remove(KEY, known)
        elif not remove:
            store.write(KEY, obj(name, number))


@given(steps)
def test_replaying_the_changes_gives_the_same_store(moves: list[tuple[str, bool]]) -> None:
    store, other = Store(), Store()
    changes: list[Change] = []
    store.listener = changes.append

    play(store, moves)
    for change in changes:
        other.replay(Change(change.revision, change.key, change.verb, change.object, None))

    assert other.objects == store.objects
    assert other.revision == store.revision
    assert other.since(KEY, 1) == store.since(KEY, 1)


@given(steps)
def test_revisions_only_grow_and_no_two_changes_share_one(moves: list[tuple[str, bool]]) -> None:
    store = Store()
    play(store, moves)

    revisions = [change.revision for change in store.since(KEY, 1)]

    assert revisions == sorted(set(revisions))


def test_a_change_tells_what_was_there_before() -> None:
    store = Store()
    first = store.write(KEY, obj("a", 1))
    second = store.write(KEY, obj("a", 2))
    store.remove(KEY, second)

    seen = [(c.verb, c.before) for c in store.since(KEY, 1)]

    assert seen == [(Verb.ADDED, None), (Verb.MODIFIED, first), (Verb.DELETED, second)]


def test_a_removed_object_carries_the_revision_of_its_removal() -> None:
    store = Store()
    last = store.remove(KEY, store.write(KEY, obj("a")))

    assert last["metadata"]["resourceVersion"] == str(store.revision)


def test_compacted_changes_are_reported_as_too_old() -> None:
    store = Store(log_length=3)
    for number in range(10):
        store.write(KEY, obj("a", number))

    with pytest.raises(TooOldError):
        store.since(KEY, 2)
    assert [c.revision for c in store.since(KEY, store.revision - 3)] == [9, 10, 11]


def test_a_busy_kind_does_not_make_another_forget() -> None:
    store = Store(log_length=3)
    store.write("/pods", obj("p"))
    for number in range(10):
        store.write(KEY, obj("a", number))

    assert len(store.since("/pods", 1)) == 1


def test_lists_are_in_order_and_of_one_namespace() -> None:
    store = Store()
    for namespace, name in (("b", "x"), ("a", "z"), ("a", "y")):
        store.write(KEY, obj(name, namespace=namespace))

    assert [key_of(o) for o in store.objects_of(KEY)] == [("a", "y"), ("a", "z"), ("b", "x")]
    assert [key_of(o) for o in store.objects_of(KEY, "b")] == [("b", "x")]
