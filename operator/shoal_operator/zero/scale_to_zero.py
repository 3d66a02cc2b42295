"""Scale to zero and back, with the activator.

The activator polls the operator for its routing table; the operator polls the activator for held requests.
"""

import asyncio
import contextlib
import logging
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from shoal_operator.children.observation import Key, Observation, dig, key_of
from shoal_operator.cluster.interface import Cluster
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import DEPLOYMENT, ENDPOINT_SLICE
from shoal_operator.manifests.environment import HTTP_PORT
from shoal_operator.manifests.specs import service_spec
from shoal_operator.manifests.target import Hosting
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.replicas import ReplicaWriter
from shoal_operator.scaling.service_cache import CachedService, Replica
from shoal_operator.zero.activator import (
    NO_ACTIVATOR,
    NoActivatorError,
    TableVersion,
    activator_problem,
    held_asynchronously,
    is_externally_scaled,
    max_forwards,
    scales_to_zero,
)
from shoal_operator.zero.activator_pods import ActivatorPods
from shoal_operator.zero.decision import ZeroObservation, decide, scaling_reason
from shoal_operator.zero.hosted import HostedService, ReservedPort, WithoutPort
from shoal_operator.zero.ports import Ports, port_range, stored_port
from shoal_schema.decoding import SpecError
from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.activator import MAX_POLL_S, ActivatorReport, ActivatorService, ActivatorTable, encode
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.service import InferenceServiceSpec

logger = logging.getLogger(__name__)

_STOPPING_S = 5.0
"""How long pods of a Deployment that had no replicas get no requests, as they may be stopping unnoticed."""
_FIRST_RECONCILIATIONS_S = 30.0
"""The longest wait for all services to be reconciled after the start; until then activators keep their table."""


