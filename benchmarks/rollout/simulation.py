"""A simulated service with a candidate: its pods' reports, as the operator receives them every two seconds."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from shoal_proxy.rollout.repeats import MOST_SUSPECTED_ROWS
from shoal_schema.interfaces.rollout import BatchTimes, OutputCounts, RolloutReport, add_batch, rows_bucket

REPORTS_S = 2.0
MAX_ROWS = 32
OUTPUT = "score"
_SHADOW = 0.1
_BATCH_S, _ROW_S = 0.003, 0.0004
_BUSY = 0.6
_NOISE = 1e-6
_MAX_ABS_ERROR, _MAX_REL_ERROR = 0.001, 0.01


@dataclass(frozen=True, slots=True)
class Candidate:
    """How a candidate differs from the stable revision."""

    wrong: float = 0.0
    """Share of rows with another result."""
    slower: float = 1.0
    """Factor of the time of batches of more than 16 rows."""
    random_rows: float = 0.0
    """Share of rows that both revisions compute differently in each run."""
    failing: float = 0.0
    """Share of batches that fail as a whole, on both revisions."""
    repeated: float = 1.0
    """Repeated batches per shadowed batch."""
    suspected: float | None = None
    """The same while noise may explain the candidate's disagreement; None: no more than otherwise."""
    machines: float = 0.0
    """Standard deviation of the logarithm of the machines' speeds, and amplitude of their drift."""


@dataclass(slots=True)
class Simulation:
    """Two stable pods and one candidate pod.

    The number of requests that arrive together follows a Poisson distribution, whose mean drifts between 4 and 28 rows
    every 30 s. Execution times are log-normal with a coefficient of variation of 5 to 10 %; one in 100 is up to
    several times as long. The speed of a machine drifts within 3 minutes.
    """

    candidate: Candidate
    seed: int
    now_s: float = 0.0
    stable: RolloutReport = field(
        default_factory=lambda: RolloutReport("stable", "new", outputs={OUTPUT: OutputCounts()})
    )
    own: RolloutReport = field(default_factory=lambda: RolloutReport("new", "new"))
    _random: np.random.Generator = field(init=False)
    _noise: float = field(init=False)
    _speeds: NDArray[np.float64] = field(init=False)
    _drifts: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._noise = self._random.uniform(0.05, 0.10)
        self._speeds = self._random.normal(0, self.candidate.machines, 3)
        self._drifts = self._random.uniform(0, 2 * np.pi, 3)

    def advance(self) -> None:
        """Run the service until the next report."""
        mean = 16 + 12 * np.sin(2 * np.pi * (self.now_s / 30 + self.seed / 7))
        speeds = self._speeds + self.candidate.machines * np.sin(2 * np.pi * self.now_s / 180 + self._drifts)
        for pod in range(2):
            batches = int(REPORTS_S * _BUSY / (_BATCH_S + _ROW_S * mean))
            rows = np.clip(self._random.poisson(mean, batches), 1, MAX_ROWS)
            shadowed = rows[self._random.random(batches) < _SHADOW]
            repeated = shadowed[self._random.random(len(shadowed)) < self._repeated_share()]
            self._serve(rows)
            self._shadow(shadowed)
            self._repeat(repeated)
            self.stable = _with_times(self.stable, rows, self._times_s(rows, speeds[pod], 1.0))
            slow = self.candidate.slower
            self.own = _with_times(self.own, shadowed, self._times_s(shadowed, speeds[2], slow))
        self.now_s += REPORTS_S

    def _repeated_share(self) -> float:
        """Return the share of shadowed batches that a stable pod repeats."""
        counts = self.stable.outputs[OUTPUT]
        suspected = counts.disagreements and not counts.repeated_disagreements
        if self.candidate.suspected is None or not suspected or counts.repeated_rows >= MOST_SUSPECTED_ROWS:
            return self.candidate.repeated
        return self.candidate.suspected

    def _times_s(self, rows: NDArray[Any], speed: float, slower: float) -> NDArray[Any]:
        usual = (_BATCH_S + _ROW_S * rows) * np.where(rows > 16, slower, 1.0)
        tail = np.where(self._random.random(len(rows)) < 0.01, 1 + self._random.exponential(1.0, len(rows)), 1.0)
        result: NDArray[Any] = usual * np.exp(self._random.normal(speed, self._noise, len(rows))) * tail
        return result

    def _serve(self, rows: NDArray[Any]) -> None:
        failed = rows[self._random.random(len(rows)) < self.candidate.failing]
        _count(self, served_rows=rows.sum(), failed_rows=failed.sum(), failed_squares=(failed**2).sum())

    def _shadow(self, rows: NDArray[Any]) -> None:
        failing = self._random.random(len(rows)) < self.candidate.failing
        failed, compared = rows[failing], rows[~failing]
        _count(
            self,
            shadowed_batches=len(rows),
            shadowed_rows=rows.sum(),
            shadow_failed_rows=failed.sum(),
            shadow_failed_squares=(failed**2).sum(),
        )
        disagreeing = self._disagreeing(compared, self.candidate.wrong + self.candidate.random_rows)
        self._compare(
            rows=compared.sum(),
            row_squares=(compared**2).sum(),
            disagreements=disagreeing.sum(),
            disagreement_squares=(disagreeing**2).sum(),
        )

    def _repeat(self, rows: NDArray[Any]) -> None:
        disagreeing = self._disagreeing(rows, self.candidate.random_rows)
        self._compare(
            repeated_rows=rows.sum(),
            repeated_row_squares=(rows**2).sum(),
            repeated_disagreements=disagreeing.sum(),
            repeated_disagreement_squares=(disagreeing**2).sum(),
        )

    def _disagreeing(self, rows: NDArray[Any], share: float) -> NDArray[Any]:
        """Compare the results of batches as a proxy does, and return the number of disagreeing rows of each."""
        results = self._random.normal(0, 1, int(rows.sum()))
        others = results * (1 + self._random.normal(0, _NOISE, len(results)))
        others += np.where(self._random.random(len(results)) < share, 1.0, 0.0)
        beyond = np.abs(others - results) > _MAX_ABS_ERROR + _MAX_REL_ERROR * np.abs(results)
        return np.bincount(np.repeat(np.arange(len(rows)), rows), beyond, len(rows)).astype(int)

    def _compare(self, **counts: int) -> None:
        before = self.stable.outputs[OUTPUT]
        after = structs.replace(before, **{name: getattr(before, name) + int(count) for name, count in counts.items()})
        self.stable = structs.replace(self.stable, outputs={OUTPUT: after})


def _count(simulation: Simulation, **counts: int) -> None:
    before = simulation.stable
    added = {name: getattr(before, name) + int(count) for name, count in counts.items()}
    simulation.stable = structs.replace(before, **added)


def _with_times(report: RolloutReport, rows: NDArray[Any], times_s: NDArray[Any]) -> RolloutReport:
    times = {each.rows: each for each in report.times}
    for size, time_s in zip(rows.tolist(), times_s.tolist(), strict=True):
        bucket = rows_bucket(size)
        times[bucket] = add_batch(times.get(bucket, BatchTimes(bucket)), size, time_s)
    return structs.replace(report, times=tuple(times.values()))
