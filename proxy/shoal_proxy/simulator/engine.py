"""Replay arrivals through a discipline on one simulated device, event by event."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.errors import ProxyError


@dataclass(slots=True, eq=False)
class Request:
    """One arrival, and when what became of it: exactly one of the last four is set in the end.

    ``due_s`` is when the answer counts as late. ``own``: the caller said so itself, and the discipline is told.
    ``previous``: the request to whose answer this one is the same caller's next. ``payload``: of its rows; requests of
    the same hold the same. ``deadline_s``: when it gets an error instead. ``leaves_s``: when its caller hangs up.
    """

    arrived_s: float
    due_s: float = NEVER_S
    rows: int = 1
    shape: str = ""
    own: bool = False
    previous: "Request | None" = None
    payload: int = 0
    deadline_s: float = NEVER_S
    leaves_s: float = NEVER_S
    handed_over: bool = False
    """Whether the replica that would have refused it gave it to a sibling, which may not do so again."""
    answered_s: float | None = None
    refused_s: float | None = None
    failed_s: float | None = None
    """When it got an error, its own or that its deadline had passed."""
    left_s: float | None = None

    @property
    def in_time(self) -> bool:
        """Return whether it was answered when it was due."""
        return self.answered_s is not None and self.answered_s <= self.due_s

    @property
    def settled(self) -> bool:
        """Return whether something has become of it."""
        return any(at_s is not None for at_s in (self.answered_s, self.refused_s, self.failed_s, self.left_s))


@dataclass(frozen=True, slots=True)
class Send:
    """Send these requests as one batch, refuse those, and give an error to others; each may be empty.

    ``counts``: how many rows of each request are in this batch, where it is not all of them.
    """

    batch: Sequence[Request] = ()
    refused: Sequence[Request] = ()
    counts: Sequence[int] = ()
    failed: Sequence[Request] = ()


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing before ``until_s``, unless something happens."""

    until_s: float = NEVER_S


class Discipline(Protocol):
    """A rule of batching under test. It is told what happens, and asked after each event until it sleeps."""

    def arrive(self, request: Request, now_s: float) -> Sequence[Request]:
        """Take a request; return the requests that are refused because of it."""

    def decide(self, now_s: float) -> Send | Sleep:
        """Return what to do now."""

    def finished(self, batch: Sequence[Request], took_s: float, now_s: float) -> Sequence[Request]:
        """Learn that ``batch`` has run, for ``took_s`` on the device; return the requests that are answered."""

    def failed(self, batch: Sequence[Request], error: ProxyError, now_s: float) -> Sequence[Request]:
        """Learn that ``batch`` has failed as a whole; return the requests that get the error."""

    def left(self, request: Request, now_s: float) -> None:
        """Learn that the caller of ``request`` waits no more."""


