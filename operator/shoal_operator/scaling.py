"""The loop that lets replicas follow the queue: read, decide, write the scale."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from shoal_operator.autoscaler.law import Decision, Load, State, Why, decide
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.load.fleet import Fleet, Scaled
from shoal_operator.planning.evidence import ScalingState
from shoal_operator.planning.observation import Key

logger = logging.getLogger(__name__)

_STATES = {Why.LOAD: ScalingState.FOLLOWING, Why.HOLD: ScalingState.NO_DATA}


class LoadSource(Protocol):
    """Where load comes from."""

    async def read_load(self, addresses: Sequence[str]) -> Load | None:
        """Return the rows in all pods, or None."""


class ScaleCluster(Protocol):
    """Where replicas are written."""

    async def scale(self, key: Key, replicas: int) -> None:
        """Write a service's replicas."""


class Autoscaler:
    """Decides for every scaled service, each tick.

    Args:
        changed: called when a service's scaling state changed, so that its status follows.
        clock: monotonic seconds.
        window_s: how long a want counts before replicas fall below it.
    """

    def __init__(
        self,
        fleet: Fleet,
        source: LoadSource,
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        *,
        window_s: float,
    ) -> None:
        self._fleet = fleet
        self._source = source
        self._changed = changed
        self._clock = clock
        self._window_s = window_s
        self._memory: dict[Key, State] = {}
        self._states: dict[Key, ScalingState] = {}

    def state(self, key: Key) -> ScalingState | None:
        """Return what was last done for a service, or None before the first tick."""
        return self._states.get(key)

    async def run(self, cluster: ScaleCluster, interval_s: float) -> None:
        """Tick until cancelled."""
        while True:
            started_s = self._clock()
            await self.tick(cluster)
            await asyncio.sleep(max(0.0, started_s + interval_s - self._clock()))

    async def tick(self, cluster: ScaleCluster) -> None:
        """Look at every scaled service once."""
        entries = list(self._fleet.scaled())
        self._forget({key for key, _, _ in entries})
        await asyncio.gather(*(self._follow(cluster, *entry) for entry in entries))

    async def _follow(self, cluster: ScaleCluster, key: Key, scaled: Scaled, addresses: Sequence[str]) -> None:
        load = await self._source.read_load(addresses)
        memory = self._memory.get(key, State())
        now_s = self._clock()
        decision, memory = decide(scaled.law, load, scaled.replicas, memory, now_s, window_s=self._window_s)
        self._memory[key] = memory
        self._note(key, _STATES.get(decision.why))
        if decision.replicas != scaled.replicas:
            await self._write(cluster, key, scaled, decision)

    async def _write(self, cluster: ScaleCluster, key: Key, scaled: Scaled, decision: Decision) -> None:
        try:
            await cluster.scale(key, decision.replicas)
        except (ApiError, NotLeadingError) as error:
            logger.warning("service=%s scale=%d error=%s", key, decision.replicas, error)
            return
        logger.info("service=%s replicas=%d was=%d", key, decision.replicas, scaled.replicas)
        self._fleet.wrote_replicas(key, scaled, decision.replicas)

    def _note(self, key: Key, state: ScalingState | None) -> None:
        if state is not None and self._states.get(key) is not state:
            self._states[key] = state
            self._changed(key)

    def _forget(self, present: set[Key]) -> None:
        for key in self._memory.keys() - present:
            self._memory.pop(key)
            self._states.pop(key, None)
