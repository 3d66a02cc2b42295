"""Lists of the activator's pods, and long polls for their held requests."""

import asyncio
import logging
from collections.abc import Callable, Collection

import aiohttp

from shoal_operator.children.observation import dig
from shoal_operator.children.pods import is_leaving, is_ready
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.zero.activator import ActivatorPod
from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.interfaces.activator import (
    MAX_POLL_S,
    MAX_REPORT_BYTES,
    REPORT_PATH,
    SEEN,
    ActivatorReport,
    decode_report,
)
from shoal_schema.process.settings.operator import OperatorProcess

logger = logging.getLogger(__name__)

_FIND_S = 2.0
"""Period of listing the activator's pods."""
_PAUSE_S = 0.05
"""Between two polls of one activator, which may have an update with each request."""
_RETRY_S = 0.5
_SILENT_S = 20.0
"""An activator without a response for this long is reported as unreachable."""
_TIMEOUT = aiohttp.ClientTimeout(total=MAX_POLL_S + 5.0, connect=2.0)


class ActivatorPods:
    """The activator's pods, with the state that each reports to long polls.

    Args:
        settings: namespace and selector of the pods.
        changed: called when the set of ready activators or their state changes.
        received: called with each activator's report, and the task group for follow-up tasks.
        version_of: returns the version of the routing table for the mark that an activator reports.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: OperatorProcess,
        *,
        changed: Callable[[], object],
        received: Callable[[ActivatorReport, asyncio.TaskGroup], object],
        version_of: Callable[[str], int],
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._changed = changed
        self._received = received
        self._version_of = version_of
        self._clock = clock
        self._pods: dict[str, ActivatorPod] = {}

    @property
    def known(self) -> Collection[ActivatorPod]:
        """All activator pods that exist."""
        return self._pods.values()

    def clear(self) -> None:
        """Remove all pods from the cache."""
        self._pods.clear()

    async def find(self, cluster: Cluster) -> None:
        """Update the cached pods from the API server.

        Raises:
            ApiError: the request failed.
        """
        pods = await cluster.list_pods(self._settings.namespace, self._settings.activator_selector)
        before = {(pod.address, pod.ready) for pod in self.known}
        found = {dig(pod, "metadata", "uid"): pod for pod in pods if dig(pod, "status", "podIP")}
        # Tasks of deleted pods end by themselves.
        for uid in self._pods.keys() - found.keys():
            del self._pods[uid]
        for uid, pod in found.items():
            ready = is_ready(pod) and not is_leaving(pod)
            if uid in self._pods:
                self._pods[uid].ready = ready
            else:
                self._pods[uid] = ActivatorPod(pod["status"]["podIP"], ready, self._clock())
        if before != {(pod.address, pod.ready) for pod in self.known}:
            self._changed()

    async def run(self, cluster: Cluster) -> None:
        """List and poll the activator's pods until cancelled."""
        polled: set[str] = set()
        async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=False) as http, asyncio.TaskGroup() as tasks:
            while True:
                for uid in self._pods.keys() - polled:
                    tasks.create_task(self._poll(uid, http, tasks))
                polled = set(self._pods)
                await asyncio.sleep(_FIND_S)
                try:
                    await self.find(cluster)
                except ApiError as error:
                    logger.warning("event=activators_unread error=%s", error)

    async def _poll(self, uid: str, http: aiohttp.ClientSession, tasks: asyncio.TaskGroup) -> None:
        """Poll one activator for services with held requests, while its pod exists."""
        seen = ""
        while (pod := self._pods.get(uid)) is not None:
            try:
                news = await _read(http, f"http://{TcpAddress(pod.address, ADMIN_PORT)}{REPORT_PATH}", seen)
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                logger.debug("event=activator_silent address=%s error=%r", pod.address, error)
                # Nothing is known of it any more: neither its version of the table nor its held requests.
                seen, pod.version, pod.waiting = "", -1, {}
                if not pod.silent and self._clock() - pod.last_response_s >= _SILENT_S:
                    logger.warning("event=activator_silent address=%s error=%r", pod.address, error)
                    pod.silent = True
                    self._changed()
                await asyncio.sleep(_RETRY_S)
                continue
            seen = news.news
            previous = (pod.silent, pod.refused)
            pod.version, pod.waiting, pod.refused = self._version_of(news.version), news.waiting, news.refused
            pod.last_response_s, pod.silent = self._clock(), False
            if previous != (pod.silent, pod.refused):
                self._changed()
            self._received(news, tasks)
            await asyncio.sleep(_PAUSE_S)


async def _read(http: aiohttp.ClientSession, url: str, seen: str) -> ActivatorReport:
    async with http.get(url, params={SEEN: seen}, allow_redirects=False) as response:
        if response.status != 200:
            raise ValueError(f"status {response.status}")
        # Read at most one byte beyond the limit; `decode_report` rejects a longer body.
        body = await response.content.read(MAX_REPORT_BYTES + 1)
        while not response.content.at_eof() and len(body) <= MAX_REPORT_BYTES:
            body += await response.content.read(MAX_REPORT_BYTES)
        return decode_report(body)
