"""Which port of the waiting room is whose."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.planning.observation import Key, dig
from shoal_operator.planning.rooms import RoomlessError
from shoal_schema.declaring import Json

REST_S = 60.0
"""How long a port that was one service's is no other's: slices that lead to it go later than their service."""
_LAST_PORT = 65535


def offered(first: int, count: int) -> Collection[int]:
    """Return the ports that may be given: never the rooms' own."""
    return [port for port in range(first, min(first + count, _LAST_PORT + 1)) if port != ADMIN_PORT]


def stored_port(resource: Json) -> int | None:
    """Return the port that a service's status says is its own."""
    port = dig(resource, "status", "waitingRoom", "port")
    return port if isinstance(port, int) and not isinstance(port, bool) else None


@dataclass(slots=True)
class Ports:
    """The ports of all services.

    Args:
        offered: those that may be given.
    """

    offered: Collection[int]
    _given: dict[Key, int] = field(default_factory=dict)
    _reserved: dict[Key, int] = field(default_factory=dict)
    """Of services that have not been looked at yet."""
    _resting: dict[int, tuple[Key, float]] = field(default_factory=dict)
    """Whose a port was, and until when (monotonic seconds) it is nobody else's."""
    _refused: set[Key] = field(default_factory=set)

    @property
    def unseen(self) -> bool:
        """Whether some services have not been looked at whose ports are reserved."""
        return bool(self._reserved)

    def reserve(self, key: Key, port: int | None) -> None:
        """Keep a port for the service whose status names it, if it is one that may be given, and no other's."""
        if port is not None and port in self.offered and port not in self._reserved.values():
            self._reserved[key] = port

    def allot(self, key: Key, wanted: int | None, now_s: float) -> int:
        """Give a service its port: the one that it has, the one that it had, or the first that is free.

        Args:
            key: of the service.
            wanted: what its status names; it may be anything.
            now_s: monotonic time in seconds.

        Raises:
            RoomlessError: all are taken.
        """
        if key not in self._given:
            self._resting = {port: rest for port, rest in self._resting.items() if rest[1] > now_s}
            others = {
                each: port for owned in (self._reserved, self._given) for each, port in owned.items() if each != key
            }
            taken = {*others.values(), *(port for port, (owner, _) in self._resting.items() if owner != key)}
            free = (port for port in self.offered if port not in taken)
            mine = (port for port in (self._reserved.get(key), wanted) if port in self.offered and port not in taken)
            port = next(mine, None) or next(free, None)
            if port is None:
                self._refused.add(key)
                raise RoomlessError(
                    f"spec.scaling.minReplicas must be at least 1, not 0: all {len(self.offered)} ports of the waiting"
                    " room are taken; set more in the chart (waitingRoom.ports)"
                )
            self._given[key] = port
        self._reserved.pop(key, None)
        self._refused.discard(key)
        return self._given[key]

    def free(self, key: Key, now_s: float) -> Mapping[Key, float]:
        """Take a service's port back; return when (monotonic seconds) those who were refused may have one."""
        self._refused.discard(key)
        ports = [owned.pop(key) for owned in (self._given, self._reserved) if key in owned]
        self._resting |= dict.fromkeys(ports, (key, now_s + REST_S))
        return self.awaited(now_s) if ports else {}

    def awaited(self, now_s: float) -> Mapping[Key, float]:
        """Return when (monotonic seconds) a port that rests will be free, for each of those who were refused one."""
        ends_s = [until_s for _, until_s in self._resting.values() if until_s > now_s]
        return dict.fromkeys(self._refused, min(ends_s)) if ends_s else {}

    def forget(self) -> None:
        """Forget everything: another operator led meanwhile."""
        for known in (self._given, self._reserved, self._resting, self._refused):
            known.clear()
