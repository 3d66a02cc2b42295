"""One request in a graph: its rows' values, steps' inputs, and outputs.

No I/O and no clock: `walk` calls the models.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from shoal_proxy.errors import MAX_WORDS
from shoal_proxy.graph.combining import combined
from shoal_proxy.graph.values import SpaceRows, SpaceValues, completed, filled_shape, gaps, items_of, open_rows, stacked
from shoal_schema.expressions.evaluation import Operand, evaluate, tensor_operand
from shoal_schema.graphs.plan import ROOT, GraphStep, Space, TensorRef, innermost_common, is_item
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.graphs.types import TypedGraph
from shoal_schema.resource.graph import REQUEST
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.row_errors import RowError


class RowsError(ValueError):
    """Rows of a request cannot be processed, although no model failed."""

    def __init__(self, errors: Sequence[RowError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


class StepCall(NamedTuple):
    """Rows and inputs for one call of a step's model."""

    inputs: Mapping[str, Array]
    rows: Array | None
    """The rows of the step's space that it is called for; None: all."""
    asked: int
    """Their number."""


Ask = Callable[[GraphStep, Mapping[str, Array], int], Coroutine[Any, Any, Mapping[str, Array]]]
"""Calls a step's model for a number of rows; raises a `ProxyError`."""
MAX_ROWS = 1 << 18
"""Most rows of a space: as many as a request may have."""


