"""Whose an object is."""

from typing import Any

import pytest

from shoal_operator.children.observation import controller_of, dig, is_owned, replica_set_owner


def owned(*references: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"ownerReferences": list(references)}}


def reference(kind: str, name: str, *, controller: bool = True) -> dict[str, Any]:
    return {"kind": kind, "name": name, "uid": f"uid-{name}", "controller": controller}


@pytest.mark.parametrize(
    ("references", "name"),
    [
        ([], None),
        ([reference("ReplicaSet", "cat-5d4f8")], "cat"),
        ([reference("ReplicaSet", "big-cat-5d4f8")], "big-cat"),
        ([reference("StatefulSet", "cat-5d4f8")], None),
        ([reference("ReplicaSet", "cat-5d4f8", controller=False)], None),
        ([reference("Node", "a-1", controller=False), reference("ReplicaSet", "cat-5d4f8")], "cat"),
        ([reference("ReplicaSet", "5d4f8")], None),
        ([{"kind": "ReplicaSet", "controller": True}], None),
    ],
)
def test_a_pod_is_of_the_deployment_whose_replica_set_controls_it(
    references: list[dict[str, Any]], name: str | None
) -> None:
    assert replica_set_owner(owned(*references)) == name


def test_only_its_controller_owns_an_object() -> None:
    child = owned(reference("X", "b", controller=False), reference("X", "a"))

    assert is_owned(child, "uid-a")
    assert not is_owned(child, "uid-b")
    assert not is_owned({"metadata": {}}, "uid-a")
    assert controller_of(owned(reference("X", "b", controller=False))) is None


@pytest.mark.parametrize(
    ("value", "found"),
    [({"a": {"b": 0}}, 0), ({"a": {"b": None}}, "no"), ({"a": None}, "no"), ({"a": 3}, "no"), (None, "no")],
)
def test_what_is_missing_or_null_on_the_way_is_the_default(value: Any, found: Any) -> None:
    assert dig(value, "a", "b", default="no") == found
