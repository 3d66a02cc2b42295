"""Test whether a row's result depends on other rows.

The test is for models whose graph is not proven to separate rows. A generated row is computed first in one batch
and last in another, with different neighbors. Batches of one size run the same kernels, whose result for a row does not
depend on its position or neighbors, so a difference is caused by the model. Batches of another size run other kernels,
whose sums differ in the last digits, so such differences only cause warnings.

Rows of several scales are also computed in batches of one row. A model that returns another number of rows than it
received is rejected: in larger batches, surplus and missing rows could cancel out, and clients would receive rows of
other clients.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import orjson

from shoal_runtime.errors import LoadError, WrongRows
from shoal_runtime.faults import HANDLER_FAULTS
from shoal_runtime.signature.tensors import Signature, as_returned
from shoal_runtime.startup.exchanges import DISTINCT, SHARE, finite_numbers, share_exchanged
from shoal_runtime.startup.trial_rows import LARGE, Batch, Row, RowKind, RowSource
from shoal_schema.wire.datatypes import Array

ROWS: Final = 4
"""Few, so that the effect of each on the others shows."""
DOUBTFUL: Final = 0.01
"""Part of an output's largest number: more than half precision and kernels of other sizes cause."""
LEAKING: Final = 0.1
"""More than scales of a whole batch cause, as of quantized activations."""
SEEDS: Final = 2
RARE: Final = 8
"""Seeds of rows of large numbers: only numbers beyond a limit, on one side of it, may depend on others."""
REPEATS: Final = 3
"""A random label is equal so often in at most one of eight batches."""
EXCHANGED_KINDS: Final = 2
"""Kinds of rows that are tried for exchanged results."""
LARGEST: Final = 64
"""Rows of the largest batch that is tried for exchanged results."""
NUDGE: Final = 64
"""Units in the last place: more than kernels differ by."""

Outputs = Mapping[str, Array]
Run = Callable[[Batch], Outputs]


class RowDependence(Exception):
    """A row's result depends on other rows; the message describes the difference."""


class RowCountMismatch(Exception):
    """A batch has a different number of results than rows; the message states both."""


