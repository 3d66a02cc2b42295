"""Background requests that make stopping pods keep serving, or stop."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.rollout.stays import StayRequest
from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.interfaces.headers import ADMIN, INSTANCE
from shoal_schema.interfaces.stay import PATH

logger = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=1.5)
_TRIES = 3
_PAUSE_S = 0.3


@dataclass(slots=True)
class _Sent:
    """The last request to a pod, and the task that sends it."""

    stay: StayRequest
    task: "asyncio.Task[None]"


@dataclass(slots=True)
class ServiceStays:
    """The last request to each stopping pod of a service, by the pod's uid."""

    sent: dict[str, _Sent]
    end: Callable[[], object]
    """Ends the stays: nothing will replace the pods of a deleted service."""

    def close(self) -> None:
        """End the periods for which the pods keep serving, so that they stop."""
        self.end()


@dataclass(slots=True)
class StaySender:
    """Sender of requests that make stopping pods keep serving.

    Args:
        records: the requests sent for all services.
        port: admin port of the pods.
    """

    records: Records
    port: int = ADMIN_PORT
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    def send(self, key: Key, stays: Iterable[StayRequest]) -> None:
        """Send each stopping pod how long to keep serving.

        A request is sent if the pod has received none, if the time is longer than before, and if it changes to or from
        0, which means stop.
        """
        known = self.records.find(key, ServiceStays)
        before = known.sent if known else {}
        now: dict[str, _Sent] = {}
        for stay in stays:
            uid = stay.replica.uid
            last = before.get(uid)
            # Send a stay that is longer than the last one, and each change to or from 0. The remaining time shrinks
            # by itself.
            if last is None or stay.seconds > last.stay.seconds or (stay.seconds == 0) != (last.stay.seconds == 0):
                last = self._begin(key, stay, last)
            now[uid] = last
        self.records.put(key, ServiceStays(now, partial(self._end, key, now)))

    def _begin(self, key: Key, stay: StayRequest, last: _Sent | None) -> _Sent:
        logger.info("event=stay service=%s pod=%s seconds=%d", key, stay.replica.name, stay.seconds)
        if last is not None:
            last.task.cancel()
        task = asyncio.create_task(self._send(stay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return _Sent(stay, task)

    def _end(self, key: Key, sent: Mapping[str, _Sent]) -> None:
        """Make the pods of a deleted service stop."""
        for last in sent.values():
            if last.stay.seconds:
                self._begin(key, StayRequest(last.stay.replica, 0), last)

    async def close(self) -> None:
        """Cancel the requests that are still being sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, stay: StayRequest) -> None:
        for _ in range(_TRIES):
            if await self._post(stay):
                return
            await asyncio.sleep(_PAUSE_S)
        logger.warning("event=stay_not_sent pod=%s seconds=%d", stay.replica.name, stay.seconds)

    async def _post(self, stay: StayRequest) -> bool:
        """Send a request to keep serving or to stop; return whether the pod accepted it."""
        url = f"http://{TcpAddress(stay.replica.address, self.port)}{PATH}"
        headers = {ADMIN: "1", INSTANCE: stay.replica.uid}
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False) as http,
                http.post(url, params={"seconds": stay.seconds}, headers=headers, allow_redirects=False) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
