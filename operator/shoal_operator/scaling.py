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
from shoal_operator.autoscaler.decision import AutoscalerState, ScalingDecision, ScalingLimit, decide
from shoal_operator.autoscaler.explanation import Explanation, differs, is_stale
from shoal_operator.autoscaler.limits import pods_to_remove
from shoal_operator.autoscaler.signals import LoadHistory
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.load.independence import record_row_checks
from shoal_operator.load.objective import ObjectiveReports, attainable, record_reports
from shoal_operator.load.reading import Reading, no_load_reason
from shoal_operator.load.service_cache import Replica, ScaledService, ServiceCache, WatchedService
from shoal_operator.planning.evidence import Scaling
from shoal_operator.planning.observation import Key
from shoal_operator.replicas import ReplicaWriter, ScaleCluster
from shoal_schema.fleet import Fleet as FleetReport
from shoal_schema.fleet import FleetPod, FleetService

logger = logging.getLogger(__name__)

_DOUBT_S = 30.0
_LIMITED_S = 60.0
"""A limit is reported until it has not applied for this long, as the load varies around it."""
_RENEWED_S = 60.0
"""Minimum age of a reported load before it is replaced: each report costs a reconciliation and a status write."""
_REMOVAL_COST = -1
"""Deletion cost of pods to remove; less than the default of 0."""
_SHOWN_S = 30.0
"""How long all services are read after a request for the fleet report, also those without scaling or objective."""
_ALL_S = 30.0
"""Period in which services without scaling or objective are read, for their row checks."""
_PARTS = 10
"""Parts of an interval: services are read in turns, which spreads the requests to many services."""


class _Source(Protocol):
    async def read(self, replicas: Sequence[Replica]) -> Sequence[Reading]: ...


class _Cluster(ScaleCluster, Protocol):
    async def set_deletion_cost(self, key: Key, uid: str, cost: int) -> None: ...


@dataclass(frozen=True, slots=True)
class LastDecision:
    """One service's last decision, for metrics."""

    key: Key
    desired: int
    ready: int
    rows: float
    offered_rows_per_s: float
    each: float
    """Target of one replica, in rows or rows per second: see `Recommendation` of the autoscaler."""
    panicking: bool


@dataclass(slots=True)
class _ServiceState:
    history: LoadHistory = field(default_factory=LoadHistory)
    state: AutoscalerState = field(default_factory=AutoscalerState)
    reported: Scaling | None = None
    explanation: Explanation | None = None
    """The reported explanation of the count."""
    reported_s: float = -math.inf
    conflicts: ReplicaConflicts = field(default_factory=ReplicaConflicts)
    to_remove: frozenset[str] = frozenset()
    """Pods, by uid, that were chosen for removal at the last decrease; they may still exist."""
    limited: tuple[ScalingLimit, float] | None = None
    """The last limit of the count, and when it last applied."""
    last_decision: LastDecision | None = None

    def is_due(self, decision: ScalingDecision, now_s: float) -> bool:
        """Return whether the reported explanation must be replaced."""
        before, now = self.explanation, decision.explanation
        if before is None or now is None:
            return before is not now
        return differs(before, now) or (now_s - self.reported_s >= _RENEWED_S and is_stale(before, now))


