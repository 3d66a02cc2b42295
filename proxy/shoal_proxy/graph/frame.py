"""One request on its way through a graph: what is known of its rows, what a step is given, what it has answered.

No I/O and no clock: `walk` asks the models.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from shoal_proxy.graph.combining import combined
from shoal_proxy.graph.conditions import Values1D, column, meant
from shoal_proxy.graph.values import Rows, Values, completed, filled_shape, gaps, items_of, open_rows
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
        inputs = {name: _widened(values.pick(rows), wanted[name]) for name, values in given.items()}
        return Call(inputs, rows, count if rows is None else len(rows))

    def finish(self, step: Step, call: Call, outputs: Mapping[str, Array], failed: Sequence[int] = ()) -> None:
        """Note what a step's model has answered: a row for each that it was asked, but for those that failed."""
        rows = call.rows
        if failed:
            asked = np.arange(call.asked) if rows is None else rows
            rows = np.delete(asked, list(failed))
        for name, array in outputs.items():
            self._values[Ref(step.name, name)] = Values(array, rows)

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
            found.setdefault(row, RowError(row, error.status, f"step {step.name}{where}: {error.message}"))
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
        wanted = (known if source.rows is None else known[source.rows]).astype(np.int64)
        if len(wanted) and (wanted.min() < 0 or wanted.max() > source.array.shape[1]):
            worst = int(wanted[(wanted < 0) | (wanted > source.array.shape[1])][0])
            self._refuse(step, f"{step.count} is {worst}, and {step.each[0]} holds {source.array.shape[1]} items", 500)
        return wanted

    def _refuse(self, step: Step, what: str, status: int) -> None:
        raise RowsError([RowError(row, status, f"step {step.name}: {what}") for row in range(self._count)])

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
            values = self._spaces[step.space[:depth]].repeat(values)
        return values

    def _item(self, ref: Ref, space: Space, step: Step) -> Values:
        if (space, ref) not in self._items:
            source, first = self._values[ref], self._values[self._plan.opener(space).each[0]]
            own, most = source.array.shape[1], first.array.shape[1]
            if own != most:
                self._refuse(step, f"{ref} holds {own} items in each row, {space[-1]} {most}", 500)
            self._items[space, ref] = Values(items_of(source, self._chosen[space]))
        return self._items[space, ref]

    def _moved(self, ref: Ref, space: Space) -> Values:
        """Return a tensor as rows of another space have it: lists on the way up, repeated on the way down."""
        own = self._plan.space_of(ref)
        values = self._raised(self._values[ref], self._tensor(ref), own, meeting(own, space))
        for depth in range(len(meeting(own, space)) + 1, len(space) + 1):
            values = self._spaces[space[:depth]].repeat(values)
        return values

    def _raised(self, values: Values, tensor: Tensor, space: Space, to: Space) -> Values:
        while space != to:
            try:
                values = self._spaces[space].gather(values, self._rows(space[:-1]), tensor, self._most_bytes)
            except ValueError as error:
                raise RowsError([RowError(row, 413, str(error)) for row in range(self._count)]) from None
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
        try:
            values = combined(output.combine, moved, tensors, count)
        except ValueError as error:
            message = f"output {output.name}: {error}"
            raise RowsError([RowError(row, 500, message) for row in range(self._count)]) from None
        tensor = tensors[0]
        if output.space:
            values = self._raised(values, tensor, output.space, ROOT)
        return completed(values, self._count, tensor)


def _widened(array: Array, tensor: Tensor) -> Array:
    dtype = DTYPES[tensor.datatype]
    return array if array.dtype == dtype else array.astype(dtype)
