"""What findings about single rows say together of a model: counts, and when they are no longer chance."""

from dataclasses import dataclass
from enum import StrEnum
from math import exp, log1p
from typing import Final

CHANCE: Final = 1e-3
"""Probability of as many foreign rows in batches of foreign rows, below which they are no chance."""
RANDOM: Final = 3
"""Rows found to have random results, after which the model is not checked any more."""
_DEPENDENT: Final = 2
"""Rows that depend on their neighbours."""
_LEAST_VARIED: Final = 8
_LEAST_CHECKED: Final = 64
VARIED_SHARE: Final = 0.1
"""Share of rows whose result follows their neighbours that ties and rounding do not reach."""
_ALL: Final = 0.999
_REPORTED: Final = 4
"""Rows with another result than their clients got that are reported, though no violation was concluded."""


class Finding(StrEnum):
    """What is concluded of one row."""

    NOISE = "noise"
    VARIED = "varied"
    """The result follows the batch, as a tie does that the last digit decides."""
    RANDOM = "random"
    """Copies of the row in one batch have different results, and so has the row alone."""
    CHANGING = "changing"
    """The result of the same batch changes from run to run, but is the same for all copies in a batch."""
    UNSTEADY = "unsteady"
    """One run gave another result than all others, which may have changed since."""
    FOREIGN = "foreign"
    """What the client got was not the row's own result."""
    FOREIGN_CHECK = "foreign_check"
    """What the check got was not."""
    EXCHANGED = "exchanged"
    """One run gave the row the result of another row."""
    DEPENDENT = "dependent"


class Tally:
    """Of rows that ran in one batch, how many had a result that was not their own."""

    __slots__ = ("foreign", "rows")

    def __init__(self, rows: int) -> None:
        self.rows = rows
        """Those that are looked at."""
        self.foreign = 0


@dataclass(slots=True)
class Evidence:
    """Counts of one model."""

    checked: int = 0
    """Rows run again."""
    suspected: int = 0
    """Those that differed."""
    concluded: int = 0
    """Those that further runs have concluded something of."""
    foreign: int = 0
    """Rows with a result that was not their own; single ones may be chance."""
    batches: int = 0
    """Batches with a foreign row."""
    companions: int = 0
    """Rows that shared a batch with the first foreign one of it."""
    clumped: int = 0
    """Foreign rows among the companions."""
    varied: int = 0
    dependent: int = 0
    random: int = 0
    changing: int = 0

    @property
    def unchecked(self) -> str:
        """Return why checking is in vain; empty where it is not."""
        if self.random >= RANDOM:
            return "RandomResults"
        return "ChangingResults" if self.changing >= RANDOM else ""

    @property
    def varies(self) -> int:
        """Return of how many rows the client got another result than a later run gave; 0 where they are few."""
        rows = self.foreign + self.varied
        return rows if rows >= _REPORTED else 0

    def add(self, finding: Finding, tally: Tally) -> bool:
        """Count a finding; return whether all together show that rows are not independent.

        Args:
            finding: of one row.
            tally: of the batch that it was foreign in.
        """
        self.concluded += 1
        match finding:
            case Finding.EXCHANGED:
                return True
            case Finding.FOREIGN | Finding.FOREIGN_CHECK:
                return self._add_foreign(tally)
            case Finding.DEPENDENT:
                self.dependent += 1
                return self.dependent >= _DEPENDENT
            case Finding.VARIED:
                self.varied += 1
                return self._is_beyond_ties()
            case Finding.RANDOM:
                self.random += 1
            case Finding.CHANGING:
                self.changing += 1
        return False

    def _add_foreign(self, tally: Tally) -> bool:
        """Count a foreign row: a leak meets several rows of a batch, while ties meet rows one by one."""
        self.foreign += 1
        tally.foreign += 1
        if tally.foreign == 1:
            self.batches += 1
            self.companions += max(0, tally.rows - 1)
            return False
        self.clumped += 1
        # Each clump is another chance of a false alarm: the sum over all stays below twice `CHANCE`.
        return at_least_by_chance(self.clumped, self.companions * self._share()) < CHANCE / self.clumped**2

    def _share(self) -> float:
        """Return the share of rows that are foreign one by one, by how many batches have one: clumps count once."""
        rows = 1 + self.companions / self.batches
        with_one = min(_ALL, self.batches * rows / max(1, self.checked))
        return -log1p(-with_one) / rows

    def _is_beyond_ties(self) -> bool:
        """Return whether results follow the batch more often than ties and rounding explain."""
        if self.varied < _LEAST_VARIED or self.checked < _LEAST_CHECKED or self.random or self.changing:
            return False
        return self.suspected / self.checked * self.varied / self.concluded > VARIED_SHARE


def at_least_by_chance(found: int, expected: float) -> float:
    """Return how probable it is to find so many, or more, of independent events of which so many are expected."""
    if expected > found:
        return 1.0
    term = exp(-expected)
    for number in range(found):
        term *= expected / (number + 1)
    # Beyond `found` the terms fall: their own sum, as 1 minus the sum of those before would lose digits.
    above, number = 0.0, found
    while term > above * 1e-12:
        above += term
        number += 1
        term *= expected / number
    return min(1.0, above)
