"""Load balancing rules of gateways and Services, for the simulator."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.engine import SimulatedRequest

Pick = Callable[[int], int]
"""Draws an integer from 0 to below its argument."""


class Balance(StrEnum):
    """Load balancing rule.

    `PINNED` and `REQUEST_FORWARDING` choose a replica per connection, the other rules per request.
    """

    PINNED = "Pinned"
    """Clients keep their connections, which a Service has distributed at random."""
    RANDOM = "Random"
    LEAST_ROWS = "LeastRows"
    POWER_OF_TWO = "PowerOfTwo"
    SOONEST_FINISH = "SoonestFinish"
    REQUEST_FORWARDING = "RequestForwarding"
    """As `PINNED`, but a replica forwards a request that it would reject as late to a peer, once."""

    @property
    def keeps_connections(self) -> bool:
        """Return whether all requests of one connection go to the same replica."""
        return self in (Balance.PINNED, Balance.REQUEST_FORWARDING)


class ReplicaLoad(Protocol):
    """The properties of a replica that a load balancing rule may use."""

    @property
    def rows(self) -> int:
        """Return the number of queued and running rows of the replica."""

    def expected_finish_s(self, request: SimulatedRequest, now_s: float) -> float:
        """Return the time at which the replica would complete ``request``."""


R = TypeVar("R", bound=ReplicaLoad)
Lead = TypeVar("Lead")


def choose_replica(balance: Balance, replicas: Sequence[R], request: SimulatedRequest, now_s: float, pick: Pick) -> R:
    """Return the replica for ``request``.

    ``balance`` must be a rule that chooses a replica for each request, not for each connection.
    """
    match balance:
        case Balance.LEAST_ROWS:
            return _least(replicas, lambda replica: replica.rows, pick)
        case Balance.POWER_OF_TWO:
            # Two random replicas, the less loaded of which is as good as a full comparison.
            two = [replicas[pick(len(replicas))] for _ in range(2)]
            return min(two, key=lambda replica: replica.rows)
        case Balance.SOONEST_FINISH:
            return _least(replicas, lambda replica: replica.expected_finish_s(request, now_s), pick)
        case _:
            return replicas[pick(len(replicas))]


def forwarder(peers: Sequence[R], request: SimulatedRequest, now_s: float, pick: Pick) -> R | None:
    """Return the peer that would finish ``request`` first.

    Returns None if the request would be late at this peer, or was forwarded before.
    """
    if request.forwarded or not peers:
        return None
    best = _least(peers, lambda replica: replica.expected_finish_s(request, now_s), pick)
    return best if best.expected_finish_s(request, now_s) <= request.soft_deadline_s else None


def _least(replicas: Sequence[R], cost: Callable[[R], float], pick: Pick) -> R:
    costs = [cost(replica) for replica in replicas]
    least = min(costs)
    best = [replica for replica, each in zip(replicas, costs, strict=True) if each == least]
    # At random, or the first replica would get all ties.
    return best[pick(len(best))]


class Connections(Generic[Lead]):
    """Persistent client connections, each to a replica drawn when it opens.

    A connection is opened again when its replica stops serving, and after ``max_age_s``. The first age is drawn between
    0 and ``max_age_s``, so that connections do not expire together.
    """

    def __init__(self, count: int, pick: Pick, max_age_s: float = NEVER_S) -> None:
        self._leads: list[Lead | None] = [None] * count
        self._until_s = [max_age_s * (1 + pick(_STEPS)) / _STEPS for _ in range(count)] if max_age_s < NEVER_S else None
        self._pick = pick
        self._max_age_s = max_age_s

    def next(self, serving: Sequence[Lead], now_s: float) -> Lead:
        """Return the replica for the next request, by a random connection."""
        number = self._pick(len(self._leads))
        lead = self._leads[number]
        old = self._until_s is not None and now_s >= self._until_s[number]
        # Open the connection again: a Service draws a new replica.
        if lead is None or old or lead not in serving:
            lead = self._leads[number] = serving[self._pick(len(serving))]
            if self._until_s is not None and old:
                self._until_s[number] = now_s + self._max_age_s
        return lead


_STEPS = 1000
"""Resolution of the first ages."""
