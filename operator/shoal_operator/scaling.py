"""The autoscaler's loop: read the proxies, set replicas by their load, record latency objectives and row checks."""

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
from shoal_operator.autoscaler.signals import Memory
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.load.fleet import Fleet, Replica, Scaled, Watched
from shoal_operator.load.independence import record as record_rows
from shoal_operator.load.objective import Reports, attainable, record
from shoal_operator.load.reading import Reading, unread
from shoal_operator.planning.evidence import Scaling
from shoal_operator.planning.observation import Key
from shoal_operator.replicas import Replicas, ScaleCluster
from shoal_schema.fleet import Fleet as ShownFleet
from shoal_schema.fleet import FleetPod, FleetService

logger = logging.getLogger(__name__)

_DOUBT_S = 30.0
_LIMITED_S = 60.0
"""A limit is reported until it has not applied for this long, as the load varies around it."""
_RENEWED_S = 60.0
"""Minimum age of a reported load before it is replaced: each report costs a reconciliation and a status write."""
_COST_OF_A_VICTIM = -1
"""Deletion cost of pods to remove; less than the default of 0."""
_SHOWN_S = 30.0
"""How long all services are read after a request for the fleet, also those without scaling or objective."""
_ALL_S = 30.0
"""Period in which services without scaling or objective are read, for their row checks."""
_PARTS = 10
"""Parts of an interval: services are read in turns, which spreads the requests of a large fleet."""


class _Source(Protocol):
    async def read(self, replicas: Sequence[Replica]) -> Sequence[Reading]: ...


