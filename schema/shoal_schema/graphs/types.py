"""Type check of a graph with its models' signatures, and the graph's own signature."""

from collections.abc import Mapping
from dataclasses import replace

from shoal_schema.expressions.types import BYTES, NUMBER, TEXT, TRUTH, ColumnType, IncomparableTypes, check
from shoal_schema.fields.declaring import Json
from shoal_schema.graphs.errors import GraphError, GraphFault
from shoal_schema.graphs.plan import (
    GraphOutput,
    GraphPlan,
    GraphStep,
    Space,
    TensorRef,
    innermost_common,
    is_item,
    reference,
)
from shoal_schema.graphs.tensors import ANY, FLOATS, Signature, Tensor, fits, narrower, read_signature, wider
from shoal_schema.resource.graph import REQUEST, CombineRule

_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
_SORTS = {"BYTES": frozenset({TEXT, BYTES}), "BOOL": frozenset({TRUTH})}
"""Datatype -> what `when` can compare it with; all other datatypes are numbers."""
_NO_ITEMS = "`each` requires a list of items, shape [items, ...]"


class TypedGraph:
    """A type-checked graph: the tensors of its request, steps and outputs.

    Args:
        plan: plan of the graph.
        signatures: step -> signature of its model.
        composer: signature that the composer declares; None if the steps define the graph's signature.

    Raises:
        GraphError: inputs or outputs of a model differ from those of the graph.
    """

    def __init__(self, plan: GraphPlan, signatures: Mapping[str, Signature], composer: Signature | None = None) -> None:
        self.plan = plan
        self.signatures = signatures
        self.request: dict[str, Tensor] = {}
        if composer is not None:
            self.request, self.outputs = dict(composer.inputs), dict(composer.outputs)
            return
        for step in plan.steps:
            # All steps define the request before any step is checked against it.
            self._infer_request(step)
        for step in plan.steps:
            self._check(step)
        self.outputs = {output.name: self._output(output) for output in plan.outputs}

    def tensor(self, ref: TensorRef, path: str) -> Tensor:
        """Return the datatype and row shape of the tensor that ``ref`` names.

        ``path`` is the place in the spec, for errors.
        """
        if ref.step == REQUEST:
            if ref.tensor not in self.request:
                raise GraphError(
                    path,
                    f"the type of {ref} is unknown: no step has it as an input",
                    GraphFault.MISMATCH,
                )
            return self.request[ref.tensor]
        outputs = self.signatures[ref.step].outputs
        if ref.tensor not in outputs:
            raise GraphError(
                path,
                f"{ref.step} has no output {ref.tensor!r}; its outputs are {', '.join(outputs)}",
                GraphFault.MISMATCH,
            )
        return outputs[ref.tensor]

    def tensor_in_step(self, ref: TensorRef, step: GraphStep, path: str) -> Tensor:
        """Return the datatype and shape that ``step`` receives for ``ref``.

        The step receives the tensor unchanged, one item of a list, or a list of the tensor's values.
        """
        tensor = self.tensor(ref, path)
        if is_item(ref, step):
            return self._item(ref, tensor, path)
        return self._moved(ref, tensor, step.space, path)

    def _item(self, ref: TensorRef, tensor: Tensor, path: str) -> Tensor:
        if not tensor.shape:
            raise GraphError(path, f"{ref} is {tensor} in each row: {_NO_ITEMS}", GraphFault.MISMATCH)
        return tensor.item

    def _moved(self, ref: TensorRef, tensor: Tensor, space: Space, path: str) -> Tensor:
        """Return a tensor as it is read in the rows of ``space``.

        In the rows of list items, the value of an outer row is repeated unchanged. In outer rows, the values of the
        items become a list, once for each level.
        """
        # Down the spaces a value is repeated unchanged; each level up makes it a list.
        own = self.plan.space_of(ref)
        shared = len(innermost_common(own, space))
        within = (ref.step, *(reference(name).step for name in own[shared + 1 :]))
        if len(own) > shared and not tensor.has_gaps and any(map(self.plan.may_be_absent, within)):
            what = f"a list of {ref} has gaps, and {tensor.datatype} has no value for one"
            raise GraphError(path, what, GraphFault.MISMATCH)
        for _ in own[shared:]:
            tensor = tensor.listed
        return tensor

    def _infer_request(self, step: GraphStep) -> None:
        """Infer tensors of the request from the inputs of a step that reads them."""
        wanted = self.signatures[step.name].inputs
        for name, ref in step.inputs.items():
            path = f"{step.path}.inputs.{name}"
            if name not in wanted:
                raise GraphError(
                    path, f"{step.name} has no input {name!r}; its inputs are {', '.join(wanted)}", GraphFault.MISMATCH
                )
            if ref.step != REQUEST:
                continue
            # A step that reads an item needs a list in the request.
            tensor = wanted[name].listed if is_item(ref, step) else wanted[name]
            known = self.request.get(ref.tensor)
            if known is not None and not (fits(known, tensor) and known.datatype == tensor.datatype):
                what = f"{step.name} needs {ref} as {tensor}, another step as {known}"
                raise GraphError(path, what, GraphFault.MISMATCH)
            self.request[ref.tensor] = tensor if known is None else narrower(known, tensor)

    def _check(self, step: GraphStep) -> None:
        for ref in step.each:
            self._item(ref, self.tensor(ref, f"{step.path}.each"), f"{step.path}.each")
        wanted = self.signatures[step.name]
        for name, ref in step.inputs.items():
            path = f"{step.path}.inputs.{name}"
            given = self.tensor_in_step(ref, step, path)
            if not fits(given, wanted.inputs[name]):
                what = f"{step.name} needs {wanted.inputs[name]} per row, not {ref}, which is {given}"
                raise GraphError(path, what, GraphFault.MISMATCH)
        if missing := [name for name in wanted.inputs if name not in step.inputs and name not in wanted.optional]:
            raise GraphError(f"{step.path}.inputs", f"{step.name} also needs {', '.join(missing)}", GraphFault.MISMATCH)
        if step.count:
            tensor = self.tensor(step.count, f"{step.path}.count")
            if not tensor.is_single or tensor.datatype not in _INTEGERS:
                what = f"{step.count} is {tensor}, not one integer per row"
                raise GraphError(f"{step.path}.count", what, GraphFault.MISMATCH)
        if step.when is not None:
            path = f"{step.path}.when"

            def column_type(name: str) -> ColumnType:
                tensor = self.tensor_in_step(next(ref for ref in step.conditions if str(ref) == name), step, path)
                if not tensor.is_single:
                    what = f"{name} is {tensor} per row, and a comparison needs one value"
                    raise GraphError(path, what, GraphFault.MISMATCH)
                return ColumnType(tensor.datatype, _SORTS.get(tensor.datatype, frozenset({NUMBER})))

            try:
                check(step.when, column_type)
            except IncomparableTypes as error:
                raise GraphError(path, str(error), GraphFault.MISMATCH) from None

    def _output(self, output: GraphOutput) -> Tensor:
        path = output.path
        tensors = [self._moved(ref, self.tensor(ref, path), output.space, path) for ref in output.of]
        try:
            combined = combined_tensor(output.combine, tensors, path)
        except GraphError as error:
            # The shapes in the error are those of an item.
            items = f", for each item of {output.space[-1]}" if output.space else ""
            raise GraphError(path, f"{error.what}{items}", error.fault) from None
        if output.absent and not combined.has_gaps:
            what = f"a row may be without it, and {combined.datatype} has no value for that. Add a tensor of every row"
            raise GraphError(path, what, GraphFault.MISMATCH)
        for name in (name for name in output.space if self.plan.may_be_absent(reference(name).step)):
            if not combined.has_gaps:
                what = f"a row may be without the items of {name}, and {combined.datatype} has no value for that"
                raise GraphError(path, what, GraphFault.MISMATCH)
        for _ in output.space:
            combined = combined.listed
        return combined


