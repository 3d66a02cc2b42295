"""One cell of the benchmark: a model, an objective and a trace; every rule on it, beside the offline optimum."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from benchmarks.policies.rivals import (
    AgeReject,
    BentoML,
    BestRate,
    Clipper,
    Clockwork,
    Eager,
    Nexus,
    Setting,
    Symphony,
    TimerFromFree,
    TimerFromHead,
)
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.simulator.arrivals import Times, bursty, gamma, on_off, poisson, requests, scaled
from shoal_proxy.simulator.engine import Discipline, Engine, SimulatedRequest
from shoal_proxy.simulator.optimum import most_in_time
from shoal_proxy.simulator.shoal import SchedulerDiscipline

LOADS = (0.8, 1.0, 1.5, 2.0)
"""Offered load, in multiples of what two batches within the objective sustain."""
MAY_MISS = 0.01
_BISECTIONS = 9
_CHECKPOINTS = 12

Make = Callable[[], Discipline]


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose batches take ``base_s`` and ``row_s`` for each row, up to ``largest``, or padded to ``sizes``."""

    name: str
    base_s: float
    row_s: float
    largest: int
    sizes: tuple[int, ...] = ()

    def latency_s(self, rows: int, shape: str = "") -> float:
        """Return how long a batch takes."""
        padded = self.sizes[bisect_left(self.sizes, rows)] if self.sizes else rows
        return self.base_s + self.row_s * padded

    def setting(self, patience: float) -> Setting:
        """Return the input of a rule, for an objective of ``patience`` times a batch of one."""
        return Setting([self.latency_s(rows) for rows in range(1, self.largest + 1)], patience * self.latency_s(1))


MODELS = (Model("R50", 0.005072, 0.001053, 32), Model("small", 0.004, 0.00015, 64))
PATIENCES = (2.5, 5.0, 10.0)


def _poisson(rate: float, count: int, seed: int) -> Times:
    return poisson(rate, count, seed=seed)


def _gamma(rate: float, count: int, seed: int) -> Times:
    return gamma(rate, count, cv=4.0, seed=seed)


def _on_off(rate: float, count: int, seed: int) -> Times:
    # Twice as long at half the rate as at twice the rate, so that the mean is ``rate``; 1,000 requests a round.
    return on_off(rate / 2, rate * 2, count, quiet_s=667 / rate, busy_s=333 / rate, seed=seed)


def _bursty(rate: float, count: int, seed: int) -> Times:
    return bursty(rate, count, duration_s=count / rate, seed=seed)


TRACES: Mapping[str, Callable[[float, int, int], Times]] = {
    "Poisson": _poisson,
    "Gamma CV 4": _gamma,
    "on/off": _on_off,
    "bursty": _bursty,
}