class GraphRequest:
    """The values of one request's rows in a graph.

    Args:
        graph: the graph, with the types of its tensors.
        inputs: inputs that the client sent.
        count: number of rows.
        most_bytes: maximum size of an array that the graph creates by repeating, listing or combining rows.
    """

    def __init__(self, graph: TypedGraph, inputs: Mapping[str, Array], count: int, most_bytes: int) -> None:
        self._graph = graph
        self._plan = graph.plan
        self._count = count
        self._most_bytes = most_bytes
        self._values: dict[TensorRef, SpaceValues] = {
            TensorRef(REQUEST, name): SpaceValues(array) for name, array in inputs.items()
        }
        self._spaces: dict[Space, SpaceRows] = {}
        self._chosen: dict[Space, Array | None] = {}
        self._items: dict[tuple[Space, TensorRef], SpaceValues] = {}
        self.omitted: dict[str, int] = {}
        """By optional step, the number of rows for which it failed."""

    def begin(self, step: GraphStep) -> StepCall:
        """Return the rows and inputs with which to call a step.

        The steps that produce its inputs must have ended.

        Raises:
            RowsError: rows cannot be processed.
        """
        if step.each and step.space not in self._spaces:
            # The step opens a space: each item of a list becomes a row.
            source = self._values[step.each[0]]
            opened, chosen = open_rows(source, self._counts(step, source))
            if opened.count > MAX_ROWS:
                self._refuse(step, f"{opened.count} items of {step.each[0]}; the limit is {MAX_ROWS}", 413)
            self._spaces[step.space], self._chosen[step.space] = opened, chosen
        count = self._rows(step.space)
        given = {name: self._seen(ref, step) for name, ref in step.inputs.items()}
        present = [values.present(count) for values in given.values()]
        masks = [mask for mask in present if mask is not None]
        if step.when is not None:
            columns: dict[str, Operand] = {}
            for ref in step.conditions:
                values, tensor = self._seen(ref, step), self._tensor(ref)
                known = values.present(count)
                known = np.ones(count, bool) if known is None else known
                columns[str(ref)] = tensor_operand(completed(values, count, tensor), tensor.datatype, known)
            masks.append(evaluate(step.when, columns, {}).so)
        # A row takes part if it has a value for each input and its condition is true.
        alive = np.logical_and.reduce(masks) if masks else None
        rows = None if alive is None or alive.all() else np.flatnonzero(alive)
        wanted = self._graph.signatures[step.name].inputs
        inputs: dict[str, Array] = {}
        for name, values in given.items():
            array, dtype = values.pick(rows), DTYPES[wanted[name].datatype]
            if not array.size and len(array):
                # Lists without an item in any row, which no model accepts, get a gap.
                array = gaps(wanted[name], tuple(size or 1 for size in array.shape))
            inputs[name] = array if array.dtype == dtype else array.astype(dtype)
        return StepCall(inputs, rows, count if rows is None else len(rows))

    def finish(self, step: GraphStep, call: StepCall, outputs: Mapping[str, Array]) -> None:
        """Record a step's outputs, with one output row for each row of the call."""
        for name, array in outputs.items():
            self._values[TensorRef(step.name, name)] = SpaceValues(array, call.rows)

    def finish_parts(
        self, step: GraphStep, call: StepCall, parts: Sequence[tuple[Sequence[int], Mapping[str, Array]]]
    ) -> None:
        """Record the outputs of a step that returned them in several parts.

        Each part is a pair of row numbers and outputs. Other rows of the call have no outputs of this step.
        """
        if omitted := call.asked - sum(len(rows) for rows, _ in parts):
            self.omitted[step.name] = omitted
        if not parts:
            self.skip(step)
            return
        if not omitted and len(parts) == 1:
            self.finish(step, call, parts[0][1])
            return
        asked = np.arange(call.asked) if call.rows is None else call.rows
        # Parts may come in any order; their rows are sorted.
        numbers = np.concatenate([np.asarray(rows, np.int64) for rows, _ in parts])
        order = np.argsort(numbers)
        for name, tensor in self._graph.signatures[step.name].outputs.items():
            if name in parts[0][1]:
                array = stacked([outputs[name] for _, outputs in parts], tensor)
                self._values[TensorRef(step.name, name)] = SpaceValues(array[order], asked[numbers[order]])

    def skip(self, step: GraphStep) -> None:
        """Record that a step has no outputs for any row."""
        for name, tensor in self._graph.signatures[step.name].outputs.items():
            self._values[TensorRef(step.name, name)] = SpaceValues(
                gaps(tensor, (0, *filled_shape(tensor))), np.arange(0)
            )

    def outputs(self) -> Mapping[str, Array]:
        """Return the graph's outputs, once every step has ended.

        Raises:
            RowsError: an output would be too large.
        """
        outputs: dict[str, Array] = {}
        for output in self._plan.outputs:
            tensors = [self._tensor(ref) for ref in output.of]
            moved = [self._moved(ref, output.space) for ref in output.of]
            count = self._rows(output.space)
            # Completing absent rows makes each as large as the largest of those that there are.
            size_bytes = count * max(each.array[:1].nbytes for each in moved)
            if size_bytes > self._most_bytes and any(len(each.array) < count for each in moved):
                raise self._all_refused(f"output {output.name} of {count} rows would take {size_bytes} bytes", 413)
            values = combined(output.combine, moved, tensors, count)
            if output.space:
                values = self._raised(values, tensors[0], output.space, ROOT)
            outputs[output.name] = completed(values, self._count, tensors[0])
        return outputs

    def errors_of_rows(self, step: GraphStep, call: StepCall, errors: Sequence[RowError]) -> list[RowError]:
        """Convert the errors of a call to errors of the request's rows.

        Each row gets its first error, with the name of the step.
        """
        found: dict[int, RowError] = {}
        for error in errors:
            row = error.row if call.rows is None else int(call.rows[error.row])
            row, where = self._origin(step.space, row)
            found.setdefault(row, RowError(row, error.status, f"step {step.name}{where}: {error.message[:MAX_WORDS]}"))
        return [found[row] for row in sorted(found)]

    def _origin(self, space: Space, row: int) -> tuple[int, str]:
        """Find the request's row from which a row of ``space`` was made.

        A space is a set of rows: those of the request, or one row for each item of a list.

        Returns: The request's row, and a text with the position of the item, for messages.
        """
        where = ""
        while space:
            rows = self._spaces[space]
            where = f", item {int(rows.numbers[row])} of {space[-1]}{where}"
            row, space = int(rows.parents[row]), space[:-1]
        return row, where

    def _rows(self, space: Space) -> int:
        return self._spaces[space].count if space else self._count

    def _counts(self, step: GraphStep, source: SpaceValues) -> Array | None:
        """Return how many list items of each row to use; None for all items."""
        if step.count is None:
            return None
        counts = self._values[step.count]
        known = completed(counts, self._rows(step.space[:-1]), self._tensor(step.count)).reshape(-1)
        wanted = known if source.rows is None else known[source.rows]
        width = source.array.shape[1]
        if len(wrong := np.flatnonzero((wanted < 0) | (wanted > width))):
            status = 400 if step.count.step == REQUEST else 500
            errors: dict[int, RowError] = {}
            for at in wrong:
                row, where = self._origin(step.space[:-1], int(at if source.rows is None else source.rows[at]))
                what = (
                    f"step {step.name}{where}: {step.count} is {wanted[at]}, but {step.each[0]} has 0 to {width} items"
                )
                errors.setdefault(row, RowError(row, status, what))
            raise RowsError([errors[row] for row in sorted(errors)])
        return wanted.astype(np.int64)

    def _refuse(self, step: GraphStep, what: str, status: int) -> None:
        raise self._all_refused(f"step {step.name}: {what}", status)

    def _all_refused(self, message: str, status: int) -> RowsError:
        return RowsError([RowError(row, status, message) for row in range(self._count)])

    def _tensor(self, ref: TensorRef) -> Tensor:
        return self._graph.tensor(ref, "")

    def _seen(self, ref: TensorRef, step: GraphStep) -> SpaceValues:
        """Return a tensor's values, one for each row that the step processes."""
        if not is_item(ref, step):
            return self._moved(ref, step.space)
        # An item of an outer list is repeated for each item of the lists inside.
        space = step.space
        while str(ref) != space[-1] and ref not in step.each:
            space = space[:-1]
        if (space, ref) not in self._items:
            source, first = self._values[ref], self._values[self._plan.opener(space).each[0]]
            own, most = source.array.shape[1], first.array.shape[1]
            if own != most:
                status = 400 if ref.step == REQUEST else 500
                self._refuse(step, f"{ref} has {own} items in each row, but {space[-1]} has {most}", status)
            self._items[space, ref] = SpaceValues(items_of(source, self._chosen[space]))
        values = self._items[space, ref]
        for depth in range(len(space) + 1, len(step.space) + 1):
            values = self._repeated(values, step.space[:depth])
        return values

    def _moved(self, ref: TensorRef, space: Space) -> SpaceValues:
        """Convert a tensor from its own rows to the rows of ``space``.

        A space is a set of rows: those of the request, or one row for each item of a list. Values of items are gathered
        into lists, values of outer rows are repeated for each item.
        """
        own = self._plan.space_of(ref)
        values = self._raised(self._values[ref], self._tensor(ref), own, innermost_common(own, space))
        for depth in range(len(innermost_common(own, space)) + 1, len(space) + 1):
            values = self._repeated(values, space[:depth])
        return values

    def _repeated(self, values: SpaceValues, space: Space) -> SpaceValues:
        try:
            return self._spaces[space].repeat(values, self._most_bytes)
        except ValueError as error:
            raise self._all_refused(str(error), 413) from None

    def _raised(self, values: SpaceValues, tensor: Tensor, space: Space, to: Space) -> SpaceValues:
        while space != to:
            try:
                values = self._spaces[space].gather(values, self._rows(space[:-1]), tensor, self._most_bytes)
            except ValueError as error:
                raise self._all_refused(str(error), 413) from None
            tensor, space = tensor.listed, space[:-1]
        return values