def combined_tensor(combine: CombineRule, tensors: list[Tensor], path: str) -> Tensor:
    """Return the datatype and shape of several combined tensors.

    Raises:
        GraphError: the tensors cannot be combined.
    """
    first = tensors[0]
    joins = combine is CombineRule.CONCAT
    if joins and not first.shape:
        raise GraphError(path, f"Concat joins lists, and {first} is one value per row: use Stack", GraphFault.MISMATCH)
    result = first
    for other in tensors[1:]:
        # Concat joins along the first axis, whose lengths may differ.
        a, b = (replace(each, shape=each.shape[1:]) if joins else each for each in (result, other))
        if len(first.shape) != len(other.shape) or first.datatype != other.datatype or not fits(a, b):
            raise GraphError(path, f"{first} and {other} cannot be combined by {combine}", GraphFault.MISMATCH)
        result = wider(result, other)
    if combine is CombineRule.MEAN and first.datatype not in FLOATS:
        raise GraphError(path, f"Mean needs {', '.join(FLOATS)}, not {first.datatype}", GraphFault.MISMATCH)
    if combine is CombineRule.MAX and first.datatype not in (*FLOATS, *_INTEGERS):
        raise GraphError(path, f"Max needs numbers, not {first.datatype}", GraphFault.MISMATCH)
    if joins:
        lengths = [each.shape[0] for each in tensors]
        return replace(result.listed, shape=(ANY if ANY in lengths else sum(lengths), *result.shape[1:]))
    return replace(result.listed, shape=(len(tensors), *result.shape)) if combine is CombineRule.STACK else result


def type_check(
    plan: GraphPlan, documents: Mapping[str, Json], name: str = "", composer: Signature | None = None
) -> TypedGraph:
    """Type-check a graph with the V2 metadata of its steps' models.

    Args:
        plan: the graph.
        documents: step -> V2 metadata of its model.
        name: the graph's name, to reject cycles of graphs.
        composer: as in `TypedGraph`.

    Raises:
        GraphError: a model's metadata is unusable, or does not fit.
    """
    signatures: dict[str, Signature] = {}
    for step in plan.steps:
        try:
            signatures[step.name] = read_signature(documents[step.name])
        except ValueError as error:
            raise GraphError(step.path, f"{step.name}: {error}", GraphFault.MISMATCH) from None
        if name and name in signatures[step.name].calls:
            raise GraphError(step.path, f"the graph of {step.name} calls {name}, which calls it", GraphFault.CYCLE)
    return TypedGraph(plan, signatures, composer)


def graph_metadata(graph: TypedGraph, name: str, calls: frozenset[str]) -> Json:
    """Return the graph's own V2 metadata; ``calls`` names this graph and the graphs among its steps."""
    # A graph above this one detects cycles by this list.
    inner = frozenset().union(*(signature.calls for signature in graph.signatures.values()), calls)
    parameters = {"graphs": ",".join(sorted(inner))}
    return {
        "name": name,
        "versions": ["1"],
        "platform": "shoal_graph",
        "inputs": [tensor.as_metadata(each) for each, tensor in graph.request.items()],
        "outputs": [tensor.as_metadata(each) for each, tensor in graph.outputs.items()],
        "parameters": parameters,
    }
