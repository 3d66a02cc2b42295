"""What the waiting rooms are told: who may sleep, at which port, and which pods are ready."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal_operator.planning.observation import Key, dig
from shoal_schema.declaring import Json
from shoal_schema.decoding import SpecError
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import ScalingMode
from shoal_schema.waiting import RoomService, RoomTable

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


def stored_port(resource: Json) -> int | None:
    """Return the port that a service's status says is its own."""
    port = dig(resource, "status", "waitingRoom", "port")
    return port if isinstance(port, int) and not isinstance(port, bool) else None


def allot(key: Key, wanted: int | None, taken: Mapping[Key, int], ports: range) -> int:
    """Return a service's port: the one that it has, the one that it had, or the first that is free.

    Raises:
        SpecError: all are taken.
    """
    if key in taken:
        return taken[key]
    others = set(taken.values())
    if wanted is not None and wanted in ports and wanted not in others:
        return wanted
    port = next((port for port in ports if port not in others), None)
    if port is None:
        raise SpecError(
            f"spec.scaling.minReplicas must be at least 1, not 0: all {len(ports)} ports of the waiting room are taken;"
            " set more in the chart (waitingRoom.ports)"
        )
    return port


def forwards_of(spec: InferenceServiceSpec) -> int:
    """Return how many requests a pod is given at a time: two full batches keep it busy, and overflow no queue."""
    return 2 * spec.batching.max_batch_size * spec.batching.in_flight


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
