"""Assignment of the activator's ports to services."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.planning.activator import NoActivatorError
from shoal_operator.planning.observation import Key, dig
from shoal_schema.declaring import Json

REST_S = 60.0
"""Time that a freed port stays reserved, because its EndpointSlices outlive their service."""
_LAST_PORT = 65535


def port_range(first: int, count: int) -> Collection[int]:
    """Return the ports that services may get: all but the activator's own."""
    return [port for port in range(first, min(first + count, _LAST_PORT + 1)) if port != ADMIN_PORT]


def stored_port(resource: Json) -> int | None:
    """Return the port in a service's status, or None."""
    port = dig(resource, "status", "activator", "port")
    return port if isinstance(port, int) and not isinstance(port, bool) else None


@dataclass(slots=True)
class Ports:
    """The activator's ports, as assigned to services.

    Args:
        port_range: ports that may be assigned.
    """

    port_range: Collection[int]
    _assigned: dict[Key, int] = field(default_factory=dict)
    _reserved: dict[Key, int] = field(default_factory=dict)
    """Ports of services that have not been reconciled yet."""
    _resting: dict[int, tuple[Key, float]] = field(default_factory=dict)
    """Freed ports: the last service, and until when (monotonic seconds) no other service gets it."""
    _refused: set[Key] = field(default_factory=set)
    """Services without a port."""

    @property
    def has_unseen(self) -> bool:
        """Whether services with reserved ports have not been reconciled yet."""
        return bool(self._reserved)

    def reserve(self, key: Key, port: int | None) -> None:
        """Reserve the port in a service's status, if it may be assigned and is not reserved."""
        if port is not None and port in self.port_range and port not in self._reserved.values():
            self._reserved[key] = port

    def assign(self, key: Key, wanted: int | None, now_s: float) -> int:
        """Return a service's port: assigned, stored in the status, or a free one.

        Args:
            key: key of the service.
            wanted: the port in the service's status; not validated.
            now_s: monotonic time (s).

        Raises:
            NoActivatorError: no port is free.
        """
        if key not in self._assigned:
            # Drop expired reservations; a service may get its own former port back at once.
            self._resting = {port: rest for port, rest in self._resting.items() if rest[1] > now_s}
            others = {
                each: port for owned in (self._reserved, self._assigned) for each, port in owned.items() if each != key
            }
            taken = {*others.values(), *(port for port, (owner, _) in self._resting.items() if owner != key)}
            free = (port for port in self.port_range if port not in taken)
            mine = (port for port in (self._reserved.get(key), wanted) if port in self.port_range and port not in taken)
            port = next(mine, None) or next(free, None)
            if port is None:
                self._refused.add(key)
                raise NoActivatorError(
                    f"spec.scaling.minReplicas is 0, but all {len(self.port_range)} ports of the activator are in use."
                    " Raise activator.ports.count in the chart, or set minReplicas to at least 1"
                )
            self._assigned[key] = port
        self._reserved.pop(key, None)
        self._refused.discard(key)
        return self._assigned[key]

    def free(self, key: Key, now_s: float) -> Mapping[Key, float]:
        """Free a service's port; return when waiting services may get a port."""
        self._refused.discard(key)
        ports = [owned.pop(key) for owned in (self._assigned, self._reserved) if key in owned]
        self._resting |= dict.fromkeys(ports, (key, now_s + REST_S))
        return self.awaited(now_s) if ports else {}

    def awaited(self, now_s: float) -> Mapping[Key, float]:
        """Return when the next port is free (monotonic s), by waiting service."""
        ends_s = [until_s for _, until_s in self._resting.values() if until_s > now_s]
        return dict.fromkeys(self._refused, min(ends_s)) if ends_s else {}

    def forget(self) -> None:
        """Drop all ports, when this operator becomes the leader."""
        for known in (self._assigned, self._reserved, self._resting, self._refused):
            known.clear()
