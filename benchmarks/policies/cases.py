"""Cases beside the grid: noise, a device that changes its speed, padded sizes, clients in a closed loop."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from benchmarks.policies.cells import LOADS, MODELS, RIVALS, SHOAL, Cell, Make, Model, measure, optimum, shoal
from benchmarks.policies.report import over
from benchmarks.policies.rivals import BestRate, Eager, Nexus, Setting
from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.errors import ProxyError
from shoal_proxy.simulator.arrivals import ClosedLoop, poisson, requests
from shoal_proxy.simulator.engine import Discipline, Engine, SendBatch, SimulatedRequest, SleepUntil
from shoal_proxy.simulator.shoal import SchedulerDiscipline

Figure = Mapping[str, float]
HOLD_MODEL = Model("adder", 0.004, 0.0001, 64)
_NOISE = 0.05
_RIVALS_MARGIN = 1.08


def noise(cell: Cell, count: int, seed: int) -> dict[str, Figure]:
    """Return goodput over the optimum's when batches take up to a few per cent longer: |N(0, 5 %)|.

    The optimum knows only the table, so this also counts what the noise itself costs. Rivals stay 8 % on the safe side;
    Shoal finds its own margin.
    """
    arrivals = cell.arrivals(count, seed)
    best = optimum(cell, arrivals)
    cautious = Setting([_RIVALS_MARGIN * time for time in cell.setting.latency_s], cell.setting.objective_s)
    rules: dict[str, Make] = {
        name: partial(RIVALS[name], cautious) for name in ("Nexus early drop", "best-rate suffix")
    }
    rules["BentoML"] = partial(RIVALS["BentoML"], cell.setting)
    rules[SHOAL] = partial(shoal, cell.setting, preset=False)
    return {name: _under_noise(make, cell, arrivals.tolist(), best.goodput, seed) for name, make in rules.items()}


def _under_noise(make: Make, cell: Cell, arrivals: Sequence[float], best: Sequence[float], seed: int) -> Figure:
    figures = {}
    for load, possible in zip(LOADS, best, strict=True):
        random = np.random.default_rng(seed)

        def latency_s(rows: int, shape: str, random: np.random.Generator = random) -> float:
            return cell.model.latency_s(rows) * (1 + _NOISE * abs(random.standard_normal()))

        batch = requests([time / load for time in arrivals], cell.setting.objective_s)
        Engine(make(), latency_s).run(batch)
        figures[f"goodput at {load:g}"] = sum([request.in_time for request in batch]) / len(batch) / possible
    return figures


@dataclass(slots=True)
class Speed:
    """A device that takes ``factor`` times as long for batches ``first`` to ``last``, counted from 0."""

    model: Model
    factor: float
    first: int
    last: int
    batches: int = 0

    def latency_s(self, rows: int, shape: str) -> float:
        """Return how long the next batch takes."""
        slow = self.first <= self.batches <= self.last
        self.batches += 1
        return self.model.latency_s(rows) * (self.factor if slow else 1.0)


def drift(seed: int) -> dict[str, Figure]:
    """Return how many batches the table is off by more than a fifth after a change of speed, and the requests served.

    Poisson at half of what the device sustains at its best; the objective, 40 batches of one, is met at a tenth of the
    speed too, for a tenth as many. ``without outcome`` would be a deadlock.
    """
    model = MODELS[1]
    setting = model.setting(40.0)
    never = 1 << 40
    return {
        "10x slower for 40 batches": _drift(model, setting, Speed(model, 10.0, 300, 339), 1.0, seed),
        "10x slower for good": _drift(model, setting, Speed(model, 10.0, 300, never), 1.0, seed),
        "table 10x too fast at the start": _drift(model, setting, Speed(model, 1.0, 0, 0), 0.1, seed),
        "table 10x too slow at the start": _drift(model, setting, Speed(model, 1.0, 0, 0), 10.0, seed),
    }


def _drift(model: Model, setting: Setting, speed: Speed, believed: float, seed: int) -> Figure:
    discipline = shoal(setting, preset=False)
    discipline.scheduler.set_model(None, measured=tuple((rows, believed * setting.lat(rows)) for rows in (1, 8, 64)))
    watch = _Watch(discipline)
    arrivals = poisson(0.5 * setting.saturation, 20_000, seed=seed)
    batch = requests(arrivals, setting.objective_s)
    Engine(watch, speed.latency_s).run(batch)
    last_fifth = batch[-len(batch) // 5 :]
    return {
        "batches until right": watch.longest_wrong,
        "in time": sum([request.in_time for request in batch]) / len(batch),
        "in time, last fifth": sum([request.in_time for request in last_fifth]) / len(last_fifth),
        "without outcome": sum([request.completed_s is None and request.refused_s is None for request in batch]),
    }


class _Watch:
    """Shoal's rule, and for how many batches in a row its table was wrong by more than a fifth."""

    def __init__(self, inner: SchedulerDiscipline) -> None:
        self.inner = inner
        self.longest_wrong = 0
        self._wrong = 0
        self._expected_s: deque[float] = deque()

    def arrive(self, request: SimulatedRequest, now_s: float) -> Sequence[SimulatedRequest]:
        """Pass it on (`Discipline`)."""
        return self.inner.arrive(request, now_s)

    def decide(self, now_s: float) -> SendBatch | SleepUntil:
        """Pass it on, and note what the table says of a batch (`Discipline`)."""
        action = self.inner.decide(now_s)
        if isinstance(action, SendBatch) and action.batch:
            table = next(iter(self.inner.scheduler.batcher.tables.all().values()))
            self._expected_s.append(table.mean_s(len(action.batch)))
        return action

    def failed(self, batch: Sequence[SimulatedRequest], error: ProxyError, now_s: float) -> Sequence[SimulatedRequest]:
        """Pass it on (`Discipline`)."""
        return self.inner.failed(batch, error, now_s)

    def left(self, request: SimulatedRequest, now_s: float) -> None:
        """Pass it on (`Discipline`)."""
        self.inner.left(request, now_s)

    def finished(self, batch: Sequence[SimulatedRequest], took_s: float, now_s: float) -> Sequence[SimulatedRequest]:
        """Compare what was expected with what it took (`Discipline`)."""
        ratio = self._expected_s.popleft() / took_s
        self._wrong = 0 if 0.8 <= ratio <= 1.25 else self._wrong + 1
        self.longest_wrong = max(self.longest_wrong, self._wrong)
        return self.inner.finished(batch, took_s, now_s)


