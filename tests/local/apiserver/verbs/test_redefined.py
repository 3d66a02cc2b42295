"""Objects that are older than the definition of their kind, as an API server reads and writes them.

Source: Kubernetes, apiextensions-apiserver, `schemaCoercingDecoder`; KEP-4008 (validation ratcheting).
"""

import copy

import pytest

from shoal_local.apiserver.errors import ApiError
from tests.local.apiserver.cluster import CRDS, MERGE, WIDGETS, Cluster, Object, widget, widget_definition

OLD = f"{WIDGETS}/old"
DEFINITION = f"{CRDS}/widgets.example.com"


def redefine(cluster: Cluster, **fields: Object | None) -> None:
    """Change fields of the spec of a Widget; None removes one."""
    crd = copy.deepcopy(cluster.get(DEFINITION))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    properties = {name: schema for name, schema in {**spec["properties"], **fields}.items() if schema}
    spec["properties"] = properties
    cluster.request("PUT", DEFINITION, crd)


@pytest.fixture
def redefined(cluster: Cluster) -> Cluster:
    """A Widget with `min` and `size: 9`, then a definition without `min`, with `shape`, and with sizes up to 5."""
    cluster.post(CRDS, widget_definition())
    cluster.post(WIDGETS, widget("old", size=9, min=1))
    redefine(
        cluster,
        min=None,
        shape={"type": "string", "default": "round"},
        size={"type": "integer", "minimum": 1, "maximum": 5},
    )
    return cluster


def test_a_get_and_a_list_leave_out_what_the_definition_drops_and_fill_in_new_defaults(redefined: Cluster) -> None:
    (item,) = redefined.get(WIDGETS)["items"]

    for read in (redefined.get(OLD), item):
        assert read["spec"] == {"size": 9, "color": "red", "replicas": 1, "shape": "round"}


def test_a_dropped_field_comes_back_with_its_definition_while_nothing_was_written(redefined: Cluster) -> None:
    redefine(redefined, min={"type": "integer"})

    assert redefined.get(OLD)["spec"]["min"] == 1


@pytest.mark.parametrize("subresource", ["", "/status"])
def test_the_first_write_takes_a_dropped_field_out_of_the_store(redefined: Cluster, subresource: str) -> None:
    redefined.patch(f"{OLD}{subresource}", {"metadata": {"annotations": {"a": "b"}}, "status": {"phase": "x"}})
    redefine(redefined, min={"type": "integer"})

    assert "min" not in redefined.get(OLD)["spec"]


def test_an_update_that_changes_nothing_stores_what_was_read(redefined: Cluster) -> None:
    redefined.request("PUT", OLD, redefined.get(OLD))
    redefine(redefined, min={"type": "integer"})

    assert "min" not in redefined.get(OLD)["spec"]


def test_a_server_side_apply_rests_on_what_was_read(redefined: Cluster) -> None:
    redefined.apply(OLD, {**widget("old"), "spec": {"color": "green"}}, force="true")
    redefine(redefined, min={"type": "integer"})

    assert redefined.get(OLD)["spec"] == {"size": 9, "color": "green", "replicas": 1, "shape": "round"}


def test_a_value_that_is_out_of_bounds_now_stays_until_it_is_changed(redefined: Cluster) -> None:
    redefined.patch(f"{OLD}/status", {"status": {"phase": "on"}})
    with pytest.raises(ApiError, match="less than or equal to 5"):
        redefined.patch(OLD, {"spec": {"size": 8}}, MERGE)

    assert redefined.get(OLD)["spec"]["size"] == 9
