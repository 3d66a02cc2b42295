"""Whether a row's answer is the row's own: tried before a model is ready whose graph nobody here wrote.

A made-up row is answered first in one batch and last in another, among other strangers. Batches of one size take the
same kernels, and what these do for a row depends neither on where it stands nor on its neighbours: in TF32 and bfloat16
no more than in FP32. So a difference comes from the graph. Batches of another size take other kernels, whose sums
differ in the last digits: they are only wondered at.

Where a model is not proven to return one row for each row, rows of several scales are tried alone and together. A
model that returns another number of rows for any of them is refused: whenever such numbers add up to the size of a
batch, the output would be split by position, and clients would receive other clients' rows.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import orjson

from shoal_runtime.errors import LoadError, WrongRows
from shoal_runtime.exchanges import DISTINCT, SHARE, finite_numbers, share_exchanged
from shoal_runtime.faults import HANDLER_FAULTS
from shoal_runtime.handlers.signature import Signature, as_returned
from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.trial_rows import LARGE, Batch, Kind, Row, Source
from shoal_schema.wire.datatypes import Array

ROWS: Final = 4
"""Few, so that what each does to the others shows."""
DOUBTFUL: Final = 0.01
"""Of the largest number in an output: beyond what half precision and kernels of other sizes make."""
LEAKING: Final = 0.1
"""Beyond what scales do that a graph finds for a whole batch, as of quantized activations."""
SEEDS: Final = 2
RARE: Final = 8
"""Seeds of rows of large numbers, of which only those beyond a limit, on one side of it, may depend on others."""
REPEATS: Final = 3
"""A random label is the same so often by chance in one of eight batches at the most."""
EXCHANGED_KINDS: Final = 2
"""Kinds of rows that are tried for exchanges."""
LARGEST: Final = 64
"""Rows of the largest batch that is tried for exchanges."""
NUDGE: Final = 64
"""Units in the last place: beyond what kernels differ by."""

Outputs = Mapping[str, Array]
Run = Callable[[Batch], Outputs]


class Leak(Exception):
    """The row's answer clearly depends on its neighbours; says how."""


class Uneven(Exception):
    """A batch is answered with another number of rows; says with which."""