class ScaleToZero:
    """Scaling of services to zero and back, with the activator.

    Args:
        records: states of all services.
        settings: selector and ports of the activator.
        changed: schedules a service's reconciliation after a delay (s).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        records: Records,
        settings: OperatorProcess,
        changed: Callable[[Key, float], object],
        clock: Callable[[], float],
    ) -> None:
        self._records = records
        self._replica_writer = ReplicaWriter(records, lambda key: changed(key, 0.0))
        self._settings = settings
        self._ports = Ports(port_range(settings.activator_first_port, settings.activator_ports))
        self._changed = changed
        self._clock = clock
        self._version = TableVersion(uuid.uuid4().hex[:8])
        self._table_changed = asyncio.Event()
        self._listed = False
        self._complete_by_s = math.inf
        self._activator_pods = ActivatorPods(
            settings,
            changed=self._activators_changed,
            received=self._receive,
            version_of=lambda mark: self._version.read(mark),  # noqa: PLW0108 (`start` replaces the version)
            clock=clock,
        )
        self._cluster: Cluster | None = None

    # Called by the reconciler.

    def host(self, key: Key, spec: InferenceServiceSpec, observation: Observation) -> Hosting | None:
        """Return a service's activator port and endpoints, or None if not needed.

        Raises:
            NoActivatorError: no activator is installed, or no port is free.
        """
        at_zero = scales_to_zero(spec)
        if at_zero and not self._settings.activator_selector:
            raise NoActivatorError(NO_ACTIVATOR)
        # A service that no longer scales to zero keeps its place until its pods are ready, if it will have any.
        hosted = self._records.find(key, HostedService)
        lingers = (
            hosted is not None
            and observation.owned(ENDPOINT_SLICE)
            and (spec.replicas or not is_externally_scaled(spec))
        )
        if not (at_zero or lingers):
            for kind in (HostedService, ReservedPort, WithoutPort):
                self._records.remove(key, kind)
            return None
        hosted = hosted or self._admit(key, spec, stored_port(observation.resource))
        hosted.spec = spec
        # The table must contain the service before activators are endpoints, and before any pod stops.
        self._write(key, hosted)
        served = bool(observation.endpoints and self._serving_pods(key, hosted))
        waking = hosted.state is not None and hosted.state.is_waking and not served
        activators = [activator for activator in self._activator_pods.known if activator.serves(key)]
        own_slice = observation.owned(ENDPOINT_SLICE) or observation.orphaned(ENDPOINT_SLICE)
        theirs = ENDPOINT_SLICE in observation.children and not own_slice
        held = not theirs and not all(activator.silent for activator in activators)
        running = dig(observation.owned(DEPLOYMENT), "spec", "replicas", default=0)
        problem = ""
        if hosted.scales_to_zero and theirs:
            problem = f"EndpointSlice {key.name} has another owner, so no requests reach the activator. Delete it"
        elif hosted.scales_to_zero:
            listing = (
                f"kubectl get deployments,pods --namespace {self._settings.namespace}"
                f" --selector {self._settings.activator_selector}"
            )
            problem = activator_problem(key, hosted.port, self._activator_pods.known, listing=listing)
        return Hosting(
            hosted.port,
            tuple(sorted(activator.address for activator in activators)),
            open=hosted.holding or not served,
            waking=waking,
            held=held,
            problem=problem,
            kept=running if at_zero and not spec.replicas and not held else 0,
        )

    def _admit(self, key: Key, spec: InferenceServiceSpec, stored: int | None) -> HostedService:
        """Give a service a port and an entry of the routing table.

        Raises:
            NoActivatorError: no port is free.
        """
        reserved = self._records.find(key, ReservedPort)
        taken = {
            *(hosted.port for _, hosted in self._records.of(HostedService)),
            *(other.port for each, other in self._records.of(ReservedPort) if each != key),
        }
        try:
            port = self._ports.choose(key, (reserved.port if reserved else None, stored), taken, self._clock())
        except NoActivatorError:
            self._records.put(key, WithoutPort())
            self._await_ports()
            raise
        for kind in (ReservedPort, WithoutPort):
            self._records.remove(key, kind)
        hosted = HostedService(spec, port, partial(self._release, key, port))
        self._records.put(key, hosted)
        return hosted

    def _release(self, key: Key, port: int) -> None:
        """Free a service's port and publish the routing table without the service."""
        self._ports.free(key, port, self._clock())
        self._await_ports()
        self._notify()

    def _await_ports(self) -> None:
        """Reconcile services without a port when a port becomes free."""
        now_s = self._clock()
        if (free_s := self._ports.next_free_s(now_s)) is not None:
            for key, _ in self._records.of(WithoutPort):
                self._changed(key, free_s - now_s)

    def observe(self, key: Key, observation: Observation) -> None:
        """Record a service's objects at the end of a reconciliation."""
        hosted = self._records.find(key, HostedService)
        if hosted is None:
            return
        slice_ = observation.owned(ENDPOINT_SLICE)
        hosted.in_path = bool(slice_)
        hosted.endpoints = tuple(each for endpoint in slice_.get("endpoints") or () for each in endpoint["addresses"])
        if not hosted.scales_to_zero and not hosted.in_path:
            self._records.remove(key, HostedService)
            return
        # Pods of a Deployment without replicas get no requests, although they may still look ready.
        stopping_until_s = self._clock() + _STOPPING_S
        if dig(observation.children.get(DEPLOYMENT), "spec", "replicas") == 0:
            hosted.stopping_until_s = {replica.uid: stopping_until_s for replica in self._cached(key).replicas}
        self._write(key, hosted)

    # Called by the autoscaler.

    async def process_readings(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool:
        """Record pods' loads; return whether scale to zero decides the replicas."""
        hosted = self._records.find(key, HostedService)
        if hosted is None:
            # A service without a place in the activator keeps its replicas; its status states why.
            scaled = self._cached(key).scaled
            return scaled is not None and scaled.zero is not None
        loads = {replica.uid: reading.load for replica, reading in zip(replicas, readings, strict=True)}
        arrived = {uid: load.arrived_rows if load else None for uid, load in loads.items()}
        # Without a reading of every pod, a request must be assumed.
        idle = all(load and not load.queued_rows + load.running_rows for load in loads.values())
        requested = not idle or arrived != hosted.arrived
        hosted.arrived = arrived
        self._write(key, hosted)
        return await self._decide(key, hosted, requested=requested)

    async def _decide(self, key: Key, hosted: HostedService, *, requested: bool) -> bool:
        cached = self._cached(key)
        scaled = cached.scaled
        if scaled is None or scaled.zero is None or self._cluster is None:
            return False
        seen = ZeroObservation(
            replicas=scaled.replicas,
            ready=len(cached.replicas),
            requested=requested,
            waiting=sum(activator.waiting.get(str(key), 0) for activator in self._activator_pods.known),
            held=self._holds(key, hosted),
        )
        # A new phase changes the entry of the table and the status.
        before = hosted.phase
        decision, hosted.state = decide(scaled.zero, seen, hosted.state, self._clock())
        if decision.phase is not before:
            logger.info("event=zero service=%s phase=%s was=%s waiting=%d", key, decision.phase, before, seen.waiting)
            self._write(key, hosted)
            self._changed(key, 0.0)
        # An earlier write for this service may still be in progress.
        if decision.replicas not in (None, scaled.replicas) and not hosted.stepping:
            hosted.stepping = True
            try:
                await self._replica_writer.write(
                    self._cluster, key, scaled, decision.replicas, scaling_reason(scaled.zero, seen)
                )
            finally:
                hosted.stepping = False
        return decision.replicas is not None

    def _holds(self, key: Key, hosted: HostedService) -> bool:
        """Return whether all activators of a service have the newest routing entry."""
        holding = {
            activator.address
            for activator in self._activator_pods.known
            if activator.serves(key) and activator.version >= hosted.version
        }
        return bool(hosted.endpoints) and holding.issuperset(hosted.endpoints)

    # Called by the activator, through the operator's HTTP endpoint.

    async def routing_table(self, seen: str) -> bytes | None:
        """Return the routing table when it differs from ``seen``, or at a timeout.

        None until this operator leads and has reconciled every service that scales to zero, because an activator closes
        the ports that the table does not contain.
        """
        if not self._is_complete():
            return None
        if seen == self._version.mark:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_POLL_S):
                    await self._table_changed.wait()
        if not self._is_complete():
            return None
        entries = sorted((key, hosted.entry) for key, hosted in self._records.of(HostedService) if hosted.entry)
        peers = tuple(sorted(pod.address for pod in self._activator_pods.known))
        return encode(ActivatorTable(self._version.mark, tuple(entry for _, entry in entries), peers))

    def _is_complete(self) -> bool:
        return self._listed and (
            next(self._records.of(ReservedPort), None) is None or self._clock() >= self._complete_by_s
        )

    def _write(self, key: Key, hosted: HostedService) -> None:
        """Write the service's entry of the routing table."""
        pods = [] if hosted.holding else self._serving_pods(key, hosted)
        entry = ActivatorService(
            name=str(key),
            port=hosted.port,
            addresses=tuple(sorted(str(TcpAddress(pod.address, HTTP_PORT)) for pod in pods)),
            timeout_s=hosted.spec.queue.timeout_milliseconds / 1000,
            max_body_bytes=hosted.spec.queue.max_body_bytes,
            forwards=max_forwards(hosted.spec),
            start_s=self._cached(key).context.start_s,
            asynchronous=held_asynchronously(hosted.spec),
        )
        # An unchanged entry must not wake up the long polls.
        if hosted.entry != entry:
            hosted.entry = entry
            self._notify()
            hosted.version = self._version.number

    def _serving_pods(self, key: Key, hosted: HostedService) -> list[Replica]:
        now_s = self._clock()
        return [pod for pod in self._cached(key).replicas if hosted.stopping_until_s.get(pod.uid, now_s) <= now_s]

    def _cached(self, key: Key) -> CachedService:
        return self._records.find(key, CachedService) or CachedService()

    def _notify(self) -> None:
        """Publish a new version of the routing table."""
        self._version.number += 1
        self._table_changed.set()
        self._table_changed = asyncio.Event()

    # Polling of the activator.

    async def start(self, cluster: Cluster, services: Iterable[Json]) -> None:
        """Read ports and activators before the first reconciliation, so that no EndpointSlice loses its addresses.

        Raises:
            ApiError: the activator's pods could not be listed.
        """
        if not self._settings.activator_selector:
            return
        self._cluster = cluster
        # Another operator may have led since this one did: drop the old state.
        self._version = TableVersion(uuid.uuid4().hex[:8])
        for kind in (HostedService, ReservedPort, WithoutPort):
            self._records.remove_all(kind)
        self._activator_pods.clear()
        self._ports.clear()
        # Reserve the ports that statuses name, so that no other service gets them.
        for resource in services:
            # An invalid spec has no place in the activator.
            with contextlib.suppress(SpecError):
                if scales_to_zero(service_spec(resource)):
                    self._reserve(key_of(resource), stored_port(resource))
        self._complete_by_s = self._clock() + _FIRST_RECONCILIATIONS_S
        self._listed = True
        await self._activator_pods.find(cluster)

    async def run(self, cluster: Cluster) -> None:
        """Poll the activator until cancelled.

        Return at once if no activator is installed.
        """
        if not self._settings.activator_selector:
            return
        try:
            await self._activator_pods.run(cluster)
        finally:
            self._listed = False

    def _reserve(self, key: Key, port: int | None) -> None:
        """Reserve the activator's port that a service's status names.

        A port outside the range, or one that is already reserved, is ignored.
        """
        reserved = {each.port for _, each in self._records.of(ReservedPort)}
        if port is not None and port in self._ports.port_range and port not in reserved:
            self._records.put(key, ReservedPort(port, partial(self._release, key, port)))

    def _activators_changed(self) -> None:
        # The table contains the addresses of all activators.
        self._notify()
        for key, _ in self._records.of(HostedService):
            self._changed(key, 0.0)

    def _receive(self, news: ActivatorReport, tasks: asyncio.TaskGroup) -> None:
        for key, hosted in self._records.of(HostedService):
            if news.waiting.get(str(key)):
                tasks.create_task(self._wake(key, hosted))

    async def _wake(self, key: Key, hosted: HostedService) -> None:
        try:
            await self._decide(key, hosted, requested=True)
        except Exception:  # an unexpected error of one service must not stop the others
            logger.exception("event=waking_failed service=%s", key)
