"""Whether the models of a graph fit one another, and what the graph itself takes and gives."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from shoal_schema.declaring import Json
from shoal_schema.expressions import Among, Column, Comparison, Expression, IsNull, Joined, Not
from shoal_schema.graphs.faults import Fault, GraphError
from shoal_schema.graphs.plan import Output, Plan, Ref, Space, Step, is_item, meeting, reference
from shoal_schema.graphs.tensors import ANY, FLOATS, Signature, Tensor, fits, narrower, read_signature, wider
from shoal_schema.resource.graph import REQUEST, Combine

_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
_ITEM_LOOKS = "what is not [items, ...] has none"


class Typed:
    """The tensors of a graph whose models' signatures are known.

    Args:
        plan: the graph.
        signatures: of the steps' models.
        composer: what its code says that it takes and gives; None: there is none, the steps tell it.

    Raises:
        GraphError: a model takes or gives something else than the graph says.
    """

    def __init__(self, plan: Plan, signatures: Mapping[str, Signature], composer: Signature | None = None) -> None:
        self.plan = plan
        self.signatures = signatures
        self.request: dict[str, Tensor] = {}
        if composer is not None:
            self.request, self.outputs = dict(composer.inputs), dict(composer.outputs)
            return
        for step in plan.steps:
            self._learn_request(step)
        for step in plan.steps:
            self._check(step)
        self.outputs = {output.name: self._output(output) for output in plan.outputs}

    def tensor(self, ref: Ref, path: str) -> Tensor:
        """Return what a row of its own space holds."""
        if ref.step == REQUEST:
            if ref.tensor not in self.request:
                raise GraphError(
                    path,
                    f"what {ref} is cannot be told: no step takes it as an input, and only models say what they take",
                    Fault.MISMATCH,
                )
            return self.request[ref.tensor]
        outputs = self.signatures[ref.step].outputs
        if ref.tensor not in outputs:
            raise GraphError(path, f"{ref.step} gives no {ref.tensor!r}; it gives {', '.join(outputs)}", Fault.MISMATCH)
        return outputs[ref.tensor]

    def seen(self, ref: Ref, step: Step, path: str) -> Tensor:
        """Return what a step sees of a tensor in each of its rows."""
        tensor = self.tensor(ref, path)
        if is_item(ref, step):
            return self._item(ref, tensor, path)
        return self._moved(ref, tensor, step.space, path)

    def _item(self, ref: Ref, tensor: Tensor, path: str) -> Tensor:
        if not tensor.shape:
            raise GraphError(path, f"{ref} is {tensor} in each row: {_ITEM_LOOKS}", Fault.MISMATCH)
        return tensor.item

    def _moved(self, ref: Ref, tensor: Tensor, space: Space, path: str) -> Tensor:
        """Return what a row of another space holds of it: itself, or a list for each level up."""
        own = self.plan.space_of(ref)
        shared = len(meeting(own, space))
        within = (ref.step, *(reference(name).step for name in own[shared + 1 :]))
        if len(own) > shared and not tensor.has_gaps and any(map(self.plan.lacks, within)):
            what = f"a list of {ref} has gaps, and {tensor.datatype} has no value for one"
            raise GraphError(path, what, Fault.MISMATCH)
        for _ in own[shared:]:
            tensor = tensor.listed
        return tensor

    def _learn_request(self, step: Step) -> None:
        """Take what the caller sends to be what those steps take that are given it."""
        wanted = self.signatures[step.name].inputs
        for name, ref in step.inputs.items():
            path = f"{step.path}.inputs.{name}"
            if name not in wanted:
                raise GraphError(path, f"{step.name} takes no {name!r}; it takes {', '.join(wanted)}", Fault.MISMATCH)
            if ref.step != REQUEST:
                continue
            tensor = wanted[name].listed if is_item(ref, step) else wanted[name]
            known = self.request.get(ref.tensor)
            if known is not None and not (fits(known, tensor) and known.datatype == tensor.datatype):
                what = f"{step.name} takes {ref} as {tensor}, another step as {known}"
                raise GraphError(path, what, Fault.MISMATCH)
            self.request[ref.tensor] = tensor if known is None else narrower(known, tensor)

    def _check(self, step: Step) -> None:
        for ref in step.each:
            self._item(ref, self.tensor(ref, f"{step.path}.each"), f"{step.path}.each")
        wanted = self.signatures[step.name]
        for name, ref in step.inputs.items():
            path = f"{step.path}.inputs.{name}"
            given = self.seen(ref, step, path)
            if not fits(given, wanted.inputs[name]):
                what = f"{step.name} takes {wanted.inputs[name]} in each row, and {ref} is {given}"
                raise GraphError(path, what, Fault.MISMATCH)
        if missing := [name for name in wanted.inputs if name not in step.inputs and name not in wanted.optional]:
            raise GraphError(f"{step.path}.inputs", f"{step.name} takes {', '.join(missing)}, too", Fault.MISMATCH)
        if step.count:
            self._check_count(step, step.count)
        if step.when is not None:
            path = f"{step.path}.when"
            check_expression(step.when, lambda name: self._compared(name, step, path), path)

    def _check_count(self, step: Step, count: Ref) -> None:
        path = f"{step.path}.count"
        tensor = self.tensor(count, path)
        if not tensor.is_single or tensor.datatype not in _INTEGERS:
            raise GraphError(path, f"{count} is {tensor}, not one whole number a row", Fault.MISMATCH)

    def _compared(self, name: str, step: Step, path: str) -> Tensor:
        ref = next(ref for ref in step.conditions if str(ref) == name)
        tensor = self.seen(ref, step, path)
        if not tensor.is_single:
            raise GraphError(path, f"{name} is {tensor} in each row: one value is compared", Fault.MISMATCH)
        return tensor

    def _output(self, output: Output) -> Tensor:
        path = output.path
        tensors = [self._moved(ref, self.tensor(ref, path), output.space, path) for ref in output.of]
        try:
            combined = combined_tensor(output.combine, tensors, path)
        except GraphError as error:
            items = f", for each item of {output.space[-1]}" if output.space else ""
            raise GraphError(path, f"{error.what}{items}", error.fault) from None
        if output.absent and not combined.has_gaps:
            what = f"a row may be without it, and {combined.datatype} has no value that says so: name another that is"
            raise GraphError(path, f"{what} always there", Fault.MISMATCH)
        for name in (name for name in output.space if self.plan.lacks(reference(name).step)):
            if not combined.has_gaps:
                what = f"a row may be without {name}, and so without a list of what is made of its items: "
                raise GraphError(path, f"{what}{combined.datatype} has no value that says so", Fault.MISMATCH)
        for _ in output.space:
            combined = combined.listed
        return combined


def combined_tensor(combine: Combine, tensors: list[Tensor], path: str) -> Tensor:
    """Return what several tensors become.

    Raises:
        GraphError: they cannot become one.
    """
    first = tensors[0]
    joins = combine is Combine.CONCAT
    if joins and not first.shape:
        raise GraphError(path, f"Concat joins lists, and a row holds one {first}: use Stack", Fault.MISMATCH)
    result = first
    for other in tensors[1:]:
        a, b = (replace(each, shape=each.shape[1:]) if joins else each for each in (result, other))
        if len(first.shape) != len(other.shape) or first.datatype != other.datatype or not fits(a, b):
            raise GraphError(path, f"{first} and {other} cannot become one by {combine}", Fault.MISMATCH)
        result = wider(result, other)
    if combine is Combine.MEAN and first.datatype not in FLOATS:
        raise GraphError(path, f"Mean is of {', '.join(FLOATS)}, not {first.datatype}", Fault.MISMATCH)
    if combine is Combine.MAX and first.datatype not in (*FLOATS, *_INTEGERS):
        raise GraphError(path, f"Max is of numbers, not {first.datatype}", Fault.MISMATCH)
    if joins:
        lengths = [each.shape[0] for each in tensors]
        return replace(result, shape=(ANY if ANY in lengths else sum(lengths), *result.shape[1:]))
    return replace(result, shape=(len(tensors), *result.shape)) if combine is Combine.STACK else result


def check_expression(expression: Expression, tensor_of: Callable[[str], Tensor], path: str) -> None:
    """Refuse comparisons of numbers with texts, and truth values that are none.

    Raises:
        GraphError: names the comparison.
    """
    match expression:
        case Not(part=part):
            check_expression(part, tensor_of, path)
        case Joined(parts=parts):
            for each in parts:
                check_expression(each, tensor_of, path)
        case Column(name=name):
            if _kind_of(tensor_of(name)) != _TRUTH:
                raise GraphError(path, f"{name} is {tensor_of(name)}: compare it with something", Fault.MISMATCH)
        case Comparison() | Among() | IsNull():
            _check_compared(expression, tensor_of, path)


def _check_compared(expression: Comparison | Among | IsNull, tensor_of: Callable[[str], Tensor], path: str) -> None:
    name = expression.column.name
    kind = _kind_of(tensor_of(name))
    match expression:
        case Comparison(value=Column(name=other)):
            kinds = [_kind_of(tensor_of(other))]
        case Comparison(value=value):
            kinds = [_kind(value)]
        case Among(values=values):
            kinds = [_kind(value) for value in values if value is not None]
        case _:
            kinds = []
    for each in kinds:
        if each != kind:
            raise GraphError(path, f"{name} is a {kind}, and is compared with a {each}", Fault.MISMATCH)


_TRUTH = "truth value"


def _kind_of(tensor: Tensor) -> str:
    return {"BYTES": "text", "BOOL": _TRUTH}.get(tensor.datatype, "number")


def _kind(value: object) -> str:
    return _TRUTH if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def typed(plan: Plan, documents: Mapping[str, Json], name: str = "", composer: Signature | None = None) -> Typed:
    """Return a graph's tensors by the V2 metadata of its steps' models.

    Args:
        plan: the graph.
        documents: the metadata, by step.
        name: the graph's own, to see whether a graph that it calls calls it.
        composer: as of `Typed`.

    Raises:
        GraphError: a model's metadata is unusable, or it does not fit.
    """
    signatures: dict[str, Signature] = {}
    for step in plan.steps:
        try:
            signatures[step.name] = read_signature(documents[step.name])
        except ValueError as error:
            raise GraphError(step.path, f"{step.name}: {error}", Fault.MISMATCH) from None
        if name and name in signatures[step.name].calls:
            raise GraphError(step.path, f"the graph behind {step.name} calls {name}, which calls it", Fault.CYCLE)
    return Typed(plan, signatures, composer)


def graph_metadata(graph: Typed, name: str, calls: frozenset[str]) -> Json:
    """Return the V2 metadata of the graph itself; ``calls`` are it and the graphs among its steps."""
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
