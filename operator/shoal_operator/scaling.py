"""The loop that reads the proxies: replicas follow the load, and objectives are noted."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from zlib import crc32

import msgspec

from shoal_operator.autoscaler.conflicts import ReplicaConflicts
from shoal_operator.autoscaler.decision import Decision, Limit, State, decide
from shoal_operator.autoscaler.down import victims
from shoal_operator.autoscaler.explanation import Explanation, is_other, is_stale
from shoal_operator.autoscaler.signals import Memory, Signals
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.load.fleet import Fleet, Replica, Scaled, Watched
from shoal_operator.load.independence import record as record_rows
from shoal_operator.load.objective import Reports, attainable, record
from shoal_operator.load.reading import Reading, unread
from shoal_operator.planning.evidence import Scaling
from shoal_operator.planning.observation import Key
from shoal_operator.replicas import Replicas, ScaleCluster
from shoal_schema.fleet import Fleet as ShownFleet
from shoal_schema.fleet import Pod, Service

logger = logging.getLogger(__name__)

_DOUBT_S = 30.0
_LIMITED_S = 60.0
"""A limit is told until it has been none for so long: the load goes up and down around it."""
_RENEWED_S = 60.0
"""What is said of a load is said anew as often at most: each time costs a look at the service, and a status."""
_COST_OF_A_VICTIM = -1
"""Less than that of a pod of which nothing was said."""
_SHOWN_S = 30.0
"""Since somebody asked for the fleet, services that nothing else is decided of are read, too."""
_ALL_S = 30.0
"""So often services that nothing else is decided of are read, too: whether their rows are independent."""
_PARTS = 10
"""Of an interval: services take turns, so that the readings of a large fleet do not all wait for one another."""


class _Source(Protocol):
    async def read(self, replicas: Sequence[Replica]) -> Sequence[Reading]: ...


class _Cluster(ScaleCluster, Protocol):
    async def set_deletion_cost(self, key: Key, uid: str, cost: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """What the last tick found of one service, for metrics."""

    key: Key
    desired: int
    ready: int
    rows: float
    offered_rows_per_s: float
    each: float
    """What a replica is for, of rows or rows a second: see `shoal_operator.autoscaler.want.Want`."""
    panicking: bool


@dataclass(slots=True)
class _Followed:
    """What is remembered of a service that scales."""

    memory: Memory = field(default_factory=Memory)
    state: State = field(default_factory=State)
    told: Scaling | None = None
    explanation: Explanation | None = None
    """What was told of the count, and when."""
    told_s: float = -math.inf
    conflicts: ReplicaConflicts = field(default_factory=ReplicaConflicts)
    marked: frozenset[str] = frozenset()
    """Pods, by uid, that were chosen to go when replicas fell last; one may be there still."""
    limited: tuple[Limit, float] | None = None
    """What kept replicas from being enough, and when it last did."""
    standing: Standing | None = None

    def is_due(self, decision: Decision, now_s: float) -> bool:
        """Return whether the sentence that was told has to be told anew, by itself."""
        said, now = self.explanation, decision.explanation
        if said is None or now is None:
            return said is not now
        return is_other(said, now) or (now_s - self.told_s >= _RENEWED_S and is_stale(said, now))


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
        self._replicas = Replicas(fleet, changed)
        self._source = source
        self._changed = changed
        self._clock = clock
        self._window_s = window_s
        self._waiting = waiting
        self._looking: set[Key] = set()
        self._read_s: dict[Key, float] = {}
        self._doubted_s: dict[Key, float] = {}
        self._followed: dict[Key, _Followed] = {}
        self._reports: dict[Key, Reports] = {}
        self._attainable: dict[Key, Mapping[str, bool]] = {}
        self._independent: dict[Key, dict[str, bool]] = {}
        self._shown_s = self._all_s = -math.inf
        self._reads_all = False
        self._pods: dict[Key, tuple[Pod, ...]] = {}
        self._runs = False

    def fleet(self) -> bytes | None:
        """Return what every service's pods said last, as `shoal_schema.fleet`; None while this operator reads none."""
        self._shown_s = self._clock()
        services = (Service(key.namespace, key.name, pods) for key, pods in self._pods.items())
        return msgspec.json.encode(ShownFleet(tuple(services))) if self._runs else None

    def scaling(self, key: Key) -> Scaling | None:
        """Return what the law last said of a service, or None before the first tick."""
        followed = self._followed.get(key)
        return None if followed is None else followed.told

    def attainable(self, key: Key) -> Mapping[str, bool] | None:
        """Return by uid whether pods can meet their objective, or None before any could be asked."""
        return self._attainable.get(key)

    def independent(self, key: Key) -> Mapping[str, bool] | None:
        """Return by uid whether pods found rows to have results of their own, or None before any could be read."""
        return self._independent.get(key)

    def standings(self) -> Iterator[Standing]:
        """Yield what the last tick found, of each service that scales and could be read."""
        return (followed.standing for followed in self._followed.values() if followed.standing)

    def unread_s(self) -> float:
        """Return for how long that service has not been read which has not been for longest."""
        return self._clock() - min(self._read_s.values(), default=self._clock())

    async def run(self, cluster: _Cluster, interval_s: float) -> None:
        """Tick until cancelled."""
        self._runs = True
        try:
            async with asyncio.TaskGroup() as looks:
                while True:
                    for part in range(_PARTS):
                        self.tick(cluster, looks, part)
                        await asyncio.sleep(interval_s / _PARTS)
        finally:
            self._runs = False

    def tick(self, cluster: _Cluster, looks: asyncio.TaskGroup, part: int | None = None) -> None:
        """Begin a look at every watched service whose last one has ended: a slow one delays none but itself.

        Args:
            cluster: what is written to.
            looks: where they run.
            part: of ten, the services whose turn it is; None for all.
        """
        if not part:
            self._reads_all = self._clock() - self._shown_s < _SHOWN_S or self._clock() - self._all_s >= _ALL_S
            if self._reads_all:
                self._all_s = self._clock()
        services = list(self._fleet.watched(everyone=self._reads_all))
        if not part:
            self._forget(services)
        for service in services:
            self._read_s.setdefault(service.key, self._clock())
            if service.key not in self._looking and part in (None, crc32(str(service.key).encode()) % _PARTS):
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
        self._read_s[service.key] = self._clock()
        pairs = zip(service.replicas, readings, strict=True)
        self._pods[service.key] = tuple(Pod(replica.name, reading.load) for replica, reading in pairs)
        self._record_rows(service.key, dict(zip([each.uid for each in service.replicas], readings, strict=True)))
        if any(reading.load is None for reading in readings):
            # Ask the cluster, now and then, whether a pod that cannot be read is still there.
            now_s = self._clock()
            if now_s - self._doubted_s.get(service.key, -math.inf) >= _DOUBT_S:
                self._doubted_s[service.key] = now_s
                self._changed(service.key)
        if service.has_objective:
            pairs = zip(service.replicas, readings, strict=True)
            now_s = self._clock()
            attains = {replica.uid: reading.attainable for replica, reading in pairs}
            before = self._reports.get(service.key, Reports(now_s))
            self._reports[service.key] = reports = record(before, attains, now_s)
            known = attainable(reports, now_s)
            if known is not None and known != self._attainable.get(service.key):
                self._attainable[service.key] = known
                self._changed(service.key)
        if service.scaled is None:
            return
        if await self._waiting.follow(service.key, service.replicas, readings):
            self._leave(service.key)
        else:
            await self._follow(cluster, service, service.scaled, readings)

    def _leave(self, key: Key) -> None:
        """Say nothing of a service that sleeps or wakes; the number that it wakes with is nobody's."""
        followed = self._followed.get(key)
        if followed is None:
            return
        said = followed.told is not None
        followed.told = followed.explanation = followed.limited = followed.standing = None
        followed.state = replace(followed.state, decided=None)
        if said:
            self._changed(key)

    async def _follow(self, cluster: _Cluster, service: Watched, scaled: Scaled, readings: Sequence[Reading]) -> None:
        now_s, key = self._clock(), service.key
        followed = self._followed.setdefault(key, _Followed())
        pairs = zip(service.replicas, readings, strict=True)
        signals = followed.memory.hear({replica.uid: reading.load for replica, reading in pairs}, now_s, scaled.aim)
        if (decided := followed.state.decided) not in (None, scaled.replicas):
            followed.conflicts = followed.conflicts.saw(scaled.writer, scaled.replicas - decided, now_s, self._window_s)
        decision, followed.state = decide(
            scaled.aim, signals, scaled.replicas, followed.state, now_s, service.around, window_s=self._window_s
        )
        followed.standing = _standing(key, decision, signals, panicking=now_s < followed.state.panic_s)
        if decision.limit is not None:
            followed.limited = (decision.limit, now_s)
        elif followed.limited is not None and now_s - followed.limited[1] >= _LIMITED_S:
            followed.limited = None
        if decision.replicas < scaled.replicas:
            await self._choose(cluster, service, followed, decision.replicas)
        if decision.replicas != scaled.replicas:
            why = decision.sentence.partition(": ")[2]
            if await self._replicas.write(cluster, key, scaled, decision.replicas, why):
                followed.conflicts = followed.conflicts.wrote(decision.replicas - scaled.replicas, self._clock())
            else:
                # Else what is there would be taken for a number set by hand.
                followed.state = replace(followed.state, decided=scaled.replicas)
        # After the write: what it makes others look at must not be older than it.
        self._tell(key, followed, decision, readings, now_s)

    def _tell(
        self, key: Key, followed: _Followed, decision: Decision, readings: Sequence[Reading], now_s: float
    ) -> None:
        """Note what is to be said: of a service's count at once, of its load now and then, as that is always new."""
        told, limit = followed.told, followed.limited[0] if followed.limited else None
        if decision.reason is None:
            return
        said = Scaling(
            decision.reason, unread(readings), decision.sentence, limit, followed.conflicts.told(now_s, self._window_s)
        )
        if told is not None and replace(said, sentence=told.sentence) == told and not followed.is_due(decision, now_s):
            return
        followed.told, followed.explanation, followed.told_s = said, decision.explanation, now_s
        self._changed(key)

    async def _choose(self, cluster: _Cluster, service: Watched, followed: _Followed, replicas: int) -> None:
        """Mark the pods that are to go. Those that are not ready go before them, and are no loss."""
        chosen = victims(followed.memory.rows(), len(service.replicas) - replicas)
        costs = {uid: 0 for uid in followed.marked if uid not in chosen} | dict.fromkeys(chosen, _COST_OF_A_VICTIM)
        followed.marked = frozenset(chosen)
        for replica in service.replicas:
            if replica.uid not in costs:
                continue
            try:
                await cluster.set_deletion_cost(
                    Key(service.key.namespace, replica.name), replica.uid, costs[replica.uid]
                )
            except (ApiError, NotLeadingError) as error:
                # It says who goes first; somebody goes all the same.
                logger.warning("event=choosing_failed service=%s pod=%s error=%s", service.key, replica.name, error)
                return

    def _record_rows(self, key: Key, readings: Mapping[str, Reading]) -> None:
        before = self._independent.get(key)
        if before is None and all(reading.load is None for reading in readings.values()):
            return
        self._independent[key] = said = record_rows(before, readings)
        if said != (before or {}):
            self._changed(key)

    def _forget(self, services: Sequence[Watched]) -> None:
        for known in (self._doubted_s, self._read_s, self._pods):
            for key in known.keys() - {service.key for service in services}:
                known.pop(key)
        if self._reads_all:
            for key in self._independent.keys() - {service.key for service in services}:
                self._independent.pop(key)
        for key in self._followed.keys() - {service.key for service in services if service.scaled}:
            self._followed.pop(key)
        for key in self._reports.keys() - {service.key for service in services if service.has_objective}:
            self._reports.pop(key)
            self._attainable.pop(key, None)


def _standing(key: Key, decision: Decision, signals: Signals | None, *, panicking: bool) -> Standing | None:
    if signals is None or decision.wanted is None:
        return None
    last = signals.last
    return Standing(
        key, decision.replicas, signals.ready, last.rows, last.offered_rows_per_s, decision.wanted.each, panicking
    )
