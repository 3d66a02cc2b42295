"""Scale to zero and back, with the activator.

The activator polls the operator for its routing table; the operator polls the activator for held requests.
"""

import asyncio
import contextlib
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal_operator.activator_pods import ActivatorPods, ActivatorsCluster
from shoal_operator.autoscaler.zero import HOLDING, Phase, ZeroObservation, ZeroState, decide, scaling_reason
from shoal_operator.errors import ApiError
from shoal_operator.load.reading import Reading
from shoal_operator.load.service_cache import Replica, ServiceCache
from shoal_operator.manifests.desired import DEPLOYMENT, ENDPOINT_SLICE
from shoal_operator.manifests.environment import HTTP_PORT
from shoal_operator.manifests.specs import service_spec
from shoal_operator.manifests.target import Hosting
from shoal_operator.planning.activator import (
    NO_ACTIVATOR,
    NoActivatorError,
    RoutingTable,
    activator_problem,
    is_externally_scaled,
    max_forwards,
    scales_to_zero,
)
from shoal_operator.planning.observation import Key, Observation, dig, key_of
from shoal_operator.planning.ports import Ports, port_range, stored_port
from shoal_operator.replicas import ReplicaWriter, ScaleCluster
from shoal_schema.activator import (
    MAX_POLL_S,
    ActivatorReport,
    ActivatorService,
    encode,
)
from shoal_schema.addresses import TcpAddress
from shoal_schema.declaring import Json
from shoal_schema.decoding import SpecError
from shoal_schema.processes.operator import OperatorProcess
from shoal_schema.resource.service import InferenceServiceSpec

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
_STOPPING_S = 5.0
"""How long pods of a Deployment that had no replicas get no requests, as they may be stopping unnoticed."""
_FIRST_RECONCILIATIONS_S = 30.0
"""The longest wait for all services to be reconciled after the start; until then activators keep their table."""


class _Cluster(ScaleCluster, ActivatorsCluster, Protocol):
    async def list_services(self, namespaces: Sequence[str]) -> list[Json]: ...


@dataclass(slots=True)
class _HostedService:
    """One service that scales to zero."""

    spec: InferenceServiceSpec
    port: int
    state: ZeroState | None = None
    version: int = 0
    """Version of the routing table with the service's newest entry."""
    in_path: bool = False
    """It has an EndpointSlice, so activators may be among its endpoints."""
    endpoints: tuple[str, ...] = ()
    """Addresses of the activators among its endpoints."""
    arrived: Mapping[str, int | None] = field(default_factory=dict)
    """By uid, each pod's counter of arrived rows; None without a reading."""
    stopping_until_s: dict[str, float] = field(default_factory=dict)
    """By uid, until when pods of a Deployment scaled to zero get no requests."""

    @property
    def phase(self) -> Phase:
        return self.state.phase if self.state else Phase.AWAKE

    @property
    def scales_to_zero(self) -> bool:
        return scales_to_zero(self.spec)

    @property
    def holding(self) -> bool:
        """Whether the service's pods are stopping or gone."""
        return self.scales_to_zero and (self.phase in HOLDING or self.spec.replicas == 0)


