"""Find out why a row's result differed in a second run, by further runs.

The row is run again: alone, among the neighbours of the check that differed, in the client's batch as it was, and in
batches of that size among other rows. The conclusions:

    all results agree, except the client's or the check's           that result was not the row's own
    one result when alone, several others among other rows          the row depends on its neighbours
    one result when alone, always the same other one in each batch  the result follows the batch: a tie, quantization
    copies of the row in one batch, run twice, differ               the model is random: no conclusion is possible
    results alone differ, copies in one batch do not                the model changes from run to run
    anything else                                                   noise

To detect a random model, a batch of copies of the row is run twice in the same order. An exchange of rows does not
change the results of such a batch, and state kept between runs changes all its rows alike.

Checks have a budget of device time: a fixed share, and a share of the idle time.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import PendingRequest, RequestSlice, discard
from shoal_proxy.batching.row_checks.distance import ResultDistance, Row, row_of
from shoal_proxy.batching.row_checks.evidence import BatchTally, RowFinding
from shoal_proxy.batching.row_checks.samples import SampledRow

MIN_SHARE: Final = 0.006
"""Share of the device's time for checks at any load below 1."""
IDLE_SHARE: Final = 0.08
"""Additional share where clients need none of the device."""
BURST_S: Final = 0.1
"""Most of the budget that is saved up."""
_MIN_RATE: Final = 1e-4
_MIN_WAIT_S: Final = 0.001


class RowCheckBudget:
    """Device time (s) that checks may use now: earned as time passes, spent by each check."""

    __slots__ = ("_counted_s", "left_s", "spent_s")

    def __init__(self) -> None:
        self.left_s = 0.0
        self.spent_s = 0.0
        self._counted_s = -1.0

    def earn(self, load: float, now_s: float, extra_share: float = 0.0) -> None:
        """Add the budget of the time since the last call.

        Args:
            load: share of the device that clients need.
            now_s: monotonic time (s).
            extra_share: share of the device's time that is granted at any load.
        """
        if self._counted_s >= 0:
            self.left_s = min(BURST_S, self.left_s + (now_s - self._counted_s) * (_rate(load) + extra_share))
        self._counted_s = now_s

    def spend(self, seconds: float) -> None:
        """Subtract the device time (s) of a check."""
        self.left_s -= seconds
        self.spent_s += seconds

    def wait_s(self, load: float) -> float:
        """Return the time (s) until budget is available; 0 if it is available now."""
        if self.left_s > 0:
            return 0.0
        return max(_MIN_WAIT_S, -self.left_s / max(_rate(load), _MIN_RATE))


def _rate(load: float) -> float:
    unused = 1 - load
    return MIN_SHARE + IDLE_SHARE * unused * unused if unused > 0 else 0.0


GROSS: Final = 0.25
"""Distance, in units of a `ResultDistance`, that noise does not reach."""
DEPENDENT: Final = 0.1
"""Share of the magnitude by which a scale common to a batch, as of quantized activations, does not change a row."""
COPIES: Final = 8


class RerunKind(StrEnum):
    """The batch in which a suspected row is run again."""

    ALONE = "alone"
    REPEATED = "repeated"
    """In the batch of the check that differed."""
    ORIGINAL = "original"
    """In the client's batch, all rows in their order."""
    SIZED = "sized"
    """In a batch as large as the client's, among others."""
    COPIES = "copies"
    """In a batch of copies of itself."""


_FIRST: Final = (
    RerunKind.REPEATED,
    RerunKind.ALONE,
    RerunKind.COPIES,
    RerunKind.ALONE,
    RerunKind.COPIES,
    RerunKind.ORIGINAL,
)
"""Copies follow the row alone: state that the model kept of the run before is then the row's own."""
_OF_NUMBERS: Final = (*_FIRST, *(RerunKind.SIZED,) * 4, RerunKind.ALONE)
_OF_LABELS: Final = (*_FIRST, *(RerunKind.SIZED,) * 12, RerunKind.ALONE)
"""More batches are tried: a label that turns on the last digit of a number turns in one of a few batches.

The last run shows that the model has not changed in between.
"""
_MORE: Final = (RerunKind.SIZED, RerunKind.ALONE, RerunKind.COPIES) * 3
"""Further runs where results are scattered: those of a random row are scattered alone, and within one batch."""
_ENOUGH: Final = 16
"""Other rows' results needed to conclude an exchange."""
_MANY: Final = 64
_SPARE: Final = 12
_RESULTS: Final = 4
"""Distinct results of one row that are more than a tie: a tie has two or three."""


