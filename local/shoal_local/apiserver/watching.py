"""Watches: streams of changes until the client disconnects.

A watch has no queue. It keeps its revision and reads later changes from the store at each notification. A slow client
needs no buffer; a client that falls behind the log of changes gets a 410.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from shoal_local.apiserver.errors import ApiError, forbidden_value, invalid
from shoal_local.apiserver.kinds.registry import Resource
from shoal_local.apiserver.printing.tables import in_table
from shoal_local.apiserver.storage.store import TooOldError, Verb
from shoal_local.apiserver.verbs.call import Call
from shoal_local.apiserver.verbs.dispatch import Predicate, revision_in, selection
from shoal_local.apiserver.verbs.state import ClusterState, presented
from shoal_local.objects import Object

INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


class Notifier:
    """A signal to all tasks that wait for the next change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.closed = False

    def notify(self) -> None:
        """Wake all waiting tasks."""
        self._event.set()
        self._event = asyncio.Event()

    def close(self) -> None:
        """Wake all waiting tasks for the last time: the server stops."""
        self.closed = True
        self.notify()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next notification, or after the time-out."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()


@dataclass(slots=True)
class Watch:
    """One watch: its selection of objects and the revision of its last event."""

    state: ClusterState
    call: Call
    resource: Resource
    as_table: bool
    wanted: Predicate
    revision: int
    now: Callable[[], datetime]
    """The end of ages: in a table, each event has the age of its object at that time."""
    columns_sent: bool = False

    def begin(self) -> list[Object]:
        """Return the initial events: the current objects, if the resourceVersion is missing or 0.

        ``sendInitialEvents`` adds a bookmark after them. Raises TooOldError: the server has lost the revision.
        """
        if self.call.flag("sendInitialEvents"):
            return [*self._initial(), self.bookmark(INITIAL_EVENTS_END)]
        if self.revision == 0 and "sendInitialEvents" not in self.call.query:
            return self._initial()
        if self.revision > self.state.store.revision:
            # Later revisions were lost in a restart without a snapshot: the client must list again.
            raise TooOldError
        self.revision = self.revision or self.state.store.revision
        return []

    def _initial(self) -> list[Object]:
        """Return the current objects as ADDED events."""
        objects = [obj for obj in self.state.store.objects_of(self.resource.key) if self.wanted(obj)]
        self.revision = self.state.store.revision
        return [self._event(Verb.ADDED, obj) for obj in objects]

    def new_events(self) -> list[Object]:
        """Return events since the last call. Raises TooOldError: some are lost."""
        changes = self.state.store.since(self.resource.key, self.revision)
        self.revision = max(self.revision, self.state.store.revision)
        events = []
        for change in changes:
            # A changed object may enter or leave the selection.
            before = change.before is not None and self.wanted(change.before)
            if change.verb is not Verb.DELETED and self.wanted(change.object):
                events.append(self._event(Verb.MODIFIED if before else Verb.ADDED, change.object))
            elif before and change.verb is Verb.DELETED:
                events.append(self._event(Verb.DELETED, change.object))
            elif before and change.before is not None:
                # An object that leaves the selection is sent with its old content and the revision of the change.
                version = change.object["metadata"]["resourceVersion"]
                last = {**change.before, "metadata": {**change.before["metadata"], "resourceVersion": version}}
                events.append(self._event(Verb.DELETED, last))
        return events

    def bookmark(self, annotations: dict[str, str] | None = None) -> Object:
        """Return a BOOKMARK event: a revision without a change."""
        meta: dict[str, Any] = {"resourceVersion": str(self.revision), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        return {"type": "BOOKMARK", "object": presented(self.resource, {"metadata": meta})}

    def _event(self, verb: Verb, obj: Object) -> Object:
        sent = presented(self.resource, self.state.as_read(self.resource, obj))
        if self.as_table:
            sent = in_table(self.resource, sent, now=self.now(), query=self.call.query)
            # Columns are part of the first event only.
            if self.columns_sent:
                sent["columnDefinitions"] = None
            self.columns_sent = True
        return {"type": str(verb), "object": sent}


def open_watch(state: ClusterState, call: Call, *, as_table: bool, now: Callable[[], datetime]) -> Watch:
    """Return a watch. Raises ApiError: 400 or 422, an option is invalid."""
    resource = state.resource(call.target)
    watch = Watch(state, call, resource, as_table, selection(call, resource), revision_in(call), now)
    call.number("timeoutSeconds")
    if "sendInitialEvents" in call.query and call.query.get("resourceVersionMatch") != "NotOlderThan":
        why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise invalid("ListOptions", "meta.k8s.io", "", [forbidden_value("resourceVersionMatch", why)])
    return watch


async def watch_lines(watch: Watch, notifier: Notifier, bookmark_interval_s: float) -> AsyncIterator[bytes]:
    """Yield events as JSON lines until ``timeoutSeconds`` have passed or the server stops."""
    call, store = watch.call, watch.state.store
    clock = asyncio.get_running_loop().time
    end = clock() + (call.number("timeoutSeconds") or 3600)
    next_bookmark = clock() + bookmark_interval_s
    try:
        yield _lines(watch.begin())
        while clock() < end and not notifier.closed:
            if events := watch.new_events():
                yield _lines(events)
            elif clock() >= next_bookmark and call.flag("allowWatchBookmarks"):
                yield _lines([watch.bookmark()])
                next_bookmark = clock() + bookmark_interval_s
            else:
                until = min(end, next_bookmark) if call.flag("allowWatchBookmarks") else end
                await notifier.wait(max(until - clock(), 0.001))
    except TooOldError:
        message = f"too old resource version: {call.query.get('resourceVersion', 0)} ({store.revision})"
        yield _lines([{"type": "ERROR", "object": ApiError(410, "Expired", message).as_status()}])


def _lines(events: list[Object]) -> bytes:
    return b"".join(orjson.dumps(event) + b"\n" for event in events)
