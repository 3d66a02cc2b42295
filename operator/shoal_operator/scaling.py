"""The loop that reads the proxies: replicas follow the queue, and objectives are noted."""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shoal_operator.autoscaler.law import Decision, State, decide
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.load.exposition import Reading, total_load, unread
from shoal_operator.load.fleet import Fleet, Replica, Scaled, Watched
from shoal_operator.load.objective import Reports, attainable, record
from shoal_operator.planning.evidence import Unread
from shoal_operator.planning.observation import Key
from shoal_schema.conditions import ScalingReason

logger = logging.getLogger(__name__)

_DOUBT_S = 30.0


class _Source(Protocol):
    async def read(self, replicas: Sequence[Replica]) -> Sequence[Reading]: ...


class _Cluster(Protocol):
    async def scale(self, key: Key, replicas: int) -> None: ...


class _Waiting(Protocol):
    async def follow(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool: ...


class Autoscaler:
    """Reads every watched service, each tick, and decides for those that scale.

    Args:
        changed: called when what is known of a service changed, so that its status follows, and when what is
            known of its pods may be old.
        clock: monotonic seconds.
        window_s: how long a want counts before replicas fall below it.
        waiting: asked first, about services that may sleep.
    """

    def __init__(
        self,
        fleet: Fleet,
        source: _Source,
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        *,
        window_s: float,
        waiting: _Waiting,
    ) -> None:
        self._fleet = fleet
        self._source = source
        self._changed = changed
        self._clock = clock
        self._window_s = window_s
        self._waiting = waiting
        self._looking: set[Key] = set()
        self._doubted_s: dict[Key, float] = {}
        self._memory: dict[Key, State] = {}
        self._scaling: dict[Key, ScalingReason] = {}
        self._unread: dict[Key, Unread | None] = {}
        self._reports: dict[Key, Reports] = {}
        self._attainable: dict[Key, Mapping[str, bool]] = {}

    def scaling(self, key: Key) -> ScalingReason | None:
        """Return what the law last said of a service, or None before the first tick."""
        return self._scaling.get(key)

    def unread(self, key: Key) -> Unread | None:
        """Return why nothing was known of a service's load when the law last spoke; None where it was."""
        return self._unread.get(key)

    def attainable(self, key: Key) -> Mapping[str, bool] | None:
        """Return by uid whether pods can meet their objective, or None before any could be asked."""
        return self._attainable.get(key)

    async def run(self, cluster: _Cluster, interval_s: float) -> None:
        """Tick until cancelled."""
        async with asyncio.TaskGroup() as looks:
            while True:
                self.tick(cluster, looks)
                await asyncio.sleep(interval_s)

    def tick(self, cluster: _Cluster, looks: asyncio.TaskGroup) -> None:
        """Begin a look at every watched service whose last one has ended: a slow one delays none but itself."""
        services = list(self._fleet.watched())
        self._forget(services)
        for service in services:
            if service.key not in self._looking:
                self._looking.add(service.key)
                looks.create_task(self._look_alone(cluster, service))

    async def _look_alone(self, cluster: _Cluster, service: Watched) -> None:
        try:
            await self._look(cluster, service)
        except Exception:  # one service's surprise must not stop the others
            logger.exception("event=scaling_failed service=%s", service.key)
        finally:
            self._looking.discard(service.key)

    async def _look(self, cluster: _Cluster, service: Watched) -> None:
        readings = await self._source.read(service.replicas)
        if any(reading.rows is None for reading in readings):
            # Ask the cluster, now and then, whether a pod that cannot be read is still there.
            now_s = self._clock()
            if now_s - self._doubted_s.get(service.key, -math.inf) >= _DOUBT_S:
                self._doubted_s[service.key] = now_s
                self._changed(service.key)
        if service.has_objective:
            pairs = zip(service.replicas, readings, strict=True)
            self._record_objective(service.key, {replica.uid: reading.attainable for replica, reading in pairs})
        if service.scaled is not None and not await self._waiting.follow(service.key, service.replicas, readings):
            await self._follow(cluster, service.key, service.scaled, readings)

    async def _follow(self, cluster: _Cluster, key: Key, scaled: Scaled, readings: Sequence[Reading]) -> None:
        load = total_load(readings)
        memory = self._memory.get(key, State())
        now_s = self._clock()
        decision, memory = decide(scaled.law, load, scaled.replicas, memory, now_s, window_s=self._window_s)
        self._memory[key] = memory
        said = (decision.reason, unread(readings))
        if decision.reason is not None and (self._scaling.get(key), self._unread.get(key)) != said:
            self._scaling[key], self._unread[key] = decision.reason, said[1]
            self._changed(key)
        if decision.replicas != scaled.replicas:
            await self._write(cluster, key, scaled, decision)

    async def _write(self, cluster: _Cluster, key: Key, scaled: Scaled, decision: Decision) -> None:
        try:
            await cluster.scale(key, decision.replicas)
        except (ApiError, NotLeadingError) as error:
            logger.warning("event=scaling_failed service=%s scale=%d error=%s", key, decision.replicas, error)
            return
        logger.info("event=scaled service=%s replicas=%d was=%d", key, decision.replicas, scaled.replicas)
        self._fleet.wrote_replicas(key, scaled, decision.replicas)

    def _record_objective(self, key: Key, said: Mapping[str, bool | None]) -> None:
        now_s = self._clock()
        self._reports[key] = reports = record(self._reports.get(key, Reports(now_s)), said, now_s)
        known = attainable(reports, now_s)
        if known is not None and known != self._attainable.get(key):
            self._attainable[key] = known
            self._changed(key)

    def _forget(self, services: Sequence[Watched]) -> None:
        for key in self._doubted_s.keys() - {service.key for service in services}:
            self._doubted_s.pop(key)
        for key in self._memory.keys() - {service.key for service in services if service.scaled}:
            self._memory.pop(key)
            self._scaling.pop(key, None)
            self._unread.pop(key, None)
        for key in self._reports.keys() - {service.key for service in services if service.has_objective}:
            self._reports.pop(key)
            self._attainable.pop(key, None)
