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

from shoal_operator.activators import ActivatorsCluster, Rooms
from shoal_operator.autoscaler.zero import HOLDING, Memory, Phase, Seen, reason_of, step
from shoal_operator.errors import ApiError
from shoal_operator.load.fleet import Fleet, Replica
from shoal_operator.load.reading import Reading
from shoal_operator.manifests.desired import DEPLOYMENT, ENDPOINT_SLICE
from shoal_operator.manifests.environment import HTTP_PORT
from shoal_operator.manifests.specs import asked_of
from shoal_operator.manifests.target import Hosting
from shoal_operator.planning.activators import (
    NO_ROOM,
    Book,
    NoActivatorError,
    forwards_of,
    is_free,
    may_sleep,
    shortcoming,
)
from shoal_operator.planning.observation import Key, Observation, dig, key_of
from shoal_operator.planning.ports import Ports, offered, stored_port
from shoal_operator.replicas import Replicas, ScaleCluster
from shoal_schema.activator import (
    LONGEST_WAIT_S,
    ActivatorNews,
    ActivatorService,
    encode,
)
from shoal_schema.addresses import TcpAddress
from shoal_schema.declaring import Json
from shoal_schema.decoding import SpecError
from shoal_schema.processes import OperatorProcess
from shoal_schema.resource.service import InferenceServiceSpec

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
_GOING_S = 5.0
"""Time that pods of a Deployment without replicas get no requests, because they may be stopping."""
_FIRST_RECONCILIATIONS_S = 30.0
"""The longest wait for all services to be reconciled after the start; until then activators keep their table."""


class _Cluster(ScaleCluster, ActivatorsCluster, Protocol):
    async def list_services(self, namespaces: Sequence[str]) -> list[Json]: ...


@dataclass(slots=True)
class _Guest:
    """One service that scales to zero."""

    spec: InferenceServiceSpec
    port: int
    memory: Memory | None = None
    version: int = 0
    """Version of the routing table with the service's newest entry."""
    in_path: bool = False
    """It has an EndpointSlice, so activators may be among its endpoints."""
    endpoints: tuple[str, ...] = ()
    """Addresses of the activators among its endpoints."""
    arrived: Mapping[str, int | None] = field(default_factory=dict)
    """By uid, each pod's counter of arrived rows; None without a reading."""
    going_until_s: dict[str, float] = field(default_factory=dict)
    """By uid, the time until which pods of a Deployment scaled to zero get no requests."""

    @property
    def phase(self) -> Phase:
        return self.memory.phase if self.memory else Phase.AWAKE

    @property
    def sleeps(self) -> bool:
        return may_sleep(self.spec)

    @property
    def holding(self) -> bool:
        """Whether its pods are stopping or deleted; a user may also have set replicas to 0."""
        return self.sleeps and (self.phase in HOLDING or self.spec.replicas == 0)