def buckets(cell: Cell, count: int, seed: int) -> dict[str, Figure]:
    """Return what is left of the capacity with exact sizes when the runtime pads to powers of two.

    The optimum's own share is what padding costs anybody who pads up; it never trims.
    """
    sizes = tuple(1 << power for power in range(cell.model.largest.bit_length()))
    padded = replace(cell, model=replace(cell.model, sizes=sizes))
    # The same objective and the same requests as with exact sizes.
    arrivals = cell.arrivals(count, seed)
    exact = optimum(cell, arrivals)
    setting = padded.setting
    rules: dict[str, Make] = {
        "eager, no drop": partial(Eager, setting),
        "Nexus early drop": partial(Nexus, setting),
        "best-rate suffix": partial(BestRate, setting),
        SHOAL: partial(shoal, setting, sizes=sizes),
    }
    best = optimum(padded, arrivals)
    figures = {name: measure(make, padded, arrivals, best.capacity) for name, make in rules.items()}
    return {name: over(each, exact) for name, each in {"optimum, padded": best, **figures}.items()}


def returning(callers: int, think_s: float, seed: int) -> Figure:
    """Return the throughput of clients that repeat after ``think_s``, half to one and a half times it.

    The ideal is the better of: one batch of as many as fit, then the think time if no other request waits; or two
    halves by turns, which hides the think time.
    """
    setting = HOLD_MODEL.setting(1e6)
    together = min(callers, HOLD_MODEL.largest)
    idle_s = think_s if callers <= HOLD_MODEL.largest else 0.0
    half = max(1, together // 2)
    ideal = max(together / (setting.lat(together) + idle_s), half / setting.lat(half))
    eager = _closed_loop(Eager(setting), callers, think_s, seed)
    held = _closed_loop(shoal(setting), callers, think_s, seed)
    return {"requests/s": held, "of eager": held / eager, "of ideal": held / ideal}


def _closed_loop(discipline: Discipline, callers: int, think_s: float, seed: int) -> float:
    random = np.random.default_rng(seed)
    loop = ClosedLoop(callers, lambda: think_s * random.uniform(0.5, 1.5), until_s=4.0, objective_s=NEVER_S)
    engine = Engine(discipline, HOLD_MODEL.latency_s, following=loop.following)
    engine.run(loop.start())
    # The first second is for learning.
    return sum([1.0 <= (request.completed_s or 0.0) < 4.0 for request in loop.sent]) / 3.0
