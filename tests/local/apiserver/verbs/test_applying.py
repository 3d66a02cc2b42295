from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.patching.applying import Applier, Manager, Managers, apply, merge, without
from shoal_local.apiserver.patching.field_sets import compare, field_set
from shoal_local.apiserver.schemas.node import Node
from tests.local.apiserver.cluster import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    JSON_PATCH,
    WIDGETS,
    Cluster,
    Object,
    config_map,
    widget,
    widget_definition,
)

WEB = f"{DEPLOYMENTS}/web"
CM = f"{CONFIG_MAPS}/a"


def owners(obj: Object, *path: str) -> list[str]:
    """Return the owners of a field, given as steps of fieldsV1."""
    found = []
    for entry in obj["metadata"]["managedFields"]:
        tree: Any = entry["fieldsV1"]
        for step in path:
            tree = tree.get(step) if isinstance(tree, dict) else None
        if tree is not None:
            found.append(entry["manager"])
    return sorted(found)


def test_applying_creates_and_owns_what_it_names(cluster: Cluster, deployment: Object) -> None:
    made = cluster.request("PATCH", WEB, deployment, kind="application/apply-patch+yaml", fieldManager="me")

    assert made.code == 201
    assert owners(made.body, "f:spec", "f:replicas") == ["me"]
    assert owners(made.body, "f:spec", "f:strategy") == []
    assert made.body["spec"]["strategy"]["type"] == "RollingUpdate"


def test_applying_the_same_again_is_no_write(cluster: Cluster, deployment: Object) -> None:
    first = cluster.apply(WEB, deployment)
    cluster.later(60)

    assert cluster.apply(WEB, deployment) == first


def test_quantities_written_another_way_are_no_change(cluster: Cluster, deployment: Object) -> None:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": {"cpu": 0.5, "memory": "1024Mi"}}
    first = cluster.apply(WEB, deployment)

    assert cluster.apply(WEB, deployment) == first
    limits = first["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "500m", "memory": "1Gi"}


def test_applying_a_custom_object_again_is_no_write_in_spite_of_its_defaults(cluster: Cluster, crd: Object) -> None:
    cluster.post(CRDS, crd)
    config = widget(parts=[{"name": "a"}, {"name": "b", "count": 2}], tags=["x"], free={"y": [1]})
    first = cluster.apply(f"{WIDGETS}/w", config)
    cluster.later(60)

    assert cluster.apply(f"{WIDGETS}/w", config) == first
    config["spec"]["parts"] = [{"name": "b", "count": 2}]
    assert cluster.apply(f"{WIDGETS}/w", config)["spec"]["parts"] == [{"name": "b", "count": 2}]


def test_a_field_of_another_manager_is_a_conflict_that_names_both(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("a", x="1"), "one")

    with pytest.raises(ApiError) as raised:
        cluster.apply(CM, config_map("a", x="2", y="3"), "two")

    assert raised.value.code == 409
    assert raised.value.message == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    assert raised.value.details["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.x"}
    ]


def test_force_takes_the_field_over(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("a", x="1"), "one")

    after = cluster.apply(CM, config_map("a", x="2"), "two", force="true")

    assert after["data"] == {"x": "2"}
    assert owners(after, "f:data", "f:x") == ["two"]


def test_the_same_value_is_shared_and_stays_until_both_let_go(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("a", x="1"), "one")
    shared = cluster.apply(CM, config_map("a", x="1"), "two")
    assert owners(shared, "f:data", "f:x") == ["one", "two"]

    one_left = cluster.apply(CM, config_map("a", y="2"), "one")
    assert one_left["data"] == {"x": "1", "y": "2"}

    both_left = cluster.apply(CM, config_map("a", z="3"), "two")
    assert both_left["data"] == {"y": "2", "z": "3"}


def test_a_field_that_is_no_longer_applied_goes(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("a", x="1", y="2"))

    assert cluster.apply(CM, config_map("a", x="1"))["data"] == {"x": "1"}


def test_a_plain_write_takes_what_it_changes(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("a", x="1", y="2"), "one")
    after = cluster.patch(CM, {"data": {"x": "5"}}, fieldManager="editor")

    assert owners(after, "f:data", "f:x") == ["editor"]
    with pytest.raises(ApiError, match=r'conflict with "editor" using v1: \.data\.x'):
        cluster.apply(CM, config_map("a", x="1", y="2"), "one")


def test_scaling_takes_the_replicas_from_the_applier(cluster: Cluster, deployment: Object) -> None:
    cluster.apply(WEB, deployment, "operator")
    cluster.patch(f"{WEB}/scale", {"spec": {"replicas": 7}}, fieldManager="kubectl")

    del deployment["spec"]["replicas"]
    after = cluster.apply(WEB, deployment, "operator")

    assert after["spec"]["replicas"] == 7
    assert owners(after, "f:spec", "f:replicas") == ["kubectl"]


