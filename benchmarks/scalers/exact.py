"""The same cluster, request by request: replicas with the proxy's scheduler, clients that keep their connections."""

import random
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.scalers.cluster import Course
from benchmarks.scalers.readings import Law, Reading, Service
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.simulator.balance import Balance
from shoal_proxy.simulator.engine import Engine, EventQueue, SimulatedRequest
from shoal_proxy.simulator.fleet import Fleet, Replica
from shoal_proxy.simulator.shoal import SchedulerDiscipline

LOOK_S = 0.1
"""How often the rows in the system are added up."""
CONNECTIONS = 64


def run(law: Law, service: Service, times: Sequence[float], replicas: int, *, seed: int = 1) -> Course:
    """Let a row arrive at each of ``times``, at ``replicas`` that are ready, and ``law`` scale them."""
    requests = [SimulatedRequest(time, time + service.objective_s) for time in times]
    cluster = _Cluster(law, service, replicas, requests, seed)
    cluster.fleet.run(requests, until_s=requests[-1].arrived_s + 2 * service.objective_s)
    course = cluster.course
    seconds = len(course.replicas)
    course.offered, course.violated = [0.0] * seconds, [0.0] * seconds
    for request in requests:
        second = min(int(request.arrived_s), seconds - 1)
        course.offered[second] += 1
        course.violated[second] += not request.in_time
    return course


class _Cluster:
    """A fleet, and the law that is asked about it."""

    def __init__(
        self, law: Law, service: Service, replicas: int, requests: Sequence[SimulatedRequest], seed: int
    ) -> None:
        self._law = law
        self._service = service
        self._requests = requests
        self._ends_s = requests[-1].arrived_s
        self._wanted = replicas
        self._row_s = self._queued_row_s = 0.0
        self._arrived = 0
        self.course = Course()
        self.fleet = Fleet(
            partial(_engine, service),
            Balance.REQUEST_FORWARDING,
            random.Random(seed).randrange,
            connections=CONNECTIONS,
        )
        for _ in range(replicas):
            self.fleet.add()
        for happen in (self._ask, self._look, self._count):
            self.fleet.agenda.at(0.0, happen, None)

    def _again(self, after_s: float, happen: Callable[[object], None]) -> None:
        if (at_s := self.fleet.agenda.now_s + after_s) < self._ends_s:
            self.fleet.agenda.at(at_s, happen, None)

    def _count(self, _: object) -> None:
        self.course.replicas.append(len(self._existing()))
        self._again(1.0, self._count)

    def _look(self, _: object) -> None:
        for replica in self._existing():
            self._row_s += replica.rows * LOOK_S
            self._queued_row_s += replica.shoal.scheduler.queue.rows * LOOK_S
        self._again(LOOK_S, self._look)

    def _ask(self, _: object) -> None:
        now_s = self.fleet.agenda.now_s
        decided = self._law.decide(self._reading(now_s), now_s)
        decided = max(self._service.minimum, min(self._service.maximum, decided))
        if decided != self._wanted:
            self._wanted = decided
            self.course.decided.append((now_s, decided))
            self._scale(decided)
        self._again(self._law.period_s, self._ask)

    def _scale(self, wanted: int) -> None:
        staying = [replica for replica in self._existing() if not replica.leaving]
        for _ in range(wanted - len(staying)):
            self.fleet.add(self._service.start_s)
        # Those that start go first, then those with the fewest rows.
        staying.sort(key=lambda replica: (replica in self.fleet.serving, replica.rows))
        for replica in staying[: max(0, len(staying) - wanted)]:
            self.fleet.drain(replica)

    def _existing(self) -> list[Replica]:
        return [replica for replica in self.fleet.replicas if replica.ended_s is None]

    def _reading(self, now_s: float) -> Reading:
        while self._arrived < len(self._requests) and self._requests[self._arrived].arrived_s <= now_s:
            self._arrived += 1
        gone = self._requests[: self._arrived]
        existing = self._existing()
        return Reading(
            now_s,
            len([replica for replica in existing if not replica.leaving]),
            len(self.fleet.serving),
            sum(replica.shoal.scheduler.queue.rows for replica in existing),
            sum(replica.shoal.scheduler.in_flight_rows for replica in existing),
            len(gone),
            sum(request.completed_s is not None for request in gone),
            sum(request.refused_s is not None or request.failed_s is not None for request in gone),
            self._row_s,
            self._queued_row_s,
            sum(replica.engine.busy_s for replica in self.fleet.replicas),
        )


def _engine(service: Service, number: int, agenda: EventQueue) -> Engine:
    shoal = SchedulerDiscipline(BatchLimits(service.largest), objective_s=service.objective_s, max_queue_rows=1024)
    measured = tuple((rows, service.latency_s(rows)) for rows in (1, 2, 4, 8, 16) if rows <= service.largest)
    shoal.scheduler.set_model(None, (), measured)
    return Engine(shoal, lambda rows, shape: service.latency_s(rows), agenda=agenda)