def dependence_warnings(
    run: Run,
    source: RowSource,
    signature: Signature,
    kinds: Sequence[RowKind],
    *,
    in_place: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[str]:
    """Test with generated rows whether results depend on other rows.

    Args:
        run: function that computes a batch.
        source: source of rows.
        signature: the model's signature.
        kinds: distributions of numbers in rows. All are tested for errors, but only the first that the model accepts
            for warnings.
        in_place: whether a result may depend on the position in the batch, for example through noise.
        is_over: function that returns whether the time for tests is used up.

    Yields:
        Warnings about results that may depend on other rows.

    Raises:
        RowDependence: a row's result depends on other rows.
        RowCountMismatch: the model does not return one row per row.
        Exception: the model failed on all kinds; this is its exception for the first kind.
    """
    faults: list[BaseException] = []
    accepted = 0
    for kind in kinds:
        if accepted and (kind.gentle or is_over()):
            break
        try:
            trier = _TrialRunner(run, source, signature, kind, in_place=in_place)
            warnings = list(_dependence(trier, is_over))
            accepted += 1
            yield from warnings if accepted == 1 else ()
            # Each row alone; if batches of one row are not allowed, a batch of copies of it.
            sizes = signature.allowed_batch_sizes
            size = 1 if not sizes or 1 in sizes else sizes[0]
            for row in source.draw(kind, ROWS, np.random.default_rng(SEEDS)):
                if is_over():
                    break
                run(source.join([row] * size))
            if accepted <= EXCHANGED_KINDS:
                trier.check_exchanges(is_over)
        except WrongRows as error:
            raise RowCountMismatch(str(error)) from None
        except (RowDependence, LoadError):
            raise
        except HANDLER_FAULTS as fault:  # rows of other kinds are tried all the same
            faults.append(fault)
    if not accepted:
        raise faults[0]


def accepts_single_row(run: Run, source: RowSource, kinds: Sequence[RowKind]) -> bool:
    """Return whether the model computes a generated row in a batch of one row."""
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


def _dependence(trier: "_TrialRunner", is_over: Callable[[], bool]) -> Iterator[str]:
    """Test with two generated rows whether results depend on other rows.

    Yields:
        Warnings, if results differ but the tests do not show why.

    Raises:
        RowDependence: the results of both rows depend on other rows.
    """
    first = trier.trial(0)
    if first is None:
        return
    if difference := trier.differ(first.pairs_again):
        yield f"{difference} when it is repeated: the model is random, or depends on earlier batches"
        return
    if trier.is_rare:
        trier.check_rare(is_over)
        return
    difference = trier.differ(first.pairs)
    # A tie between two numbers may break either way once, so a second row must show it too.
    if difference and trier.leaks(first.pairs):
        second = trier.trial(1)
        if second is not None and trier.leaks(second.pairs):
            raise RowDependence(f"{difference} among other rows")
    if difference:
        trier.check_labels(is_over)
        yield f"{difference} among other rows, because it depends slightly on the other rows of its batch"
    elif difference := trier.differ(first.pairs_alone):
        trier.check_alone(first)
        yield f"{difference} alone and among other rows"


Pairs = Sequence[tuple[Outputs, Outputs]]
"""Two results each of one row."""


class _Trial:
    """Pairs of results of one row, which the tests compare.

    The second result is computed with other neighbors, in the same batch again, or in a batch of one row.
    """

    __slots__ = ("pairs", "pairs_again", "pairs_alone")

    def __init__(self, pairs: Pairs, pairs_again: Pairs, pairs_alone: Pairs) -> None:
        self.pairs = pairs
        self.pairs_again = pairs_again
        self.pairs_alone = pairs_alone


class _TrialRunner:
    """Tests with generated rows of one kind, in batches with other rows."""

    def __init__(self, run: Run, source: RowSource, signature: Signature, kind: RowKind, *, in_place: bool) -> None:
        self._run, self._source, self._kind, self._in_place = run, source, kind, in_place
        self._specs = {spec.name: spec for spec in signature.outputs}
        self._datatypes = {spec.name: spec.datatype for spec in as_returned(signature).outputs}
        self._ragged = {spec.name for spec in signature.returned if spec.rows is not None and spec.datatype != "BYTES"}
        self._sizes = signature.allowed_batch_sizes
        self._most = signature.max_batch_size
        self.is_rare = kind.scale >= LARGE
        self._rows = next((size for size in self._sizes if size > 1), min(signature.max_batch_size, ROWS))

    def trial(self, seed: int) -> _Trial | None:
        """Return the results of one row in different batches; None if batches have only one row."""
        if self._rows < 2:
            return None
        batch, first, pairs = self._compared(seed)
        again = [(self._row(first, 0), self._row(self._outputs(batch), 0))]
        alone = []
        if not self._sizes or 1 in self._sizes:
            alone = [(self._row(first, 0), self._row(self._outputs(batch[:1]), 0))]
        return _Trial(pairs, again, alone)

    def check_rare(self, is_over: Callable[[], bool]) -> None:
        """Test rows of several seeds, while there is time.

        Raises:
            RowDependence: two rows depend on other rows.
        """
        seeds = itertools.takewhile(lambda _: not is_over(), range(RARE))
        compared = map(self._compared, seeds)
        leaking = [pairs for batch, first, pairs in compared if self.leaks(pairs) and self._is_steady(batch, first)]
        if len(leaking) > 1:
            raise RowDependence(f"{self.differ(leaking[0])} among other rows")

    def check_alone(self, first: _Trial) -> None:
        """Test whether numbers differ between a larger batch and one of one row.

        A difference for the first row is confirmed with a second row.

        Args:
            first: results of the first row.

        Raises:
            RowDependence: the numbers of both rows differ.
        """
        if self.leaks(first.pairs_alone):
            second = self.trial(1)
            if second is not None and self.leaks(second.pairs_alone):
                raise RowDependence(f"{self.differ(first.pairs_alone)} alone and among other rows")

    def check_labels(self, is_over: Callable[[], bool]) -> None:
        """Test whether labels and counts depend on other rows.

        A batch of rows is generated for each of several random seeds. The test stops when the time is over. A label may
        change where two classes have equal scores; that happens in few rows, so it is not reported.

        Raises:
            RowDependence: with at least half of the seeds, labels or counts depend on other rows.
        """
        seeds = itertools.takewhile(lambda _: not is_over(), range(RARE))
        changed: list[Pairs] = []
        count = 0
        for batch, first, pairs in map(self._compared, seeds):
            count += 1
            labels_differ = any(
                not self._is_number(name, array) and _difference(array, right[name]) > DOUBTFUL
                for left, right in pairs
                for name, array in left.items()
            )
            if not labels_differ:
                continue
            # A random model differs from itself when the same batch is repeated.
            repeated = [(self._row(first, 0), self._row(self._outputs(batch), 0)) for _ in range(REPEATS)]
            if not self.differ(repeated):
                changed.append(pairs)
        if count == RARE and 2 * len(changed) >= RARE:
            raise RowDependence(f"{self.differ(changed[0])} among other rows")

    def check_exchanges(self, is_over: Callable[[], bool]) -> None:
        """Test small and large batches for rows that get another row's result.

        Raises:
            RowDependence: with each seed, many rows of a batch have another row's result.
        """
        if self._rows < 2:
            return

        def each_result(rows: Sequence[Row]) -> Sequence[Outputs]:
            outputs = self._outputs(rows)
            return [self._row(outputs, place) for place in range(len(rows))]

        sizes = [size for size in self._sizes if size > 1] or [min(self._most, DISTINCT), min(self._most, LARGEST)]
        for size in sorted({sizes[0], sizes[-1]}):
            seen = []
            for seed in range(SEEDS):
                if is_over():
                    return
                rng = np.random.default_rng(seed)
                rows = self._source.draw(self._kind, min(DISTINCT, size), rng)
                seen.append(share_exchanged(each_result, rows, size, rng))
                if seen[-1] < SHARE:
                    break
            else:
                raise RowDependence(f"in a batch of {size} rows {min(seen):.0%} have the result of another row")

    def _is_steady(self, batch: Sequence[Row], first: Outputs) -> bool:
        """Return whether a row's result is stable under a tiny change of inputs.

        Floating-point numbers of all rows are changed in their last digits.
        """
        if not all(isinstance(row, dict) for row in batch):
            return True
        nudged = []
        for row in batch:
            arrays = {name: np.asarray(array) for name, array in row.items()}
            nudged.append(
                {
                    name: array + array.dtype.type(NUDGE) * np.spacing(array) if array.dtype.kind == "f" else array
                    for name, array in arrays.items()
                }
            )
        return not self.leaks([(self._row(first, 0), self._row(self._outputs(nudged), 0))])

    def _compared(self, seed: int) -> tuple[Sequence[Row], Outputs, Pairs]:
        """Compute the same row in two batches with different neighbors.

        Returns:
            The first batch, its outputs, and the two results of each compared row as pairs.
        """
        rng = np.random.default_rng(seed)
        last = self._rows - 1
        batch = self._source.draw(self._kind, self._rows, rng)
        # The same row with other neighbours.
        strangers = self._source.draw(self._kind, self._rows, rng)
        first = self._outputs(batch)
        if self._in_place:
            other = self._outputs([batch[0], *strangers[1:last], batch[last]] if last > 1 else [batch[0], strangers[1]])
            places = (0, last) if last > 1 else (0,)
            pairs = [(self._row(first, place), self._row(other, place)) for place in places]
        else:
            moved = self._outputs([*strangers[:last], batch[0]])
            pairs = [(self._row(first, 0), self._row(moved, last))]
        return batch, first, pairs

    def leaks(self, pairs: Pairs) -> bool:
        """Return whether numbers in paired results differ more than by rounding."""
        return any(
            self._is_number(name, array) and _difference(array, right[name]) > LEAKING
            for left, right in pairs
            for name, array in left.items()
        )

    def differ(self, pairs: Pairs) -> str:
        """Describe the output that differs most between pairs of results; empty if none differs."""
        far: dict[str, float] = {}
        for left, right in pairs:
            for name, array in left.items():
                far[name] = max(far.get(name, 0.0), _difference(array, right[name]))
        name = max(far, key=far.__getitem__, default="")
        return f"output {name} of a row differs by {far[name]:.0%}" if name and far[name] > DOUBTFUL else ""

    def _is_number(self, name: str, array: Array) -> bool:
        return self._datatypes[name][0] in "FB" and array.dtype != object and array.dtype.kind != "b"

    def _outputs(self, rows: Sequence[Row]) -> Outputs:
        return self._run(self._source.join(rows))

    def _row(self, outputs: Outputs, row: int) -> Outputs:
        found = {}
        for name, spec in self._specs.items():
            array = np.take(outputs[name], [row], spec.batch_dim)
            if name in self._ragged:
                array = np.asarray(orjson.loads(array.item()), np.float64)
            elif spec.datatype == "BF16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
            found[name] = array
        return found


def _difference(left: Array, right: Array) -> float:
    """Return the largest difference of two arrays, relative to their maximum.

    It is 1 if the shapes differ, or if elements that are not numbers differ.
    """
    if left.shape != right.shape:
        return 1.0
    if left.dtype.kind not in "fiu":
        return float((left != right).any())
    numbers = finite_numbers(left, right)
    if numbers is None:
        return DOUBTFUL * 2
    a, b = numbers
    with np.errstate(all="ignore"):
        # The smallest float32 avoids a division by zero.
        scale = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0), np.finfo(np.float32).tiny)
        return float(np.abs(a - b).max(initial=0) / scale)
