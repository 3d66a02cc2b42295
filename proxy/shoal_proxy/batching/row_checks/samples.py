"""Copies of completed rows to run again, limited in number and bytes.

Rows are grouped by batch key and lengths, so that a group can share a batch. A check takes one row of each of several
batches, so that a row gets other neighbours than before. Batches and rows are chosen at random: a model that mixes rows
in every second batch, or always the first two rows, would pass checks at fixed intervals.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from itertools import cycle, islice
from typing import Final

import numpy as np

from shoal_proxy.batching.batch import Batch, BatchResult
from shoal_proxy.batching.pending import BatchKey, RequestSlice
from shoal_proxy.batching.row_checks.distance import Row, row_of
from shoal_proxy.batching.row_checks.evidence import BatchTally
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.model.sizes import byte_size_of
from shoal_schema.wire.datatypes import Array

MAX_BATCHES: Final = 64
MAX_BYTES: Final = 8 << 20
"""Most bytes of copied inputs and of outputs; a batch that takes an eighth of it is not kept."""
ROWS_OF_BATCH: Final = 32
"""Most rows kept of one batch."""
_LARGEST: Final = MAX_BYTES // 8
_MAX_STRIDE: Final = 64
"""Most batches between two kept ones, on average."""

Lengths = tuple[tuple[str, int], ...]
Group = tuple[BatchKey, Lengths]
Pick = Callable[[int], int]
"""Returns a random integer from 0 to below its argument."""


class SampledBatch:
    """A completed batch: its outputs, and copies of some rows of its inputs."""

    __slots__ = ("group", "outputs", "rows", "samples", "size_bytes", "taken_s", "tally", "whole")

    def __init__(self, group: Group, outputs: Mapping[str, Array], rows: int, taken_s: float) -> None:
        self.group = group
        self.outputs = outputs
        self.rows = rows
        self.taken_s = taken_s
        self.samples: list[SampledRow] = []
        """Rows that have not been run again."""
        self.whole: tuple[SampledRow, ...] = ()
        """All rows in the order in which they ran; empty where some were not kept."""
        self.size_bytes = byte_size_of(outputs)
        self.tally = BatchTally(min(rows, ROWS_OF_BATCH))


class SampledRow:
    """One row of a sampled batch."""

    __slots__ = ("batch", "cuts", "inputs", "lengths", "position")

    def __init__(
        self,
        batch: SampledBatch,
        position: int,
        inputs: Mapping[str, Array],
        lengths: Mapping[str, list[int]],
        cuts: Mapping[str, tuple[int, int]],
    ) -> None:
        self.batch = batch
        self.position = position
        self.inputs = inputs
        self.lengths = lengths
        self.cuts = cuts

    def result(self) -> Row:
        """Return the result that the client got."""
        return row_of(self.batch.outputs, self.position, self.cuts)


class SampleStore:
    """The sampled batches; ``pick`` selects batches and rows at random."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self._groups: OrderedDict[Group, deque[SampledBatch]] = OrderedDict()
        self._skip = 0
        self._stride = 1
        self.batches = 0
        self.size_bytes = 0

    def wants(self) -> bool:
        """Return whether to keep rows of the next batch.

        Every batch is kept while there is room, and then a falling random share, so that kept rows come from different
        times.
        """
        if self.batches < MAX_BATCHES and self.size_bytes < MAX_BYTES:
            return True
        self._skip -= 1
        if self._skip > 0:
            return False
        self._stride = min(_MAX_STRIDE, 2 * self._stride)
        self._skip = 1 + self._pick(2 * self._stride - 1)
        return True

    def add(self, batch: Batch, result: BatchResult, rules: "SamplingRules", now_s: float) -> None:
        """Keep rows of a completed batch."""
        kept = _sampled(batch, result, rules, now_s, self._pick)
        if kept is None:
            return
        while self._groups and (self.batches >= MAX_BATCHES or self.size_bytes + kept.size_bytes > MAX_BYTES):
            # Drop the oldest batch of all groups.
            group = min(self._groups, key=lambda each: self._groups[each][0].taken_s)
            self._dropped(self._groups[group].popleft())
            if not self._groups[group]:
                del self._groups[group]
        self._groups.setdefault(kept.group, deque()).append(kept)
        self.batches += 1
        self.size_bytes += kept.size_bytes

    def groups(self) -> list[tuple[Group, int, float]]:
        """Return the groups of sampled rows that can share a batch.

        Each entry has the group's key, its number of sampled batches, and the completion time of the oldest one.
        """
        return [(group, len(kept), kept[0].taken_s) for group, kept in self._groups.items()]

    def take(self, group: Group, rows: int) -> list[SampledRow]:
        """Take one random row of each of up to ``rows`` batches, newest batch first."""
        kept = self._groups[group]
        taken: list[SampledRow] = []
        left: list[SampledBatch] = []
        while kept and len(taken) < rows:
            batch = kept.popleft()
            taken.append(batch.samples.pop(self._pick(len(batch.samples))))
            if batch.samples:
                left.append(batch)
            else:
                self._dropped(batch)
        # Back in their order, the oldest batch first.
        kept.extendleft(reversed(left))
        if kept:
            self._groups.move_to_end(group)
        else:
            del self._groups[group]
        # There is room again: keep every batch until it is used up.
        self._stride, self._skip = 1, 0
        taken.reverse()
        return taken

    def take_of(self, batch: SampledBatch, rows: int) -> list[SampledRow]:
        """Remove and return up to ``rows`` rows of one batch, last row first."""
        taken = [batch.samples.pop() for _ in range(min(rows, len(batch.samples)))]
        kept = self._groups.get(batch.group, ())
        if not batch.samples and batch in kept:
            self._groups[batch.group].remove(batch)
            self._dropped(batch)
            if not self._groups[batch.group]:
                del self._groups[batch.group]
        return taken

    def companions(self, sample: SampledRow, rows: int, turn: int) -> list[SampledRow]:
        """Return ``rows`` other kept rows that may share a batch with ``sample``; each ``turn`` selects different rows.

        If too few rows are kept, they are repeated, because the size of the batch matters. Empty if no row is kept.
        """
        kept = self._groups.get(sample.batch.group)
        others = [each for batch in kept or () for each in batch.samples]
        if not others:
            return []
        begin = turn * rows % len(others)
        return list(islice(cycle(others[begin:] + others[:begin]), rows))

    def others(self, sample: SampledRow) -> list[SampledBatch]:
        """Return the other kept batches whose results may be compared with those of ``sample``."""
        return [batch for batch in self._groups.get(sample.batch.group, ()) if batch is not sample.batch]

    def clear(self) -> None:
        """Drop all batches."""
        self._groups.clear()
        self.batches = self.size_bytes = 0

    def _dropped(self, batch: SampledBatch) -> None:
        self.batches -= 1
        self.size_bytes -= batch.size_bytes


