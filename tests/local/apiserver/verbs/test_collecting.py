import pytest

from shoal_local.apiserver.errors import ApiError
from tests.local.apiserver.cluster import (
    CONFIG_MAPS,
    CRDS,
    WIDGETS,
    Cluster,
    Object,
    config_map,
    widget,
)


def child(name: str, *owners: Object, block: bool = False) -> Object:
    """Return a ConfigMap that belongs to ConfigMaps."""
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "blockOwnerDeletion": block,
        }
        for owner in owners
    ]
    return {**config_map(name), "metadata": {"name": name, "ownerReferences": references}}


def names(cluster: Cluster) -> set[str]:
    listed = cluster.get(CONFIG_MAPS)["items"]
    return {obj["metadata"]["name"] for obj in listed} - {"kube-root-ca.crt"}


def settle(cluster: Cluster) -> None:
    for _ in range(5):
        cluster.collect()
    revision = cluster.state.store.revision
    cluster.collect()
    assert cluster.state.store.revision == revision


def test_dependents_go_after_their_owner_through_all_generations(cluster: Cluster) -> None:
    a = cluster.post(CONFIG_MAPS, config_map("a"))
    b = cluster.post(CONFIG_MAPS, child("b", a))
    cluster.post(CONFIG_MAPS, child("c", b))

    cluster.delete(f"{CONFIG_MAPS}/a")
    assert names(cluster) == {"b", "c"}
    settle(cluster)
    assert names(cluster) == set()


def test_one_living_owner_is_enough(cluster: Cluster) -> None:
    a, b = (cluster.post(CONFIG_MAPS, config_map(name)) for name in "ab")
    cluster.post(CONFIG_MAPS, child("c", a, b))

    cluster.delete(f"{CONFIG_MAPS}/a")
    settle(cluster)

    left = cluster.get(f"{CONFIG_MAPS}/c")["metadata"]["ownerReferences"]
    assert [reference["name"] for reference in left] == ["b"]


def test_in_the_foreground_the_owner_waits_for_those_that_block(cluster: Cluster) -> None:
    a = cluster.post(CONFIG_MAPS, config_map("a"))
    held = child("b", a, block=True)
    held["metadata"]["finalizers"] = ["example.com/hold"]
    cluster.post(CONFIG_MAPS, held)

    cluster.delete(f"{CONFIG_MAPS}/a", propagationPolicy="Foreground")
    settle(cluster)
    assert names(cluster) == {"a", "b"}
    assert cluster.get(f"{CONFIG_MAPS}/b")["metadata"]["deletionTimestamp"]

    cluster.patch(f"{CONFIG_MAPS}/b", {"metadata": {"finalizers": None}})
    settle(cluster)
    assert names(cluster) == set()


def test_orphans_stay(cluster: Cluster) -> None:
    a = cluster.post(CONFIG_MAPS, config_map("a"))
    cluster.post(CONFIG_MAPS, child("b", a))

    cluster.delete(f"{CONFIG_MAPS}/a", propagationPolicy="Orphan")
    settle(cluster)

    assert names(cluster) == {"b"}
    assert "ownerReferences" not in cluster.get(f"{CONFIG_MAPS}/b")["metadata"]


def test_an_owner_of_another_uid_or_namespace_owns_nothing(cluster: Cluster) -> None:
    cluster.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    far = cluster.post("/api/v1/namespaces/other/configmaps", config_map("a"))
    cluster.post(CONFIG_MAPS, config_map("a"))
    cluster.post(CONFIG_MAPS, child("b", far))
    settle(cluster)
    assert names(cluster) == {"a"}


def test_an_owner_of_a_kind_that_is_not_served_is_taken_to_live(cluster: Cluster) -> None:
    reference = {"apiVersion": "x.com/v1", "kind": "X", "name": "x", "uid": "x"}
    cluster.post(CONFIG_MAPS, {"metadata": {"name": "b", "ownerReferences": [reference]}})
    settle(cluster)
    assert names(cluster) == {"b"}


def test_a_namespace_goes_when_it_is_empty(cluster: Cluster, pod: Object) -> None:
    cluster.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    pods = "/api/v1/namespaces/team/pods"
    cluster.post(pods, pod)
    cluster.post(f"{pods}/one/binding", {"target": {"name": "n"}})
    cluster.delete("/api/v1/namespaces/team")
    settle(cluster)

    assert cluster.get("/api/v1/namespaces/team")["status"]["phase"] == "Terminating"
    with pytest.raises(ApiError, match="because it is being terminated") as raised:
        cluster.post("/api/v1/namespaces/team/configmaps", config_map("late"))
    assert raised.value.code == 403

    cluster.delete(f"{pods}/one", gracePeriodSeconds=0)
    settle(cluster)
    with pytest.raises(ApiError, match='namespaces "team" not found'):
        cluster.get("/api/v1/namespaces/team")


def test_every_namespace_has_its_account_again_after_it_was_deleted(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    first = cluster.get(path)["metadata"]["uid"]
    cluster.delete(path)
    settle(cluster)
    assert cluster.get(path)["metadata"]["uid"] != first


def test_custom_objects_go_with_their_definition(cluster: Cluster, crd: Object) -> None:
    cluster.post(CRDS, crd)
    cluster.post(WIDGETS, widget())
    cluster.delete(f"{CRDS}/widgets.example.com")
    settle(cluster)

    assert cluster.state.store.objects_of("example.com/widgets") == []
    with pytest.raises(ApiError, match="could not find the requested resource"):
        cluster.get(WIDGETS)


def test_what_custom_objects_own_goes_with_their_definition(cluster: Cluster, crd: Object) -> None:
    cluster.post(CRDS, crd)
    owner = cluster.post(WIDGETS, widget())
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {
        key: owner["metadata"][key] for key in ("name", "uid")
    }
    maps = "/api/v1/namespaces/default/configmaps"
    cluster.post(maps, {"metadata": {"name": "owned", "ownerReferences": [reference]}})
    cluster.delete(f"{CRDS}/widgets.example.com")
    settle(cluster)

    assert [each["metadata"]["name"] for each in cluster.get(maps)["items"]] == ["kube-root-ca.crt"]


def test_events_are_forgotten_after_an_hour(cluster: Cluster) -> None:
    events = "/api/v1/namespaces/default/events"
    cluster.post(events, {"metadata": {"name": "e"}, "involvedObject": {"name": "p"}})
    cluster.later(3500)
    settle(cluster)
    assert cluster.get(events)["items"]
    cluster.later(200)
    settle(cluster)
    assert not cluster.get(events)["items"]
