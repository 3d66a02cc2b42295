"""The execution plan of a graph: the order of its steps, and their rows.

A *space* is a set of rows. The request's rows are the first space; ``each: detect.crops`` opens another space with one
row per item, whose parent is the row that contains the item. Steps with the same ``each`` share a space. A value used
in an inner space is repeated for each item; used in an outer space, it becomes a list of items.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from shoal_schema.expressions.grammar import Expression, ExpressionError, columns_of, parse
from shoal_schema.fields.rules import broken
from shoal_schema.graphs.checks import check_spec, step_paths
from shoal_schema.graphs.errors import GraphError, GraphFault
from shoal_schema.resource.graph import REQUEST, CombineRule, GraphSpec, OnError, StepSpec

Space = tuple[str, ...]
"""The ``each`` references that created the rows, outermost first; empty for the request's rows."""
ROOT: Final[Space] = ()
_BY_LIST: Final = frozenset({CombineRule.CONCAT, CombineRule.STACK})
"""Combinations with a position per value, where an absent value leaves a gap."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A reference to a tensor: an output of a step, or an input of the request (step ``request``)."""

    step: str
    tensor: str

    def __str__(self) -> str:
        return f"{self.step}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class GraphStep:
    """A step of a plan, with parsed references and its dependencies."""

    name: str
    path: str
    """Of its field, for errors."""
    inputs: Mapping[str, TensorRef]
    when: Expression | None
    conditions: tuple[TensorRef, ...]
    each: tuple[TensorRef, ...]
    """The tensors whose items are its rows; the first names the space."""
    count: TensorRef | None
    omits: bool
    space: Space
    """The rows for which it runs."""
    after: frozenset[str]
    """The steps whose outputs it reads."""
    absent: bool
    """Whether a row may not have its outputs."""


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """An output of a graph.

    Its values are combined in ``space`` (the request's rows, or list items). Then they become lists in the request's
    rows.
    """

    name: str
    path: str
    of: tuple[TensorRef, ...]
    combine: CombineRule
    space: Space
    absent: bool


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """A valid graph with its steps in order of execution."""

    steps: tuple[GraphStep, ...]
    outputs: tuple[GraphOutput, ...]

    def space_of(self, ref: TensorRef) -> Space:
        """Return the space of a tensor: the request's rows, or list items."""
        return ROOT if ref.step == REQUEST else next(step.space for step in self.steps if step.name == ref.step)

    def may_be_absent(self, name: str) -> bool:
        """Return whether a row may be without the outputs of the named step."""
        return any(step.absent for step in self.steps if step.name == name)

    def opener(self, space: Space) -> GraphStep:
        """Return the first step whose ``each`` defines the rows of ``space``."""
        return next(step for step in self.steps if step.each and step.space == space)

    @property
    def refs(self) -> Iterator[tuple[str, TensorRef]]:
        """Every reference in the graph, with the path of its field."""
        for step in self.steps:
            for name, ref in step.inputs.items():
                yield f"{step.path}.inputs.{name}", ref
            yield from ((f"{step.path}.when", ref) for ref in step.conditions)
            yield from ((f"{step.path}.each", ref) for ref in step.each)
            if step.count:
                yield f"{step.path}.count", step.count
        for output in self.outputs:
            yield from ((output.path, ref) for ref in output.of)


def reference(text: str) -> TensorRef:
    """Parse a reference, whose form was validated with the spec."""
    step, _, tensor = text.strip().partition(".")
    return TensorRef(step, tensor)


def make_plan(spec: GraphSpec, name: str = "") -> GraphPlan:
    """Return the plan of a graph; ``name`` is the graph's name, to reject a graph that calls itself.

    Raises:
        GraphError: the graph is invalid; the error names the field.
    """
    paths = step_paths(spec)
    check_spec(spec, name, paths)
    drafts = {each.name: _draft(each, paths[each.name], paths) for each in spec.steps}
    outputs = {
        name: tuple(_checked(text, f"outputs.{name}", paths) for text in texts) for name, texts in spec.outputs.items()
    }
    # Unknown steps are reported above, with the path of the reference.
    for where, rule in broken(spec):
        raise GraphError(".".join(filter(None, (where, rule.path))), rule.message)
    placed: dict[str, GraphStep] = {}
    for draft in _ordered(drafts):
        placed[draft.name] = _placed(draft, placed)
    # Steps of one space share its rows, so they must agree on the number of items.
    counts: dict[Space, GraphStep] = {}
    for step in placed.values():
        first = counts.setdefault(step.space, step)
        if step.each and step.count != first.count:
            what = f"{first.name} has another count for the items of {step.each[0]}: use the same in both steps"
            raise GraphError(f"{step.path}.count", what)
    return GraphPlan(tuple(placed.values()), tuple(_output(spec, *each, placed) for each in outputs.items()))


def innermost_common(a: Space, b: Space) -> Space:
    """Return the innermost space (set of rows) that contains both spaces."""
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    return a[:shared]


def is_item(ref: TensorRef, step: GraphStep) -> bool:
    """Return whether a step reads single items of a tensor instead of the whole tensor."""
    return ref in step.each or str(ref) in step.space