class Activators:
    """Scale services to zero and back.

    Args:
        fleet: scaling and ready pods of services.
        settings: selector and ports of the activator.
        changed: makes a service due after a delay (s).
        clock: monotonic seconds.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: OperatorProcess,
        changed: Callable[[Key, float], object],
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._replicas = Replicas(fleet, lambda key: changed(key, 0.0))
        self._settings = settings
        self._ports = Ports(offered(settings.activator_first_port, settings.activator_ports))
        self._changed = changed
        self._clock = clock
        self._book = Book(uuid.uuid4().hex[:8])
        self._table_changed = asyncio.Event()
        self._guests: dict[Key, _Guest] = {}
        self._listed = False
        self._complete_by_s = math.inf
        self._rooms = Rooms(
            settings,
            changed=self._reconcile_all,
            received=self._receive,
            version_of=lambda mark: self._book.read_version(mark),  # noqa: PLW0108 (`start` replaces the book)
            clock=clock,
        )
        self._stepping: set[Key] = set()
        self._cluster: _Cluster | None = None

    # Called by the reconciler.

    def host(self, key: Key, spec: InferenceServiceSpec, observation: Observation) -> Hosting | None:
        """Return the activator's port for a service; None if the service never scales to zero.

        Raises:
            NoActivatorError: there is no activator, or it has no free port.
        """
        sleeps = may_sleep(spec)
        if sleeps and not self._settings.activator_selector:
            raise NoActivatorError(NO_ROOM)
        # A service that no longer scales to zero keeps its place until its pods are ready, if it will have any.
        lingers = key in self._guests and observation.ours(ENDPOINT_SLICE) and (spec.replicas or not is_free(spec))
        if not (sleeps or lingers):
            self.forget(key)
            return None
        now_s = self._clock()
        try:
            port = self._ports.allot(key, stored_port(observation.resource), now_s)
        except NoActivatorError:
            self._await_ports(self._ports.awaited(now_s))
            raise
        guest = self._guests.setdefault(key, _Guest(spec, port))
        guest.spec = spec
        # The table must contain the service before activators are endpoints, and before any pod stops.
        self._write(key, guest)
        served = bool(observation.endpoints and self._staying(key, guest))
        waking = guest.memory is not None and guest.memory.is_waking and not served
        rooms = [room for room in self._rooms.known if room.serves(key)]
        theirs = ENDPOINT_SLICE in observation.children and not observation.ours(ENDPOINT_SLICE)
        held = not theirs and not all(room.silent for room in rooms)
        running = dig(observation.ours(DEPLOYMENT), "spec", "replicas", default=0)
        problem = ""
        if guest.sleeps and theirs:
            problem = f"EndpointSlice {key.name} has another owner, so no requests reach the activator. Delete it"
        elif guest.sleeps:
            listing = (
                f"kubectl get deployments,pods --namespace {self._settings.namespace}"
                f" --selector {self._settings.activator_selector}"
            )
            problem = shortcoming(key, guest.port, self._rooms.known, listing=listing)
        return Hosting(
            guest.port,
            tuple(sorted(room.address for room in rooms)),
            open=guest.holding or not served,
            waking=waking,
            held=held,
            shortcoming=problem,
            kept=running if sleeps and not spec.replicas and not held else 0,
        )

    def _await_ports(self, awaited: Mapping[Key, float]) -> None:
        """Reconcile the services without a port once one is free."""
        for key, free_s in awaited.items():
            self._changed(key, max(0.0, free_s - self._clock()))

    def saw(self, key: Key, observation: Observation) -> None:
        """Record the cluster's state at the end of a reconciliation."""
        guest = self._guests.get(key)
        if guest is None:
            return
        slice_ = observation.ours(ENDPOINT_SLICE)
        guest.in_path = bool(slice_)
        guest.endpoints = tuple(each for endpoint in slice_.get("endpoints") or () for each in endpoint["addresses"])
        if not guest.sleeps and not guest.in_path:
            self.forget(key)
            return
        # Pods of a Deployment without replicas get no requests, although they may still look ready.
        going_until_s = self._clock() + _GOING_S
        if dig(observation.children.get(DEPLOYMENT), "spec", "replicas") == 0:
            guest.going_until_s = {replica.uid: going_until_s for replica in self._fleet.replicas(key)}
        self._write(key, guest)

    def forget(self, key: Key) -> None:
        """Forget a service that was deleted, or that no longer scales to zero."""
        self._guests.pop(key, None)
        self._await_ports(self._ports.free(key, self._clock()))
        if self._book.drop(key):
            self._notify()

    # Called by the autoscaler.

    async def follow(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool:
        """Record a reading of a service's pods; return whether its replicas are decided here now."""
        guest = self._guests.get(key)
        if guest is None:
            # A service without a place in the activator keeps its replicas; its status states why.
            scaled = self._fleet.scaled(key)
            return scaled is not None and scaled.zero is not None
        loads = {replica.uid: reading.load for replica, reading in zip(replicas, readings, strict=True)}
        arrived = {uid: load.arrived_rows if load else None for uid, load in loads.items()}
        # Without a reading of every pod, a request must be assumed.
        idle = all(load and not load.queued_rows + load.running_rows for load in loads.values())
        called = not idle or arrived != guest.arrived
        guest.arrived = arrived
        self._write(key, guest)
        return await self._step(key, guest, called=called)

    async def _step(self, key: Key, guest: _Guest, *, called: bool) -> bool:
        scaled = self._fleet.scaled(key)
        if scaled is None or scaled.zero is None or self._cluster is None:
            return False
        seen = Seen(
            replicas=scaled.replicas,
            ready=len(self._fleet.replicas(key)),
            called=called,
            waiting=sum(room.waiting.get(str(key), 0) for room in self._rooms.known),
            held=self._holds(key, guest),
        )
        # A new phase changes the entry of the table and the status.
        before = guest.phase
        verdict, guest.memory = step(scaled.zero, seen, guest.memory, self._clock())
        if verdict.phase is not before:
            logger.info("event=zero service=%s phase=%s was=%s waiting=%d", key, verdict.phase, before, seen.waiting)
            self._write(key, guest)
            self._changed(key, 0.0)
        # An earlier write for this service may still be in progress.
        if verdict.replicas not in (None, scaled.replicas) and key not in self._stepping:
            self._stepping.add(key)
            try:
                await self._replicas.write(self._cluster, key, scaled, verdict.replicas, reason_of(scaled.zero, seen))
            finally:
                self._stepping.discard(key)
        return verdict.replicas is not None

    def _holds(self, key: Key, guest: _Guest) -> bool:
        """Return whether all activators that receive a service's requests have its newest entry."""
        holding = {room.address for room in self._rooms.known if room.serves(key) and room.version >= guest.version}
        return bool(guest.endpoints) and holding.issuperset(guest.endpoints)

    # Called by the activator, through the operator's HTTP endpoint.

    async def answer(self, seen: str) -> bytes | None:
        """Return the routing table once it differs from the mark ``seen``, or after a long poll; None while unknown.

        Only the leader responds, once every service that scales to zero has been reconciled: an activator closes the
        ports that the table does not contain.
        """
        if not self._is_complete():
            return None
        if seen == self._book.mark:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._table_changed.wait()
        return encode(self._book.table()) if self._is_complete() else None

    def _is_complete(self) -> bool:
        return self._listed and (not self._ports.unseen or self._clock() >= self._complete_by_s)

    def _write(self, key: Key, guest: _Guest) -> None:
        """Write the service's entry of the routing table."""
        pods = [] if guest.holding else self._staying(key, guest)
        entry = ActivatorService(
            name=str(key),
            port=guest.port,
            addresses=tuple(sorted(str(TcpAddress(pod.address, HTTP_PORT)) for pod in pods)),
            timeout_s=guest.spec.queue.timeout_milliseconds / 1000,
            max_body_bytes=guest.spec.queue.max_body_bytes,
            forwards=forwards_of(guest.spec),
            start_s=self._fleet.start_s(key),
        )
        if self._book.put(key, entry):
            guest.version = self._book.version
            self._notify()

    def _staying(self, key: Key, guest: _Guest) -> list[Replica]:
        now_s = self._clock()
        return [pod for pod in self._fleet.replicas(key) if guest.going_until_s.get(pod.uid, now_s) <= now_s]

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
        self._book = Book(uuid.uuid4().hex[:8])
        self._guests.clear()
        self._rooms.clear()
        self._ports.forget()
        while True:
            try:
                # Reserve the ports that statuses name, so that no other service gets them.
                services = await cluster.list_services(self._settings.watch_namespaces)
                for resource in services:
                    key = key_of(resource)
                    # An invalid spec has no place in the activator.
                    with contextlib.suppress(SpecError):
                        if may_sleep(asked_of(resource)):
                            self._ports.reserve(key, stored_port(resource))
                self._complete_by_s = self._clock() + _FIRST_RECONCILIATIONS_S
                self._listed = True
                await self._rooms.find(cluster)
                return
            except ApiError as error:
                logger.warning("event=activators_unread error=%s", error)
                await asyncio.sleep(_RETRY_S)

    async def run(self, cluster: _Cluster) -> None:
        """Poll the activator until cancelled; return at once where there is none."""
        if not self._settings.activator_selector:
            return
        try:
            await self._rooms.run(cluster)
        finally:
            self._listed = False

    def _reconcile_all(self) -> None:
        for key in self._guests:
            self._changed(key, 0.0)

    def _receive(self, news: ActivatorNews, tasks: asyncio.TaskGroup) -> None:
        for key, guest in self._guests.items():
            if news.waiting.get(str(key)):
                tasks.create_task(self._wake(key, guest))

    async def _wake(self, key: Key, guest: _Guest) -> None:
        try:
            await self._step(key, guest, called=True)
        except Exception:  # an unexpected error of one service must not stop the others
            logger.exception("event=waking_failed service=%s", key)