class SamplingRules:
    """The parts of a model's signature that row sampling depends on."""

    def __init__(self, signature: ModelSignature) -> None:
        self.axes = {name: spec.pad_axis for name, spec in signature.inputs.items() if spec.pad_axis is not None}
        """Padded axis by input."""
        self.free = any(not signature.inputs[name].pad_buckets for name in self.axes)
        """Whether rows are padded to the longest of their batch."""
        self.cuts = {
            name: (spec.unpad_axis, spec.unpad_input)
            for name, spec in signature.outputs.items()
            if spec.unpad_axis is not None and spec.unpad_input is not None
        }
        """Axis and input that it follows, by output that is cut to an input's length."""


def _sampled(batch: Batch, result: BatchResult, rules: SamplingRules, now_s: float, pick: Pick) -> SampledBatch | None:
    """Return the rows of a batch to keep; None if they are too large, or if no row has the batch's padded length."""
    kept: SampledBatch | None = None
    # What each padded input is padded to.
    sizes: dict[str, int] = {}
    for part in batch.slices if rules.free else ():
        for name, axis in rules.axes.items():
            if name in part.inputs:
                sizes[name] = max(sizes.get(name, 0), part.inputs[name].shape[axis])
    longest = tuple([(name, sizes[name]) for name in sorted(sizes)])
    for position, part, row in _places(batch, rules, longest, pick):
        lengths = _lengths(part, row)
        if kept is None:
            kept = SampledBatch((batch.key, lengths if rules.free else ()), result.outputs, batch.rows, now_s)
        inputs = {name: array[row : row + 1] for name, array in part.inputs.items()}
        row_bytes = byte_size_of(inputs)
        if kept.size_bytes + row_bytes > _LARGEST:
            break
        own = dict(lengths)
        # Copies, since a view would keep the whole request in memory.
        inputs = {name: np.array(array) for name, array in inputs.items()}
        cuts = {name: (axis, own[source]) for name, (axis, source) in rules.cuts.items() if source in own}
        kept.samples.append(SampledRow(kept, position, inputs, {name: [size] for name, size in lengths}, cuts))
        kept.size_bytes += row_bytes
    if kept is not None and len(kept.samples) == kept.rows:
        kept.whole = tuple(kept.samples)
    return kept if kept is not None and kept.samples else None


def _places(batch: Batch, rules: SamplingRules, longest: Lengths, pick: Pick) -> list[tuple[int, RequestSlice, int]]:
    """Return batch position, slice and request row of each row to keep.

    A row that was padded to a neighbour's length is excluded: its result may depend on the padding, which does not
    prove a mix of rows.
    """
    places: list[tuple[int, RequestSlice, int]] = []
    begin = 0
    for part in batch.slices:
        rows = range(part.start, part.start + part.rows)
        kept = [row for row in rows if not rules.free or _lengths(part, row) == longest]
        places += [(begin + row - part.start, part, row) for row in kept]
        begin += part.rows
    if len(places) <= ROWS_OF_BATCH:
        return places
    chosen = [places.pop(pick(len(places))) for _ in range(ROWS_OF_BATCH)]
    return sorted(chosen, key=lambda place: place[0])


def _lengths(part: RequestSlice, row: int) -> Lengths:
    own = part.pending.lengths
    return tuple([(name, int(own[name][row])) for name in sorted(own)])