class Suspicion:
    """A row whose result in a check differs from the client's, and its reruns."""

    def __init__(
        self,
        sample: SampledRow,
        neighbours: list[SampledRow],
        place: int,
        again: Row,
        *,
        tally: BatchTally,
        gross: float,
    ) -> None:
        self.sample = sample
        self.neighbours = neighbours
        """Rows of the check's batch, the row itself at ``place``."""
        self.place = place
        self.tally = tally
        """Counts of the check's batch."""
        self.gross = gross
        self.near = gross / 4
        """Distance of results that count as equal."""
        self.steady = False
        """Whether the check repeated an older row's result: the model's results have not changed since."""
        self.agreed = False
        """Whether any row of the check agreed."""
        self.given = sample.result()
        self.again = again
        self.results: dict[RerunKind, list[Row]] = {each: [] for each in RerunKind}
        self.copies: list[list[Row]] = []
        """Results of each batch of copies."""
        self.stale: list[tuple[Row, list[Row]]] = []
        """Results of the row alone, each with those of other rows in the run before."""
        self.company_s: set[float] = set()
        """Response times of the batches whose rows it ran with later."""
        self.runs = 0
        self._before: list[Row] = []

    def trial(self, ruler: ResultDistance) -> RerunKind | None:
        """Return the kind of the next run; None after the last."""
        trials = _OF_LABELS if ruler.labels_only else _OF_NUMBERS
        if self.runs >= len(trials):
            beyond = self.runs - len(trials)
            # Results still differ without a conclusion.
            more = beyond or self._differs_alone(ruler) or (not ruler.labels_only and self._is_scattered(ruler))
            return _MORE[beyond] if more and beyond < len(_MORE) else None
        trial = trials[self.runs]
        # Where not all rows of the client's batch were kept, one of its size stands in.
        return RerunKind.SIZED if trial is RerunKind.ORIGINAL and not self.sample.batch.whole else trial

    def ran(self, trial: RerunKind, rows: Sequence[Row], place: int) -> None:
        """Record the results of a run.

        Args:
            trial: the kind of the run.
            rows: results of the whole batch.
            place: position of the suspected row in the batch.
        """
        own = {name: array.copy() for name, array in rows[place].items()}
        self.results[trial].append(own)
        if trial is RerunKind.COPIES:
            self.copies.append(list(rows))
        if trial is RerunKind.ALONE and self._before:
            self.stale.append((own, self._before))
        self._before = [row for each, row in enumerate(rows) if each != place and trial is not RerunKind.COPIES]
        self.runs += 1

    def conclude(self, ruler: ResultDistance) -> RowFinding:
        """Return the finding from all runs."""
        first, *more = self.copies
        # Random: copies of the row in one batch had different results, and others each time.
        if any(_spread(each, ruler) > GROSS for each in self.copies) and any(
            ruler.units(one, other) > GROSS for each in more for one, other in zip(first, each, strict=True)
        ):
            return RowFinding.RANDOM
        if self._differs_alone(ruler):
            # The later runs show whether the result keeps changing, or one run was an exception.
            later = [*self.results[RerunKind.ALONE][2:], *self.results[RerunKind.COPIES][2:]]
            usual = max([sum([ruler.units(each, other) <= GROSS for other in later]) for each in later])
            return RowFinding.CHANGING if len(later) - usual > 1 else RowFinding.UNSTEADY
        return self._of_steady(ruler)

    def _of_steady(self, ruler: ResultDistance) -> RowFinding:
        """Return the finding for a row whose result is constant when it runs alone."""
        if _spread(self.results[RerunKind.ALONE], ruler) > self.near:
            return RowFinding.NOISE
        others = [row for trial in RerunKind if trial is not RerunKind.SIZED for row in self.results[trial]]
        sized = self.results[RerunKind.SIZED]
        if self.results[RerunKind.ORIGINAL] and len(sized) >= _SPARE:
            # One of many results may differ: a model that often mixes rows mixes these too. Where the client's batch
            # could not be run again, a tie may look like a foreign result, so all results count.
            same = [row for row in sized if ruler.units(self.results[RerunKind.ALONE][0], row) <= self.near]
            sized = same if len(sized) - len(same) == 1 else sized
        others += sized
        if _is_odd(self.given, [*others, self.again], ruler, self.gross):
            return RowFinding.FOREIGN
        if _is_odd(self.again, [*others, self.given], ruler, self.gross):
            return RowFinding.FOREIGN_CHECK
        if not ruler.labels_only and self._is_scattered(ruler):
            return RowFinding.DEPENDENT
        every = [self.given, self.again, *[row for rows in self.results.values() for row in rows]]
        return RowFinding.VARIED if len(_distinct(every, ruler, GROSS)) > 1 else RowFinding.NOISE

    def met(self, ruler: ResultDistance) -> set[float]:
        """Return the batches whose results the row may have received.

        Each batch is identified by its completion time.
        """
        met = {self.sample.batch.taken_s, *(each.batch.taken_s for each in self.neighbours)}
        return met | self.company_s if self._differs_alone(ruler) else met

    def _differs_alone(self, ruler: ResultDistance) -> bool:
        """Return whether the row's results differ grossly when it runs alone."""
        return _spread(self.results[RerunKind.ALONE], ruler) > GROSS

    def _is_scattered(self, ruler: ResultDistance) -> bool:
        """Return whether the row has at least `_RESULTS` distinct results.

        A tie between two scores gives only two or three.
        """
        every = [self.again, self.given, *[row for rows in self.results.values() for row in rows]]
        return len(_distinct(every, ruler, GROSS)) >= _RESULTS

    def is_exchanged(self, ruler: ResultDistance, others: list[Row]) -> bool:
        """Return whether a run exchanged the results of this row and another row.

        Either row may have received the other's result. One such run suffices, whatever the other runs show: a model
        that mixes rows often mixes them in some of those, too.

        Args:
            ruler: measures distances.
            others: results of rows of other batches. A result that also occurs there is common, and proves no exchange.
        """
        if len(others) < _ENOUGH:
            return False
        if ruler.exact:
            # Labels must be many and distinct, or another row has the same one by chance.
            found = {tuple([(name, array.shape, str(array.tolist())) for name, array in row.items()]) for row in others}
            if len(others) < _MANY or len(found) < len(others):
                return False
        own, *more = self.results[RerunKind.ALONE]
        near, far = self.near, max(GROSS, self.gross)
        if any(ruler.units(own, each) > near for each in more):
            # The model may have returned a result of its previous run once, while most runs alone agree.
            alone = self.results[RerunKind.ALONE]
            own = max(alone, key=lambda row: sum([ruler.units(row, each) <= near for each in alone]))
            agreeing = sum([ruler.units(own, each) <= near for each in alone])
            return 2 * agreeing > len(alone) and any(
                ruler.units(own, row) > far and _is_one_of(row, before, others, ruler, near)
                for row, before in self.stale
            )
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