def doubts(
    run: Run,
    source: Source,
    signature: Signature,
    kinds: Sequence[Kind],
    *,
    in_place: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Yield what is odd about the answers of a row among others.

    Args:
        run: answers a batch of the source's.
        source: of the rows.
        signature: of the model.
        kinds: of rows. Of the first that is answered doubts are told; of the others only what refuses the model.
        in_place: whether a row's answer may depend on its place in the batch, as where noise is drawn by place.
        is_over: whether there is no time for another trial.

    Raises:
        Leak: the row's answer depends on other rows, beyond doubt.
        Uneven: the model does not return a row for each row.
        Exception: the model failed on all of them; what it raised for the first.
    """
    faults: list[BaseException] = []
    answered = 0
    for kind in kinds:
        if answered and (kind.gentle or is_over()):
            break
        told: list[str] = []
        try:
            trier = _Trier(run, source, signature, kind, in_place=in_place)
            told = list(_dependence(trier, is_over))
            answered += 1
            yield from told if answered == 1 else ()
            _count_rows(run, source, signature, kind, is_over)
            if answered <= EXCHANGED_KINDS:
                trier.check_exchanges(is_over)
        except WrongRows as error:
            raise Uneven(str(error)) from None
        except (Leak, LoadError):
            raise
        except HANDLER_FAULTS as fault:  # what it makes of other rows is tried all the same
            faults.append(fault)
    if not answered:
        raise faults[0]


def answers_a_row(run: Run, source: Source, kinds: Sequence[Kind]) -> bool:
    """Return whether the model answers one row by itself, of any kind."""
    for kind in kinds:
        for row in source.draw(kind, ROWS, np.random.default_rng(0)):
            try:
                run(source.join([row]))
            except LoadError:
                raise
            except HANDLER_FAULTS:
                continue
            return True
    return False


def _dependence(trier: "_Trier", is_over: Callable[[], bool]) -> Iterator[str]:
    """Yield what is odd; raise Leak where two trials show that a row depends on others."""
    first = trier.trial(0)
    if first is None:
        return
    if told := trier.differ(first.pairs_again):
        yield f"{told} when asked again: it is random, or depends on what was asked before"
        return
    if trier.is_rare:
        trier.check_rare(is_over)
        return
    told = trier.differ(first.pairs)
    # A tie between two numbers may fall either way once.
    if told and trier.leaks(first.pairs):
        second = trier.trial(1)
        if second is not None and trier.leaks(second.pairs):
            raise Leak(f"{told} among other rows")
    if told:
        trier.check_labels(is_over)
        yield f"{told} among other rows: it depends a little on who shares the batch"
    elif told := trier.differ(first.pairs_alone):
        trier.check_alone(first)
        yield f"{told} alone and among other rows"


def _count_rows(run: Run, source: Source, signature: Signature, kind: Kind, is_over: Callable[[], bool]) -> None:
    """Answer each of some rows by itself; where batches of one row are not allowed, a batch of that row alone.

    Raises:
        WrongRows: one is answered with another number of rows.
    """
    sizes = signature.allowed_batch_sizes
    size = 1 if not sizes or 1 in sizes else sizes[0]
    for row in source.draw(kind, ROWS, np.random.default_rng(SEEDS)):
        if is_over():
            return
        run(source.join([row] * size))


Pairs = Sequence[tuple[Outputs, Outputs]]
"""Answers to one row, in two ways."""


class _Trial:
    """Answers of one row: among others and among strangers, once more as at first, and alone."""

    __slots__ = ("pairs", "pairs_again", "pairs_alone")

    def __init__(self, pairs: Pairs, pairs_again: Pairs, pairs_alone: Pairs) -> None:
        self.pairs = pairs
        self.pairs_again = pairs_again
        self.pairs_alone = pairs_alone


class _Trier:
    """Ask for rows of one kind, among others."""

    def __init__(self, run: Run, source: Source, signature: Signature, kind: Kind, *, in_place: bool) -> None:
        self._run, self._source, self._kind, self._in_place = run, source, kind, in_place
        self._specs = {spec.name: spec for spec in signature.outputs}
        self._datatypes = {spec.name: spec.datatype for spec in as_returned(signature).outputs}
        self._ragged = {spec.name for spec in signature.returned if spec.rows is not None and spec.datatype != "BYTES"}
        self._sizes = signature.allowed_batch_sizes
        self._most = signature.max_batch_size
        self.is_rare = kind.scale >= LARGE
        self._rows = next((size for size in self._sizes if size > 1), min(signature.max_batch_size, ROWS))

    def trial(self, seed: int) -> _Trial | None:
        """Return the answers of one row; None where no batch has more."""
        if self._rows < 2:
            return None
        batch, first, pairs = self._asked(seed)
        again = [(self._row(first, 0), self._row(self._answers(batch), 0))]
        alone = []
        if not self._sizes or 1 in self._sizes:
            alone = [(self._row(first, 0), self._row(self._answers(batch[:1]), 0))]
        return _Trial(pairs, again, alone)

    def check_rare(self, is_over: Callable[[], bool]) -> None:
        """Try rows of several seeds, while there is time.

        Raises:
            Leak: two of them depend on other rows.
        """
        seeds = itertools.takewhile(lambda _: not is_over(), range(RARE))
        asked = map(self._asked, seeds)
        leaking = [pairs for batch, first, pairs in asked if self.leaks(pairs) and self._is_steady(batch, first)]
        if len(leaking) > 1:
            raise Leak(f"{self.differ(leaking[0])} among other rows")

    def check_alone(self, first: _Trial) -> None:
        """Try another row alone, where the first one's numbers depend on how many share the batch.

        Raises:
            Leak: those of both do.
        """
        if self.leaks(first.pairs_alone):
            second = self.trial(1)
            if second is not None and self.leaks(second.pairs_alone):
                raise Leak(f"{self.differ(first.pairs_alone)} alone and among other rows")

    def check_labels(self, is_over: Callable[[], bool]) -> None:
        """Try rows of several seeds, while there is time, whose labels or counts differ: a tie turns few of them.

        Raises:
            Leak: those of half of the rows depend on other rows.
        """
        seeds = itertools.takewhile(lambda _: not is_over(), range(RARE))
        asked = [
            (pairs, self._turns(pairs) and self._repeats(batch, first))
            for batch, first, pairs in map(self._asked, seeds)
        ]
        turned = [pairs for pairs, turns in asked if turns]
        if len(asked) == RARE and 2 * len(turned) >= RARE:
            raise Leak(f"{self.differ(turned[0])} among other rows")

    def check_exchanges(self, is_over: Callable[[], bool]) -> None:
        """Try a small batch and the largest one for results that are those of other rows.

        Raises:
            Leak: there are many, twice.
        """
        for size in self._sizes_to_exchange():
            seen = []
            for seed in range(SEEDS):
                if is_over():
                    return
                rng = np.random.default_rng(seed)
                rows = self._source.draw(self._kind, min(DISTINCT, size), rng)
                seen.append(share_exchanged(self._each, rows, size, rng))
                if seen[-1] < SHARE:
                    break
            else:
                raise Leak(f"in a batch of {size} rows {min(seen):.0%} have the result of another row")

    def _sizes_to_exchange(self) -> Sequence[int]:
        sizes = [size for size in self._sizes if size > 1] or [min(self._most, DISTINCT), min(self._most, LARGEST)]
        return sorted({sizes[0], sizes[-1]}) if self._rows > 1 else ()

    def _each(self, rows: Sequence[Row]) -> Sequence[Outputs]:
        outputs = self._answers(rows)
        return [self._row(outputs, place) for place in range(len(rows))]

    def _is_steady(self, batch: Sequence[Row], first: Outputs) -> bool:
        """Return whether the last digits of its numbers do not change a row's answer, as they do in a sine of 1e18."""
        if not all(isinstance(row, dict) for row in batch):
            return True
        nudged = [{name: _nudged(array) for name, array in row.items()} for row in batch]
        return not self.leaks([(self._row(first, 0), self._row(self._answers(nudged), 0))])

    def _asked(self, seed: int) -> tuple[Sequence[Row], Outputs, Pairs]:
        """Return a batch, its answers, and the answers to a row of it here and among strangers."""
        rng = np.random.default_rng(seed)
        last = self._rows - 1
        batch = self._source.draw(self._kind, self._rows, rng)
        strangers = self._source.draw(self._kind, self._rows, rng)
        first = self._answers(batch)
        if self._in_place:
            other = self._answers([batch[0], *strangers[1:last], batch[last]] if last > 1 else [batch[0], strangers[1]])
            places = (0, last) if last > 1 else (0,)
            pairs = [(self._row(first, place), self._row(other, place)) for place in places]
        else:
            moved = self._answers([*strangers[:last], batch[0]])
            pairs = [(self._row(first, 0), self._row(moved, last))]
        return batch, first, pairs

    def leaks(self, pairs: Pairs) -> bool:
        """Return whether a number differs beyond doubt; what is counted or named may turn on its last digit."""
        return any(
            self._is_number(name, array) and _difference(array, right[name]) > LEAKING
            for left, right in pairs
            for name, array in left.items()
        )

    def _repeats(self, batch: Sequence[Row], first: Outputs) -> bool:
        """Return whether the same batch has the same answer each time, as that of a random model does not."""
        again = [(self._row(first, 0), self._row(self._answers(batch), 0)) for _ in range(REPEATS)]
        return not self.differ(again)

    def _turns(self, pairs: Pairs) -> bool:
        """Return whether what is no number differs: a label, a count, a text."""
        return any(
            not self._is_number(name, array) and _difference(array, right[name]) > DOUBTFUL
            for left, right in pairs
            for name, array in left.items()
        )

    def differ(self, pairs: Pairs) -> str:
        """Return which output differs, and how much; nothing where none does."""
        far: dict[str, float] = {}
        for left, right in pairs:
            for name, array in left.items():
                far[name] = max(far.get(name, 0.0), _difference(array, right[name]))
        name = max(far, key=far.__getitem__, default="")
        return f"output {name} of a row differs by {far[name]:.0%}" if name and far[name] > DOUBTFUL else ""

    def _is_number(self, name: str, array: Array) -> bool:
        return self._datatypes[name][0] in "FB" and array.dtype != object and array.dtype.kind != "b"

    def _answers(self, rows: Sequence[Row]) -> Outputs:
        return self._run(self._source.join(rows))

    def _row(self, outputs: Outputs, row: int) -> Outputs:
        return {
            name: self._value(np.take(outputs[name], [row], spec.batch_dim), spec) for name, spec in self._specs.items()
        }

    def _value(self, array: Array, spec: TensorSpec) -> Array:
        """Return the numbers of a ragged output's row, what bits of bfloat16 mean, and all else as it is."""
        if spec.name in self._ragged:
            return np.asarray(orjson.loads(array.item()), np.float64)
        return (array.astype(np.uint32) << 16).view(np.float32) if spec.datatype == "BF16" else array


def _nudged(array: Array) -> Array:
    """Return numbers with other last digits."""
    array = np.asarray(array)
    return array + array.dtype.type(NUDGE) * np.spacing(array) if array.dtype.kind == "f" else array


def _difference(left: Array, right: Array) -> float:
    """Return how far apart two answers are, by the larger's largest number; 1 where they cannot be compared."""
    if left.shape != right.shape:
        return 1.0
    if left.dtype.kind not in "fiu":
        return float((left != right).any())
    numbers = finite_numbers(left, right)
    if numbers is None:
        return DOUBTFUL * 2
    a, b = numbers
    with np.errstate(all="ignore"):
        scale = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0), np.finfo(np.float32).tiny)
        return float(np.abs(a - b).max(initial=0) / scale)
