"""Discrete-event simulation of a batching policy on the runtimes of one replica."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.errors import ProxyError


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """Simulated request and its outcome.

    The outcome sets one of ``completed_s``, ``refused_s``, ``failed_s`` and ``left_s``.
    """

    arrived_s: float
    soft_deadline_s: float = NEVER_S
    """When the response counts as late."""
    rows: int = 1
    shape: str = ""
    own: bool = False
    """Whether ``soft_deadline_s`` is the client's own timeout, which the discipline then knows."""
    previous: "SimulatedRequest | None" = None
    """The request of the same client whose response this one follows."""
    client: str = ""
    """Name of the client, by which it is recognized; empty for none."""
    payload: int = 0
    """Identifies the contents of the request's rows; requests with equal contents are identical."""
    deadline_s: float = NEVER_S
    """Time at which the request gets an error instead of a result."""
    leaves_s: float = NEVER_S
    """Time at which the request's client disconnects."""
    forwarded: bool = False
    """Whether a replica forwarded it; it is not forwarded again."""
    completed_s: float | None = None
    refused_s: float | None = None
    failed_s: float | None = None
    """Time at which the request got an error: the batch failed, or the deadline passed."""
    left_s: float | None = None

    @property
    def in_time(self) -> bool:
        """Return whether the request got its result before its deadline."""
        return self.completed_s is not None and self.completed_s <= self.soft_deadline_s

    @property
    def settled(self) -> bool:
        """Return whether the request has an outcome."""
        return any(at_s is not None for at_s in (self.completed_s, self.refused_s, self.failed_s, self.left_s))


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Decision to send a batch, and to reject or fail other requests."""

    batch: Sequence[SimulatedRequest] = ()
    rejected: Sequence[SimulatedRequest] = ()
    counts: Sequence[int] = ()
    """Rows of each request in this batch; empty for all of them."""
    failed: Sequence[SimulatedRequest] = ()


@dataclass(frozen=True, slots=True)
class SleepUntil:
    """The decision to do nothing before ``until_s``, unless an event occurs."""

    until_s: float = NEVER_S


class Discipline(Protocol):
    """Batching policy under test, which decides after each event."""

    def arrive(self, request: SimulatedRequest, now_s: float) -> Sequence[SimulatedRequest]:
        """Admit a request; return the requests that are rejected because of it."""

    def decide(self, now_s: float) -> SendBatch | SleepUntil:
        """Decide whether to send a batch now or to wait."""

    def finished(self, batch: Sequence[SimulatedRequest], took_s: float, now_s: float) -> Sequence[SimulatedRequest]:
        """Record that ``batch`` took ``took_s``; return the answered requests."""

    def failed(self, batch: Sequence[SimulatedRequest], error: ProxyError, now_s: float) -> Sequence[SimulatedRequest]:
        """Record that ``batch`` failed; return the requests that get the error."""

    def left(self, request: SimulatedRequest, now_s: float) -> None:
        """Record that the client of ``request`` has disconnected."""


@dataclass(slots=True)
class EventQueue:
    """Future events of one or several devices, in order of time."""

    now_s: float = 0.0
    _events: list[tuple[float, int, Callable[..., object], object]] = field(default_factory=list)
    _serial: int = 0
    _touched: "dict[Engine, None]" = field(default_factory=dict)

    def at(self, time_s: float, happen: Callable[..., object], what: object) -> None:
        """Schedule ``happen(what)`` at ``time_s``."""
        self._serial += 1
        heapq.heappush(self._events, (time_s, self._serial, happen, what))

    def schedule_decision(self, engine: "Engine") -> None:
        """Schedule a decision of the engine's discipline.

        It is made once all events of the current time have been processed.
        """
        self._touched[engine] = None

    def run(self, until_s: float = NEVER_S) -> None:
        """Process events until none is left, or until ``until_s``."""
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s = max(self.now_s, events[0][0])
            # Events of the same moment are seen together, as in one turn of an event loop.
            while events and events[0][0] <= self.now_s:
                _, _, happen, what = heapq.heappop(events)
                happen(what)
            touched, self._touched = self._touched, {}
            for engine in touched:
                engine.run_discipline()


@dataclass(slots=True, eq=False)
class _Instance:
    """One runtime of a replica: a device that runs one batch at a time."""

    free_s: float = 0.0
    """Time at which it has run all batches that were sent to it."""
    batches: int = 0
    """Batches that it holds."""
    sent: int = 0
    """Position of its last batch among all batches, so that idle runtimes take turns."""


@dataclass(slots=True, eq=False)
class Engine:
    """Simulator of the runtimes that run the batches of a discipline.

    A batch is sent to the runtime with the fewest batches, as by `InstancesLink`. It takes ``latency_s(rows, shape)``;
    if another batch runs there, it starts when that batch ends. ``host_s`` passes between a batch's sending and its
    start, and again between its end and the responses, in parallel to the device.
    """

    discipline: Discipline
    latency_s: Callable[[int, str], float]
    host_s: float = 0.0
    instances: int = 1
    """Number of runtimes."""
    following: Callable[[SimulatedRequest, float], SimulatedRequest | None] | None = None
    """Returns the client's next request after each response or rejection: a closed loop."""
    fault: Callable[[Sequence[SimulatedRequest], Sequence[int]], ProxyError | None] = lambda batch, counts: None
    """Returns the error of a batch, by its requests and rows of each; None where it succeeds."""
    elsewhere: Callable[[SimulatedRequest], bool] = lambda request: False
    """Returns whether another replica accepts a request that is about to be rejected."""
    agenda: EventQueue = field(default_factory=EventQueue)
    busy_s: float = 0.0
    """Sum over all runtimes."""
    batches: list[int] = field(default_factory=list)
    """Rows of each batch, in order."""
    lost: bool = False
    """Whether the device has failed; no result returns from it."""
    _wake_s: float = NEVER_S
    _given: set[SimulatedRequest] = field(default_factory=set)
    """Requests forwarded to other replicas; a client that disconnects does so there."""
    _instances: list[_Instance] = field(init=False)

    def __post_init__(self) -> None:
        self._instances = [_Instance() for _ in range(self.instances)]

    @property
    def free_s(self) -> float:
        """Return the time at which all batches that were sent have run."""
        return max(each.free_s for each in self._instances)

    @property
    def now_s(self) -> float:
        """Return the time of the last event."""
        return self.agenda.now_s

    def run(self, requests: Sequence[SimulatedRequest], until_s: float = NEVER_S) -> None:
        """Schedule the arrivals of ``requests``, and process all events."""
        for request in requests:
            self.agenda.at(request.arrived_s, self.arrive, request)
        self.agenda.run(until_s)

    def arrive(self, request: SimulatedRequest) -> None:
        """Admit a request. A request that arrives after the device was lost fails."""
        if self.lost:
            self._fail([request])
            return
        self.agenda.schedule_decision(self)
        # The client will disconnect, unless it is answered before.
        if request.leaves_s < NEVER_S:
            self.agenda.at(request.leaves_s, self._leave, request)
        self._refuse(self.discipline.arrive(request, self.now_s))

    def lose(self, requests: Sequence[SimulatedRequest]) -> None:
        """Lose the device: all of ``requests`` without a response fail."""
        self.lost = True
        self._fail(requests)

    def _leave(self, request: SimulatedRequest) -> None:
        if not request.settled and request not in self._given:
            # A forwarded request leaves the replica that it was forwarded to.
            request.left_s = self.now_s
            self.discipline.left(request, self.now_s)

    def _come_back(self, flight: "_Flight") -> None:
        flight.instance.batches -= 1
        if self.lost:  # the result died with the device
            return
        self.agenda.schedule_decision(self)
        if flight.error is not None:
            self._fail(self.discipline.failed(flight.batch, flight.error, self.now_s))
            return
        answered = self.discipline.finished(flight.batch, flight.took_s, self.now_s)
        for request in answered:
            request.completed_s = self.now_s
        self._follow(answered)

    def _refuse(self, requests: Sequence[SimulatedRequest]) -> None:
        # Another replica may accept requests that this one rejects.
        refused = [request for request in requests if not self.elsewhere(request)]
        if len(refused) < len(requests):
            self._given.update(set(requests).difference(refused))
        for request in refused:
            request.refused_s = self.now_s
        self._follow(refused)

    def _fail(self, requests: Sequence[SimulatedRequest]) -> None:
        for request in requests:
            request.failed_s = self.now_s
        self._follow(requests)

    def _follow(self, requests: Sequence[SimulatedRequest]) -> None:
        if self.following is None:
            return
        for request in requests:
            if (following := self.following(request, self.now_s)) is not None:
                self.agenda.at(following.arrived_s, self.arrive, following)

    def run_discipline(self) -> None:
        """Execute the scheduler's decisions until it sleeps."""
        while isinstance(action := self.discipline.decide(self.now_s), SendBatch):
            self._refuse(action.rejected)
            self._fail(action.failed)
            if not action.batch:
                continue
            counts = action.counts or [request.rows for request in action.batch]
            rows = sum(counts)
            took_s = self.latency_s(rows, action.batch[0].shape)
            instance = min(self._instances, key=lambda each: (each.batches, each.sent))
            # It starts when the host has sent it and the device has run the batches before.
            instance.free_s = max(self.now_s + self.host_s, instance.free_s) + took_s
            instance.batches += 1
            self.busy_s += took_s
            self.batches.append(rows)
            instance.sent = len(self.batches)
            flight = _Flight(action.batch, instance, took_s, self.fault(action.batch, counts))
            self.agenda.at(instance.free_s + self.host_s, self._come_back, flight)
        # Several decisions for the same time need only one event.
        if self.now_s < action.until_s < NEVER_S and action.until_s != self._wake_s:
            self._wake_s = action.until_s
            self.agenda.at(action.until_s, self._wake, None)

    def _wake(self, _: None) -> None:
        if not self.lost:
            self.agenda.schedule_decision(self)


@dataclass(frozen=True, slots=True)
class _Flight:
    batch: Sequence[SimulatedRequest]
    instance: _Instance
    took_s: float
    error: ProxyError | None
