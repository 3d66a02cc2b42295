"""The waiting rooms, as the operator knows them: they ask it whom to hold requests for, and it asks them who waits."""

import asyncio
import contextlib
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal_operator.autoscaler.zero import HOLDING, Memory, Phase, Seen, reason_of, step
from shoal_operator.errors import ApiError
from shoal_operator.load.fleet import Fleet, Replica
from shoal_operator.load.reading import Reading
from shoal_operator.manifests.desired import DEPLOYMENT, ENDPOINT_SLICE
from shoal_operator.manifests.environment import HTTP_PORT
from shoal_operator.manifests.specs import asked_of
from shoal_operator.manifests.target import Hosting
from shoal_operator.planning.observation import Key, Observation, dig, key_of
from shoal_operator.planning.ports import Ports, offered, stored_port
from shoal_operator.planning.rooms import (
    NO_ROOM,
    Book,
    RoomlessError,
    forwards_of,
    is_free,
    may_sleep,
    shortcoming,
)
from shoal_operator.replicas import Replicas, ScaleCluster
from shoal_operator.rooms import Rooms, RoomsCluster, authority
from shoal_schema.declaring import Json
from shoal_schema.decoding import SpecError
from shoal_schema.processes import OperatorProcess
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.waiting import (
    LONGEST_WAIT_S,
    RoomNews,
    RoomService,
    encode,
)

logger = logging.getLogger(__name__)

_RETRY_S = 0.5
_GOING_S = 5.0
"""How long a pod that was to go, and is not seen to go, is not trusted: requests might reach it as it ends."""
_FIRST_LOOKS_S = 30.0
"""How long rooms are told nothing while services have not been looked at since the start: they keep what they know."""


class _Cluster(ScaleCluster, RoomsCluster, Protocol):
    async def list_services(self, namespaces: Sequence[str]) -> list[Json]: ...


@dataclass(slots=True)
class _Guest:
    """One service that may sleep.

    Args:
        told: the version of the book since which rooms hold what comes for it.
        in_path: it has a slice, so the rooms may be among its Service's endpoints.
        led_to: addresses of the rooms that are.
        arrived: by uid, the rows that its pods were asked for so far; None where one does not say.
        going_until_s: by uid, until when pods get nothing, whose Deployment was to have none.
    """

    spec: InferenceServiceSpec
    port: int
    memory: Memory | None = None
    told: int = 0
    in_path: bool = False
    led_to: tuple[str, ...] = ()
    arrived: Mapping[str, int | None] = field(default_factory=dict)
    going_until_s: dict[str, float] = field(default_factory=dict)

    @property
    def phase(self) -> Phase:
        return self.memory.phase if self.memory else Phase.AWAKE

    @property
    def sleeps(self) -> bool:
        return may_sleep(self.spec)

    @property
    def holding(self) -> bool:
        """Whether its pods are about to go, or have gone; a person may have said so as well."""
        return self.sleeps and (self.phase in HOLDING or self.spec.replicas == 0)


