"""Whether a result that another run does not repeat was a row's own.

The row is run again: alone, among the neighbours of the check that differed, and in batches as large as the one that it
came in, among others. What its results say together:

    alone it gives two results                          the model is random: nothing can be concluded
    all agree but the client's, or the check's          that one was not the row's own
    alone always the same, among others several others  the row depends on its neighbours
    anything else                                       noise: a tie that falls either way, a scale of quantization
"""

from enum import StrEnum
from typing import Final

from shoal_proxy.batching.row_distance import Row, Ruler, row_of
from shoal_proxy.batching.row_samples import Sample, Tally

GROSS: Final = 0.25
"""In units of a `Ruler`: a distance that noise does not reach."""
DEPENDENT: Final = 0.1
"""Share of the magnitude that a whole batch's scale, as of quantized activations, does not change a row by."""


class Trial(StrEnum):
    """How a row is run again."""

    ALONE = "alone"
    REPEATED = "repeated"
    """In the batch of the check that differed."""
    SIZED = "sized"
    """In a batch as large as the client's, among others."""


_OF_NUMBERS: Final = (Trial.ALONE, Trial.REPEATED, Trial.ALONE, *(Trial.SIZED,) * 5)
_OF_LABELS: Final = (Trial.ALONE, Trial.REPEATED, Trial.ALONE, *(Trial.SIZED,) * 13)
"""A label that turns on the last digit of a number turns in one of a few batches: more are tried."""


_MORE_ALONE: Final = 6
"""Where results are scattered: a row that is random is so alone, too."""


class Finding(StrEnum):
    """What is concluded of one row."""

    NOISE = "noise"
    RANDOM = "random"
    FOREIGN = "foreign"
    """What the client got was not the row's own result."""
    FOREIGN_CHECK = "foreign_check"
    """What the check got was not."""
    DEPENDENT = "dependent"


class Suspicion:
    """A row whose client got another result than the check, and what further runs gave."""

    def __init__(
        self,
        sample: Sample,
        neighbours: list[Sample],
        place: int,
        again: Row,
        *,
        tally: Tally,
        gross: float,
    ) -> None:
        self.sample = sample
        self.neighbours = neighbours
        """The batch of the check, the row itself at ``place``."""
        self.place = place
        self.tally = tally
        """Of the check's batch."""
        self.gross = gross
        self.steady = False
        """Whether the check repeated an older row's result: what the model returns has not changed since."""
        self.given = sample.result()
        self.again = again
        self.results: dict[Trial, list[Row]] = {}
        self.runs = 0

    def trial(self, ruler: Ruler) -> Trial | None:
        """Return the next run; None when there were enough."""
        trials = _OF_LABELS if ruler.labels_only else _OF_NUMBERS
        if self.runs < len(trials):
            return trials[self.runs]
        more = self.runs < len(trials) + _MORE_ALONE and not ruler.labels_only and self._is_scattered(ruler)
        return Trial.ALONE if more else None

    def ran(self, trial: Trial, result: Row) -> None:
        """Record the result of a run."""
        self.results.setdefault(trial, []).append(result)
        self.runs += 1

    def conclude(self, ruler: Ruler) -> Finding:
        """Return what all results say together."""
        near = self.gross / 4
        alone, repeated = self.results[Trial.ALONE], self.results[Trial.REPEATED]
        if (apart := max([ruler.units(alone[0], other) for other in alone[1:]])) > near:
            return Finding.RANDOM if apart > GROSS / 4 else Finding.NOISE
        others = [*alone, *repeated, *self.results.get(Trial.SIZED, ())]
        if _is_odd(self.given, [*others, self.again], ruler, self.gross):
            return Finding.FOREIGN
        if _is_odd(self.again, [*others, self.given], ruler, self.gross):
            return Finding.FOREIGN_CHECK
        return Finding.DEPENDENT if not ruler.labels_only and self._is_scattered(ruler) else Finding.NOISE

    def _is_scattered(self, ruler: Ruler) -> bool:
        """Return whether there are more results than a tie has, each grossly apart from the others."""
        every = [self.again, self.given, *[row for rows in self.results.values() for row in rows]]
        return _apart(every, ruler, GROSS) >= _RESULTS

    def is_exchanged(self, ruler: Ruler, others: list[Row]) -> bool:
        """Return whether one run gave the row another row's result, or that row this one's.

        Whatever further runs said: a model that mixes rows in many batches mixes them in some of these too.

        Args:
            ruler: what measures.
            others: results of rows of other batches: one that is common proves nothing.
        """
        own, *more = self.results[Trial.ALONE]
        near, far = self.gross / 4, max(GROSS, self.gross)
        if ruler.exact or len(others) < _ENOUGH or any(ruler.units(own, each) > near for each in more):
            return False
        batch = self.sample.batch
        if ruler.units(own, self.given) > far:
            places = [each for each in range(batch.rows) if each != self.sample.position]
            rows = [row_of(batch.outputs, place, self.sample.cuts) for place in places]
            if any(_is_one_of(wanted, rows, others, ruler, near) for wanted in (own, self.given)):
                return True
        if ruler.units(own, self.again) > far:
            rows = [each.result() for place, each in enumerate(self.neighbours) if place != self.place]
            return _is_one_of(self.again, rows, others, ruler, near)
        return False


_ENOUGH: Final = 16
_RESULTS: Final = 4
"""Of one row: a tie has two, or three."""


def _is_one_of(wanted: Row, rows: list[Row], others: list[Row], ruler: Ruler, near: float) -> bool:
    """Return whether a result is that of one of ``rows``, and of none of the ``others``."""
    if all(ruler.units(wanted, row) > near for row in rows):
        return False
    return all(ruler.units(wanted, other) > near for other in others)


def _apart(rows: list[Row], ruler: Ruler, gross: float) -> int:
    """Return how many of ``rows`` are grossly apart from one another, whatever the unit."""
    kept: list[Row] = []
    for row in rows:
        if all(ruler.units(row, other) > gross and ruler.share(row, other) > DEPENDENT for other in kept):
            kept.append(row)
    return len(kept)


def _is_odd(row: Row, others: list[Row], ruler: Ruler, gross: float) -> bool:
    """Return whether ``row`` is grossly apart from all others, which agree."""
    return all(ruler.units(row, other) > gross for other in others) and all(
        ruler.units(others[0], other) <= gross / 4 for other in others[1:]
    )
