"""Counts of rows whose results differed in a second run, and their significance."""

from dataclasses import dataclass
from enum import StrEnum
from math import exp, log1p
from typing import Final

CHANCE: Final = 1e-3
"""Significance level: below this probability, foreign rows in batches are not chance."""
RANDOM: Final = 3
"""Rows with random results after which the model is not checked any more."""
_DEPENDENT: Final = 2
"""Rows that depend on their neighbours after which the model violates independence."""
_MIN_VARIED: Final = 8
_MIN_CHECKED: Final = 64
VARIED_SHARE: Final = 0.1
"""Share of rows with neighbour-dependent results that ties and rounding do not reach."""
_ALL: Final = 0.999
_REPORTED: Final = 4
"""Rows with another result than their clients got from which they are reported without a violation."""


class RowFinding(StrEnum):
    """The conclusion about one row."""

    NOISE = "noise"
    VARIED = "varied"
    """The result follows the batch, as a tie does that the last digit decides."""
    RANDOM = "random"
    """Copies of the row in one batch have different results, and so has the row alone."""
    CHANGING = "changing"
    """The result of the same batch changes from run to run, but is the same for all copies in a batch."""
    UNSTEADY = "unsteady"
    """One run gave another result than all others; results may have changed since."""
    FOREIGN = "foreign"
    """The client's result was not the row's own."""
    FOREIGN_CHECK = "foreign_check"
    """The check's result was not the row's own."""
    EXCHANGED = "exchanged"
    """One run gave the row the result of another row."""
    DEPENDENT = "dependent"
    """The row's result depends on its neighbours."""


class BatchTally:
    """Counts for one batch: checked rows, and rows with a wrong result."""

    __slots__ = ("foreign", "rows")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        """Rows that are checked."""
        self.foreign = 0


@dataclass(slots=True)
class Evidence:
    """Counts of findings about one model."""

    checked: int = 0
    """Rows run again."""
    suspected: int = 0
    """Rows whose result differed."""
    concluded: int = 0
    """Suspected rows with a finding."""
    foreign: int = 0
    """Rows with a foreign result; single ones may be chance."""
    batches: int = 0
    """Batches with a foreign row."""
    companions: int = 0
    """Other rows of those batches."""
    clumped: int = 0
    """Foreign rows among the companions."""
    varied: int = 0
    dependent: int = 0
    random: int = 0
    changing: int = 0

    @property
    def unchecked(self) -> str:
        """Return the reason to stop checking; empty if there is none."""
        if self.random >= RANDOM:
            return "RandomResults"
        return "ChangingResults" if self.changing >= RANDOM else ""

    @property
    def varies(self) -> int:
        """Return the number of rows whose later result differed; 0 if few."""
        rows = self.foreign + self.varied
        return rows if rows >= _REPORTED else 0

    def add(self, finding: RowFinding, tally: BatchTally) -> bool:
        """Count a finding; return whether rows are proven to be dependent.

        Args:
            finding: the finding about one row.
            tally: counts of the batch in which the row got a result that was not its own.
        """
        self.concluded += 1
        match finding:
            case RowFinding.EXCHANGED:
                return True
            case RowFinding.FOREIGN | RowFinding.FOREIGN_CHECK:
                # A leak affects several rows of a batch, while ties affect rows one by one.
                self.foreign += 1
                tally.foreign += 1
                if tally.foreign == 1:
                    self.batches += 1
                    self.companions += max(0, tally.rows - 1)
                    return False
                self.clumped += 1
                # The share of rows that are foreign one by one, from the batches that have one: a clump counts once.
                rows = 1 + self.companions / self.batches
                share = -log1p(-min(_ALL, self.batches * rows / max(1, self.checked))) / rows
                # Each clump is another chance of a false alarm: the sum over all stays below twice `CHANCE`.
                return at_least_by_chance(self.clumped, self.companions * share) < CHANCE / self.clumped**2
            case RowFinding.DEPENDENT:
                self.dependent += 1
                return self.dependent >= _DEPENDENT
            case RowFinding.VARIED:
                self.varied += 1
                if self.varied < _MIN_VARIED or self.checked < _MIN_CHECKED or self.random or self.changing:
                    return False
                # Results follow the batch more often than ties and rounding explain.
                return self.suspected / self.checked * self.varied / self.concluded > VARIED_SHARE
            case RowFinding.RANDOM:
                self.random += 1
            case RowFinding.CHANGING:
                self.changing += 1
        return False


def at_least_by_chance(found: int, expected: float) -> float:
    """Return the Poisson probability of ``found`` or more events."""
    if expected > found:
        return 1.0
    term = exp(-expected)
    for number in range(found):
        term *= expected / (number + 1)
    # Sum the terms beyond `found`, which fall: 1 minus the sum of those before would lose digits.
    above, number = 0.0, found
    while term > above * 1e-12:
        above += term
        number += 1
        term *= expected / number
    return min(1.0, above)
