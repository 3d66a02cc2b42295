"""The processes of the waiting room: which there are, and who waits in each, asked one question after the other."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

import aiohttp

from shoal_operator.errors import ApiError
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.planning.observation import dig
from shoal_operator.planning.pods import is_leaving, is_ready
from shoal_operator.planning.rooms import Room
from shoal_schema.declaring import Json
from shoal_schema.processes import OperatorProcess
from shoal_schema.waiting import LONGEST_WAIT_S, MAX_NEWS_BYTES, SEEN, WAITING_PATH, RoomNews, decode_news

logger = logging.getLogger(__name__)

_FIND_S = 2.0
"""How often the rooms' pods are listed."""
_PAUSE_S = 0.05
"""Between two questions to one room, which may have news for each request that comes."""
_RETRY_S = 0.5
_SILENT_S = 20.0
"""A room that has not answered for so long may be out of the operator's reach, and that is told."""
_TIMEOUT = aiohttp.ClientTimeout(total=LONGEST_WAIT_S + 5.0, connect=2.0)


class RoomsCluster(Protocol):
    """What finding rooms needs of `shoal_operator.cluster.Cluster`."""

    async def list_pods(self, namespace: str, selector: str) -> tuple[Json, ...]:
        """Return the pods of a namespace that have these labels."""


class Rooms:
    """Finds the rooms, and asks each.

    Args:
        settings: where they are.
        changed: called when another room is ready, or one says something else of itself.
        told: called with what a room says, and with where what follows from it runs.
        version_of: returns which version of the operator's book a mark is of.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: OperatorProcess,
        *,
        changed: Callable[[], object],
        told: Callable[[RoomNews, asyncio.TaskGroup], object],
        version_of: Callable[[str], int],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._told = told
        self._version_of = version_of
        self._clock = clock
        self._rooms: dict[str, Room] = {}

    @property
    def known(self) -> Collection[Room]:
        """All that there are."""
        return self._rooms.values()

    def clear(self) -> None:
        """Forget them."""
        self._rooms.clear()

    async def find(self, cluster: RoomsCluster) -> None:
        """List the rooms.

        Raises:
            ApiError: they cannot be listed now.
        """
        pods = await cluster.list_pods(self._settings.namespace, self._settings.waiting_selector)
        before = {(room.address, room.ready) for room in self.known}
        there = {dig(pod, "metadata", "uid"): pod for pod in pods if dig(pod, "status", "podIP")}
        for uid in self._rooms.keys() - there.keys():
            del self._rooms[uid]
        for uid, pod in there.items():
            ready = is_ready(pod) and not is_leaving(pod)
            if uid in self._rooms:
                self._rooms[uid].ready = ready
            else:
                self._rooms[uid] = Room(pod["status"]["podIP"], ready, self._clock())
        if before != {(room.address, room.ready) for room in self.known}:
            self._changed()

    async def run(self, cluster: RoomsCluster) -> None:
        """Follow the rooms until cancelled."""
        asked: set[str] = set()
        async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False) as http, asyncio.TaskGroup() as tasks:
            while True:
                for uid in self._rooms.keys() - asked:
                    tasks.create_task(self._ask(uid, http, tasks))
                asked = set(self._rooms)
                await asyncio.sleep(_FIND_S)
                try:
                    await self.find(cluster)
                except ApiError as error:
                    logger.warning("event=rooms_unread error=%s", error)

    async def _ask(self, uid: str, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        """Ask one room for whom requests wait, as long as its pod is there."""
        seen = ""
        while (room := self._rooms.get(uid)) is not None:
            try:
                news = await _read(http, f"http://{authority(room.address, ADMIN_PORT)}{WAITING_PATH}", seen)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                logger.debug("event=room_silent address=%s error=%r", room.address, error)
                seen, room.version, room.waiting = "", -1, {}
                if not room.silent and self._clock() - room.heard_s >= _SILENT_S:
                    logger.warning("event=room_silent address=%s error=%r", room.address, error)
                    room.silent = True
                    self._changed()
                await asyncio.sleep(_RETRY_S)
                continue
            seen = news.news
            known = (room.silent, room.refused)
            room.version, room.waiting, room.refused = self._version_of(news.version), news.waiting, news.refused
            room.heard_s, room.silent = self._clock(), False
            if known != (room.silent, room.refused):
                self._changed()
            self._told(news, tasks)
            await asyncio.sleep(_PAUSE_S)


async def _read(http: aiohttp.ClientSession, url: str, seen: str) -> RoomNews:
    async with http.get(url, params={SEEN: seen}, allow_redirects=False) as answer:
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        body = await answer.content.read(MAX_NEWS_BYTES + 1)
        while not answer.content.at_eof() and len(body) <= MAX_NEWS_BYTES:
            body += await answer.content.read(MAX_NEWS_BYTES)
        return decode_news(body)


def authority(host: str, port: int) -> str:
    """Return host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
