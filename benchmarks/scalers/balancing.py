"""Eight replicas, and how requests come to them: which share is in time, by each rule."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.simulator.arrivals import gamma, requests
from shoal_proxy.simulator.balance import Balance
from shoal_proxy.simulator.engine import Engine, EventQueue
from shoal_proxy.simulator.fleet import Fleet
from shoal_proxy.simulator.latencies import parse_terms
from shoal_proxy.simulator.shoal import SchedulerDiscipline
from shoal_proxy.simulator.study import SimulatedService, simulate

REPLICAS = 8
SERVICE = SimulatedService(parse_terms("20ms+0.5ms"), BatchLimits(32), 0.1, replicas=REPLICAS, max_queue_rows=1024)
SATURATION = REPLICAS * 32 / 0.036
SLOW = 1.5


@dataclass(frozen=True, slots=True)
class Load:
    """Offered load, in shares of what eight equal replicas can serve; how bursty; how slow one of them is.

    ``stale_s``: how old what replicas know of one another may be.
    """

    name: str
    load: float
    cv: float = 1.0
    slow: float = 1.0
    stale_s: float = 0.0

    def pooled(self, count: int) -> float:
        """Return the share of ``count`` requests in time that the replicas could not exceed if all were one."""
        rows_per_s = SATURATION * (REPLICAS - 1 + 1 / self.slow) / REPLICAS
        lasts_s = count / (self.load * SATURATION) + SERVICE.objective_s
        return min(1.0, rows_per_s * lasts_s / count)


NORMAL, ONE_SLOW = Load("0.9", 0.9), Load("0.9, one 1.5 x slower", 0.9, slow=SLOW)
STALE = [Load(f"1.0, waits known {1000 * stale_s:g} ms late", 1.0, stale_s=stale_s) for stale_s in (0.1, 0.25, 1.0)]
LOADS = (NORMAL, Load("1.0", 1.0), Load("0.9, CV 4", 0.9, cv=4.0), ONE_SLOW, Load("1.2", 1.2), *STALE)


@dataclass(frozen=True, slots=True)
class Job:
    """One rule on one load with one seed, for one process."""

    load: Load
    balance: Balance
    seed: int
    count: int


def measure(job: Job) -> float:
    """Return the share in time."""
    arrivals = gamma(job.load.load * SATURATION, job.count, cv=job.load.cv, seed=job.seed)
    service = replace(SERVICE, balance=job.balance, slow=job.load.slow, seed=job.seed, stale_s=job.load.stale_s)
    return simulate(requests(arrivals, SERVICE.objective_s), service).in_time / job.count


def jobs(count: int, seeds: int) -> list[Job]:
    """Return every rule on every load."""
    rules = {load: [Balance.REQUEST_FORWARDING] if load.stale_s else list(Balance) for load in LOADS}
    return [Job(load, rule, seed, count) for load in LOADS for rule in rules[load] for seed in range(1, seeds + 1)]


def goodput(shares: Mapping[Job, float], load: Load) -> list[float]:
    """Return, for each seed, the share in time with request forwarding, over what the replicas could do as one."""
    chosen = [
        (job, share) for job, share in shares.items() if (job.load, job.balance) == (load, Balance.REQUEST_FORWARDING)
    ]
    return [share / job.load.pooled(job.count) for job, share in chosen]


def markdown(shares: Mapping[Job, float]) -> list[str]:
    """Return a table: the share in time, mean over seeds."""
    lines = ["| load | " + " | ".join(Balance) + " | as one |", "|" + "---|" * (len(Balance) + 2)]
    for load in LOADS:
        each_rule = [_of(shares, load, rule) for rule in Balance]
        pooled = max(job.load.pooled(job.count) for job in shares if job.load == load)
        lines.append(
            f"| {load.name} | "
            + " | ".join([*[f"{mean(each):.3f}" if each else "" for each in each_rule], f"{pooled:.3f}"])
            + " |"
        )
    return lines


def _of(shares: Mapping[Job, float], load: Load, rule: Balance) -> list[float]:
    return [share for job, share in shares.items() if (job.load, job.balance) == (load, rule)]


def joining(max_age_s: float, *, seeds: int = 5, within_s: float = 60.0) -> float:
    """Return the share of requests that a pod has which joined seven, over a fair one, after ``within_s``.

    Args:
        max_age_s: of a connection; `NEVER_S` for kept as long as its replica serves.
        seeds: of chance; the mean over so many.
        within_s: that the pod has been ready for.
    """
    return mean(_joining(max_age_s, seed, within_s) for seed in range(1, seeds + 1))


def _joining(max_age_s: float, seed: int, within_s: float) -> float:
    fleet = Fleet(_engine, Balance.PINNED, random.Random(seed).randrange, connections=4 * REPLICAS, max_age_s=max_age_s)
    for _ in range(REPLICAS - 1):
        fleet.add()
    joins_s = 2 * min(max_age_s, 30.0)
    fleet.agenda.at(joins_s, lambda _: fleet.add(), None)
    before_s, ends_s = joins_s + within_s, joins_s + 2 * within_s
    times = [time for time in gamma(100.0, round(120 * ends_s), cv=1.0, seed=seed).tolist() if time < ends_s]
    fleet.run(requests([time for time in times if time < before_s], 1.0))
    had = sum(fleet.replicas[-1].engine.batches)
    fleet.run(requests([time for time in times if time >= before_s], 1.0))
    rows = sum(fleet.replicas[-1].engine.batches) - had
    return REPLICAS * rows / len([time for time in times if time >= before_s])


def _engine(number: int, agenda: EventQueue) -> Engine:
    shoal = SchedulerDiscipline(BatchLimits(32), objective_s=1.0)
    return Engine(shoal, lambda rows, shape: 0.02 + 0.0005 * rows, agenda=agenda)


AGES_S: Sequence[float] = (NEVER_S, 120.0, 60.0, 30.0)
