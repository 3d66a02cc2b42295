"""Watches: a stream of changes, as long as the client stays.

A watch holds no queue. It keeps the revision that it has told of and, whenever the bell rings,
reads the changes since from the store; so a slow client costs nothing but its own delay, and one
that is too slow is told 410.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from shoal_local.apiserver.errors import Cause, expired, invalid
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.apiserver.printing.tables import in_table
from shoal_local.apiserver.storage.store import Change, TooOldError, Verb
from shoal_local.apiserver.verbs.call import Call
from shoal_local.apiserver.verbs.reading import Predicate, revision_in, selection
from shoal_local.apiserver.verbs.world import World, presented
from shoal_local.objects import Object

NO_MATCH = Cause(
    "resourceVersionMatch",
    "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    "FieldValueForbidden",
)
INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class Bell:
    """Wakes everyone who waits for the next change."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.closed = False

    def ring(self) -> None:
        """Wake all waiters."""
        self._rung.set()
        self._rung = asyncio.Event()

    def close(self) -> None:
        """Wake all waiters for the last time: the server stops."""
        self.closed = True
        self.ring()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next ring, or after the time-out."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            pass


@dataclass(slots=True)
class Watch:
    """One watch: what it wants and how far it has told."""

    world: World
    call: Call
    resource: Resource
    as_table: bool
    wanted: Predicate
    revision: int
    now: Callable[[], datetime]
    """What ages are counted to: in a table each event tells the age that its object has by then."""
    columns_told: bool = False

    def initial(self) -> list[Object]:
        """Return the present objects as ADDED, and move to the present revision."""
        objects = [obj for obj in self.world.store.objects_of(self.resource.key) if self.wanted(obj)]
        self.revision = self.world.store.revision
        return [self._event(Verb.ADDED, obj) for obj in objects]

    def news(self) -> list[Object]:
        """Return the events since the last call. Raises TooOldError: some are forgotten."""
        changes = self.world.store.since(self.resource.key, self.revision)
        self.revision = max(self.revision, self.world.store.revision)
        return [event for change in changes if (event := self._seen(change))]

    def _seen(self, change: Change) -> Object | None:
        """Return the change as this selection sees it: an object may enter or leave it."""
        before = change.before is not None and self.wanted(change.before)
        now = change.verb is not Verb.DELETED and self.wanted(change.object)
        if now:
            return self._event(Verb.MODIFIED if before else Verb.ADDED, change.object)
        if not before:
            return None
        # One that no longer fits is told with its old content, at the revision of the change.
        old, meta = change.before or change.object, change.object["metadata"]
        last = {**old, "metadata": {**old["metadata"], "resourceVersion": meta["resourceVersion"]}}
        return self._event(Verb.DELETED, change.object if change.verb is Verb.DELETED else last)

    def bookmark(self, annotations: dict[str, str] | None = None) -> Object:
        """Return an event that only tells the revision."""
        meta: dict[str, Any] = {"resourceVersion": str(self.revision), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        return {"type": "BOOKMARK", "object": presented(self.resource, {"metadata": meta})}

    def _event(self, verb: Verb, obj: Object) -> Object:
        shown = presented(self.resource, self.world.as_read(self.resource, obj))
        if self.as_table:
            shown = in_table(self.resource, shown, now=self.now(), query=self.call.query)
            if self.columns_told:
                shown["columnDefinitions"] = None
            self.columns_told = True
        return {"type": str(verb), "object": shown}


def check_watch(world: World, call: Call) -> None:
    """Look at the options of a watch. Raises ApiError: 400 or 422, one cannot be."""
    selection(call, world.resource(call.target))
    call.number("timeoutSeconds")
    revision_in(call)
    if "sendInitialEvents" in call.query and call.query.get("resourceVersionMatch") != "NotOlderThan":
        raise invalid("ListOptions", "meta.k8s.io", "", [NO_MATCH])


def open_watch(world: World, call: Call, *, as_table: bool, now: Callable[[], datetime]) -> tuple[Watch, list[Object]]:
    """Return a watch and what it tells first.

    Without a resourceVersion, or with 0, it tells the present state first; with
    ``sendInitialEvents`` it also says where that state ends.
    """
    resource = world.resource(call.target)
    watch = Watch(world, call, resource, as_table, selection(call, resource), revision_in(call), now)
    if call.flag("sendInitialEvents"):
        return watch, [*watch.initial(), watch.bookmark(INITIAL_EVENTS_END)]
    if watch.revision == 0 and "sendInitialEvents" not in call.query:
        return watch, watch.initial()
    if watch.revision > world.store.revision:
        # The client knows a future that this server lost with its memory: it must list again.
        raise TooOldError
    watch.revision = watch.revision or world.store.revision
    return watch, []


async def watch_lines(
    world: World,
    bell: Bell,
    call: Call,
    bookmark_interval_s: float,
    *,
    as_table: bool,
    now: Callable[[], datetime],
) -> AsyncIterator[bytes]:
    """Yield events as JSON lines until ``timeoutSeconds`` are over or the server stops."""
    clock = asyncio.get_running_loop().time
    end = clock() + (call.number("timeoutSeconds") or 3600)
    next_bookmark = clock() + bookmark_interval_s
    try:
        watch, events = open_watch(world, call, as_table=as_table, now=now)
        yield _lines(events)
        while clock() < end and not bell.closed:
            if events := watch.news():
                yield _lines(events)
            elif clock() >= next_bookmark and call.flag("allowWatchBookmarks"):
                yield _lines([watch.bookmark()])
                next_bookmark = clock() + bookmark_interval_s
            else:
                due = min(end, next_bookmark) if call.flag("allowWatchBookmarks") else end
                await bell.wait(max(due - clock(), 0.001))
    except TooOldError:
        message = f"too old resource version: {call.query.get('resourceVersion', 0)} ({world.store.revision})"
        yield _lines([{"type": "ERROR", "object": expired(message).as_status()}])


def _lines(events: list[Object]) -> bytes:
    return b"".join(orjson.dumps(event) + b"\n" for event in events)
