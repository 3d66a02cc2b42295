"""What must be exactly ours: what others add there is taken out, what they add elsewhere is theirs."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.children.changes import Apply, plan_changes
from shoal_operator.children.exact import foreign_settings, removal, replacement
from shoal_operator.manifests.desired import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    HPA,
    HTTP_ROUTE,
    INGRESS,
    NETWORK_POLICY,
    SCALED_OBJECT,
    SERVICE,
    Child,
    desired_objects,
)
from shoal_schema.fields.declaring import Json
from tests.operator.samples import BY_HPA, BY_KEDA, DOWNLOADED, EVERYTHING, target

ADDED: list[tuple[Child, tuple[Any, ...], Any]] = [
    (SERVICE, ("spec", "selector", "tier"), "x"),
    (SERVICE, ("spec", "publishNotReadyAddresses"), True),
    (SERVICE, ("spec", "internalTrafficPolicy"), "Local"),
    (SERVICE, ("spec", "externalIPs"), ["192.0.2.1"]),
    (SERVICE, ("spec", "externalName"), "example.com"),
    (SERVICE, ("spec", "externalTrafficPolicy"), "Local"),
    (SERVICE, ("spec", "sessionAffinity"), "ClientIP"),
    (SERVICE, ("spec", "sessionAffinityConfig"), {"clientIP": {"timeoutSeconds": 60}}),
    (DISRUPTION_BUDGET, ("spec", "minAvailable"), 1),
    (DISRUPTION_BUDGET, ("spec", "selector", "matchLabels", "tier"), "x"),
    (DISRUPTION_BUDGET, ("spec", "selector", "matchExpressions"), [{"key": "a", "operator": "Exists"}]),
    (NETWORK_POLICY, ("spec", "podSelector", "matchLabels", "tier"), "x"),
    (NETWORK_POLICY, ("spec", "egress"), [{"to": []}]),
    (NETWORK_POLICY, ("spec", "ingress", 0, "from"), [{"podSelector": {"matchLabels": {"a": "b"}}}]),
    (NETWORK_POLICY, ("spec", "ingress", 0, "ports", 0, "endPort"), 9090),
    (INGRESS, ("spec", "rules", 0, "http", "paths", 0, "backend", "resource"), {"kind": "Bucket"}),
    (HTTP_ROUTE, ("spec", "rules", 0, "filters"), [{"type": "RequestRedirect"}]),
]


def stored() -> dict[Child, Json]:
    """Return the children as a server would hold them."""
    children = copy.deepcopy(desired_objects(target(EVERYTHING)))
    for index, body in enumerate(children.values()):
        body["metadata"] |= {"uid": f"uid-{index}", "resourceVersion": "7"}
    return children


def put(holder: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value


def patched(live: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(live) if isinstance(live, dict) else {}
    for key, value in patch.items():
        merged[key] = patched(merged.get(key), value)
        if value is None:
            del merged[key]
    return merged


@pytest.mark.parametrize(("kind", "path", "value"), ADDED, ids=[".".join(map(str, row[1])) for row in ADDED])
def test_what_others_add_where_traffic_is_decided_is_seen_and_taken_out(
    kind: Child, path: tuple[Any, ...], value: Any
) -> None:
    children = stored()
    desired = desired_objects(target(EVERYTHING))[kind]
    put(children[kind], path, value)

    (action,) = plan_changes(target(EVERYTHING), children).actions
    patch = removal(kind, desired, children[kind])

    assert isinstance(action, Apply)
    assert action.kind is kind
    assert removal(kind, desired, patched(children[kind], patch)) == {}


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (SERVICE, ("spec", "ports")),
        (NETWORK_POLICY, ("spec", "ingress")),
        (HTTP_ROUTE, ("spec", "rules")),
        (HTTP_ROUTE, ("spec", "parentRefs")),
        (INGRESS, ("spec", "rules")),
    ],
)
def test_an_element_more_is_no_element_of_ours(kind: Child, path: tuple[str, str]) -> None:
    children = stored()
    elements = children[kind][path[0]][path[1]]
    elements.append({**copy.deepcopy(elements[0]), "name": "other"})

    assert [action.kind for action in plan_changes(target(EVERYTHING), children).actions] == [kind]
    desired = desired_objects(target(EVERYTHING))[kind]
    assert removal(kind, desired, children[kind]) == {"spec": {path[1]: desired["spec"][path[1]]}}


@pytest.mark.parametrize(
    ("spec", "kind", "ours", "theirs"),
    [(BY_HPA, HPA, "metrics", "behavior"), (BY_KEDA, SCALED_OBJECT, "triggers", "advanced")],
)
def test_scaler_metrics_are_exact_and_its_behavior_is_free(spec: Json, kind: Child, ours: str, theirs: str) -> None:
    desired = desired_objects(target(spec))[kind]
    live = copy.deepcopy(desired)
    live["spec"][theirs] = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    assert removal(kind, desired, live) == {}

    live["spec"][ours].append({"type": "Resource"})
    assert removal(kind, desired, live) == {"spec": {ours: desired["spec"][ours]}}


@given(st.sampled_from(list(desired_objects(target(EVERYTHING)))), st.data())
def test_after_a_replacement_a_spec_is_as_declared_whatever_others_put_there(kind: Child, data: st.DataObject) -> None:
    desired = desired_objects(target(EVERYTHING))[kind]
    theirs = data.draw(foreign(desired.get("spec", {})))
    live = {**desired, "spec": theirs}

    assert patched(live, replacement(desired, live)) == {**desired, "spec": desired.get("spec", {})}


def foreign(value: Any) -> st.SearchStrategy[Any]:
    """Return variants of this value, with additional, missing and changed keys."""
    if not isinstance(value, dict):
        return st.one_of(st.just(value), st.just("theirs"), st.just([1]), st.just({"a": 1}))
    more = st.dictionaries(st.sampled_from(["x", "y"]), st.integers() | st.just({"z": 1}), max_size=2)
    ours = st.fixed_dictionaries({}, optional={key: foreign(inner) for key, inner in value.items()})
    return st.tuples(ours, more).map(lambda both: {**both[0], **both[1]})


def test_what_a_server_fills_in_is_no_addition() -> None:
    children = stored()
    service = children[SERVICE]["spec"]
    service |= {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "sessionAffinity": "None"}
    service |= {"internalTrafficPolicy": "Cluster", "ipFamilyPolicy": "SingleStack"}
    route = children[HTTP_ROUTE]["spec"]
    route["parentRefs"][0] |= {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    route["rules"][0]["backendRefs"][0] |= {"group": "", "kind": "Service", "weight": 1}

    assert plan_changes(target(EVERYTHING), children).actions == ()


def test_what_others_add_elsewhere_is_theirs() -> None:
    children = stored()
    children[DEPLOYMENT]["spec"]["template"]["spec"]["containers"].append({"name": "injected"})
    children[SERVICE]["spec"]["trafficDistribution"] = "PreferClose"
    children[SERVICE]["metadata"]["annotations"]["team"] = "vision"

    assert plan_changes(target(EVERYTHING), children).actions == ()


def edited(*edits: tuple[str, int, str]) -> Json:
    """Return the stored Deployment after ``kubectl set env``: list of containers, index, variable."""
    live = stored()[DEPLOYMENT]
    pod = live["spec"]["template"]["spec"]
    for part, index, name in edits:
        pod[part][index].setdefault("env", []).append({"name": name, "value": "1"})
    return live


def test_a_setting_that_was_added_by_hand_is_taken_out_of_its_container_and_nothing_else_is() -> None:
    desired = desired_objects(target(EVERYTHING))[DEPLOYMENT]
    live = edited(("containers", 1, "SHOAL_QUEUE_MAX_BATCHES"), ("containers", 1, "HTTP_PROXY"))
    pod = live["spec"]["template"]["spec"]
    pod["containers"].append({"name": "mesh", "env": [{"name": "SHOAL_OTHER", "value": "1"}]})

    assert foreign_settings(desired, live) == {"proxy": ("SHOAL_QUEUE_MAX_BATCHES",)}
    patch = removal(DEPLOYMENT, desired, live)
    wanted = copy.deepcopy(pod["containers"])
    wanted[1]["env"] = [entry for entry in wanted[1]["env"] if entry["name"] != "SHOAL_QUEUE_MAX_BATCHES"]
    lists = {"initContainers": pod["initContainers"], "containers": wanted}
    assert patch == {"spec": {"template": {"spec": lists}}}
    pod |= patch["spec"]["template"]["spec"]
    assert removal(DEPLOYMENT, desired, live) == {}


def test_a_setting_is_taken_out_of_the_download_too() -> None:
    desired = desired_objects(target(DOWNLOADED))[DEPLOYMENT]
    live = copy.deepcopy(desired)
    live["spec"]["template"]["spec"]["initContainers"][0]["env"].append({"name": "SHOAL_LOG_LEVEL", "value": "debug"})

    assert foreign_settings(desired, live) == {"model": ("SHOAL_LOG_LEVEL",)}
    lists = removal(DEPLOYMENT, desired, live)["spec"]["template"]["spec"]
    assert lists == {part: desired["spec"]["template"]["spec"][part] for part in ("initContainers", "containers")}


@pytest.mark.parametrize("name", ["HTTP_PROXY", "SHOAL_MODEL_NAME"])
def test_what_is_no_setting_or_is_declared_stays(name: str) -> None:
    desired = desired_objects(target(EVERYTHING))[DEPLOYMENT]

    assert removal(DEPLOYMENT, desired, edited(("containers", 0, name))) == {}
