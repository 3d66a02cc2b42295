"""Simulation of many replicas, and the routing of requests to them."""

from collections.abc import Callable, Sequence
from functools import partial

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.balance import Balance, Connections, Pick, choose_replica, forwarder
from shoal_proxy.simulator.engine import Engine, EventQueue, SimulatedRequest
from shoal_proxy.simulator.shoal import SchedulerDiscipline


class Replica:
    """One simulated pod, ready at ``ready_s`` and gone at ``ended_s``."""

    def __init__(self, shoal: SchedulerDiscipline, engine: Engine, ready_s: float) -> None:
        self.shoal = shoal
        self.engine = engine
        self.ready_s = ready_s
        self.leaving = False
        self.ended_s: float | None = None
        self.knows: dict[Replica, PeerEstimate] = {}
        """This replica's estimates of its peers' waits."""

    @property
    def rows(self) -> int:
        """Return the number of waiting and running rows (`ReplicaLoad`)."""
        return self.shoal.rows

    def expected_finish_s(self, request: SimulatedRequest, now_s: float) -> float:
        """Return the time at which ``request`` would finish (`ReplicaLoad`)."""
        return self.shoal.expected_finish_s(request, now_s)


class PeerEstimate:
    """A replica's estimate of a peer's wait, at most ``stale_s`` old."""

    def __init__(self, peer: Replica, stale_s: float) -> None:
        self.peer = peer
        self._stale_s = stale_s
        self._told_s = -NEVER_S
        self._wait_s = 0.0
        self._given_rows = 0

    @property
    def rows(self) -> int:
        """Return the number of waiting and running rows (`ReplicaLoad`)."""
        return self.peer.rows

    def expected_finish_s(self, request: SimulatedRequest, now_s: float) -> float:
        """Return the estimated time to finish ``request`` (`ReplicaLoad`)."""
        # The peer's report is too old: read it again.
        if now_s - self._told_s >= self._stale_s:
            self._told_s, self._given_rows = now_s, 0
            self._wait_s = self.peer.expected_finish_s(request, now_s) - now_s
        return now_s + self._wait_s + self._given_rows * self.peer.shoal.row_s

    def add_forwarded(self, request: SimulatedRequest) -> None:
        """Count the rows of ``request``, which is forwarded to the peer."""
        self._given_rows += request.rows


class Fleet:
    """Simulated replicas, and the rule that routes requests to them.

    Args:
        make: makes the engine and scheduler of a replica, from its number and the event queue.
        balance: the load balancing rule.
        pick: draws a random integer.
        connections: connections of all clients together, if the rule uses connections.
        max_age_s: age after which a connection is opened again.
        hop_s: duration of forwarding a request.
        stale_s: maximum age (s) of a replica's estimate of the waits at its peers.
    """

    def __init__(  # noqa: PLR0913 (properties of a fleet)
        self,
        make: Callable[[int, EventQueue], Engine],
        balance: Balance,
        pick: Pick,
        *,
        connections: int = 0,
        max_age_s: float = NEVER_S,
        hop_s: float = 0.0,
        stale_s: float = 0.0,
    ) -> None:
        self.agenda = EventQueue()
        self.replicas: list[Replica] = []
        """All replicas, also those that have ended."""
        self.serving: list[Replica] = []
        """Replicas that accept new requests."""
        self.forwarded = 0
        self._make = make
        self._balance = balance
        self._pick = pick
        self._connections: Connections[Replica] | None = None
        if balance.keeps_connections:
            self._connections = Connections(connections, pick, max_age_s)
        self._hop_s = hop_s
        self._stale_s = stale_s

    def add(self, after_s: float = 0.0) -> Replica:
        """Create a replica that is ready ``after_s`` from now."""
        engine = self._make(len(self.replicas), self.agenda)
        shoal = engine.discipline
        assert isinstance(shoal, SchedulerDiscipline)
        replica = Replica(shoal, engine, self.agenda.now_s + after_s)
        engine.elsewhere = partial(self._forwarder, replica)
        self.replicas.append(replica)
        if after_s > 0:
            self.agenda.at(replica.ready_s, self._ready, replica)
        else:
            self._ready(replica)
        return replica

    def drain(self, replica: Replica) -> None:
        """Send the replica no new requests; stop it after its last response."""
        replica.leaving = True
        # It may not have become ready.
        if replica in self.serving:
            self.serving.remove(replica)
        self._end_when_settled(replica)

    def kill(self, replica: Replica) -> None:
        """Stop a replica abruptly: all of its requests fail."""
        self.drain(replica)
        replica.ended_s = self.agenda.now_s
        replica.engine.lose(replica.shoal.lose(self.agenda.now_s))

    def run(self, requests: Sequence[SimulatedRequest], until_s: float = NEVER_S) -> None:
        """Schedule the arrivals of ``requests``, and process all events."""
        for request in requests:
            self.agenda.at(request.arrived_s, self.arrive, request)
        self.agenda.run(until_s)

    def arrive(self, request: SimulatedRequest) -> None:
        """Route ``request`` to a replica by the load balancing rule."""
        now_s = self.agenda.now_s
        if not self.serving:
            # No replica serves: the gateway answers with an error.
            request.failed_s = now_s
        elif self._connections is not None:
            replica = self._connections.next(self.serving, now_s)
            # A replica that could admit it, but expects to answer late, forwards it at once.
            late = (
                self._balance is Balance.REQUEST_FORWARDING
                and replica.expected_finish_s(request, now_s) > request.soft_deadline_s
            )
            if not (late and self._forwarder(replica, request)):
                replica.engine.arrive(request)
        else:
            choose_replica(self._balance, self.serving, request, now_s, self._pick).engine.arrive(request)

    def _ready(self, replica: Replica) -> None:
        if not replica.leaving:
            self.serving.append(replica)

    def _end_when_settled(self, replica: Replica) -> None:
        if replica.ended_s is not None:
            return
        if replica.shoal.scheduler.settled:
            replica.ended_s = self.agenda.now_s
        else:  # check again later
            self.agenda.at(self.agenda.now_s + _LOOK_S, self._end_when_settled, replica)

    def _forwarder(self, replica: Replica, request: SimulatedRequest) -> bool:
        """Forward ``request`` from ``replica`` to a peer; return success."""
        if self._balance is not Balance.REQUEST_FORWARDING:
            return False
        peers: list[PeerEstimate] = []
        for each in self.serving:
            if each is not replica:
                if each not in replica.knows:
                    replica.knows[each] = PeerEstimate(each, self._stale_s)
                peers.append(replica.knows[each])
        at_s = self.agenda.now_s + self._hop_s
        chosen = forwarder(peers, request, at_s, self._pick)
        if chosen is None:
            return False
        chosen.add_forwarded(request)
        # Its deadline is forwarded with it.
        request.forwarded = request.own = True
        self.forwarded += 1
        self.agenda.at(at_s, chosen.peer.engine.arrive, request)
        return True


_LOOK_S = 0.01
"""Interval at which a draining replica is checked for unanswered requests."""