class _ScaleToZero(Protocol):
    async def process_readings(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool: ...


class Autoscaler:
    """Loop that reads the pods of watched services and sets replicas by load.

    Args:
        changed: schedules a service's reconciliation, if its status must change or its cached pods may be outdated.
        clock: monotonic seconds.
        window_s: time for which replicas do not fall below a recommendation (s).
        scale_to_zero: decides first about services that scale to zero.
    """

    def __init__(
        self,
        cache: ServiceCache,
        source: _Source,
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        *,
        window_s: float,
        scale_to_zero: _ScaleToZero,
    ) -> None:
        self._cache = cache
        self._replica_writer = ReplicaWriter(cache, changed)
        self._source = source
        self._changed = changed
        self._clock = clock
        self._window_s = window_s
        self._scale_to_zero = scale_to_zero
        self._reading: set[Key] = set()
        self._read_s: dict[Key, float] = {}
        self._doubted_s: dict[Key, float] = {}
        self._service_states: dict[Key, _ServiceState] = {}
        self._reports: dict[Key, ObjectiveReports] = {}
        self._attainable: dict[Key, Mapping[str, bool]] = {}
        self._independent: dict[Key, dict[str, bool]] = {}
        self._shown_s = self._all_s = -math.inf
        self._reads_all = False
        self._pods: dict[Key, tuple[FleetPod, ...]] = {}
        self._runs = False

    def fleet_report(self) -> bytes | None:
        """Return all pods' last loads as JSON; None if the autoscaler is stopped."""
        self._shown_s = self._clock()
        services = (FleetService(key.namespace, key.name, pods) for key, pods in self._pods.items())
        return msgspec.json.encode(FleetReport(tuple(services))) if self._runs else None

    def scaling(self, key: Key) -> Scaling | None:
        """Return the autoscaler's last report on a service; None before the first."""
        service_state = self._service_states.get(key)
        return None if service_state is None else service_state.reported

    def attainable(self, key: Key) -> Mapping[str, bool] | None:
        """Return by uid whether pods can meet their objective; None if unknown."""
        return self._attainable.get(key)

    def independent(self, key: Key) -> Mapping[str, bool] | None:
        """Return by uid the results of the pods' row checks; None if unknown."""
        return self._independent.get(key)

    def last_decisions(self) -> Iterator[LastDecision]:
        """Yield the last decision for each service that scales and could be read."""
        return (
            service_state.last_decision
            for service_state in self._service_states.values()
            if service_state.last_decision
        )

    def oldest_reading_s(self) -> float:
        """Return the age of the oldest reading among all services (s)."""
        return self._clock() - min(self._read_s.values(), default=self._clock())

    async def run(self, cluster: _Cluster, interval_s: float) -> None:
        """Read all watched services every ``interval_s`` until cancelled."""
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
        """Start to read each watched service that is not being read already.

        Args:
            cluster: receives the writes.
            tasks: runs the readings.
            part: which tenth of the services to read, from 0; None for all services.
        """
        # Decide once per interval whether services without scaling or objective are included.
        if not part:
            self._reads_all = self._clock() - self._shown_s < _SHOWN_S or self._clock() - self._all_s >= _ALL_S
            if self._reads_all:
                self._all_s = self._clock()
        services = list(self._cache.watched(all_services=self._reads_all))
        if not part:
            self._forget(services)
        for service in services:
            self._read_s.setdefault(service.key, self._clock())
            if service.key not in self._reading and part in (None, crc32(str(service.key).encode()) % _PARTS):
                self._reading.add(service.key)
                tasks.create_task(self._read(cluster, service))

    async def _read(self, cluster: _Cluster, service: WatchedService) -> None:
        try:
            await self._process(cluster, service)
        except Exception:  # an unexpected error of one service must not stop the others
            logger.exception("event=scaling_failed service=%s", service.key)
        finally:
            self._reading.discard(service.key)

    async def _process(self, cluster: _Cluster, service: WatchedService) -> None:
        readings = await self._source.read(service.replicas)
        self._read_s[service.key] = self._clock()
        pairs = zip(service.replicas, readings, strict=True)
        self._pods[service.key] = tuple(FleetPod(replica.name, reading.load) for replica, reading in pairs)
        # Results of the row checks.
        by_uid = dict(zip([each.uid for each in service.replicas], readings, strict=True))
        rows_before = self._independent.get(service.key)
        if rows_before is not None or any(reading.load is not None for reading in readings):
            self._independent[service.key] = rows = record_row_checks(rows_before, by_uid)
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
            before = self._reports.get(service.key, ObjectiveReports(now_s))
            self._reports[service.key] = reports = record_reports(before, attains, now_s)
            known = attainable(reports, now_s)
            if known is not None and known != self._attainable.get(service.key):
                self._attainable[service.key] = known
                self._changed(service.key)
        if service.scaled is None:
            return
        # At zero and on the way from zero, the activator decides.
        if await self._scale_to_zero.process_readings(service.key, service.replicas, readings):
            self._suspend(service.key)
        else:
            await self._follow(cluster, service, service.scaled, readings)

    def _suspend(self, key: Key) -> None:
        """Drop the report of a service whose count the activator decides."""
        service_state = self._service_states.get(key)
        if service_state is None:
            return
        was_reported = service_state.reported is not None
        service_state.reported = service_state.explanation = service_state.limited = service_state.last_decision = None
        service_state.state = replace(service_state.state, decided=None)
        if was_reported:
            self._changed(key)

    async def _follow(
        self, cluster: _Cluster, service: WatchedService, scaled: ScaledService, readings: Sequence[Reading]
    ) -> None:
        now_s, key = self._clock(), service.key
        service_state = self._service_states.setdefault(key, _ServiceState())
        pairs = zip(service.replicas, readings, strict=True)
        signals = service_state.history.record(
            {replica.uid: reading.load for replica, reading in pairs}, now_s, scaled.targets
        )
        # A count that this operator did not set: remember who set it.
        if (decided := service_state.state.decided) not in (None, scaled.replicas):
            service_state.conflicts = service_state.conflicts.observe(
                scaled.writer, scaled.replicas - decided, now_s, self._window_s
            )
        decision, service_state.state = decide(
            scaled.targets,
            signals,
            scaled.replicas,
            service_state.state,
            now_s,
            service.context,
            window_s=self._window_s,
        )
        service_state.last_decision = None
        if signals is not None and decision.recommendation is not None:
            service_state.last_decision = LastDecision(
                key,
                desired=decision.replicas,
                ready=signals.ready,
                rows=signals.last.rows,
                offered_rows_per_s=signals.last.offered_rows_per_s,
                each=decision.recommendation.each,
                panicking=now_s < service_state.state.panic_s,
            )
        # Keep reporting a limit for a while, as the load varies around it.
        if decision.limit is not None:
            service_state.limited = (decision.limit, now_s)
        elif service_state.limited is not None and now_s - service_state.limited[1] >= _LIMITED_S:
            service_state.limited = None
        # Before the write, so that the Deployment removes the right pods.
        if decision.replicas < scaled.replicas:
            await self._mark_pods_to_remove(cluster, service, service_state, decision.replicas)
        if decision.replicas != scaled.replicas:
            why = decision.sentence.partition(": ")[2]
            if await self._replica_writer.write(cluster, key, scaled, decision.replicas, why):
                service_state.conflicts = service_state.conflicts.record_write(
                    decision.replicas - scaled.replicas, self._clock()
                )
            else:
                # Otherwise the stored count would look like one that was set by hand.
                service_state.state = replace(service_state.state, decided=scaled.replicas)
        # After the write, so that the reconciliation that follows reads the new count.
        self._report(key, service_state, decision, readings, now_s)

    def _report(
        self,
        key: Key,
        service_state: _ServiceState,
        decision: ScalingDecision,
        readings: Sequence[Reading],
        now_s: float,
    ) -> None:
        """Report a new count or limit immediately, and the load at intervals, since it always changes."""
        before, limit = service_state.reported, service_state.limited[0] if service_state.limited else None
        if decision.reason is None:
            return
        writer = service_state.conflicts.conflicting_writer(now_s, self._window_s)
        report = Scaling(decision.reason, no_load_reason(readings), decision.sentence, limit, writer)
        same = before is not None and replace(report, sentence=before.sentence) == before
        if same and not service_state.is_due(decision, now_s):
            return
        service_state.reported, service_state.explanation, service_state.reported_s = (
            report,
            decision.explanation,
            now_s,
        )
        self._changed(key)

    async def _mark_pods_to_remove(
        self, cluster: _Cluster, service: WatchedService, service_state: _ServiceState, replicas: int
    ) -> None:
        """Give the pods to remove a lower deletion cost than the others."""
        chosen = pods_to_remove(service_state.history.rows(), len(service.replicas) - replicas)
        # Reset the cost of pods that were chosen earlier and survived.
        costs = {uid: 0 for uid in service_state.to_remove if uid not in chosen} | dict.fromkeys(chosen, _REMOVAL_COST)
        service_state.to_remove = frozenset(chosen)
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

    def _forget(self, services: Sequence[WatchedService]) -> None:
        for known in (self._doubted_s, self._read_s, self._pods):
            for key in known.keys() - {service.key for service in services}:
                known.pop(key)
        if self._reads_all:
            for key in self._independent.keys() - {service.key for service in services}:
                self._independent.pop(key)
        for key in self._service_states.keys() - {service.key for service in services if service.scaled}:
            self._service_states.pop(key)
        for key in self._reports.keys() - {service.key for service in services if service.has_objective}:
            self._reports.pop(key)
            self._attainable.pop(key, None)
