"""What the serving benchmark makes of its measurements: rows, targets, tables. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import ge, le
from statistics import median
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Spread:
    """One quantity over several repetitions."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Summarise at least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One case of the benchmark: what was measured, each over several repetitions.

    Args:
        case: its name.
        values: quantity, with its unit as suffix, to what was measured.
    """

    case: str
    values: Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that the median of one quantity of one case should keep."""

    case: str
    quantity: str
    bound: float
    at_least: bool

    def is_met(self, value: float) -> bool:
        """Say whether a median keeps the bound."""
        keeps: Callable[[float, float], bool] = ge if self.at_least else le
        return keeps(value, self.bound)

    def line(self, rows: Sequence[Row]) -> str:
        """Say in one line what was wanted, what was measured, and whether it is enough."""
        want = f"{self.case}: {self.quantity} {'>=' if self.at_least else '<='} {self.bound:g}"
        value = find(rows, self.case, self.quantity)
        if value is None:
            return f"MISS  {want} (not measured)"
        return f"{'pass' if self.is_met(value) else 'MISS'}  {want} (measured {number(value)})"


def find(rows: Sequence[Row], case: str, quantity: str) -> float | None:
    """Return the median of a quantity, or None when it was not measured."""
    for row in rows:
        if row.case == case and quantity in row.values:
            return row.values[quantity].median
    return None


def make_row(case: str, repetitions: Sequence[Mapping[str, float]]) -> Row:
    """Make one row of the same quantities measured several times."""
    quantities = repetitions[0]
    return Row(case, {q: Spread.of([each[q] for each in repetitions]) for q in quantities})


def mean_batch_rows(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return rows per batch between two readings of the proxy's histogram; 0 without batches."""
    batches = after["count"] - before["count"]
    return (after["sum"] - before["sum"]) / batches if batches else 0.0


def table(rows: Sequence[Row]) -> list[str]:
    """Return one line per case and quantity: median, and the range in brackets."""
    width = max(len(row.case) for row in rows)
    return [
        f"{row.case if index == 0 else '':<{width}}  {quantity:<20} {number(spread.median):>10}"
        f"  [{number(spread.min)} .. {number(spread.max)}]"
        for row in rows
        for index, (quantity, spread) in enumerate(row.values.items())
    ]


def number(value: float) -> str:
    """Write a number with three digits that count, large ones whole."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def document(rows: Sequence[Row], targets: Sequence[Target], surroundings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results file: surroundings, cases, and whether each target was met."""
    return {
        **surroundings,
        "cases": {row.case: {q: asdict(s) for q, s in row.values.items()} for row in rows},
        "targets": [target.line(rows) for target in targets],
    }


def slug(text: str) -> str:
    """Return a text as part of a file name: lower case letters, digits and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
