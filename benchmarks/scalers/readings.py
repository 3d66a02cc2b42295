"""The input and the output of autoscaling laws."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Service:
    """A model whose batches take ``base_s`` and ``row_s`` for each row, and the service that is made of it.

    ``start_s``: from a pod's creation until it serves.
    """

    base_s: float = 0.050
    row_s: float = 0.005
    largest: int = 16
    objective_s: float = 0.3
    start_s: float = 30.0
    minimum: int = 1
    maximum: int = 40

    def latency_s(self, rows: int) -> float:
        """Return what a batch takes."""
        return self.base_s + self.row_s * rows

    @property
    def rows_per_s(self) -> float:
        """Return what a replica serves when all batches are full."""
        return self.largest / self.latency_s(self.largest)

    @property
    def rows(self) -> float:
        """Return how many rows a replica then holds, waiting and running, while the objective is kept."""
        return 1.5 * self.largest


@dataclass(frozen=True, slots=True)
class Reading:
    """A service as it is: now, and counters since it began, totals over its replicas.

    Args:
        now_s: when it was read.
        replicas: that exist, starting ones included.
        ready: that serve.
        queued_rows: that wait.
        running_rows: at the devices.
        arrived: rows that came, refused ones included.
        answered: rows.
        refused: rows.
        row_seconds: rows waiting and running, integrated over time.
        queued_row_seconds: rows waiting, likewise.
        busy_s: of all devices.
    """

    now_s: float
    replicas: int
    ready: int
    queued_rows: int
    running_rows: int
    arrived: int
    answered: int
    refused: int
    row_seconds: float
    queued_row_seconds: float
    busy_s: float


class Law(Protocol):
    """A law of scaling. ``period_s``: how often it is asked."""

    period_s: float

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return how many replicas there should be."""


class Window:
    """The readings of the last ``length_s``, and what they say of that time."""

    def __init__(self, length_s: float, held_s: float = 0.0) -> None:
        """Remember. ``held_s``: how long a refused row counts as one that waited, where a law knows no refusals."""
        self._length_s = length_s
        self._held_s = held_s
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        """Take the next reading."""
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].now_s <= reading.now_s - self._length_s:
            self._readings.popleft()

    @property
    def mean_rows(self) -> float:
        """Return the mean of the rows in the system."""
        first, last = self._readings[0], self._readings[-1]
        span_s = last.now_s - first.now_s
        if not span_s:
            return last.queued_rows + last.running_rows
        held = last.row_seconds - first.row_seconds + self._held_s * (last.refused - first.refused)
        return held / span_s