RIVALS: Mapping[str, Callable[[Setting], Discipline]] = {
    "eager, no drop": Eager,
    "timer from head": TimerFromHead,
    "timer from free": TimerFromFree,
    "Clipper AIMD": Clipper,
    "Clockwork-like": Clockwork,
    "Symphony-like": Symphony,
    "BentoML": BentoML,
    "Nexus early drop": Nexus,
    "best-rate suffix": BestRate,
}
TUNED = "age-reject, tuned"
SHOAL, SHOAL_PRESET = "Shoal", "Shoal, preset table"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the rules meet. ``patience``: the objective in batches of one."""

    model: Model
    patience: float
    trace: str

    @property
    def setting(self) -> Setting:
        """Return the input of the rules."""
        return self.model.setting(self.patience)

    @property
    def name(self) -> str:
        """Name it for tables."""
        return f"{self.model.name}, D = {self.patience:g} l(1), {self.trace}"

    def arrivals(self, count: int, seed: int) -> Times:
        """Return a trace whose mean rate is the saturation."""
        return TRACES[self.trace](self.setting.saturation, count, seed)


def cells() -> list[Cell]:
    """Return all cells."""
    return [Cell(*each) for each in product(MODELS, PATIENCES, TRACES)]


@dataclass(frozen=True, slots=True)
class Figures:
    """Capacity at 99 % in requests a second, and the share answered in time at each of `LOADS`."""

    capacity: float
    goodput: Sequence[float]


def shoal(setting: Setting, *, preset: bool = False, sizes: tuple[int, ...] = ()) -> SchedulerDiscipline:
    """Return Shoal's rule as the proxy runs it.

    Args:
        setting: the objective and the largest batch.
        preset: its table begins with what a warm-up measures, batches of 1, 2, 4, ... rows; else with nothing.
        sizes: that the runtime pads to.
    """
    # The proxy's default queue length.
    most = max(1024, 4 * setting.largest)
    discipline = SchedulerDiscipline(BatchLimits(setting.largest), objective_s=setting.objective_s, max_queue_rows=most)
    powers = [1 << power for power in range(setting.largest.bit_length())]
    measured = tuple((rows, setting.lat(rows)) for rows in powers) if preset else ()
    discipline.scheduler.set_model(None, sizes, measured)
    return discipline


def disciplines(cell: Cell, count: int) -> dict[str, Make]:
    """Return every rule, ready to be made anew for each run."""
    setting = cell.setting
    rules: dict[str, Make] = {name: partial(rule, setting) for name, rule in RIVALS.items()}
    oldest_s, most = tune_age_reject(cell, count)
    rules[TUNED] = partial(AgeReject, setting, oldest_s, most)
    rules[SHOAL_PRESET] = partial(shoal, setting, preset=True)
    rules[SHOAL] = partial(shoal, setting, preset=False)
    return rules


def tune_age_reject(cell: Cell, count: int, *, seed: int = 99) -> tuple[float, int]:
    """Return the age and the batch size with the most goodput over all loads, on a trace held out for it."""
    setting = cell.setting
    arrivals = cell.arrivals(count, seed)
    ages = [share * setting.objective_s for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)]
    ages.append(setting.objective_s - setting.lat(setting.sustained))
    sizes = sorted({min(max(1, size), setting.largest) for size in _sizes(setting)})

    def total(choice: tuple[float, int]) -> float:
        make = partial(AgeReject, setting, *choice)
        return sum(goodput(make, cell, scaled(arrivals, load)) for load in LOADS)

    return max(product(ages, sizes), key=total)


def _sizes(setting: Setting) -> Sequence[int]:
    return setting.sustained // 2, setting.sustained, 2 * setting.sustained, setting.largest


def goodput(make: Make, cell: Cell, arrived_s: Times) -> float:
    """Return the share of the trace that is answered in time."""
    batch = requests(arrived_s, cell.setting.objective_s)
    Engine(make(), cell.model.latency_s).run(batch)
    return sum([request.in_time for request in batch]) / len(batch)


def keeps_up(make: Make, cell: Cell, arrived_s: Times) -> bool:
    """Return whether 99 % of the trace is answered in time."""
    batch = requests(arrived_s, cell.setting.objective_s)
    may_miss = MAY_MISS * len(batch)
    engine = Engine(make(), cell.model.latency_s)
    step = max(1, len(batch) // _CHECKPOINTS)
    for start in range(0, len(batch), step):
        engine.run(batch[start : start + step], until_s=batch[min(start + step, len(batch)) - 1].arrived_s)
        if sum([_lost(request, engine.now_s) for request in batch[: start + step]]) > may_miss:
            return False
    engine.run(())
    return sum([not request.in_time for request in batch]) <= may_miss


def _lost(request: SimulatedRequest, now_s: float) -> bool:
    return request.refused_s is not None or (request.soft_deadline_s < now_s and not request.in_time)


def measure(make: Make, cell: Cell, arrivals: Times, most: float) -> Figures:
    """Return the figures of one rule; its capacity is sought up to ``most``."""
    saturation = cell.setting.saturation
    capacity = bisect_rate(lambda rate: keeps_up(make, cell, scaled(arrivals, rate / saturation)), most)
    return Figures(capacity, [goodput(make, cell, scaled(arrivals, load)) for load in LOADS])


def bisect_rate(feasible: Callable[[float], bool], most: float) -> float:
    """Return the largest rate up to ``most`` that is feasible."""
    if not most or feasible(most):
        return most
    low, high = 0.0, most
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if feasible(middle) else (low, middle)
    return low


def optimum(cell: Cell, arrivals: Times) -> Figures:
    """Return the upper bounds on this trace."""
    setting = cell.setting
    count = len(arrivals)

    def in_time(rate: float, give_up_at: int | None = None) -> int:
        times = scaled(arrivals, rate / setting.saturation)
        return most_in_time(times, times + setting.objective_s, setting.latency_s, give_up_at=give_up_at)

    may_miss = int(MAY_MISS * count)
    most = 1.1 * max(rows / setting.lat(rows) for rows in range(1, setting.largest + 1))
    capacity = bisect_rate(lambda rate: in_time(rate, may_miss + 1) >= count - may_miss, most)
    return Figures(capacity, [in_time(load * setting.saturation) / count for load in LOADS])