class _Cluster(ScaleCluster, Protocol):
    async def set_deletion_cost(self, key: Key, uid: str, cost: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """One service's last decision, for metrics."""

    key: Key
    desired: int
    ready: int
    rows: float
    offered_rows_per_s: float
    each: float
    """Target of one replica, in rows or rows per second: see `shoal_operator.autoscaler.want.Want`."""
    panicking: bool


@dataclass(slots=True)
class _Followed:
    """State of a service that scales."""

    memory: Memory = field(default_factory=Memory)
    state: State = field(default_factory=State)
    reported: Scaling | None = None
    explanation: Explanation | None = None
    """The reported explanation of the count."""
    reported_s: float = -math.inf
    conflicts: ReplicaConflicts = field(default_factory=ReplicaConflicts)
    marked: frozenset[str] = frozenset()
    """Pods, by uid, that were chosen for removal at the last decrease; they may still exist."""
    limited: tuple[Limit, float] | None = None
    """The last limit of the count, and when it last applied."""
    standing: Standing | None = None

    def is_due(self, decision: Decision, now_s: float) -> bool:
        """Return whether the reported explanation must be replaced."""
        before, now = self.explanation, decision.explanation
        if before is None or now is None:
            return before is not now
        return is_other(before, now) or (now_s - self.reported_s >= _RENEWED_S and is_stale(before, now))


class _Waiting(Protocol):
    async def follow(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool: ...


class Autoscaler:
    """Read every watched service periodically, and set the replicas of those that scale.

    Args:
        changed: makes a service due, when its status must change or its cached pods may be outdated.
        clock: monotonic seconds.
        window_s: how long a want prevents fewer replicas (s).
        waiting: decides first about services that scale to zero.
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
        self._reading: set[Key] = set()
        self._read_s: dict[Key, float] = {}
        self._doubted_s: dict[Key, float] = {}
        self._followed: dict[Key, _Followed] = {}
        self._reports: dict[Key, Reports] = {}
        self._attainable: dict[Key, Mapping[str, bool]] = {}
        self._independent: dict[Key, dict[str, bool]] = {}
        self._shown_s = self._all_s = -math.inf
        self._reads_all = False
        self._pods: dict[Key, tuple[FleetPod, ...]] = {}
        self._runs = False

    def fleet(self) -> bytes | None:
        """Return the last load of all services' pods, as `shoal_schema.fleet`; None while this operator reads none."""
        self._shown_s = self._clock()
        services = (FleetService(key.namespace, key.name, pods) for key, pods in self._pods.items())
        return msgspec.json.encode(ShownFleet(tuple(services))) if self._runs else None

    def scaling(self, key: Key) -> Scaling | None:
        """Return the last reported decision for a service; None before the first tick."""
        followed = self._followed.get(key)
        return None if followed is None else followed.reported

    def attainable(self, key: Key) -> Mapping[str, bool] | None:
        """Return by uid whether pods can meet their objective; None before the first reading."""
        return self._attainable.get(key)

    def independent(self, key: Key) -> Mapping[str, bool] | None:
        """Return by uid the results of the pods' row checks; None before the first reading."""
        return self._independent.get(key)

    def standings(self) -> Iterator[Standing]:
        """Yield the last decision for each service that scales and could be read."""
        return (followed.standing for followed in self._followed.values() if followed.standing)

    def unread_s(self) -> float:
        """Return the age of the oldest reading among all services (s)."""
        return self._clock() - min(self._read_s.values(), default=self._clock())

    async def run(self, cluster: _Cluster, interval_s: float) -> None:
        """Tick until cancelled."""
        self._runs = True
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    for part in range(_PARTS):
                        self.tick(cluster, tasks, part)
                        await asyncio.sleep(interval_s / _PARTS)
        finally:
            self._runs = False

    def tick(self, cluster: _Cluster, tasks: asyncio.TaskGroup, part: int | None = None) -> None:
        """Start a reading of each watched service, unless its last one is still in progress.

        Args:
            cluster: for writes.
            tasks: runs the readings.
            part: index of the tenth of the services to read; None for all.
        """
        # Decide once per interval whether services without scaling or objective are included.
        if not part:
            self._reads_all = self._clock() - self._shown_s < _SHOWN_S or self._clock() - self._all_s >= _ALL_S
            if self._reads_all:
                self._all_s = self._clock()
        services = list(self._fleet.watched(everyone=self._reads_all))
        if not part:
            # Remove the state of services that are no longer watched, scaled or judged by an objective.
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
        for service in services:
            self._read_s.setdefault(service.key, self._clock())
            if service.key not in self._reading and part in (None, crc32(str(service.key).encode()) % _PARTS):
                self._reading.add(service.key)
                tasks.create_task(self._read(cluster, service))

    async def _read(self, cluster: _Cluster, service: Watched) -> None:
        try:
            await self._process(cluster, service)
        except Exception:  # an unexpected error of one service must not stop the others
            logger.exception("event=scaling_failed service=%s", service.key)
        finally:
            self._reading.discard(service.key)

    async def _process(self, cluster: _Cluster, service: Watched) -> None:
        readings = await self._source.read(service.replicas)
        self._read_s[service.key] = self._clock()
        pairs = zip(service.replicas, readings, strict=True)
        self._pods[service.key] = tuple(FleetPod(replica.name, reading.load) for replica, reading in pairs)
        # Results of the row checks.
        by_uid = dict(zip([each.uid for each in service.replicas], readings, strict=True))
        rows_before = self._independent.get(service.key)
        if rows_before is not None or any(reading.load is not None for reading in readings):
            self._independent[service.key] = rows = record_rows(rows_before, by_uid)
            if rows != (rows_before or {}):
                self._changed(service.key)
        if any(reading.load is None for reading in readings):
            # Reconcile from time to time: a pod that cannot be read may no longer exist.
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
        # At zero and on the way from zero, the activator decides.
        if await self._waiting.follow(service.key, service.replicas, readings):
            self._suspend(service.key)
        else:
            await self._follow(cluster, service, service.scaled, readings)

    def _suspend(self, key: Key) -> None:
        """Drop the report of a service at zero or starting from zero; the activator decides its count."""
        followed = self._followed.get(key)
        if followed is None:
            return
        was_reported = followed.reported is not None
        followed.reported = followed.explanation = followed.limited = followed.standing = None
        followed.state = replace(followed.state, decided=None)
        if was_reported:
            self._changed(key)

    async def _follow(self, cluster: _Cluster, service: Watched, scaled: Scaled, readings: Sequence[Reading]) -> None:
        now_s, key = self._clock(), service.key
        followed = self._followed.setdefault(key, _Followed())
        pairs = zip(service.replicas, readings, strict=True)
        signals = followed.memory.hear({replica.uid: reading.load for replica, reading in pairs}, now_s, scaled.aim)
        # A count that this operator did not set: remember who set it.
        if (decided := followed.state.decided) not in (None, scaled.replicas):
            followed.conflicts = followed.conflicts.saw(scaled.writer, scaled.replicas - decided, now_s, self._window_s)
        decision, followed.state = decide(
            scaled.aim, signals, scaled.replicas, followed.state, now_s, service.around, window_s=self._window_s
        )
        followed.standing = None
        if signals is not None and decision.wanted is not None:
            followed.standing = Standing(
                key,
                desired=decision.replicas,
                ready=signals.ready,
                rows=signals.last.rows,
                offered_rows_per_s=signals.last.offered_rows_per_s,
                each=decision.wanted.each,
                panicking=now_s < followed.state.panic_s,
            )
        # Keep reporting a limit for a while, as the load varies around it.
        if decision.limit is not None:
            followed.limited = (decision.limit, now_s)
        elif followed.limited is not None and now_s - followed.limited[1] >= _LIMITED_S:
            followed.limited = None
        # Before the write, so that the Deployment removes the right pods.
        if decision.replicas < scaled.replicas:
            await self._mark_victims(cluster, service, followed, decision.replicas)
        if decision.replicas != scaled.replicas:
            why = decision.sentence.partition(": ")[2]
            if await self._replicas.write(cluster, key, scaled, decision.replicas, why):
                followed.conflicts = followed.conflicts.wrote(decision.replicas - scaled.replicas, self._clock())
            else:
                # Otherwise the stored count would look like one that was set by hand.
                followed.state = replace(followed.state, decided=scaled.replicas)
        # After the write, so that the reconciliation that follows reads the new count.
        self._report(key, followed, decision, readings, now_s)

    def _report(
        self, key: Key, followed: _Followed, decision: Decision, readings: Sequence[Reading], now_s: float
    ) -> None:
        """Report a new count or limit at once, and a new load from time to time, as it always changes."""
        before, limit = followed.reported, followed.limited[0] if followed.limited else None
        if decision.reason is None:
            return
        writer = followed.conflicts.conflicting_writer(now_s, self._window_s)
        report = Scaling(decision.reason, unread(readings), decision.sentence, limit, writer)
        same = before is not None and replace(report, sentence=before.sentence) == before
        if same and not followed.is_due(decision, now_s):
            return
        followed.reported, followed.explanation, followed.reported_s = report, decision.explanation, now_s
        self._changed(key)

    async def _mark_victims(self, cluster: _Cluster, service: Watched, followed: _Followed, replicas: int) -> None:
        """Lower the deletion cost of the pods to remove. Kubernetes removes pods that are not ready before them."""
        chosen = victims(followed.memory.rows(), len(service.replicas) - replicas)
        # Reset the cost of pods that were chosen earlier and survived.
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
                # The count falls anyway; only the choice of pods is the Deployment's then.
                logger.warning("event=choosing_failed service=%s pod=%s error=%s", service.key, replica.name, error)
                return