@dataclass(slots=True)
class Agenda:
    """What is still to happen, in order of time, to one device or to many."""

    now_s: float = 0.0
    _events: list[tuple[float, int, Callable[..., object], object]] = field(default_factory=list)
    _serial: int = 0
    _touched: "dict[Engine, None]" = field(default_factory=dict)

    def at(self, time_s: float, happen: Callable[..., object], what: object) -> None:
        """Have ``happen(what)`` called at ``time_s``."""
        self._serial += 1
        heapq.heappush(self._events, (time_s, self._serial, happen, what))

    def touch(self, engine: "Engine") -> None:
        """Have ``engine`` ask its discipline when all that happens at this moment has happened."""
        self._touched[engine] = None

    def run(self, until_s: float = NEVER_S) -> None:
        """Go on until nothing is left to happen, or ``until_s``."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s = max(self.now_s, events[0][0])
            # What happens at the same moment is seen together, as in one turn of an event loop.
            while events and events[0][0] <= self.now_s:
                _, _, happen, what = heapq.heappop(events)
                happen(what)
            touched, self._touched = self._touched, {}
            for engine in touched:
                engine.ask()


@dataclass(slots=True, eq=False)
class Engine:
    """Arrivals, a discipline, and a device that takes ``latency_s(rows, shape)`` for a batch and runs one at a time.

    A batch sent while another runs starts when that one ends. ``host_s`` passes between a batch's sending and its
    start, and again between its end and the answers, beside whatever the device does. ``fault`` says of a batch, by
    requests and rows of each, how it fails; None where it does not.
    """

    discipline: Discipline
    latency_s: Callable[[int, str], float]
    host_s: float = 0.0
    following: Callable[[Request, float], Request | None] | None = None
    """Asked after each answer or refusal for the caller's next request: a closed loop."""
    fault: Callable[[Sequence[Request], Sequence[int]], ProxyError | None] = lambda batch, counts: None
    elsewhere: Callable[[Request], bool] = lambda request: False
    """Asked of each request that is about to be refused whether another takes it."""
    agenda: Agenda = field(default_factory=Agenda)
    busy_s: float = 0.0
    free_s: float = 0.0
    """When the device has run all that it was sent."""
    batches: list[int] = field(default_factory=list)
    """Rows of each batch, in order."""
    lost: bool = False
    """Whether the device has gone; nothing comes back from it."""
    _wake_s: float = NEVER_S
    _given: set[Request] = field(default_factory=set)
    """To others: the caller who leaves leaves them."""

    @property
    def now_s(self) -> float:
        """Return the time of what happened last."""
        return self.agenda.now_s

    def run(self, requests: Sequence[Request], until_s: float = NEVER_S) -> None:
        """Let every request arrive, and go on until nothing is left to happen."""
        for request in requests:
            self.agenda.at(request.arrived_s, self.arrive, request)
        self.agenda.run(until_s)

    def arrive(self, request: Request) -> None:
        """Take a request; one that was on its way when the device was lost fails."""
        if self.lost:
            self._fail([request])
            return
        self.agenda.touch(self)
        if request.leaves_s < NEVER_S:
            self.agenda.at(request.leaves_s, self._leave, request)
        self._refuse(self.discipline.arrive(request, self.now_s))

    def lose(self, requests: Sequence[Request]) -> None:
        """Let the device go, and ``requests`` with it: all that it had and not answered."""
        self.lost = True
        self._fail(requests)

    def _leave(self, request: Request) -> None:
        if not request.settled and request not in self._given:
            request.left_s = self.now_s
            self.discipline.left(request, self.now_s)

    def _come_back(self, flight: "_Flight") -> None:
        if self.lost:
            return
        self.agenda.touch(self)
        if flight.error is not None:
            self._fail(self.discipline.failed(flight.batch, flight.error, self.now_s))
            return
        answered = self.discipline.finished(flight.batch, flight.took_s, self.now_s)
        for request in answered:
            request.answered_s = self.now_s
        self._follow(answered)

    def _refuse(self, requests: Sequence[Request]) -> None:
        refused = [request for request in requests if not self.elsewhere(request)]
        if len(refused) < len(requests):
            self._given.update(set(requests).difference(refused))
        for request in refused:
            request.refused_s = self.now_s
        self._follow(refused)

    def _fail(self, requests: Sequence[Request]) -> None:
        for request in requests:
            request.failed_s = self.now_s
        self._follow(requests)

    def _follow(self, requests: Sequence[Request]) -> None:
        if self.following is None:
            return
        for request in requests:
            if (following := self.following(request, self.now_s)) is not None:
                self.agenda.at(following.arrived_s, self.arrive, following)

    def ask(self) -> None:
        """Do what the discipline wants done now."""
        while isinstance(action := self.discipline.decide(self.now_s), Send):
            self._refuse(action.refused)
            self._fail(action.failed)
            if action.batch:
                self._send(action.batch, action.counts or [request.rows for request in action.batch])
        if self.now_s < action.until_s < NEVER_S and action.until_s != self._wake_s:
            self._wake_s = action.until_s
            self.agenda.at(action.until_s, self._wake, None)

    def _wake(self, _: None) -> None:
        if not self.lost:
            self.agenda.touch(self)

    def _send(self, batch: Sequence[Request], counts: Sequence[int]) -> None:
        rows = sum(counts)
        took_s = self.latency_s(rows, batch[0].shape)
        start_s = max(self.now_s + self.host_s, self.free_s)
        self.free_s = start_s + took_s
        self.busy_s += took_s
        self.batches.append(rows)
        self.agenda.at(self.free_s + self.host_s, self._come_back, _Flight(batch, took_s, self.fault(batch, counts)))


@dataclass(frozen=True, slots=True)
class _Flight:
    batch: Sequence[Request]
    took_s: float
    error: ProxyError | None
