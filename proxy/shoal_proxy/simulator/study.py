"""Study of a service on a trace: outcomes, capacity, and optimum."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.errors import ModelFailed
from shoal_proxy.simulator.balance import Balance
from shoal_proxy.simulator.capacity import enough_requests, largest
from shoal_proxy.simulator.engine import Engine, EventQueue, SimulatedRequest
from shoal_proxy.simulator.fleet import Fleet
from shoal_proxy.simulator.latencies import Latencies
from shoal_proxy.simulator.optimum import most_in_time
from shoal_proxy.simulator.shoal import SchedulerDiscipline
from shoal_proxy.simulator.trace import TraceEntry

IN_TIME = 0.99
"""Share of requests in time that defines capacity."""
_MAX_FOR_OPTIMUM = 50_000
"""Most requests for which the optimum is computed."""
_SAME = 1.15
"""Ratio up to which two rates count as equal."""


@dataclass(frozen=True, slots=True)
class SimulatedService:
    """Settings of a simulated service.

    Without an objective, no response counts as late.
    """

    latencies: Latencies
    limits: BatchLimits
    objective_s: float = NEVER_S
    replicas: int = 1
    instances: int = 1
    """Runtimes of each replica, which run one batch each at a time."""
    max_queue_rows: int = 1 << 40
    seed: int = 1
    timeout_s: float = NEVER_S
    """Time after which a request gets an error."""
    failing: float = 0.0
    """Share of requests that make their batch fail."""
    identical: float = 0.0
    """Share of requests with the same rows, which are coalesced."""
    balance: Balance = Balance.RANDOM
    connections: int = 4
    """Connections that clients keep to each replica, where ``balance`` keeps them."""
    slow: float = 1.0
    """Factor on the duration of the first replica's batches."""
    death_s: float = NEVER_S
    """When the first replica dies, after the first arrival."""
    start_s: float = 30.0
    """Time until the replacement replica has started."""
    stale_s: float = 0.0
    """Maximum age of the queue times that replicas have of one another."""

    @property
    def plain(self) -> bool:
        """Return whether all replicas are equal, with one runtime each, and requests are routed at random."""
        return self.instances == 1 and self.balance is Balance.RANDOM and self.slow == 1.0 and self.death_s == NEVER_S

    def served_per_s(self, entries: Sequence[TraceEntry]) -> float | None:
        """Return the highest measured rate (requests/s); None if unknown."""
        rows_per_s = self.latencies.served_rows_per_s
        return rows_per_s and self.replicas * rows_per_s * len(entries) / sum([entry.rows for entry in entries])

    def device_per_s(self, entries: Sequence[TraceEntry]) -> float:
        """Return the most requests per second that the devices can run."""
        rows: Counter[str] = Counter()
        for entry in entries:
            rows[entry.shape] += entry.rows
        row_s = {shape: self.latencies.sizes(shape).row_s(self.limits.max_rows) for shape in rows}
        # Coalesced rows need not run again.
        took_s = (1 - self.identical) * sum([count * row_s[shape] for shape, count in rows.items()])
        devices = self.instances * (self.replicas - 1 + 1 / self.slow)
        return devices * len(entries) / took_s if took_s > 0 else math.inf


@dataclass(frozen=True, slots=True)
class TraceOutcome:
    """Outcome of a simulated trace; times (s) are None without responses."""

    offered: int
    offered_per_s: float
    in_time: int
    late: int
    refused: int
    failed: int
    """Requests that got an error: the batch failed, or the deadline passed."""
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    refused_after_p99_s: float | None
    mean_batch_rows: float
    busy: float
    """Share of the time in which a device works, mean over all runtimes."""
    forwarded: int = 0


@dataclass(frozen=True, slots=True)
class StudyResult:
    """Result of a study: a trace's outcome, the capacity, and their optima.

    An optimum uses knowledge of the whole trace and of the routing. It is None without an objective, with requests of
    several rows or shapes, with deadlines not in order of arrival, with several runtimes in a
    replica, or with routing that is not random.
    """

    outcome: TraceOutcome
    capacity_per_s: float | None
    best_in_time: int | None
    best_capacity_per_s: float | None
    served_per_s: float | None = None
    """The highest rate that was measured; the host's work at higher rates is in none of these figures."""

    met_at_any_rate: bool | None = None
    """Without a capacity: whether even the fastest replay was in time, or not even the slowest."""

    device_per_s: float | None = None
    """The most requests like these that the devices can run per second; no capacity exceeds it. None if unlimited."""

    enough_requests: int | None = None
    """Number of requests that would prove the capacity; None if the trace suffices."""

    def beyond_served(self, rate_per_s: float | None) -> bool:
        """Return whether a rate exceeds the measured rates by more than chance."""
        return bool(self.served_per_s and rate_per_s and rate_per_s > _SAME * self.served_per_s)