class WaitingRooms:
    """Takes services to zero and back.

    Args:
        fleet: how services scale, and their ready pods.
        settings: where the rooms are, and their ports.
        changed: called when a service is to be looked at, after a delay (s).
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
        self._ports = Ports(offered(settings.waiting_first_port, settings.waiting_ports))
        self._changed = changed
        self._clock = clock
        self._book = Book(uuid.uuid4().hex[:8])
        self._turned = asyncio.Event()
        self._guests: dict[Key, _Guest] = {}
        self._listed = False
        self._told_by_s = math.inf
        self._rooms = Rooms(
            settings,
            changed=self._look_at_all,
            received=self._receive,
            version_of=self._version_of,
            clock=clock,
        )
        self._stepping: set[Key] = set()
        self._cluster: _Cluster | None = None

    # What a look asks.

    def host(self, key: Key, spec: InferenceServiceSpec, observation: Observation) -> Hosting | None:
        """Return a service's place in the waiting room; None where it has none.

        Raises:
            RoomlessError: it may sleep, and there is no waiting room, or no port of it is free.
        """
        sleeps = may_sleep(spec)
        if sleeps and not self._settings.waiting_selector:
            raise RoomlessError(NO_ROOM)
        # One that may sleep no more keeps its place until its pods have taken over, if it is to have some.
        lingers = key in self._guests and observation.ours(ENDPOINT_SLICE) and (spec.replicas or not is_free(spec))
        if not (sleeps or lingers):
            self.forget(key)
            return None
        guest = self._guests.setdefault(key, _Guest(spec, self._allot(key, observation)))
        guest.spec = spec
        self._write(key, guest)  # before the rooms are among the endpoints, and before any pod goes
        answered = bool(observation.endpoints and self._staying(key, guest))
        waking = guest.memory is not None and guest.memory.is_waking and not answered
        rooms = [room for room in self._rooms.known if room.serves(key)]
        theirs = ENDPOINT_SLICE in observation.children and not observation.ours(ENDPOINT_SLICE)
        held = not theirs and not all(room.silent for room in rooms)
        running = dig(observation.ours(DEPLOYMENT), "spec", "replicas", default=0)
        return Hosting(
            guest.port,
            tuple(sorted(room.address for room in rooms)),
            open=guest.holding or not answered,
            waking=waking,
            held=held,
            shortcoming=self._shortcoming(key, guest, theirs=theirs),
            kept=running if sleeps and not spec.replicas and not held else 0,
        )

    def _allot(self, key: Key, observation: Observation) -> int:
        now_s = self._clock()
        try:
            return self._ports.allot(key, stored_port(observation.resource), now_s)
        except RoomlessError:
            self._await_ports(self._ports.awaited(now_s))
            raise

    def _await_ports(self, awaited: Mapping[Key, float]) -> None:
        """Have those looked at again who were refused a port, when there is one."""
        for key, free_s in awaited.items():
            self._changed(key, max(0.0, free_s - self._clock()))

    def _shortcoming(self, key: Key, guest: _Guest, *, theirs: bool) -> str:
        if not guest.sleeps:
            return ""
        if theirs:
            return f"EndpointSlice {key.name} is somebody else's, so none can lead to the waiting room: delete it"
        listing = (
            f"kubectl get deployments,pods --namespace {self._settings.namespace}"
            f" --selector {self._settings.waiting_selector}"
        )
        return shortcoming(key, guest.port, self._rooms.known, listing=listing)

    def saw(self, key: Key, observation: Observation) -> None:
        """Take what a look has found, and left behind."""
        guest = self._guests.get(key)
        if guest is None:
            return
        slice_ = observation.ours(ENDPOINT_SLICE)
        guest.in_path = bool(slice_)
        guest.led_to = tuple(each for endpoint in slice_.get("endpoints") or () for each in endpoint["addresses"])
        if not guest.sleeps and not guest.in_path:
            self.forget(key)
            return
        going_until_s = self._clock() + _GOING_S
        if dig(observation.children.get(DEPLOYMENT), "spec", "replicas") == 0:
            guest.going_until_s = {replica.uid: going_until_s for replica in self._fleet.replicas(key)}
        self._write(key, guest)

    def forget(self, key: Key) -> None:
        """Forget a service that is gone, or sleeps no more."""
        self._guests.pop(key, None)
        self._await_ports(self._ports.free(key, self._clock()))
        if self._book.drop(key):
            self._turn()

    # What scaling asks.

    async def follow(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool:
        """Take what was read of a service's pods; return whether their number is the waiting room's business now."""
        guest = self._guests.get(key)
        if guest is None:
            # One that may sleep, and has no place in a room, is left as it is, as its status says.
            scaled = self._fleet.scaled(key)
            return scaled is not None and scaled.zero is not None
        said = {replica.uid: reading.load for replica, reading in zip(replicas, readings, strict=True)}
        arrived = {uid: load.arrived_rows if load else None for uid, load in said.items()}
        silent = all(load and not load.queued_rows + load.running_rows for load in said.values())
        called = not silent or arrived != guest.arrived
        guest.arrived = arrived
        self._write(key, guest)
        return await self._step(key, guest, called=called)

    async def _step(self, key: Key, guest: _Guest, *, called: bool) -> bool:
        scaled = self._fleet.scaled(key)
        if scaled is None or scaled.zero is None or self._cluster is None:
            return False
        # Activators that have the service's newest entry: only when all that receive requests do, pods may go.
        holding = {room.address for room in self._rooms.known if room.serves(key) and room.version >= guest.told}
        seen = Seen(
            replicas=scaled.replicas,
            ready=len(self._fleet.replicas(key)),
            called=called,
            waiting=sum(room.waiting.get(str(key), 0) for room in self._rooms.known),
            held=bool(guest.led_to) and holding.issuperset(guest.led_to),
        )
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

    # What rooms ask.

    async def answer(self, seen: str) -> bytes | None:
        """Return the table when it is another one than was seen, or after a while; None where there is nothing to say.

        Who leads answers, once every service that may sleep has been looked at: a room closes the ports that it is not
        told of.
        """
        if not self._tells():
            return None
        if seen == self._book.mark:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_WAIT_S):
                    await self._turned.wait()
        return encode(self._book.table()) if self._tells() else None

    def _tells(self) -> bool:
        return self._listed and (not self._ports.unseen or self._clock() >= self._told_by_s)

    def _write(self, key: Key, guest: _Guest) -> None:
        """Write down what rooms are told of a service."""
        pods = [] if guest.holding else self._staying(key, guest)
        told = RoomService(
            name=str(key),
            port=guest.port,
            addresses=tuple(sorted(authority(pod.address, HTTP_PORT) for pod in pods)),
            timeout_s=guest.spec.queue.timeout_milliseconds / 1000,
            max_body_bytes=guest.spec.queue.max_body_bytes,
            forwards=forwards_of(guest.spec),
            start_s=self._fleet.start_s(key),
        )
        if self._book.put(key, told):
            guest.told = self._book.version
            self._turn()

    def _staying(self, key: Key, guest: _Guest) -> list[Replica]:
        now_s = self._clock()
        return [pod for pod in self._fleet.replicas(key) if guest.going_until_s.get(pod.uid, now_s) <= now_s]

    def _turn(self) -> None:
        self._turned.set()
        self._turned = asyncio.Event()

    # What the rooms say.

    async def start(self, cluster: _Cluster) -> None:
        """Learn of ports and rooms, before any service is looked at: a slice that is there must not lose its rooms."""
        if not self._settings.waiting_selector:
            return
        self._cluster = cluster
        # Whoever led meanwhile may have changed everything that was known when this operator led last.
        self._book = Book(uuid.uuid4().hex[:8])
        self._guests.clear()
        self._rooms.clear()
        self._ports.forget()
        while True:
            try:
                services = await cluster.list_services(self._settings.watch_namespaces)
                for resource in services:
                    key = key_of(resource)
                    if _may_sleep(resource):
                        self._ports.reserve(key, stored_port(resource))
                self._told_by_s = self._clock() + _FIRST_LOOKS_S
                self._listed = True
                await self._rooms.find(cluster)
                return
            except ApiError as error:
                logger.warning("event=rooms_unread error=%s", error)
                await asyncio.sleep(_RETRY_S)

    async def run(self, cluster: _Cluster) -> None:
        """Follow the rooms until cancelled; where there are none, there is nothing to do."""
        if not self._settings.waiting_selector:
            return
        try:
            await self._rooms.run(cluster)
        finally:
            self._listed = False

    def _look_at_all(self) -> None:
        for key in self._guests:
            self._changed(key, 0.0)

    def _receive(self, news: RoomNews, tasks: asyncio.TaskGroup) -> None:
        for key, guest in self._guests.items():
            if news.waiting.get(str(key)):
                tasks.create_task(self._wake(key, guest))

    def _version_of(self, mark: str) -> int:
        return self._book.read_version(mark)

    async def _wake(self, key: Key, guest: _Guest) -> None:
        try:
            await self._step(key, guest, called=True)
        except Exception:  # one service's surprise must not keep the others asleep
            logger.exception("event=waking_failed service=%s", key)


def _may_sleep(resource: Json) -> bool:
    try:
        return may_sleep(asked_of(resource))
    except SpecError:
        return False