def _is_one_of(wanted: Row, rows: list[Row], others: list[Row], ruler: ResultDistance, near: float) -> bool:
    """Return whether ``wanted`` occurs in ``rows`` but not in ``others``.

    Results at a distance of at most ``near`` count as equal.
    """
    if all(ruler.units(wanted, row) > near for row in rows):
        return False
    return all(ruler.units(wanted, other) > near for other in others)


def _spread(rows: Sequence[Row], ruler: ResultDistance) -> float:
    """Return the largest distance from the first result to any other."""
    return max([ruler.units(rows[0], other) for other in rows[1:]], default=0.0)


def _distinct(rows: Sequence[Row], ruler: ResultDistance, gross: float) -> list[Row]:
    """Return the results that differ grossly from one another."""
    kept: list[Row] = []
    for row in rows:
        if all(
            ruler.units(row, other) > gross and (ruler.labels_only or ruler.share(row, other) > DEPENDENT)
            for other in kept
        ):
            kept.append(row)
    return kept


def _is_odd(row: Row, others: list[Row], ruler: ResultDistance, gross: float) -> bool:
    """Return whether ``others`` agree and ``row`` differs grossly from them."""
    return all(ruler.units(row, other) > gross for other in others) and all(
        ruler.units(others[0], other) <= gross / 4 for other in others[1:]
    )


class RowCheck:
    """Sampled rows to run again, and the suspicion they test, if any."""

    __slots__ = ("model", "place", "samples", "sent_s", "suspicion", "trial")

    def __init__(
        self, samples: list[SampledRow], model: int, suspicion: Suspicion | None = None,
        trial: RerunKind = RerunKind.REPEATED, place: int = 0,
    ) -> None:  # fmt: skip
        self.samples = samples
        self.model = model
        """Number of the served model, to recognize results of an earlier one."""
        self.suspicion = suspicion
        self.trial = trial
        self.place = place
        """Position of the suspected row in ``samples``."""
        self.sent_s = 0.0

    def batch(self, now_s: float, timeout_s: float) -> Batch:
        """Return the rows as a batch without clients, to be sent at ``now_s``."""
        self.sent_s = now_s
        slices: list[RequestSlice] = []
        for sample in self.samples:
            pending = PendingRequest(
                inputs=sample.inputs,
                rows=1,
                size_bytes=0,
                arrived_s=now_s,
                deadline_s=now_s + timeout_s,
                deliver=discard,
                key=sample.batch.group[0],
                lengths=sample.lengths,
            )
            slices.append(RequestSlice(pending, 0, 1, sample.inputs))
        return Batch(tuple(slices), len(slices))
