"""Many replicas, each with the proxy's own brain and a device of its own, and how requests come to them."""

from collections.abc import Callable, Sequence
from functools import partial

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.balance import Balance, Connections, Pick, choose, second_chance
from shoal_proxy.simulator.engine import Agenda, Engine, Request
from shoal_proxy.simulator.shoal import Shoal


class Replica:
    """One pod. ``ready_s``: when it has started; ``ended_s``: when it was gone, drained or dead."""

    def __init__(self, shoal: Shoal, engine: Engine, ready_s: float) -> None:
        self.shoal = shoal
        self.engine = engine
        self.ready_s = ready_s
        self.leaving = False
        self.ended_s: float | None = None
        self.knows: dict[Replica, Known] = {}
        """Of its siblings."""

    @property
    def rows(self) -> int:
        """Return how many rows wait and run (`Choosable`)."""
        return self.shoal.rows

    def promise_s(self, request: Request, now_s: float) -> float:
        """Return when it would answer ``request`` (`Choosable`)."""
        return self.shoal.promise_s(request, now_s)


class Known:
    """What a replica knows of a sibling's waits: ``stale_s`` old at most, and what it gave it since then added."""

    def __init__(self, sibling: Replica, stale_s: float) -> None:
        self.sibling = sibling
        self._stale_s = stale_s
        self._told_s = -NEVER_S
        self._wait_s = 0.0
        self._given_rows = 0

    @property
    def rows(self) -> int:
        """Return how many rows wait and run there (`Choosable`)."""
        return self.sibling.rows

    def promise_s(self, request: Request, now_s: float) -> float:
        """Return when it should answer ``request`` (`Choosable`)."""
        if now_s - self._told_s >= self._stale_s:
            self._told_s, self._given_rows = now_s, 0
            self._wait_s = self.sibling.promise_s(request, now_s) - now_s
        return now_s + self._wait_s + self._given_rows * self.sibling.shoal.row_s

    def give(self, request: Request) -> None:
        """Note that it is given ``request``."""
        self._given_rows += request.rows


class Fleet:
    """Replicas that come and go, and a rule that spreads requests over those that serve.

    Args:
        make: the engine and brain of replica 0, 1, ..., on the agenda it is given.
        balance: the rule.
        pick: what chance decides.
        connections: that the callers keep, all together, where the rule keeps them.
        max_age_s: of a connection, after which it is opened anew.
        hop_s: what handing a request over takes.
        stale_s: how old what replicas know of one another's waits may be.
    """

    def __init__(  # noqa: PLR0913 (what a fleet is)
        self,
        make: Callable[[int, Agenda], Engine],
        balance: Balance,
        pick: Pick,
        *,
        connections: int = 0,
        max_age_s: float = NEVER_S,
        hop_s: float = 0.0,
        stale_s: float = 0.0,
    ) -> None:
        self.agenda = Agenda()
        self.replicas: list[Replica] = []
        """All that there ever were."""
        self.serving: list[Replica] = []
        """Those that new requests may go to."""
        self.handed_over = 0
        self._make = make
        self._balance = balance
        self._pick = pick
        self._connections: Connections[Replica] | None = None
        if balance.keeps_connections:
            self._connections = Connections(connections, pick, max_age_s)
        self._hop_s = hop_s
        self._stale_s = stale_s

    def add(self, after_s: float = 0.0) -> Replica:
        """Create a replica that is ready after ``after_s``."""
        engine = self._make(len(self.replicas), self.agenda)
        shoal = engine.discipline
        assert isinstance(shoal, Shoal)
        replica = Replica(shoal, engine, self.agenda.now_s + after_s)
        engine.elsewhere = partial(self._second_chance, replica)
        self.replicas.append(replica)
        if after_s > 0:
            self.agenda.at(replica.ready_s, self._ready, replica)
        else:
            self._ready(replica)
        return replica

    def drain(self, replica: Replica) -> None:
        """Give it nothing new; it is gone when all that it has is answered."""
        replica.leaving = True
        if replica in self.serving:
            self.serving.remove(replica)
        self._end_when_settled(replica)

    def kill(self, replica: Replica) -> None:
        """Let it die: whatever it had fails."""
        self.drain(replica)
        replica.ended_s = self.agenda.now_s
        replica.engine.lose(replica.shoal.lose(self.agenda.now_s))

    def run(self, requests: Sequence[Request], until_s: float = NEVER_S) -> None:
        """Let every request arrive, and go on until nothing is left to happen."""
        for request in requests:
            self.agenda.at(request.arrived_s, self.arrive, request)
        self.agenda.run(until_s)

    def arrive(self, request: Request) -> None:
        """Let ``request`` come by the way that the rule leads it."""
        now_s = self.agenda.now_s
        if not self.serving:
            request.failed_s = now_s
        elif self._connections is not None:
            replica = self._connections.next(self.serving, now_s)
            # A replica that may let it in, but knows that it would answer late, need not wait until that is certain.
            late = self._balance is Balance.SECOND_CHANCE and replica.promise_s(request, now_s) > request.due_s
            if not (late and self._second_chance(replica, request)):
                replica.engine.arrive(request)
        else:
            choose(self._balance, self.serving, request, now_s, self._pick).engine.arrive(request)

    def _ready(self, replica: Replica) -> None:
        if not replica.leaving:
            self.serving.append(replica)

    def _end_when_settled(self, replica: Replica) -> None:
        if replica.ended_s is not None:
            return
        if replica.shoal.scheduler.settled:
            replica.ended_s = self.agenda.now_s
        else:
            self.agenda.at(self.agenda.now_s + _LOOK_S, self._end_when_settled, replica)

    def _second_chance(self, replica: Replica, request: Request) -> bool:
        """Hand ``request``, which ``replica`` would refuse, to a sibling; return whether there was one for it."""
        if self._balance is not Balance.SECOND_CHANCE:
            return False
        siblings = [self._known(replica, each) for each in self.serving if each is not replica]
        at_s = self.agenda.now_s + self._hop_s
        chosen = second_chance(siblings, request, at_s, self._pick)
        if chosen is None:
            return False
        chosen.give(request)
        # Its deadline travels with it.
        request.handed_over = request.own = True
        self.handed_over += 1
        self.agenda.at(at_s, chosen.sibling.engine.arrive, request)
        return True

    def _known(self, replica: Replica, sibling: Replica) -> Known:
        known = replica.knows.get(sibling)
        if known is None:
            known = replica.knows[sibling] = Known(sibling, self._stale_s)
        return known


_LOOK_S = 0.01
"""How often it is looked whether a replica has answered all."""
