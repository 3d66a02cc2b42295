"""A cache of all objects of a kind, filled by list and watch."""

import asyncio
import logging
from collections.abc import Callable

from shoal_local.api_client import ApiClient, UnreachableError
from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.kinds.registry import BY_KIND
from shoal_local.objects import Key, Object, key_of

logger = logging.getLogger(__name__)
MIN_DELAY_S, MAX_DELAY_S = 0.2, 5.0
Listener = Callable[[Object], None]


def version_of(obj: Object) -> int:
    """Return the resourceVersion as a number; newer objects have larger ones."""
    return int(obj["metadata"].get("resourceVersion") or 0)


class Informer:
    """A cache of the objects of one kind.

    Writers add the server's responses (``record``, ``record_deleted``), so that a controller sees its own
    writes at once and never acts on the state before them.
    """

    def __init__(self, client: ApiClient, kind: str, **query: str) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        self.objects: dict[Key, Object] = {}
        self._client = client
        self._query = query
        # Uids of deleted objects: a late event must not add them again.
        self._gone: set[str] = set()
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call the listener with each object that is added, changed or deleted."""
        self._listeners.append(listener)

    def within(self, namespace: str) -> list[Object]:
        """Return the cached objects of a namespace."""
        return [obj for (space, _), obj in self.objects.items() if space == namespace]

    def record(self, obj: Object) -> None:
        """Cache an object, unless a newer version or its deletion is cached."""
        known = self.objects.get(key_of(obj))
        if obj["metadata"]["uid"] in self._gone:
            return
        # An event of the watch that the writer's own response overtook.
        if known is not None and version_of(known) >= version_of(obj):
            return
        self.objects[key_of(obj)] = obj
        self._notify(obj)

    def record_deleted(self, obj: Object) -> None:
        """Remove an object from the cache; ignore later events of its uid."""
        self._gone.add(obj["metadata"]["uid"])
        known = self.objects.get(key_of(obj))
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            del self.objects[key_of(obj)]
            self._notify(obj)

    async def run(self) -> None:
        """List and watch until cancelled."""
        delay_s = MIN_DELAY_S
        while True:
            try:
                version = await self._list()
                delay_s = MIN_DELAY_S
                # A watch ends after ten minutes; the next one continues at the last version.
                while True:
                    async for event, obj in self._client.watch(self.kind, version, **self._query):
                        version = obj["metadata"]["resourceVersion"]
                        if event == "DELETED":
                            self.record_deleted(obj)
                            # The watch sends nothing of this object after its deletion.
                            self._gone.discard(obj["metadata"]["uid"])
                        elif event != "BOOKMARK":
                            self.record(obj)
            except (ApiError, UnreachableError) as error:
                logger.debug("event=list_again kind=%s delay_s=%.1f error=%s", self.kind, delay_s, error)
                await asyncio.sleep(delay_s)
                # Backs off while the API server is unreachable.
                delay_s = min(2 * delay_s, MAX_DELAY_S)

    async def _list(self) -> str:
        response = await self._client.list(self.kind, **self._query)
        listed = {}
        for item in response["items"]:
            # Items of a list carry neither apiVersion nor kind.
            obj = {"apiVersion": BY_KIND[self.kind].api_version, "kind": self.kind, **item}
            listed[key_of(obj)] = obj
        version = response["metadata"]["resourceVersion"]
        # Deleted while no watch ran. What was written after the list is newer than its version and stays.
        for key, known in list(self.objects.items()):
            found = listed.get(key)
            other = found is None or found["metadata"]["uid"] != known["metadata"]["uid"]
            if other and version_of(known) <= int(version):
                del self.objects[key]
                self._notify(known)
        self._gone &= {obj["metadata"]["uid"] for obj in listed.values()}
        for obj in listed.values():
            self.record(obj)
        self.synced.set()
        return str(version)

    def _notify(self, obj: Object) -> None:
        for listener in self._listeners:
            listener(obj)
