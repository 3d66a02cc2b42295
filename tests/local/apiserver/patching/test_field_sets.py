from hypothesis import given
from hypothesis import strategies as st

from shoal_local.apiserver.patching.field_sets import (
    field_set,
    from_fields_v1,
    path_text,
    to_fields_v1,
)
from shoal_local.apiserver.schemas.node import Node, root_of
from tests.local.apiserver.cluster import widget_definition

steps = st.sampled_from(["f:a", "f:b", "f:c.d/e", 'k:{"name":"x"}', 'v:"y"'])
paths = st.lists(steps, min_size=1, max_size=4).map(tuple)


@given(st.frozensets(paths, max_size=8))
def test_the_nested_form_holds_exactly_the_set(found: frozenset[tuple[str, ...]]) -> None:
    assert from_fields_v1(to_fields_v1(found)) == found


def root() -> Node:
    version = widget_definition()["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return Node(spec, {})


def test_keyed_lists_sets_and_atomic_parts_are_told_apart() -> None:
    value = {"size": 1, "parts": [{"name": "a", "count": 2}], "tags": ["x"], "free": {"any": [1]}}

    assert to_fields_v1(field_set(value, root())) == {
        "f:size": {},
        "f:parts": {'k:{"name":"a"}': {".": {}, "f:name": {}, "f:count": {}}},
        "f:tags": {'v:"x"': {}},
        "f:free": {"f:any": {}},
    }


def test_an_empty_map_is_a_field_of_its_own() -> None:
    assert field_set({"free": {}}, root()) == {("f:free",)}


def test_without_a_schema_lists_are_atomic_and_maps_are_not() -> None:
    assert field_set({"a": {"b": [1]}}, None) == {("f:a",), ("f:a", "f:b")}


def test_paths_read_as_in_messages() -> None:
    path = ("f:spec", "f:containers", 'k:{"name":"a"}', "f:image")
    assert path_text(path) == '.spec.containers[name="a"].image'
    assert path_text(("f:tags", 'v:"x"')) == '.tags[="x"]'


def test_metadata_of_custom_kinds_is_known() -> None:
    node = root_of(
        "",
        None,
        {
            "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
                "properties": {"labels": {"additionalProperties": {"type": "string"}}}
            }
        },
    )
    assert field_set({"metadata": {"labels": {"a": "b"}}}, node) == {
        ("f:metadata", "f:labels", "f:a")
    }
