"""The autoscaler's loop: read the proxies, set replicas by their load, record latency objectives and row checks."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol
from zlib import crc32

import msgspec

from shoal_operator.children.observation import Key
from shoal_operator.cluster.interface import Cluster
from shoal_operator.errors import ApiError, NotLeadingError
from shoal_operator.loop.records import Records
from shoal_operator.scaling.decision import ScalingDecision, decide
from shoal_operator.scaling.independence import record_row_checks
from shoal_operator.scaling.limits import pods_to_remove
from shoal_operator.scaling.load_state import LastDecision, LoadState, ScalingState
from shoal_operator.scaling.objective import ObjectiveReports, attainable, record_reports
from shoal_operator.scaling.precisions import record_precisions
from shoal_operator.scaling.reading import Reading, no_load_reason
from shoal_operator.scaling.replicas import ReplicaWriter
from shoal_operator.scaling.report import ScalingReport
from shoal_operator.scaling.service_cache import CachedService, Replica, ScaledService
from shoal_schema.interfaces.fleet import Fleet as FleetReport
from shoal_schema.interfaces.fleet import FleetPod, FleetService

logger = logging.getLogger(__name__)

_DOUBT_S = 30.0
_LIMITED_S = 60.0
"""A limit is reported until it has not applied for this long, as the load varies around it."""
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


class _ScaleToZero(Protocol):
    async def process_readings(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool: ...


class Autoscaler:
    """Loop that reads the pods of watched services and sets replicas by load.

    Args:
        changed: schedules a service's reconciliation: its status must change, or its cached pods may be outdated.
        clock: monotonic seconds.
        window_s: time for which replicas do not fall below a recommendation (s).
        scale_to_zero: decides first about services that scale to zero.
    """

    def __init__(
        self,
        records: Records,
        source: _Source,
        changed: Callable[[Key], None],
        clock: Callable[[], float],
        *,
        window_s: float,
        scale_to_zero: _ScaleToZero,
    ) -> None:
        self._records = records
        self._replica_writer = ReplicaWriter(records, changed)
        self._source = source
        self._changed = changed
        self._clock = clock
        self._window_s = window_s
        self._scale_to_zero = scale_to_zero
        self._shown_s = self._all_s = -math.inf
        self._reads_all = False
        self._runs = False

    def fleet_report(self) -> bytes | None:
        """Return all pods' last loads as JSON; None if the autoscaler is stopped."""
        self._shown_s = self._clock()
        if not self._runs:
            return None
        states = self._records.of(LoadState)
        services = (
            FleetService(key.namespace, key.name, each.pods, each.candidates)
            for key, each in states
            if each.pods is not None
        )
        return msgspec.json.encode(FleetReport(tuple(services)))

    def last_decisions(self) -> Iterator[tuple[Key, LastDecision]]:
        """Yield the last decision for each service that scales and could be read."""
        for key, state in self._records.of(LoadState):
            if state.scaling and state.scaling.last_decision:
                yield key, state.scaling.last_decision

    def oldest_reading_s(self) -> float:
        """Return the age of the oldest reading among all services (s)."""
        times_s = (state.read_s for _, state in self._records.of(LoadState) if state.read_s is not None)
        return self._clock() - min(times_s, default=self._clock())

    async def run(self, cluster: Cluster, interval_s: float) -> None:
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

    def tick(self, cluster: Cluster, tasks: asyncio.TaskGroup, part: int | None = None) -> None:
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
        watched = {
            key: service for key, service in self._records.of(CachedService) if service.follows_load or self._reads_all
        }
        if not part:
            self._drop_outdated(watched)
        for key, service in watched.items():
            state = self._records.get(key, LoadState)
            state.read_s = self._clock() if state.read_s is None else state.read_s
            if not state.reading and part in (None, crc32(str(key).encode()) % _PARTS):
                state.reading = True
                # A copy: the pods that are read stay the same.
                tasks.create_task(self._read(cluster, key, replace(service), state))

    async def _read(self, cluster: Cluster, key: Key, service: CachedService, state: LoadState) -> None:
        try:
            await self._process(cluster, key, service, state)
        except Exception:  # an unexpected error of one service must not stop the others
            logger.exception("event=scaling_failed service=%s", key)
        finally:
            state.reading = False

    async def _process(self, cluster: Cluster, key: Key, service: CachedService, state: LoadState) -> None:
        shown = service.candidates if self._clock() - self._shown_s < _SHOWN_S else ()
        readings, compared = await asyncio.gather(self._source.read(service.replicas), self._source.read(shown))
        state.read_s = now_s = self._clock()
        pairs = list(zip(service.replicas, readings, strict=True))
        state.pods = tuple(FleetPod(replica.name, reading.load) for replica, reading in pairs)
        state.candidates = tuple(FleetPod(pod.name, each.load) for pod, each in zip(shown, compared, strict=True))
        self._record_reports(key, state, {replica.uid: reading for replica, reading in pairs})
        # Reconcile from time to time: a pod that cannot be read may no longer exist.
        if any(reading.load is None for reading in readings) and now_s - state.doubted_s >= _DOUBT_S:
            state.doubted_s = now_s
            self._changed(key)
        if service.has_objective:
            attains = {replica.uid: reading.attainable for replica, reading in pairs}
            state.objective = record_reports(state.objective or ObjectiveReports(now_s), attains, now_s)
            known = attainable(state.objective, now_s)
            if known is not None and known != state.attainable:
                state.attainable = known
                self._changed(key)
        if service.scaled is None:
            return
        # At zero and on the way from zero, the activator decides.
        if await self._scale_to_zero.process_readings(key, service.replicas, readings):
            self._suspend(key, state)
        else:
            await self._follow(cluster, key, service, service.scaled, state, readings)

    def _record_reports(self, key: Key, state: LoadState, readings: Mapping[str, Reading]) -> None:
        """Record the pods' row checks and precisions."""
        rows, precisions = state.independent, state.precisions
        if rows is None and all(reading.load is None for reading in readings.values()):
            return
        state.independent = record_row_checks(rows, readings)
        state.precisions = record_precisions(precisions, readings)
        if (state.independent, state.precisions) != (rows or {}, precisions or {}):
            self._changed(key)

    def _suspend(self, key: Key, state: LoadState) -> None:
        """Drop the last decision and report on a service's replicas.

        Called while the service scales to or from zero, when the load does not decide.
        """
        if state.scaling is None:
            return
        was_reported, state.reported = state.reported is not None, None
        scaling = state.scaling
        scaling.explanation = scaling.limited = scaling.last_decision = None
        scaling.state = replace(scaling.state, decided=None)
        if was_reported:
            self._changed(key)

    async def _follow(
        self,
        cluster: Cluster,
        key: Key,
        service: CachedService,
        scaled: ScaledService,
        load: LoadState,
        readings: Sequence[Reading],
    ) -> None:
        now_s = self._clock()
        scaling = load.scaling = load.scaling or ScalingState()
        pairs = zip(service.replicas, readings, strict=True)
        signals = scaling.history.record(
            {replica.uid: reading.load for replica, reading in pairs}, now_s, scaled.targets
        )
        # A count that this operator did not set: remember who set it.
        if (decided := scaling.state.decided) not in (None, scaled.replicas):
            scaling.conflicts = scaling.conflicts.observe(
                scaled.writer, scaled.replicas - decided, now_s, self._window_s
            )
        decision, scaling.state = decide(
            scaled.targets,
            signals,
            scaled.replicas,
            scaling.state,
            now_s,
            service.context,
            window_s=self._window_s,
        )
        scaling.last_decision = None
        if signals is not None and decision.recommendation is not None:
            scaling.last_decision = LastDecision(
                desired=decision.replicas,
                ready=signals.ready,
                rows=signals.last.rows,
                offered_rows_per_s=signals.last.offered_rows_per_s,
                each=decision.recommendation.each,
                panicking=now_s < scaling.state.panic_s,
            )
        # Keep reporting a limit for a while, as the load varies around it.
        if decision.limit is not None:
            scaling.limited = (decision.limit, now_s)
        elif scaling.limited is not None and now_s - scaling.limited[1] >= _LIMITED_S:
            scaling.limited = None
        # Before the write, so that the Deployment removes the right pods.
        if decision.replicas < scaled.replicas:
            await self._mark_pods_to_remove(cluster, key, service, scaling, decision.replicas)
        if decision.replicas != scaled.replicas:
            why = decision.sentence.partition(": ")[2]
            if await self._replica_writer.write(cluster, key, scaled, decision.replicas, why):
                scaling.conflicts = scaling.conflicts.record_write(decision.replicas - scaled.replicas, self._clock())
            else:
                # Otherwise the stored count would look like one that was set by hand.
                scaling.state = replace(scaling.state, decided=scaled.replicas)
        # After the write, so that the reconciliation that follows reads the new count.
        self._report(key, load, decision, readings, now_s)

    def _report(
        self, key: Key, load: LoadState, decision: ScalingDecision, readings: Sequence[Reading], now_s: float
    ) -> None:
        """Report a decision in the service's status.

        A new count or limit is reported immediately. The load changes at each tick, so it is reported at intervals.
        """
        scaling = load.scaling
        if decision.reason is None or scaling is None:
            return
        before, limit = load.reported, scaling.limited[0] if scaling.limited else None
        writer = scaling.conflicts.conflicting_writer(now_s)
        report = ScalingReport(decision.reason, no_load_reason(readings), decision.sentence, limit, writer)
        same = before is not None and replace(report, sentence=before.sentence) == before
        if same and not scaling.is_due(decision, now_s):
            return
        load.reported, scaling.explanation, scaling.reported_s = report, decision.explanation, now_s
        self._changed(key)

    async def _mark_pods_to_remove(
        self, cluster: Cluster, key: Key, service: CachedService, scaling: ScalingState, replicas: int
    ) -> None:
        """Give the pods to remove a lower deletion cost than the others."""
        chosen = pods_to_remove(scaling.history.rows(), len(service.replicas) - replicas)
        # Reset the cost of pods that were chosen earlier and survived.
        costs = {uid: 0 for uid in scaling.to_remove if uid not in chosen} | dict.fromkeys(chosen, _REMOVAL_COST)
        scaling.to_remove = frozenset(chosen)
        for replica in service.replicas:
            if replica.uid not in costs:
                continue
            try:
                await cluster.set_deletion_cost(Key(key.namespace, replica.name), replica.uid, costs[replica.uid])
            except (ApiError, NotLeadingError) as error:
                # The count falls anyway; only the choice of pods is the Deployment's then.
                logger.warning("event=choosing_failed service=%s pod=%s error=%s", key, replica.name, error)
                return

    def _drop_outdated(self, watched: Mapping[Key, CachedService]) -> None:
        """Drop cached readings and decisions that services no longer need.

        Everything is dropped for a service that is no longer watched, the scaling decisions for a service that no
        longer scales, and the latency reports for a service without an objective.
        """
        for key, state in self._records.of(LoadState):
            service = watched.get(key)
            if service is None:
                state.read_s, state.pods, state.doubted_s = None, None, -math.inf
            if service is None or service.scaled is None:
                state.scaling = state.reported = None
            if service is None or not service.has_objective:
                state.objective = state.attainable = None
