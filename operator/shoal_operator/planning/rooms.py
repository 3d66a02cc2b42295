"""What the waiting rooms are told, who may sleep, at which port, and which pods are ready; and what they tell."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.planning.observation import Key
from shoal_schema.decoding import SpecError
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import ScalingMode
from shoal_schema.waiting import RoomService, RoomTable


class RoomlessError(SpecError):
    """A service may sleep, and there is no place for it in a waiting room."""


NO_ROOM = (
    "spec.scaling.minReplicas must be at least 1, not 0: there is no waiting room, which would hold requests while no"
    " pod runs. Set waitingRoom.enabled in the values of the operator's chart"
)


def is_free(spec: InferenceServiceSpec) -> bool:
    """Return whether a service has as many pods as somebody else says, down to none, and not the law."""
    return spec.scaling is None or spec.scaling.mode is not ScalingMode.INTERNAL


def may_sleep(spec: InferenceServiceSpec) -> bool:
    """Return whether a service has no pods while nobody calls."""
    return spec.scaling is not None and not is_free(spec) and spec.scaling.min_replicas == 0


def forwards_of(spec: InferenceServiceSpec) -> int:
    """Return how many requests a pod is given at a time: two full batches keep it busy, and overflow no queue."""
    return 2 * spec.batching.max_batch_size * spec.batching.in_flight


@dataclass(slots=True)
class Room:
    """One process of the waiting room.

    Args:
        heard_s: when it answered last, or was found; monotonic seconds.
        version: of our book that it goes by; -1: of none.
        waiting: requests that it holds, by service.
        refused: why it could not open a port, by service.
        silent: it has not answered for long.
    """

    address: str
    ready: bool
    heard_s: float
    version: int = -1
    waiting: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    silent: bool = False

    def serves(self, key: Key) -> bool:
        """Return whether requests for a service may come here."""
        return self.ready and str(key) not in self.refused


def shortcoming(key: Key, port: int, rooms: Iterable[Room], *, listing: str) -> str:
    """Return why not every request for a service would be held and heard, and what to do; empty where each would be.

    Args:
        key: of the service.
        port: its own.
        rooms: all that there are.
        listing: the command that shows their pods.
    """
    ready = [room for room in rooms if room.ready]
    if not ready:
        return f"no waiting room is ready: {listing} tells why"
    for room in ready:
        if why := room.refused.get(str(key)):
            return (
                f"the waiting room at {room.address} cannot open this service's port {port} ({why}): see what else has"
                " it there, or choose other ports in the chart (waitingRoom.ports)"
            )
        if room.silent:
            return (
                f"the waiting room at {room.address} does not answer the operator at its port {ADMIN_PORT}: see whether"
                f" a NetworkPolicy or a mesh keeps them apart, and {listing}"
            )
    return ""


@dataclass(slots=True)
class Book:
    """What all services are told as, and the count of its changes.

    Args:
        epoch: tells this book from those of other operators, and of this one before it was started.
    """

    epoch: str
    version: int = 0
    _services: dict[Key, RoomService] = field(default_factory=dict)

    def put(self, key: Key, service: RoomService) -> bool:
        """Write down what is told of a service; return whether that is something new."""
        if self._services.get(key) == service:
            return False
        self._services[key] = service
        self.version += 1
        return True

    def drop(self, key: Key) -> bool:
        """Forget a service; return whether it was known."""
        known = self._services.pop(key, None) is not None
        self.version += known
        return known

    @property
    def mark(self) -> str:
        """The version, as rooms repeat it."""
        return f"{self.epoch}:{self.version}"

    def table(self) -> RoomTable:
        """Return what rooms are told."""
        return RoomTable(self.mark, tuple(self._services[key] for key in sorted(self._services)))

    def read_version(self, mark: str) -> int:
        """Return which version of this book a room goes by; -1 where it is another's."""
        epoch, _, version = mark.partition(":")
        return int(version) if epoch == self.epoch and version.isdigit() else -1
