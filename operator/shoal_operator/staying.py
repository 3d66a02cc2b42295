"""Requests to stopping pods to keep serving or to stop, sent in the background: pods that hang delay nothing."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.planning.observation import Key
from shoal_operator.planning.stays import Stay
from shoal_schema.headers import INSTANCE
from shoal_schema.stay import PATH

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.5
_TRIES = 3
_PAUSE_S = 0.3


@dataclass(slots=True)
class _Sent:
    """The last stay that was sent to a pod, and the task that sends it."""

    stay: Stay
    task: "asyncio.Task[None]"


@dataclass(slots=True)
class Stays:
    """Send stays to stopping pods.

    Args:
        port: admin port of the pods.
    """

    port: int = ADMIN_PORT
    _sent: dict[Key, dict[str, _Sent]] = field(default_factory=dict)
    _tasks: "set[asyncio.Task[None]]" = field(default_factory=set)

    def send(self, key: Key, stays: Iterable[Stay]) -> None:
        """Send each stopping pod of a service its stay, where it is new or longer."""
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
        """Let the pods of a deleted service stop."""
        # Nothing will replace them.
        staying = [each.stay.replica for each in self._sent.get(key, {}).values() if each.stay.seconds]
        self.send(key, [Stay(replica, 0) for replica in staying])
        self._sent.pop(key, None)

    async def close(self) -> None:
        """Cancel pending requests: pods stop when their last stay ends."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, stay: Stay) -> None:
        for _ in range(_TRIES):
            if await self._post(stay):
                return
            await asyncio.sleep(_PAUSE_S)
        logger.warning("event=stay_untold pod=%s seconds=%d", stay.replica.name, stay.seconds)

    async def _post(self, stay: Stay) -> bool:
        """Return whether the pod accepted the stay."""
        replica = stay.replica
        host = f"[{replica.address}]" if ":" in replica.address else replica.address
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(replica.address, self.port)
                try:
                    writer.write(
                        f"POST {PATH}?seconds={stay.seconds} HTTP/1.1\r\nhost: {host}:{self.port}\r\n"
                        f"x-shoal-admin: 1\r\n{INSTANCE}: {replica.uid}\r\n"
                        "content-length: 0\r\nconnection: close\r\n\r\n".encode()
                    )
                    # Only the status line matters. `readline` raises a ValueError beyond 64 KiB.
                    return (await reader.readline()).split()[1:2] == [b"200"]
                finally:
                    writer.close()
        except (OSError, ValueError, TimeoutError):
            return False
