"""One request on its way through a graph: what is known of its rows, what a step is given, what it has answered.

No I/O and no clock: `walk` asks the models.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal_proxy.errors import MOST_WORDS
from shoal_proxy.graph.combining import combined
from shoal_proxy.graph.conditions import Values1D, column, meant
from shoal_proxy.graph.values import Rows, Values, completed, filled_shape, gaps, items_of, open_rows, stacked
from shoal_schema.graphs.plan import ROOT, Output, Ref, Space, Step, is_item, meeting
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.graphs.types import Typed
from shoal_schema.resource.graph import REQUEST
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.row_errors import RowError


class RowsError(ValueError):
    """Rows of the request cannot go on, by no fault of a model's."""

    def __init__(self, errors: Sequence[RowError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


class Call(NamedTuple):
    """What a step's model is to be ``asked``: so many rows, ``inputs`` of those ``rows`` of its space (None: all)."""

    inputs: Mapping[str, Array]
    rows: Array | None
    asked: int


Ask = Callable[[Step, Mapping[str, Array], int], Coroutine[Any, Any, Mapping[str, Array]]]
"""Asks a step's model for the answers to so many rows; raises a `ProxyError`."""
MOST_ROWS = 1 << 18
"""Of a space: as many as a request may have."""


class Frame:
    """What is known of one request's rows.

    Args:
        graph: the graph, and what its tensors are.
        inputs: what the caller sent.
        count: of rows.
        most_bytes: that lists of items may take.
    """

    def __init__(self, graph: Typed, inputs: Mapping[str, Array], count: int, most_bytes: int) -> None:
        self._graph = graph
        self._plan = graph.plan
        self._count = count
        self._most_bytes = most_bytes
        self._values: dict[Ref, Values] = {Ref(REQUEST, name): Values(array) for name, array in inputs.items()}
        self._spaces: dict[Space, Rows] = {}
        self._chosen: dict[Space, Array | None] = {}
        self._items: dict[tuple[Space, Ref], Values] = {}
        self.omitted: dict[str, int] = {}
        """By step, how many rows go on without it, as it failed for them."""

    def begin(self, step: Step) -> Call:
        """Return what a step's model is to be asked, now that all it needs is known.

        Raises:
            RowsError: some rows cannot go on.
        """
        if step.each and step.space not in self._spaces:
            self._open(step)
        count = self._rows(step.space)
        given = {name: self._seen(ref, step) for name, ref in step.inputs.items()}
        present = [values.present(count) for values in given.values()]
        masks = [mask for mask in present if mask is not None]
        if step.when is not None:
            masks.append(meant(step.when, {str(ref): self._compared(ref, step) for ref in step.conditions}))
        alive = np.logical_and.reduce(masks) if masks else None
        rows = None if alive is None or alive.all() else np.flatnonzero(alive)
        wanted = self._graph.signatures[step.name].inputs
        inputs = {name: _given(values.pick(rows), wanted[name]) for name, values in given.items()}
        return Call(inputs, rows, count if rows is None else len(rows))

    def finish(self, step: Step, call: Call, outputs: Mapping[str, Array]) -> None:
        """Note what a step's model has answered: a row for each that it was asked."""
        for name, array in outputs.items():
            self._values[Ref(step.name, name)] = Values(array, call.rows)

    def finish_parts(self, step: Step, call: Call, parts: Sequence[tuple[Sequence[int], Mapping[str, Array]]]) -> None:
        """Note what it has answered to some rows of the call, and to others; the rest goes on without it."""
        if omitted := call.asked - sum(len(rows) for rows, _ in parts):
            self.omitted[step.name] = omitted
        if not parts:
            self.skip(step)
            return
        if not omitted and len(parts) == 1:
            self.finish(step, call, parts[0][1])
            return
        asked = np.arange(call.asked) if call.rows is None else call.rows
        numbers = np.concatenate([np.asarray(rows, np.int64) for rows, _ in parts])
        order = np.argsort(numbers)
        for name, tensor in self._graph.signatures[step.name].outputs.items():
            if name in parts[0][1]:
                array = stacked([outputs[name] for _, outputs in parts], tensor)
                self._values[Ref(step.name, name)] = Values(array[order], asked[numbers[order]])

    def skip(self, step: Step) -> None:
        """Note that no row has a step's outputs."""
        for name, tensor in self._graph.signatures[step.name].outputs.items():
            self._values[Ref(step.name, name)] = Values(gaps(tensor, (0, *filled_shape(tensor))), np.arange(0))

    def outputs(self) -> Mapping[str, Array]:
        """Return the answer, now that every step has ended.

        Raises:
            RowsError: an output cannot be made of what there is.
        """
        return {output.name: self._output(output) for output in self._plan.outputs}

    def blamed(self, step: Step, call: Call, errors: Sequence[RowError]) -> list[RowError]:
        """Return the errors of rows of a call as those of the request's rows; the first of each, with the step."""
        found: dict[int, RowError] = {}
        for error in errors:
            row = error.row if call.rows is None else int(call.rows[error.row])
            row, where = self._origin(step.space, row)
            found.setdefault(row, RowError(row, error.status, f"step {step.name}{where}: {error.message[:MOST_WORDS]}"))
        return [found[row] for row in sorted(found)]

    def _origin(self, space: Space, row: int) -> tuple[int, str]:
        """Return the request's row that a row of a space comes from, and which item of it that is."""
        where = ""
        while space:
            rows = self._spaces[space]
            where = f", item {int(rows.numbers[row])} of {space[-1]}{where}"
            row, space = int(rows.parents[row]), space[:-1]
        return row, where

    def _rows(self, space: Space) -> int:
        return self._spaces[space].count if space else self._count

    def _open(self, step: Step) -> None:
        source = self._values[step.each[0]]
        rows, chosen = open_rows(source, self._counts(step, source))
        if rows.count > MOST_ROWS:
            self._refuse(step, f"{rows.count} items of {step.each[0]}; at most {MOST_ROWS} are taken", 413)
        self._spaces[step.space], self._chosen[step.space] = rows, chosen

    def _counts(self, step: Step, source: Values) -> Array | None:
        if step.count is None:
            return None
        counts = self._values[step.count]
        known = completed(counts, self._rows(step.space[:-1]), self._tensor(step.count)).reshape(-1)
        wanted = known if source.rows is None else known[source.rows]
        width = source.array.shape[1]
        if len(wrong := np.flatnonzero((wanted < 0) | (wanted > width))):
            rows = wrong if source.rows is None else source.rows[wrong]
            self._refuse_counts(
                step, step.count, {int(row): int(wanted[at]) for row, at in zip(rows, wrong, strict=True)}
            )
        return wanted.astype(np.int64)

    def _refuse_counts(self, step: Step, count: Ref, wrong: Mapping[int, int]) -> None:
        status = 400 if count.step == REQUEST else 500
        errors: dict[int, RowError] = {}
        for of, given in wrong.items():
            row, where = self._origin(step.space[:-1], of)
            what = f"step {step.name}{where}: {count} is {given}, more or less than {step.each[0]} can hold"
            errors.setdefault(row, RowError(row, status, what))
        raise RowsError([errors[row] for row in sorted(errors)])

    def _refuse(self, step: Step, what: str, status: int) -> None:
        raise self._all_refused(f"step {step.name}: {what}", status)

    def _all_refused(self, message: str, status: int) -> RowsError:
        return RowsError([RowError(row, status, message) for row in range(self._count)])

    def _tensor(self, ref: Ref) -> Tensor:
        return self._graph.tensor(ref, "")

    def _seen(self, ref: Ref, step: Step) -> Values:
        """Return what a step sees of a tensor."""
        if not is_item(ref, step):
            return self._moved(ref, step.space)
        space = step.space
        while str(ref) != space[-1] and ref not in step.each:
            space = space[:-1]
        values = self._item(ref, space, step)
        for depth in range(len(space) + 1, len(step.space) + 1):
            values = self._repeated(values, step.space[:depth])
        return values

    def _item(self, ref: Ref, space: Space, step: Step) -> Values:
        if (space, ref) not in self._items:
            source, first = self._values[ref], self._values[self._plan.opener(space).each[0]]
            own, most = source.array.shape[1], first.array.shape[1]
            if own != most:
                status = 400 if ref.step == REQUEST else 500
                self._refuse(step, f"{ref} holds {own} items in each row, {space[-1]} {most}", status)
            self._items[space, ref] = Values(items_of(source, self._chosen[space]))
        return self._items[space, ref]

    def _moved(self, ref: Ref, space: Space) -> Values:
        """Return a tensor as rows of another space have it: lists on the way up, repeated on the way down."""
        own = self._plan.space_of(ref)
        values = self._raised(self._values[ref], self._tensor(ref), own, meeting(own, space))
        for depth in range(len(meeting(own, space)) + 1, len(space) + 1):
            values = self._repeated(values, space[:depth])
        return values

    def _repeated(self, values: Values, space: Space) -> Values:
        try:
            return self._spaces[space].repeat(values, self._most_bytes)
        except ValueError as error:
            raise self._all_refused(str(error), 413) from None

    def _raised(self, values: Values, tensor: Tensor, space: Space, to: Space) -> Values:
        while space != to:
            try:
                values = self._spaces[space].gather(values, self._rows(space[:-1]), tensor, self._most_bytes)
            except ValueError as error:
                raise self._all_refused(str(error), 413) from None
            tensor, space = tensor.listed, space[:-1]
        return values

    def _compared(self, ref: Ref, step: Step) -> Values1D:
        values, count = self._seen(ref, step), self._rows(step.space)
        mask = values.present(count)
        tensor = self._tensor(ref)
        return column(completed(values, count, tensor), tensor.datatype, np.ones(count, bool) if mask is None else mask)

    def _output(self, output: Output) -> Array:
        tensors = [self._tensor(ref) for ref in output.of]
        moved = [self._moved(ref, output.space) for ref in output.of]
        count = self._rows(output.space)
        self._check_room(output, moved, count)
        values = combined(output.combine, moved, tensors, count)
        tensor = tensors[0]
        if output.space:
            values = self._raised(values, tensor, output.space, ROOT)
        return completed(values, self._count, tensor)

    def _check_room(self, output: Output, values: Sequence[Values], count: int) -> None:
        """Refuse rows that would each be as large as the largest of a few."""
        size_bytes = count * max(each.array[:1].nbytes for each in values)
        if size_bytes > self._most_bytes and any(len(each.array) < count for each in values):
            message = f"output {output.name} of {count} rows would take {size_bytes} bytes"
            raise self._all_refused(message, 413)


def _given(array: Array, tensor: Tensor) -> Array:
    """Return what a model takes: its own datatype; and of lists without an item in any row, which none takes, a gap."""
    dtype = DTYPES[tensor.datatype]
    if not array.size and len(array):
        return gaps(tensor, tuple(size or 1 for size in array.shape))
    return array if array.dtype == dtype else array.astype(dtype)
