"""What a control plane was heard to answer."""

from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.watching import check_watch
from tests.local.apiserver.cluster import CONFIG_MAPS, CRDS, WIDGETS, Cluster, config_map, widget, widget_definition

NOT_CHECKED = "some validation rules were not checked because the object was invalid"


@pytest.fixture
def widgets(cluster: Cluster) -> Cluster:
    """A cluster with a custom kind."""
    cluster.post(CRDS, widget_definition())
    return cluster


def refusal(cluster: Cluster, method: str, path: str, body: Any = None, **query: Any) -> ApiError:
    with pytest.raises(ApiError) as told:
        cluster.ask(method, path, body, **query)
    return told.value


def test_a_broken_rule_of_an_object_does_not_show_the_object(widgets: Cluster) -> None:
    told = refusal(widgets, "POST", WIDGETS, widget("w", min=2, max=1))
    assert told.message == 'Widget.example.com "w" is invalid: spec: Invalid value: min must not exceed max'


def test_rules_are_not_checked_on_an_object_of_the_wrong_shape(widgets: Cluster) -> None:
    told = refusal(widgets, "POST", WIDGETS, widget("w", color="blue", min=2, max=1))
    assert [cause["field"] for cause in told.details["causes"]] == ["spec.color", "<nil>"]
    assert NOT_CHECKED in told.message


def test_rules_are_checked_on_an_object_with_a_number_out_of_range(widgets: Cluster) -> None:
    told = refusal(widgets, "POST", WIDGETS, widget("w", size=11, min=2, max=1))
    assert [cause["field"] for cause in told.details["causes"]] == ["spec.size", "spec"]


def test_null_is_nothing_for_a_field_that_may_not_be_null(widgets: Cluster) -> None:
    spec = widgets.post(WIDGETS, widget("w", size=1, color=None, parts=None))["spec"]
    assert spec == {"size": 1, "color": "red", "replicas": 1}


def test_a_rule_for_names_holds(cluster: Cluster) -> None:
    definition = widget_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}
    cluster.post(CRDS, definition)

    cluster.post(WIDGETS, widget("abc"))
    told = refusal(cluster, "POST", WIDGETS, widget("abcd"))
    assert "metadata.name: Too long: may not be more than 3 bytes" in told.message


def test_unknown_fields_of_built_in_kinds_are_dropped(cluster: Cluster) -> None:
    reply = cluster.ask("POST", CONFIG_MAPS, {**config_map("m"), "extra": {}})
    assert reply.warnings == ('unknown field "extra"',)
    assert "extra" not in reply.body


def test_unknown_fields_are_refused_by_server_side_apply(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as told:
        cluster.apply(f"{CONFIG_MAPS}/m", {**config_map("m"), "extra": {}})
    said = "failed to create typed patch object (default/m; v1, Kind=ConfigMap): .extra: field not declared in schema"
    assert (told.value.code, told.value.message) == (500, said)


def applied_text(cluster: Cluster, quoted: str) -> str:
    """Apply a ConfigMap that holds a JSON string as it is; return what is stored."""
    body = '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":' + quoted + "}}"
    reply = cluster.ask(
        "PATCH", f"{CONFIG_MAPS}/m", body.encode(), kind="application/apply-patch+yaml", fieldManager="me"
    )
    return str(reply.body["data"]["a"])


@pytest.mark.parametrize(
    ("quoted", "said"),
    [
        (r'"\ud83d\ude00"', "found invalid Unicode character escape code"),
        (r'"\\\uD83D"', "found invalid Unicode character escape code"),
        ('"\x7f"', "control characters are not allowed"),
        ('"\x80"', "control characters are not allowed"),
        ('"\ufffe"', "control characters are not allowed"),
    ],
)
def test_what_is_json_and_no_yaml_is_refused_by_server_side_apply(cluster: Cluster, quoted: str, said: str) -> None:
    with pytest.raises(ApiError) as told:
        applied_text(cluster, quoted)
    assert told.value.code == 400
    assert told.value.message.startswith("error decoding YAML: yaml: ")
    assert said in told.value.message


@pytest.mark.parametrize(
    ("quoted", "stored"),
    [
        ('"\U0001f600 \u6f22\u5b57 e\u0301"', "\U0001f600 \u6f22\u5b57 e\u0301"),
        (r'"\\ud83d"', r"\ud83d"),
        (r'"\u05e9\u0085"', "\u05e9\x85"),
        ('"a\u2028b"', "a\u2028b"),
        ('"a\x85b"', "a b"),
    ],
)
def test_a_text_is_read_by_the_rules_of_yaml(cluster: Cluster, quoted: str, stored: str) -> None:
    assert applied_text(cluster, quoted) == stored


def test_a_put_of_another_name_is_refused(cluster: Cluster) -> None:
    cluster.post(CONFIG_MAPS, config_map("m"))
    told = refusal(cluster, "PUT", f"{CONFIG_MAPS}/m", config_map("n"))
    assert (told.code, told.message) == (400, "the name of the object (n) does not match the name on the URL (m)")


def test_empty_labels_are_no_labels(cluster: Cluster) -> None:
    body = config_map("m")
    made = cluster.post(CONFIG_MAPS, {**body, "metadata": {**body["metadata"], "labels": {}, "annotations": {}}})
    assert {"labels", "annotations"} & set(made["metadata"]) == set()


@pytest.mark.parametrize(
    ("query", "code"),
    [({"resourceVersion": "x"}, 400), ({"sendInitialEvents": "true"}, 422)],
    ids=["version", "events"],
)
def test_a_watch_that_cannot_be_is_refused_before_it_begins(cluster: Cluster, query: dict[str, str], code: int) -> None:
    call = cluster.call("GET", CONFIG_MAPS, None, "application/json", {"watch": "1", **query})
    with pytest.raises(ApiError) as told:
        check_watch(cluster.world, call)
    assert told.value.code == code


def test_a_budget_has_one_bound(cluster: Cluster) -> None:
    spec = {"minAvailable": 1, "maxUnavailable": 1, "selector": {}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    told = refusal(cluster, "POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", body)
    assert "minAvailable and maxUnavailable cannot be both set" in told.message


def test_an_event_is_told_where_its_object_is(cluster: Cluster) -> None:
    about = {"kind": "Pod", "name": "p", "namespace": "elsewhere"}
    body = {"metadata": {"name": "e"}, "involvedObject": about, "reason": "R", "message": "m", "type": "Normal"}
    told = refusal(cluster, "POST", "/api/v1/namespaces/default/events", body)
    assert "does not match event.namespace" in told.message
