"""Assignment of the activator's ports to services."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shoal_operator.children.observation import Key, dig
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.zero.activator import NoActivatorError
from shoal_schema.fields.declaring import Json

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
    """Selects the activator's port of each service.

    Args:
        port_range: ports that may be assigned.
    """

    port_range: Collection[int]
    _resting: dict[int, tuple[Key, float]] = field(default_factory=dict)
    """Freed ports: the last service, and until when (monotonic seconds) no other service gets it."""

    def choose(self, key: Key, preferred: Iterable[int | None], taken: Collection[int], now_s: float) -> int:
        """Return the activator's port for a service.

        The first free one of the preferred ports, else the first free port.

        Args:
            key: key of the service.
            preferred: its former ports; not validated.
            taken: ports of the other services.
            now_s: monotonic time (s).

        Raises:
            NoActivatorError: no port is free.
        """
        # Drop expired reservations; a service may get its own former port back at once.
        self._resting = {port: rest for port, rest in self._resting.items() if rest[1] > now_s}
        resting = {port for port, (owner, _) in self._resting.items() if owner != key}
        free = [port for port in self.port_range if port not in taken and port not in resting]
        port = next((port for port in (*preferred, *free) if port in free), None)
        if port is None:
            raise NoActivatorError(
                f"spec.scaling.minReplicas is 0, but all {len(self.port_range)} ports of the activator are in use."
                " Raise activator.ports.count in the chart, or set minReplicas to at least 1"
            )
        return port

    def free(self, key: Key, port: int, now_s: float) -> None:
        """Reserve a service's former port for it, until its EndpointSlices are certainly gone."""
        self._resting = {each: rest for each, rest in self._resting.items() if rest[1] > now_s}
        self._resting[port] = key, now_s + REST_S

    def next_free_s(self, now_s: float) -> float | None:
        """Return when (monotonic seconds) the next reserved port is free; None if no port is reserved."""
        return min((until_s for _, until_s in self._resting.values() if until_s > now_s), default=None)

    def clear(self) -> None:
        """Forget all state, because another operator was the leader in the meantime."""
        self._resting.clear()
