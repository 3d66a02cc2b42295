"""Kubernetes Events, which `kubectl describe` and `kubectl events` show."""

import asyncio
import logging
import zlib
from datetime import UTC, datetime

from shoal_local.api_client import ApiClient, UnreachableError
from shoal_local.apiserver.errors import ApiError
from shoal_local.objects import Object, key_of, timestamp

logger = logging.getLogger(__name__)


class EventRecorder:
    """A background queue of Events; a repeated Event increments a count."""

    def __init__(self, client: ApiClient, component: str, host: str = "") -> None:
        self._client = client
        self._source = {"component": component, **({"host": host} if host else {})}
        self._queue: asyncio.Queue[Object] = asyncio.Queue(maxsize=1000)

    def post(self, about: Object, kind: str, reason: str, message: str) -> None:
        """Queue an Event of kind Normal or Warning; drop it if the queue is full."""
        event = make_event(about, kind, reason, message, source=self._source, now=datetime.now(UTC))
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            logger.warning("event=kubernetes_event_dropped reason=%s message=%s", reason, message)

    async def run(self) -> None:
        """Post queued Events until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except (ApiError, UnreachableError) as error:
                logger.info("event=kubernetes_event_not_posted reason=%s error=%s", event["reason"], error)

    async def _write(self, event: Object) -> None:
        try:
            await self._client.create(event)
        except ApiError as error:
            # 409: it is repeated.
            if error.code != 409:
                raise
            known = await self._client.get("Event", *key_of(event))
            patch = {"count": known.get("count", 1) + 1, "lastTimestamp": event["lastTimestamp"]}
            await self._client.patch(event, patch)


def make_event(about: Object, kind: str, reason: str, message: str, *, source: Object, now: datetime) -> Object:
    """Return an Event with a name derived from its content.

    A repeated Event thus has the same name.
    """
    meta = about["metadata"]
    stamp = timestamp(now)
    identity = f"{meta.get('uid')}|{kind}|{reason}|{message}|{source['component']}"
    space = meta.get("namespace", "default")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{zlib.crc32(identity.encode()):08x}", "namespace": space},
        "involvedObject": {
            **{part: about.get(part) for part in ("apiVersion", "kind", "fieldPath")},
            **{part: meta.get(part) for part in ("name", "namespace", "uid", "resourceVersion")},
        },
        "reason": reason,
        # The API's limit for the note of an Event.
        "message": message[:1024],
        "type": kind,
        "source": source,
        "reportingComponent": source["component"],
        "reportingInstance": source.get("host", ""),
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