def _checked(text: str, path: str, steps: Mapping[str, str]) -> TensorRef:
    ref = reference(text)
    if ref.step != REQUEST and ref.step not in steps:
        known = ", ".join([REQUEST, *steps])
        raise GraphError(path, f"{text.strip()!r} names an unknown step; known are {known}")
    return ref


def _draft(spec: StepSpec, path: str, steps: Mapping[str, str]) -> GraphStep:
    """Return a step with parsed references, before its rows are determined."""
    inputs = {name: _checked(text, f"{path}.inputs.{name}", steps) for name, text in spec.inputs.items()}
    each = tuple(_checked(text, f"{path}.each", steps) for text in (spec.each or "").split(",") if text.strip())
    if len({ref.step for ref in each}) > 1:
        raise GraphError(f"{path}.each", "all tensors of one `each` must be outputs of the same step")
    count = _checked(spec.count, f"{path}.count", steps) if spec.count else None
    when: Expression | None = None
    conditions: tuple[TensorRef, ...] = ()
    if spec.when is not None:
        try:
            when = parse(spec.when)
        except ExpressionError as error:
            raise GraphError(f"{path}.when", f"{spec.when!r:.200} {error}") from None
        names = dict.fromkeys(column.name for column in columns_of(when))
        for name in names:
            if "." not in name:
                what = f"{name!r} names no tensor: write request.{name} or STEP.{name}, or quote a text as '{name}'"
                raise GraphError(f"{path}.when", what)
        conditions = tuple(_checked(name, f"{path}.when", steps) for name in names)
    # References to the request need no step.
    needs = {ref.step for ref in (*inputs.values(), *conditions, *each, *((count,) if count else ()))} - {REQUEST}
    return GraphStep(
        name=spec.name,
        path=path,
        inputs=inputs,
        when=when,
        conditions=conditions,
        each=each,
        count=count,
        omits=spec.on_error is OnError.OMIT,
        space=ROOT,
        after=frozenset(needs),
        absent=False,
    )


def _ordered(drafts: Mapping[str, GraphStep]) -> Iterator[GraphStep]:
    """Yield each step after the steps that it depends on, otherwise in the order of the spec."""
    left = dict(drafts)
    while left:
        ready = [step for step in left.values() if not step.after & left.keys()]
        if not ready:
            # Every remaining step needs another one: follow them until one repeats.
            way = [next(iter(left))]
            while way[-1] not in way[:-1]:
                way.append(next(name for name in left if name in left[way[-1]].after))
            cycle = way[way.index(way[-1]) :]
            raise GraphError(drafts[cycle[0]].path, f"the steps form a cycle: {' → '.join(cycle)}", GraphFault.CYCLE)
        for step in ready:
            del left[step.name]
            yield step


def _placed(draft: GraphStep, placed: Mapping[str, GraphStep]) -> GraphStep:
    """Return a step with its space (set of rows) and its ``absent`` flag.

    The flag states whether a row may be without the step's outputs.
    """
    space = ROOT
    if draft.each:
        # Items open a space below that of the tensor they come from.
        first = draft.each[0]
        space = (*_space(first, placed), str(first))
    step = replace(draft, space=space)
    if draft.count and _space(draft.count, placed) != space[:-1]:
        raise GraphError(f"{draft.path}.count", f"{draft.count} must have one value for each list of {draft.each[0]}")
    if draft.count and draft.count.step != draft.each[0].step and _row_may_be_absent(draft.count, space, placed):
        what = f"a row may be without {draft.count}: name a tensor that every row with {draft.each[0]} has"
        raise GraphError(f"{draft.path}.count", what)
    # A row exists only if its item does, so items are never absent.
    used = [ref for ref in step.inputs.values() if not is_item(ref, step)]
    absent = draft.when is not None or draft.omits or any(_row_may_be_absent(ref, space, placed) for ref in used)
    return replace(step, absent=absent)


def _space(ref: TensorRef, placed: Mapping[str, GraphStep]) -> Space:
    return ROOT if ref.step == REQUEST else placed[ref.step].space


def _row_may_be_absent(ref: TensorRef, space: Space, placed: Mapping[str, GraphStep]) -> bool:
    """Return whether rows of ``space`` may be without the tensor ``ref``."""
    own = _space(ref, placed)
    shared = innermost_common(own, space)
    # On the way up a list exists wherever the tensor whose items it lists does, even if an item is absent.
    step = ref.step if shared == own else reference(own[len(shared)]).step
    return step != REQUEST and placed[step].absent


def _output(spec: GraphSpec, name: str, refs: tuple[TensorRef, ...], placed: Mapping[str, GraphStep]) -> GraphOutput:
    path = f"outputs.{name}"
    combine = spec.combine.get(name, CombineRule.FIRST)
    # Values are combined in the innermost of their spaces.
    space = max((_space(ref, placed) for ref in refs), key=len)
    for ref in refs:
        if innermost_common(_space(ref, placed), space) != _space(ref, placed):
            raise GraphError(path, f"{', '.join(map(str, refs))} cannot be combined: their rows are unrelated")
    absent = [_row_may_be_absent(ref, space, placed) for ref in refs]
    return GraphOutput(name, path, refs, combine, space, any(absent) if combine in _BY_LIST else all(absent))
