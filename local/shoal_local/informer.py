"""Keeps a copy of all objects of a kind, by a list and a watch, and tells who wants to know."""

import asyncio
import logging
from collections.abc import Callable

from shoal_local.api_client import ApiClient, ApiError, Resource, UnreachableError
from shoal_local.objects import Key, Object, key_of

LOG = logging.getLogger(__name__)
MIN_DELAY_S, MAX_DELAY_S = 0.2, 5.0
Listener = Callable[[Object], None]


def version_of(obj: Object) -> int:
    """Return the resourceVersion as a number: newer is larger."""
    return int(obj["metadata"].get("resourceVersion") or 0)


class Informer:
    """A copy of the objects of one kind.

    Writers put the server's answers into it (``note``, ``note_deleted``), so that whoever wrote
    sees their own writes at once and never acts on the state before.
    """

    def __init__(self, client: ApiClient, resource: Resource, **query: str) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.objects: dict[Key, Object] = {}
        self._client = client
        self._query = query
        self._gone: set[str] = set()
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call the listener with each object that is new, has changed or is gone."""
        self._listeners.append(listener)

    def get(self, namespace: str, name: str) -> Object | None:
        """Return an object, or None."""
        return self.objects.get((namespace, name))

    def within(self, namespace: str) -> list[Object]:
        """Return the objects of a namespace."""
        return [obj for (space, _), obj in self.objects.items() if space == namespace]

    def note(self, obj: Object) -> None:
        """Take an object in unless it is older than what is known, or known to be gone."""
        known = self.objects.get(key_of(obj))
        if obj["metadata"]["uid"] in self._gone:
            return
        if known is not None and version_of(known) >= version_of(obj):
            return
        self.objects[key_of(obj)] = obj
        self._tell(obj)

    def note_deleted(self, obj: Object) -> None:
        """Forget an object, also when late news of it follow."""
        self._gone.add(obj["metadata"]["uid"])
        known = self.objects.get(key_of(obj))
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            del self.objects[key_of(obj)]
            self._tell(obj)

    async def run(self) -> None:
        """List and watch until cancelled."""
        delay_s = MIN_DELAY_S
        while True:
            try:
                version = await self._list()
                delay_s = MIN_DELAY_S
                await self._watch(version)
            except (ApiError, UnreachableError) as error:
                LOG.debug("%s: %s; listing again in %.1f s", self.resource.plural, error, delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def _list(self) -> str:
        answer = await self._client.list(self.resource, **self._query)
        listed = {}
        for item in answer["items"]:
            obj = {"apiVersion": self.resource.api_version, "kind": self.resource.kind, **item}
            listed[key_of(obj)] = obj
        version = answer["metadata"]["resourceVersion"]
        for key, known in list(self.objects.items()):
            found = listed.get(key)
            other = found is None or found["metadata"]["uid"] != known["metadata"]["uid"]
            if other and version_of(known) <= int(version):
                del self.objects[key]
                self._tell(known)
        self._gone &= {obj["metadata"]["uid"] for obj in listed.values()}
        for obj in listed.values():
            self.note(obj)
        self.synced.set()
        return str(version)

    async def _watch(self, version: str) -> None:
        while True:
            async for event, obj in self._client.watch(self.resource, version, **self._query):
                version = obj["metadata"]["resourceVersion"]
                if event == "DELETED":
                    self.note_deleted(obj)
                    self._gone.discard(obj["metadata"]["uid"])
                elif event != "BOOKMARK":
                    self.note(obj)

    def _tell(self, obj: Object) -> None:
        for listener in self._listeners:
            listener(obj)
