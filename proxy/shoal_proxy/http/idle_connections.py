"""The maximum number of connections, and the idle connections to close when it is reached. Pure."""

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

KEPT_DESCRIPTORS = 128
"""File descriptors kept for listeners, the admin port, the runtime, and for rejecting clients over the limit."""
MAX_CONNECTIONS = 10_000
"""The default limit; after one request each, so many connections hold 100 MB."""
WANTED_DESCRIPTORS = MAX_CONNECTIONS + KEPT_DESCRIPTORS
_SHARE_CLOSED = 100
"""One in this many connections is closed at a time, so that a flood of new ones does not sort all for each."""


def connection_limit(wanted: int, descriptors: int) -> int:
    """Return the maximum number of connections.

    It is ``wanted`` (0: `MAX_CONNECTIONS`), or less if the process has too few file ``descriptors``.
    """
    # With few descriptors, half of them are kept.
    kept = min(KEPT_DESCRIPTORS, descriptors // 2)
    return max(1, min(wanted or MAX_CONNECTIONS, descriptors - kept))


class IdleState(Protocol):
    """Idle state of a connection, by which connections to close are selected."""

    @property
    def idle_start_s(self) -> float | None:
        """Monotonic time at which the connection's last request ended; None during a request."""

    @property
    def is_unused(self) -> bool:
        """Whether the connection has not had a request yet."""


AnyResting = TypeVar("AnyResting", bound=IdleState)


def connections_to_close(connections: Iterable[AnyResting], count: int) -> Sequence[AnyResting]:
    """Return idle connections to close, so that a new one can be admitted.

    None are returned if all ``count`` connections are busy. Connections without any request come first, then those that
    have been idle for longest.
    """
    idle = [(not each.is_unused, since_s, each) for each in connections if (since_s := each.idle_start_s) is not None]
    idle.sort(key=lambda item: item[:2])  # connections themselves have no order
    return [each for _, _, each in idle[: max(1, count // _SHARE_CLOSED)]]
