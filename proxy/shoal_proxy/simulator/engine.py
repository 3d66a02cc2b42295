"""Replay arrivals through a policy on one simulated device, event by event."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal_proxy.batching.pending import NEVER_S


@dataclass(slots=True, eq=False)
class Request:
    """One arrival, and what became of it: answered at ``answered_s``, or refused at ``refused_s``.

    ``due_s`` is when the answer counts as late. ``own``: the caller said so itself, and the policy is told.
    ``previous``: the request to whose answer this one is the same caller's next.
    """

    arrived_s: float
    due_s: float = NEVER_S
    rows: int = 1
    shape: str = ""
    own: bool = False
    previous: "Request | None" = None
    done: int = 0
    """Rows that have come back."""
    answered_s: float | None = None
    refused_s: float | None = None

    @property
    def in_time(self) -> bool:
        """Tell whether it was answered when it was due."""
        return self.answered_s is not None and self.answered_s <= self.due_s


@dataclass(frozen=True, slots=True)
class Send:
    """Send these requests as one batch, and refuse those; either may be empty.

    ``counts``: how many rows of each request are in this batch, where it is not all of them; a request is answered
    when all its rows are back.
    """

    batch: Sequence[Request] = ()
    refused: Sequence[Request] = ()
    counts: Sequence[int] = ()


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

    def finished(self, batch: Sequence[Request], took_s: float, now_s: float) -> None:
        """Learn that ``batch`` has run, for ``took_s`` on the device."""


@dataclass(slots=True)
class Engine:
    """Arrivals, a discipline, and a device that takes ``latency_s(rows, shape)`` for a batch and runs one at a time.

    A batch sent while another runs starts when that one ends. ``host_s`` passes between a batch's sending and its
    start, and again between its end and the answers, beside whatever the device does.
    """

    discipline: Discipline
    latency_s: Callable[[int, str], float]
    host_s: float = 0.0
    following: Callable[[Request, float], Request | None] | None = None
    """Asked after each answer or refusal for the caller's next request: a closed loop."""
    now_s: float = 0.0
    busy_s: float = 0.0
    batches: list[int] = field(default_factory=list)
    """Rows of each batch, in order."""
    _events: list[tuple[float, int, int, object]] = field(default_factory=list)
    _serial: int = 0
    _free_s: float = 0.0
    _wake_s: float = NEVER_S

    def run(self, requests: Sequence[Request], until_s: float = NEVER_S) -> None:
        """Let every request arrive, and go on until nothing is left to happen."""
        for request in requests:
            self._at(request.arrived_s, _ARRIVAL, request)
        events = self._events
        while events and events[0][0] <= until_s:
            self.now_s, _, kind, what = heapq.heappop(events)
            self._happen(kind, what)
            # What happens at the same moment is seen together, as in one turn of an event loop.
            while events and events[0][0] <= self.now_s:
                _, _, kind, what = heapq.heappop(events)
                self._happen(kind, what)
            self._ask()

    def _at(self, time_s: float, kind: int, what: object) -> None:
        self._serial += 1
        heapq.heappush(self._events, (time_s, self._serial, kind, what))

    def _happen(self, kind: int, what: object) -> None:
        if kind == _ARRIVAL:
            assert isinstance(what, Request)
            self._refuse(self.discipline.arrive(what, self.now_s))
        elif kind == _ANSWER:
            assert isinstance(what, _Flight)
            self.discipline.finished(what.batch, what.took_s, self.now_s)
            self._answer(what)

    def _answer(self, flight: "_Flight") -> None:
        for request, count in zip(flight.batch, flight.counts, strict=True):
            request.done += count
            if request.done == request.rows:
                request.answered_s = self.now_s
        self._follow([request for request in flight.batch if request.answered_s is not None])

    def _refuse(self, requests: Sequence[Request]) -> None:
        for request in requests:
            request.refused_s = self.now_s
        self._follow(requests)

    def _follow(self, requests: Sequence[Request]) -> None:
        if self.following is None:
            return
        for request in requests:
            if (following := self.following(request, self.now_s)) is not None:
                self._at(following.arrived_s, _ARRIVAL, following)

    def _ask(self) -> None:
        while isinstance(action := self.discipline.decide(self.now_s), Send):
            self._refuse(action.refused)
            if action.batch:
                self._send(action.batch, action.counts or [request.rows for request in action.batch])
        if self.now_s < action.until_s < NEVER_S and action.until_s != self._wake_s:
            self._wake_s = action.until_s
            self._at(action.until_s, _WAKE, None)

    def _send(self, batch: Sequence[Request], counts: Sequence[int]) -> None:
        rows = sum(counts)
        took_s = self.latency_s(rows, batch[0].shape)
        start_s = max(self.now_s + self.host_s, self._free_s)
        self._free_s = start_s + took_s
        self.busy_s += took_s
        self.batches.append(rows)
        self._at(self._free_s + self.host_s, _ANSWER, _Flight(batch, counts, took_s))


@dataclass(frozen=True, slots=True)
class _Flight:
    batch: Sequence[Request]
    counts: Sequence[int]
    took_s: float


_ARRIVAL, _ANSWER, _WAKE = range(3)
