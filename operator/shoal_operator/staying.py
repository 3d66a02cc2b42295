"""Background requests that make stopping pods keep serving, or stop."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import aiohttp

from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.planning.observation import Key
from shoal_operator.planning.stays import StayRequest
from shoal_schema.addresses import TcpAddress
from shoal_schema.headers import INSTANCE
from shoal_schema.stay import PATH

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
class StaySender:
    """Sender of requests that make stopping pods keep serving.

    Args:
        port: admin port of the pods.
    """

    port: int = ADMIN_PORT
    _sent: dict[Key, dict[str, _Sent]] = field(default_factory=dict)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    def send(self, key: Key, stays: Iterable[StayRequest]) -> None:
        """Send each stopping pod how long to keep serving, unless already sent."""
        before = self._sent.pop(key, {})
        now: dict[str, _Sent] = {}
        for stay in stays:
            uid = stay.replica.uid
            known = before.get(uid)
            # Send a stay that is longer than the last one, and each change to or from 0. The remaining time shrinks
            # by itself.
            if known is None or stay.seconds > known.stay.seconds or (stay.seconds == 0) != (known.stay.seconds == 0):
                logger.info("event=stay service=%s pod=%s seconds=%d", key, stay.replica.name, stay.seconds)
                if known is not None:
                    known.task.cancel()
                task = asyncio.create_task(self._send(stay))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                known = _Sent(stay, task)
            now[uid] = known
        if now:
            self._sent[key] = now

    def forget(self, key: Key) -> None:
        """Make the stopping pods of a deleted service stop at once."""
        # Nothing will replace them.
        staying = [each.stay.replica for each in self._sent.get(key, {}).values() if each.stay.seconds]
        self.send(key, [StayRequest(replica, 0) for replica in staying])
        self._sent.pop(key, None)

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
        headers = {"x-shoal-admin": "1", INSTANCE: stay.replica.uid}
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False) as http,
                http.post(url, params={"seconds": stay.seconds}, headers=headers, allow_redirects=False) as response,
            ):
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
