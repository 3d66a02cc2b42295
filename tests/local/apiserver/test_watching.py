import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest

from shoal_local.apiserver.watching import Notifier, open_watch, watch_lines
from tests.local.apiserver.cluster import CONFIG_MAPS, Cluster, Object, config_map

Events = list[tuple[str, str]]


class Watcher:
    """A watch whose events can be read one by one."""

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self._lines = lines
        self._waiting: list[Object] = []

    async def next(self) -> Object:
        while not self._waiting:
            chunk = await anext(self._lines)
            self._waiting = [orjson.loads(line) for line in chunk.splitlines()]
        return self._waiting.pop(0)

    async def events(self, count: int) -> Events:
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


def watching(
    cluster: Cluster, story: Callable[[Watcher], Any], path: str = CONFIG_MAPS, *, as_table: bool = False, **query: str
) -> Any:
    """Open a watch and run a story with it."""

    async def play() -> Any:
        notifier = Notifier()
        cluster.state.store.listener = lambda change: notifier.notify()
        call = cluster.call("GET", path, None, "", {"watch": "true", **query})
        watch = open_watch(cluster.state, call, as_table=as_table, now=lambda: cluster.now)
        async with asyncio.timeout(5):
            return await story(Watcher(watch_lines(watch, notifier, 0.01)))

    return asyncio.run(play())


def test_a_watch_without_a_version_tells_the_state_and_then_changes(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> Events:
        first = await watcher.events(2)
        cluster.post(CONFIG_MAPS, config_map("b"))
        cluster.patch(f"{CONFIG_MAPS}/b", {"data": {"x": "1"}})
        cluster.delete(f"{CONFIG_MAPS}/a")
        return first + await watcher.events(3)

    cluster.post(CONFIG_MAPS, config_map("a"))
    assert watching(cluster, story) == [
        ("ADDED", "a"),
        ("ADDED", "kube-root-ca.crt"),
        ("ADDED", "b"),
        ("MODIFIED", "b"),
        ("DELETED", "a"),
    ]


def test_a_watch_from_a_version_tells_exactly_what_came_after(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> Events:
        return await watcher.events(2)

    version = cluster.get(CONFIG_MAPS)["metadata"]["resourceVersion"]
    cluster.post(CONFIG_MAPS, config_map("a"))
    cluster.delete(f"{CONFIG_MAPS}/a")

    assert watching(cluster, story, resourceVersion=version) == [("ADDED", "a"), ("DELETED", "a")]


def test_an_object_enters_and_leaves_a_selection(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> Events:
        path = f"{CONFIG_MAPS}/a"
        cluster.post(CONFIG_MAPS, config_map("a"))
        cluster.patch(path, {"metadata": {"labels": {"on": "yes"}}})
        cluster.patch(path, {"data": {"x": "1"}})
        cluster.patch(path, {"metadata": {"labels": None}})
        cluster.delete(path)
        cluster.post(CONFIG_MAPS, {**config_map("z"), "metadata": {"name": "z", "labels": {"on": "yes"}}})
        return await watcher.events(4)

    version = str(cluster.state.store.revision)
    found = watching(cluster, story, labelSelector="on=yes", resourceVersion=version)
    assert found == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "z")]


def test_one_object_is_watched_by_its_name(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> Events:
        return await watcher.events(1)

    cluster.post(CONFIG_MAPS, config_map("a"))
    cluster.post(CONFIG_MAPS, config_map("b"))

    assert watching(cluster, story, fieldSelector="metadata.name=b") == [("ADDED", "b")]


def test_initial_events_end_with_a_marked_bookmark(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> list[Object]:
        return [await watcher.next() for _ in range(2)]

    query: dict[str, Any] = {
        "sendInitialEvents": "true",
        "allowWatchBookmarks": "true",
        "resourceVersionMatch": "NotOlderThan",
    }
    added, bookmark = watching(cluster, story, **query)

    assert added["type"] == "ADDED"
    assert bookmark["type"] == "BOOKMARK"
    meta = bookmark["object"]["metadata"]
    assert meta["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert meta["resourceVersion"] == str(cluster.state.store.revision)


def test_quiet_watch_receives_bookmarks(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> Object:
        cluster.post("/api/v1/namespaces/default/secrets", {"metadata": {"name": "other"}})
        return await watcher.next()

    version = str(cluster.state.store.revision)
    bookmark = watching(cluster, story, resourceVersion=version, allowWatchBookmarks="true")

    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"]["resourceVersion"] == str(cluster.state.store.revision)


@pytest.mark.parametrize("version", ["1", "999999"], ids=["forgotten", "from another life"])
def test_a_version_that_is_not_known_is_gone(cluster: Cluster, version: str) -> None:
    async def story(watcher: Watcher) -> Object:
        return await watcher.next()

    cluster.state.store.log_length = 1
    for number in range(5):
        cluster.post(CONFIG_MAPS, config_map(f"m{number}"))

    event = watching(cluster, story, resourceVersion=version)

    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


def test_in_a_table_each_event_tells_the_age_that_its_object_has_by_then(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> list[str]:
        await watcher.next()
        await watcher.next()
        ages = []
        for passed_s in (65, 3600):
            cluster.now += timedelta(seconds=passed_s)
            cluster.patch(f"{CONFIG_MAPS}/a", {"data": {"x": str(passed_s)}})
            event = await watcher.next()
            ages.append(event["object"]["rows"][0]["cells"][-1])
        return ages

    cluster.post(CONFIG_MAPS, config_map("a"))
    assert watching(cluster, story, as_table=True) == ["65s", "61m"]


def test_a_watch_ends_after_its_time(cluster: Cluster) -> None:
    async def story(watcher: Watcher) -> None:
        await watcher.events(1)
        with pytest.raises(StopAsyncIteration):
            await watcher.next()

    watching(cluster, story, timeoutSeconds="0.01")


def test_a_watch_ends_when_the_server_stops(cluster: Cluster) -> None:
    async def play() -> int:
        notifier = Notifier()
        call = cluster.call("GET", CONFIG_MAPS, None, "", {"watch": "true"})
        watch = open_watch(cluster.state, call, as_table=False, now=lambda: cluster.now)
        lines = watch_lines(watch, notifier, 60)
        await anext(lines)
        asyncio.get_running_loop().call_soon(notifier.close)
        async with asyncio.timeout(5):
            return len([line async for line in lines])

    assert asyncio.run(play()) == 0
