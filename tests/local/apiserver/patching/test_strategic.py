from collections.abc import Mapping
from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.patching.merging import strategic_merge
from shoal_local.apiserver.schemas.node import Node

POD_SPEC = "io.k8s.api.core.v1.PodSpec"


@pytest.fixture
def node(definitions: Mapping[str, Mapping[str, Any]]) -> Node:
    return Node(definitions[POD_SPEC], definitions)


def named(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"containers": [{"name": name, "image": image} for name, image in pairs]}


LIVE = named(("a", "1"), ("b", "2"))


@pytest.mark.parametrize(
    ("patch", "merged"),
    [
        pytest.param(named(("b", "3")), named(("a", "1"), ("b", "3")), id="by key"),
        pytest.param(named(("c", "3")), named(("c", "3"), ("a", "1"), ("b", "2")), id="new key"),
        pytest.param({"containers": [{"name": "a", "$patch": "delete"}]}, named(("b", "2")), id="delete item"),
        pytest.param(
            {"containers": [{"$patch": "replace"}, {"name": "z"}]},
            {"containers": [{"name": "z"}]},
            id="replace list",
        ),
        pytest.param(
            {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]},
            named(("b", "2"), ("a", "1")),
            id="order",
        ),
        pytest.param(
            {
                "$setElementOrder/containers": [{"name": "a"}, {"name": "c"}],
                "containers": [{"name": "c", "image": "3"}],
            },
            named(("a", "1"), ("c", "3"), ("b", "2")),
            id="new key in its place",
        ),
        pytest.param({"containers": None}, {}, id="null removes"),
        pytest.param({"$patch": "replace", "nodeName": "n"}, {"nodeName": "n"}, id="replace map"),
        pytest.param({"$retainKeys": ["nodeName"], "nodeName": "n"}, {"nodeName": "n"}, id="retain keys"),
        pytest.param({"nodeSelector": {"a": "b"}}, {**LIVE, "nodeSelector": {"a": "b"}}, id="plain map"),
        pytest.param(
            {"tolerations": [{"key": "k"}]},
            {**LIVE, "tolerations": [{"key": "k"}]},
            id="atomic list",
        ),
    ],
)
def test_patches_of_a_pod_spec(node: Node, patch: Any, merged: Any) -> None:
    assert strategic_merge(LIVE, patch, node) == merged


def test_values_can_be_taken_out_of_a_list_of_scalars(
    definitions: Mapping[str, Mapping[str, Any]],
) -> None:
    meta = definitions["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]
    live, patch = {"finalizers": ["a", "b", "c"]}, {"$deleteFromPrimitiveList/finalizers": ["b"]}

    assert strategic_merge(live, patch, Node(meta, definitions)) == {"finalizers": ["a", "c"]}


def test_an_element_without_its_key_is_refused(node: Node) -> None:
    with pytest.raises(ApiError, match="does not contain declared merge key: name"):
        strategic_merge(LIVE, {"containers": [{"image": "x"}]}, node)


def test_an_unknown_directive_is_refused(node: Node) -> None:
    with pytest.raises(ApiError, match=r"\$patch"):
        strategic_merge(LIVE, {"$patch": "explode"}, node)


def test_nothing_is_edited_in_place(node: Node) -> None:
    live = named(("a", "1"))
    strategic_merge(live, named(("a", "2")), node)
    assert live == named(("a", "1"))
