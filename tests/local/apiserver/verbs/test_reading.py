import pytest

from shoal_local.apiserver.errors import ApiError
from tests.local.apiserver.cluster import CONFIG_MAPS, CRDS, WIDGETS, Cluster, widget, widget_definition


@pytest.mark.parametrize("query", [{"resourceVersion": "x"}])
def test_broken_options_are_refused(cluster: Cluster, query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as raised:
        cluster.request("GET", CONFIG_MAPS, **query)
    assert raised.value.code == 400


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/default/nothings",
        "/apis/nowhere.com/v1/things",
        "/api/v1/namespaces/default/configmaps/x/status",
        "/api/v2/pods",
        "/api/v1/namespaces/default/pods/a/b/c/d",
    ],
)
def test_what_is_not_served_is_not_found(cluster: Cluster, path: str) -> None:
    with pytest.raises(ApiError, match="the server could not find the requested resource") as raised:
        cluster.get(path)
    assert raised.value.code == 404


def test_an_object_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match='configmaps "x" not found') as raised:
        cluster.get(f"{CONFIG_MAPS}/x")
    assert raised.value.details == {"name": "x", "kind": "configmaps"}


def test_items_of_a_list_say_their_kind_where_it_is_a_custom_one_and_else_the_list_does(cluster: Cluster) -> None:
    listed = cluster.get("/api/v1/namespaces")
    assert (listed["kind"], listed["apiVersion"]) == ("NamespaceList", "v1")
    assert not {"kind", "apiVersion"} & set(listed["items"][0])

    cluster.post(CRDS, widget_definition())
    cluster.post(WIDGETS, widget("w", size=1))
    (item,) = cluster.get(WIDGETS)["items"]
    assert (item["kind"], item["apiVersion"]) == ("Widget", "example.com/v1")
