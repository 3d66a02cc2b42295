from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from tests.local.apiserver.cluster import CONFIG_MAPS, Cluster, config_map


def names(cluster: Cluster, **query: Any) -> list[str]:
    items = cluster.ask("GET", CONFIG_MAPS, **query).body["items"]
    return [item["metadata"]["name"] for item in items if item["metadata"]["name"][0] == "m"]


def fill(cluster: Cluster, count: int) -> None:
    for number in range(count):
        cluster.post(CONFIG_MAPS, config_map(f"m{number}"))


def test_chunks_show_the_state_at_the_first_of_them(cluster: Cluster) -> None:
    fill(cluster, 5)
    first = cluster.ask("GET", CONFIG_MAPS, limit=3).body
    cluster.delete(f"{CONFIG_MAPS}/m4")
    cluster.post(CONFIG_MAPS, config_map("m9"))

    token = first["metadata"]["continue"]
    second = cluster.ask("GET", CONFIG_MAPS, limit=9, **{"continue": token}).body

    assert first["metadata"]["remainingItemCount"] == 3
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    assert [o["metadata"]["name"] for o in second["items"]] == ["m2", "m3", "m4"]
    assert "continue" not in second["metadata"]


def test_a_chunk_of_a_forgotten_state_is_gone(cluster: Cluster) -> None:
    fill(cluster, 5)
    token = cluster.ask("GET", CONFIG_MAPS, limit=2).body["metadata"]["continue"]
    cluster.world.store.log_length = 1
    for _ in range(4):
        cluster.patch(f"{CONFIG_MAPS}/m0", {"data": {"x": str(_)}})

    with pytest.raises(ApiError) as told:
        cluster.ask("GET", CONFIG_MAPS, limit=2, **{"continue": token})
    assert (told.value.code, told.value.reason) == (410, "Expired")


def test_an_exact_version_shows_that_state(cluster: Cluster) -> None:
    fill(cluster, 1)
    then = cluster.get(CONFIG_MAPS)["metadata"]["resourceVersion"]
    fill_more = config_map("mx")
    cluster.post(CONFIG_MAPS, fill_more)

    assert names(cluster, resourceVersion=then, resourceVersionMatch="Exact") == ["m0"]
    assert names(cluster, resourceVersion=then) == ["m0", "mx"]


@pytest.mark.parametrize(
    "query", [{"continue": "x"}, {"resourceVersion": "x", "resourceVersionMatch": "Exact"}]
)
def test_broken_options_are_refused(cluster: Cluster, query: dict[str, str]) -> None:
    with pytest.raises(ApiError) as told:
        cluster.ask("GET", CONFIG_MAPS, **query)
    assert told.value.code == 400


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
    with pytest.raises(ApiError, match="the server could not find the requested resource") as told:
        cluster.get(path)
    assert told.value.code == 404


def test_an_object_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match='configmaps "x" not found') as told:
        cluster.get(f"{CONFIG_MAPS}/x")
    assert told.value.details == {"name": "x", "kind": "configmaps"}


def test_both_event_kinds_show_the_same_events(cluster: Cluster) -> None:
    core, group = (
        "/api/v1/namespaces/default/events",
        "/apis/events.k8s.io/v1/namespaces/default/events",
    )
    about = {"kind": "Pod", "name": "p"}
    cluster.post(
        core, {"metadata": {"name": "e"}, "involvedObject": about, "message": "m", "count": 2}
    )
    cluster.post(
        group,
        {
            "metadata": {"name": "f"},
            "regarding": about,
            "note": "n",
            "eventTime": "2026-01-02T03:04:05.000000Z",
        },
    )

    e, f = cluster.get(f"{group}/e"), cluster.get(f"{core}/f")
    assert (e["apiVersion"], e["regarding"], e["note"], e["deprecatedCount"]) == (
        "events.k8s.io/v1",
        about,
        "m",
        2,
    )
    assert (f["apiVersion"], f["involvedObject"], f["message"]) == ("v1", about, "n")
    selected = cluster.get(f"{group}?fieldSelector=regarding.name=p")
    assert len(selected["items"]) == 2
    assert cluster.patch(f"{group}/f", {"note": "o"})["note"] == "o"
    assert cluster.get(f"{core}/f")["message"] == "o"