def study(
    entries: Sequence[TraceEntry], service: SimulatedService, progress: Callable[[str], None] = lambda _: None
) -> StudyResult:
    """Simulate a trace on a service, and find the capacity of the service.

    Args:
        entries: the trace, in order of arrival.
        service: the simulated service.
        progress: receives a description of each step.
    """
    progress(f"{len(entries):,} requests")
    requests = [entry.request(service.objective_s) for entry in entries]
    outcome = simulate(requests, service)
    # Without objective or deadlines any rate is in time, so there is no capacity.
    if all(request.soft_deadline_s == NEVER_S for request in requests):
        return StudyResult(outcome, None, None, None, service.served_per_s(entries))
    # Requests that must be in time for a rate to count as met.
    enough = math.ceil(IN_TIME * len(entries))

    def bears(factor: float) -> bool:
        progress(f"the capacity, {factor * outcome.offered_per_s:,.4g} requests/s")
        return simulate(_faster(entries, factor, service), service).in_time >= enough

    def could_bear(factor: float) -> bool:
        progress(f"the optimum, {factor * outcome.offered_per_s:,.4g} requests/s")
        best = _best_in_time(_faster(entries, factor, service), service, enough)
        return best is not None and best >= enough

    device_per_s = service.device_per_s(entries)
    # No rate above what the devices can run is tried.
    most = device_per_s / outcome.offered_per_s if outcome.offered_per_s else math.inf
    progress("the optimum")
    best = _best_in_time(requests, service)
    # The search ends early for a slow trace; rounding may exceed the limit of the devices.
    factor = min(largest(bears, most), most)
    capacity_per_s = device_per_s if factor == most < math.inf else _rate(factor, outcome)
    return StudyResult(
        outcome,
        capacity_per_s,
        best,
        None if best is None else _rate(largest(could_bear, most), outcome),
        service.served_per_s(entries),
        None if 0 < factor < math.inf else factor > 0,
        device_per_s if device_per_s < math.inf else None,
        None if capacity_per_s is None else enough_requests(requests, capacity_per_s),
    )


def simulate(requests: Sequence[SimulatedRequest], service: SimulatedService) -> TraceOutcome:
    """Route ``requests`` to the service's replicas, and run them."""
    # Deadlines, and rows that fail or that other requests have too.
    chance = random.Random(service.seed)
    for number, request in enumerate(requests, 1):
        request.deadline_s = min(request.deadline_s, request.arrived_s + service.timeout_s)
        if service.failing or service.identical:
            kind = chance.random()
            fails, shares = kind < service.failing, kind >= 1 - service.identical
            request.payload = -number if fails else 0 if shares else number
    count = service.replicas
    fleet = Fleet(
        partial(_engine, service),
        service.balance,
        random.Random(service.seed).randrange,
        connections=count * service.connections,
        stale_s=service.stale_s,
    )
    for _ in range(count):
        fleet.add()
    if service.death_s < NEVER_S:
        fleet.agenda.at(requests[0].arrived_s + service.death_s, partial(_replace, service), fleet)
    fleet.run(requests)
    outcome = _outcome(requests, [each.engine for each in fleet.replicas], count * service.instances)
    return replace(outcome, forwarded=fleet.forwarded)


def _replace(service: SimulatedService, fleet: Fleet) -> None:
    """Kill the first replica, and start a replacement."""
    fleet.kill(fleet.replicas[0])
    fleet.add(service.start_s)


def _engine(service: SimulatedService, number: int, agenda: EventQueue) -> Engine:
    # Each replica draws durations of its own.
    draw_s = service.latencies.sampler(partial(random.Random(service.seed + number).gauss, 0.0, 1.0))
    slow = service.slow if number == 0 else 1.0
    return Engine(
        _shoal(service, slow),
        lambda rows, shape: slow * draw_s(rows, shape),
        host_s=service.latencies.overhead_s / 2,
        instances=service.instances,
        fault=lambda batch, _: ModelFailed("simulated") if any(request.payload < 0 for request in batch) else None,
        agenda=agenda,
    )


