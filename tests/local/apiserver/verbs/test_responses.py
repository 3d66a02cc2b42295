"""Responses that a Kubernetes API server was observed to return."""

from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.watching import open_watch
from tests.local.apiserver.cluster import CONFIG_MAPS, CRDS, WIDGETS, Cluster, config_map, widget, widget_definition

NOT_CHECKED = "some validation rules were not checked because the object was invalid"


@pytest.fixture
def widgets(cluster: Cluster) -> Cluster:
    """A cluster with a custom kind."""
    cluster.post(CRDS, widget_definition())
    return cluster


def denial(cluster: Cluster, method: str, path: str, body: Any = None, **query: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        cluster.request(method, path, body, **query)
    return raised.value


def test_a_broken_rule_of_an_object_does_not_show_the_object(widgets: Cluster) -> None:
    error = denial(widgets, "POST", WIDGETS, widget("w", min=2, max=1))
    assert error.message == 'Widget.example.com "w" is invalid: spec: Invalid value: min must not exceed max'


def test_rules_are_not_checked_on_an_object_of_the_wrong_shape(widgets: Cluster) -> None:
    error = denial(widgets, "POST", WIDGETS, widget("w", color="blue", min=2, max=1))
    assert [cause["field"] for cause in error.details["causes"]] == ["spec.color", "<nil>"]
    assert NOT_CHECKED in error.message


def test_rules_are_checked_on_an_object_with_a_number_out_of_range(widgets: Cluster) -> None:
    error = denial(widgets, "POST", WIDGETS, widget("w", size=11, min=2, max=1))
    assert [cause["field"] for cause in error.details["causes"]] == ["spec.size", "spec"]


def test_null_is_nothing_for_a_field_that_may_not_be_null(widgets: Cluster) -> None:
    spec = widgets.post(WIDGETS, widget("w", size=1, color=None, parts=None))["spec"]
    assert spec == {"size": 1, "color": "red", "replicas": 1}


def test_a_rule_for_names_holds(cluster: Cluster) -> None:
    definition = widget_definition()
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}
    cluster.post(CRDS, definition)

    cluster.post(WIDGETS, widget("abc"))
    error = denial(cluster, "POST", WIDGETS, widget("abcd"))
    assert "metadata.name: Too long: may not be more than 3 bytes" in error.message


def test_unknown_fields_of_built_in_kinds_are_dropped(cluster: Cluster) -> None:
    response = cluster.request("POST", CONFIG_MAPS, {**config_map("m"), "extra": {}})
    assert response.warnings == ('unknown field "extra"',)
    assert "extra" not in response.body


def test_unknown_fields_are_refused_by_server_side_apply(cluster: Cluster) -> None:
    with pytest.raises(ApiError) as raised:
        cluster.apply(f"{CONFIG_MAPS}/m", {**config_map("m"), "extra": {}})
    said = "failed to create typed patch object (default/m; v1, Kind=ConfigMap): .extra: field not declared in schema"
    assert (raised.value.code, raised.value.message) == (500, said)


def test_a_put_of_another_name_is_refused(cluster: Cluster) -> None:
    cluster.post(CONFIG_MAPS, config_map("m"))
    error = denial(cluster, "PUT", f"{CONFIG_MAPS}/m", config_map("n"))
    assert (error.code, error.message) == (400, "the name of the object (n) does not match the name on the URL (m)")


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
    with pytest.raises(ApiError) as raised:
        open_watch(cluster.state, call, as_table=False, now=lambda: cluster.now)
    assert raised.value.code == code