def test_elements_of_keyed_lists_have_owners_of_their_own(cluster: Cluster, deployment: Object) -> None:
    cluster.apply(WEB, deployment, "one")
    sidecar = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": [{"name": "side", "image": "s:1"}]}}},
    }

    both = cluster.apply(WEB, sidecar, "two")
    assert [c["name"] for c in both["spec"]["template"]["spec"]["containers"]] == ["main", "side"]

    sidecar["spec"] = {"template": {"metadata": {"annotations": {"a": "b"}}}}
    one = cluster.apply(WEB, sidecar, "two")
    assert [c["name"] for c in one["spec"]["template"]["spec"]["containers"]] == ["main"]


def test_the_status_is_applied_through_its_own_endpoint(cluster: Cluster, crd: Object) -> None:
    cluster.post(CRDS, crd)
    cluster.apply(f"{WIDGETS}/w", {**widget(), "status": {"phase": "A"}}, "me")
    assert "status" not in cluster.get(f"{WIDGETS}/w")

    status = {**widget(size=9), "status": {"phase": "B"}}
    after = cluster.apply(f"{WIDGETS}/w/status", status, "me")

    assert after["status"] == {"phase": "B"}
    assert after["spec"]["size"] == 3
    assert after["metadata"]["generation"] == 1
    parts = {(e["manager"], e.get("subresource", "")) for e in after["metadata"]["managedFields"]}
    assert parts == {("me", ""), ("me", "status")}


def break_manager(cluster: Cluster) -> None:
    cluster.patch(CM, config_map("a"), "application/apply-patch+yaml")


def break_managed_fields(cluster: Cluster) -> None:
    body = config_map("a")
    body["metadata"]["managedFields"] = [{"manager": "x", "operation": "Apply", "apiVersion": "v1"}]
    cluster.apply(CM, body)


def break_name(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("b"))


def break_version(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("a"))
    body = config_map("a", x="1")
    body["metadata"]["resourceVersion"] = "1"
    cluster.apply(CM, body)


@pytest.mark.parametrize(
    ("ask", "code", "message"),
    [
        (break_manager, 422, "fieldManager: Required value: is required for apply patch"),
        (break_managed_fields, 400, "metadata.managedFields must be nil"),
        (break_name, 400, "does not match the name on the URL"),
        (break_version, 409, "the object has been modified"),
    ],
)
def test_applies_that_are_refused(cluster: Cluster, ask: Callable[[Cluster], None], code: int, message: str) -> None:
    with pytest.raises(ApiError, match=message) as raised:
        ask(cluster)
    assert raised.value.code == code


def test_managed_fields_can_be_reset(cluster: Cluster) -> None:
    cluster.apply(CM, config_map("a", x="1"))
    reset = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]

    assert "managedFields" not in cluster.patch(CM, reset, JSON_PATCH)["metadata"]


names = st.sampled_from(["a", "b", "c"])
parts = st.dictionaries(names, st.integers(1, 3), max_size=3).map(
    lambda found: [{"name": name, "count": count} for name, count in found.items()]
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "size": st.integers(1, 3),
        "parts": parts,
        "tags": st.lists(names, unique=True, max_size=3),
        "free": st.dictionaries(names, st.integers(0, 2) | st.lists(st.integers(0, 1), max_size=2)),
    },
)


def spec_node() -> Node:
    version = widget_definition()["spec"]["versions"][0]
    return Node(version["schema"]["openAPIV3Schema"]["properties"]["spec"], {})


@given(specs, specs)
def test_laying_a_configuration_over_something_twice_is_like_once(live: Object, config: Object) -> None:
    once = merge(live, config, spec_node())
    assert merge(once, config, spec_node()) == once


@given(specs, specs)
def test_what_a_configuration_names_is_there_afterwards(live: Object, config: Object) -> None:
    merged = merge(live, config, spec_node())
    changed = compare(config, merged, spec_node())
    assert not changed.removed
    assert not changed.changed & field_set(config, spec_node())


@given(specs)
def test_taking_away_all_fields_leaves_nothing(value: Object) -> None:
    left = without(value, field_set(value, spec_node()), spec_node())
    assert all(part in ({}, []) for part in left.values())


@given(specs, specs)
def test_a_comparison_with_itself_is_empty_and_others_are_symmetric(one: Object, two: Object) -> None:
    there, back = compare(one, two, spec_node()), compare(two, one, spec_node())
    assert compare(one, one, spec_node()).changed == frozenset()
    assert bool(there.changed or there.removed) == bool(back.changed or back.removed)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["one", "two"]), st.dictionaries(names, names)), max_size=6))
def test_forced_applies_leave_what_the_last_of_each_manager_named(
    moves: list[tuple[str, dict[str, str]]],
) -> None:
    """A reference model: one map per manager; later writes win; a key is removed with its last owner."""
    node = Node({"properties": {"data": {"additionalProperties": {"type": "string"}}}}, {})
    live: Object = {}
    managers: Managers = {}
    model: dict[str, dict[str, str]] = {}
    for who, data in moves:
        config = {"apiVersion": "v1", "data": data}
        applier = Applier(Manager(who, "Apply"), now="", force=True)
        live, managers = apply(live, config, managers, applier, node)
        others = {m: {k: v for k, v in d.items() if data.get(k, v) == v} for m, d in model.items()}
        model = {**others, who: data}
        expected = {k: v for d in model.values() for k, v in d.items()}
        assert live.get("data", {}) == expected