def _shoal(service: SimulatedService, slow: float) -> SchedulerDiscipline:
    """Return the scheduler of a replica whose latency table is filled already."""
    shoal = SchedulerDiscipline(
        replace(service.limits, in_flight=service.instances),
        objective_s=service.objective_s,
        max_queue_rows=service.max_queue_rows,
        coalesce=service.identical > 0,
    )
    sizes = service.latencies.sizes("")
    most = service.limits.max_rows
    rows = [size for size in sizes.rows if size < most] + [most]
    if sizes.exact:
        # A formula is known at every size, so powers of two suffice.
        rows = sorted({min(most, 1 << power) for power in range(most.bit_length() + 1)})
    padded = tuple(sizes.rows) if sizes.padded else ()
    # Start with the table, as after a warm-up.
    shoal.scheduler.set_model(None, padded, tuple((size, slow * sizes.at(size)[0]) for size in rows))
    return shoal


def _outcome(requests: Sequence[SimulatedRequest], engines: Sequence[Engine], devices: int) -> TraceOutcome:
    latencies_s = [each.completed_s - each.arrived_s for each in requests if each.completed_s is not None]
    refusals_s = [each.refused_s - each.arrived_s for each in requests if each.refused_s is not None]
    in_time = sum([request.in_time for request in requests])
    batches = [rows for engine in engines for rows in engine.batches]
    # Up to the devices' last batch: the last event may be a deadline, long after the last response.
    ends_s = max(requests[-1].arrived_s, *(engine.free_s for engine in engines))
    # Shares of time are of the whole run.
    span_s = ends_s - requests[0].arrived_s
    arriving_s = requests[-1].arrived_s - requests[0].arrived_s
    p50_s, p95_s, p99_s = np.percentile(latencies_s, [50, 95, 99]).tolist() if latencies_s else (None, None, None)
    return TraceOutcome(
        offered=len(requests),
        offered_per_s=(len(requests) - 1) / arriving_s if arriving_s else 0.0,
        in_time=in_time,
        late=len(latencies_s) - in_time,
        refused=len(refusals_s),
        failed=sum([request.failed_s is not None for request in requests]),
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        refused_after_p99_s=float(np.percentile(refusals_s, 99)) if refusals_s else None,
        mean_batch_rows=sum(batches) / len(batches) if batches else 0.0,
        busy=sum([engine.busy_s for engine in engines]) / devices / span_s if span_s else 0.0,
    )


def _faster(entries: Sequence[TraceEntry], factor: float, service: SimulatedService) -> list[SimulatedRequest]:
    return [replace(entry, arrived_s=entry.arrived_s / factor).request(service.objective_s) for entry in entries]


def _rate(factor: float, outcome: TraceOutcome) -> float | None:
    """Return the rate (requests/s) of a trace played ``factor`` times as fast.

    Returns None if ``factor`` is 0 or infinite.
    """
    return factor * outcome.offered_per_s if 0 < factor < math.inf else None


def _best_in_time(requests: Sequence[SimulatedRequest], service: SimulatedService, enough: int = 0) -> int | None:
    dues_s = [request.soft_deadline_s for request in requests]
    plain = all(request.rows == 1 and request.shape == requests[0].shape for request in requests)
    if not (plain and service.plain) or dues_s != sorted(dues_s) or len(requests) > _MAX_FOR_OPTIMUM:
        return None
    sizes = service.latencies.sizes(requests[0].shape)
    table_s = [sizes.at(rows)[0] for rows in range(1, service.limits.max_rows + 1)]
    half_s = service.latencies.overhead_s / 2
    # The routing of `simulate`.
    choice = random.Random(service.seed)
    shares: list[list[SimulatedRequest]] = [[] for _ in range(service.replicas)]
    for request in requests:
        shares[choice.randrange(service.replicas)].append(request)
    return sum(
        [
            most_in_time(
                [each.arrived_s + half_s for each in share],
                [each.soft_deadline_s - half_s for each in share],
                table_s,
                # With so many rejected the rest cannot suffice, whatever the other replicas do.
                give_up_at=len(requests) - enough + 1,
            )
            for share in shares
        ]
    )