class ScaleToZero:
    """Scaling of services to zero and back, with the activator.

    Args:
        cache: scaling and ready pods of services.
        settings: selector and ports of the activator.
        changed: schedules a service's reconciliation after a delay (s).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cache: ServiceCache,
        settings: OperatorProcess,
        changed: Callable[[Key, float], object],
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._replica_writer = ReplicaWriter(cache, lambda key: changed(key, 0.0))
        self._settings = settings
        self._ports = Ports(port_range(settings.activator_first_port, settings.activator_ports))
        self._changed = changed
        self._clock = clock
        self._table = RoutingTable(uuid.uuid4().hex[:8])
        self._table_changed = asyncio.Event()
        self._hosted: dict[Key, _HostedService] = {}
        self._listed = False
        self._complete_by_s = math.inf
        self._activator_pods = ActivatorPods(
            settings,
            changed=self._reconcile_all,
            received=self._receive,
            version_of=lambda mark: self._table.read_version(mark),  # noqa: PLW0108 (`start` replaces the table)
            clock=clock,
        )
        self._stepping: set[Key] = set()
        self._cluster: _Cluster | None = None

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
        lingers = (
            key in self._hosted
            and observation.owned(ENDPOINT_SLICE)
            and (spec.replicas or not is_externally_scaled(spec))
        )
        if not (at_zero or lingers):
            self.forget(key)
            return None
        now_s = self._clock()
        try:
            port = self._ports.assign(key, stored_port(observation.resource), now_s)
        except NoActivatorError:
            self._await_ports(self._ports.awaited(now_s))
            raise
        hosted = self._hosted.setdefault(key, _HostedService(spec, port))
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

    def _await_ports(self, awaited: Mapping[Key, float]) -> None:
        """Reconcile services without a port when a port becomes free."""
        for key, free_s in awaited.items():
            self._changed(key, max(0.0, free_s - self._clock()))

    def observe(self, key: Key, observation: Observation) -> None:
        """Record a service's objects at the end of a reconciliation."""
        hosted = self._hosted.get(key)
        if hosted is None:
            return
        slice_ = observation.owned(ENDPOINT_SLICE)
        hosted.in_path = bool(slice_)
        hosted.endpoints = tuple(each for endpoint in slice_.get("endpoints") or () for each in endpoint["addresses"])
        if not hosted.scales_to_zero and not hosted.in_path:
            self.forget(key)
            return
        # Pods of a Deployment without replicas get no requests, although they may still look ready.
        stopping_until_s = self._clock() + _STOPPING_S
        if dig(observation.children.get(DEPLOYMENT), "spec", "replicas") == 0:
            hosted.stopping_until_s = {replica.uid: stopping_until_s for replica in self._cache.replicas(key)}
        self._write(key, hosted)

    def forget(self, key: Key) -> None:
        """Free a service's activator port and remove its routing entry."""
        self._hosted.pop(key, None)
        self._await_ports(self._ports.free(key, self._clock()))
        if self._table.drop(key):
            self._notify()

    # Called by the autoscaler.

    async def process_readings(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool:
        """Record pods' loads; return whether scale to zero decides the replicas."""
        hosted = self._hosted.get(key)
        if hosted is None:
            # A service without a place in the activator keeps its replicas; its status states why.
            scaled = self._cache.scaled(key)
            return scaled is not None and scaled.zero is not None
        loads = {replica.uid: reading.load for replica, reading in zip(replicas, readings, strict=True)}
        arrived = {uid: load.arrived_rows if load else None for uid, load in loads.items()}
        # Without a reading of every pod, a request must be assumed.
        idle = all(load and not load.queued_rows + load.running_rows for load in loads.values())
        requested = not idle or arrived != hosted.arrived
        hosted.arrived = arrived
        self._write(key, hosted)
        return await self._decide(key, hosted, requested=requested)

    async def _decide(self, key: Key, hosted: _HostedService, *, requested: bool) -> bool:
        scaled = self._cache.scaled(key)
        if scaled is None or scaled.zero is None or self._cluster is None:
            return False
        seen = ZeroObservation(
            replicas=scaled.replicas,
            ready=len(self._cache.replicas(key)),
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
        if decision.replicas not in (None, scaled.replicas) and key not in self._stepping:
            self._stepping.add(key)
            try:
                await self._replica_writer.write(
                    self._cluster, key, scaled, decision.replicas, scaling_reason(scaled.zero, seen)
                )
            finally:
                self._stepping.discard(key)
        return decision.replicas is not None

    def _holds(self, key: Key, hosted: _HostedService) -> bool:
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
        if seen == self._table.mark:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_POLL_S):
                    await self._table_changed.wait()
        return encode(self._table.table()) if self._is_complete() else None

    def _is_complete(self) -> bool:
        return self._listed and (not self._ports.has_unseen or self._clock() >= self._complete_by_s)

    def _write(self, key: Key, hosted: _HostedService) -> None:
        """Write the service's entry of the routing table."""
        pods = [] if hosted.holding else self._serving_pods(key, hosted)
        entry = ActivatorService(
            name=str(key),
            port=hosted.port,
            addresses=tuple(sorted(str(TcpAddress(pod.address, HTTP_PORT)) for pod in pods)),
            timeout_s=hosted.spec.queue.timeout_milliseconds / 1000,
            max_body_bytes=hosted.spec.queue.max_body_bytes,
            forwards=max_forwards(hosted.spec),
            start_s=self._cache.start_s(key),
        )
        if self._table.put(key, entry):
            hosted.version = self._table.version
            self._notify()

    def _serving_pods(self, key: Key, hosted: _HostedService) -> list[Replica]:
        now_s = self._clock()
        return [pod for pod in self._cache.replicas(key) if hosted.stopping_until_s.get(pod.uid, now_s) <= now_s]

    def _notify(self) -> None:
        self._table_changed.set()
        self._table_changed = asyncio.Event()

    # Polling of the activator.

    async def start(self, cluster: _Cluster) -> None:
        """Read ports and activators before the first reconciliation, so that no EndpointSlice loses its addresses."""
        if not self._settings.activator_selector:
            return
        self._cluster = cluster
        # Another operator may have led since this one did: drop the old state.
        self._table = RoutingTable(uuid.uuid4().hex[:8])
        self._hosted.clear()
        self._activator_pods.clear()
        self._ports.forget()
        while True:
            try:
                # Reserve the ports that statuses name, so that no other service gets them.
                services = await cluster.list_services(self._settings.watch_namespaces)
                for resource in services:
                    key = key_of(resource)
                    # An invalid spec has no place in the activator.
                    with contextlib.suppress(SpecError):
                        if scales_to_zero(service_spec(resource)):
                            self._ports.reserve(key, stored_port(resource))
                self._complete_by_s = self._clock() + _FIRST_RECONCILIATIONS_S
                self._listed = True
                await self._activator_pods.find(cluster)
                return
            except ApiError as error:
                logger.warning("event=activators_unread error=%s", error)
                await asyncio.sleep(_RETRY_S)

    async def run(self, cluster: _Cluster) -> None:
        """Poll the activator until cancelled; return at once without an activator."""
        if not self._settings.activator_selector:
            return
        try:
            await self._activator_pods.run(cluster)
        finally:
            self._listed = False

    def _reconcile_all(self) -> None:
        for key in self._hosted:
            self._changed(key, 0.0)

    def _receive(self, news: ActivatorReport, tasks: asyncio.TaskGroup) -> None:
        for key, hosted in self._hosted.items():
            if news.waiting.get(str(key)):
                tasks.create_task(self._wake(key, hosted))

    async def _wake(self, key: Key, hosted: _HostedService) -> None:
        try:
            await self._decide(key, hosted, requested=True)
        except Exception:  # an unexpected error of one service must not stop the others
            logger.exception("event=waking_failed service=%s", key)
