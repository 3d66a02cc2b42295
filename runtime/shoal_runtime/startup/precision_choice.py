"""Choice of the fastest precision whose outputs stay within a tolerance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from shoal_runtime.startup.deviations import Deviation, Tolerance, violation
from shoal_schema.resource.runtime import Precision

MARGIN: Final = 1.1
"""Least ratio of speeds for which a precision replaces one of higher accuracy; smaller ones may be noise."""
MIN_TURNS: Final = 3
MAX_TURNS: Final = 15
"""Timed batches of a precision, each next to one in Float32."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured speed and deviation of a precision."""

    precision: Precision
    failure: str = ""
    """Reason that it cannot be used; the other figures are then unknown."""
    seconds: Sequence[float] = ()
    """Of each timed batch."""
    reference_seconds: Sequence[float] = ()
    """Of the same batches in Float32, taken by turns."""
    weights_bytes: int | None = None
    device_bytes: int | None = None
    """Largest memory in use on the GPU while batches ran, with Float32 beside it; None on a CPU."""
    deviations: Sequence[Deviation] = field(default_factory=tuple)

    @property
    def batch_s(self) -> float | None:
        """Median time of a batch (s); None if unknown."""
        return median(self.seconds) if self.seconds else None

    @property
    def speed(self) -> float | None:
        """Speed relative to Float32, from the medians of both; None if unknown."""
        if self.batch_s is None or not self.reference_seconds:
            return None
        return median(self.reference_seconds) / max(self.batch_s, 1e-9)


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen precision, and why each other one was rejected."""

    precision: Precision
    speed: float
    """Relative to Float32."""
    rejected: Mapping[Precision, str]


def choose(measured: Sequence[Measurement], limits: Tolerance) -> Choice:
    """Return the fastest precision within the limits.

    A precision replaces a more accurate one only if it is faster by the factor `MARGIN`. Float32 is always allowed.
    """
    best, speed = Precision.FLOAT32, 1.0
    rejected: dict[Precision, str] = {}
    order = list(Precision)
    for each in sorted(measured, key=lambda found: order.index(found.precision)):
        if each.precision is Precision.FLOAT32:
            continue
        if reason := each.failure or violation(each.deviations, limits):
            rejected[each.precision] = reason
        elif each.speed is None or each.speed < MARGIN * speed:
            rejected[each.precision] = f"{(each.speed or 0) / speed:.2f} times the speed of {best}, less than {MARGIN}"
        else:
            if best is not Precision.FLOAT32:
                rejected[best] = f"slower than {each.precision}"
            best, speed = each.precision, each.speed
    return Choice(best, speed, rejected)


def more_turns(turns: int, batches: int, elapsed_s: float, limit_s: float) -> bool:
    """Return whether to time a further batch, after ``turns`` of them.

    Every one of the ``batches`` is timed at least once, as its results are compared.
    """
    if turns < max(MIN_TURNS, batches):
        return True
    return turns < MAX_TURNS and elapsed_s < limit_s
