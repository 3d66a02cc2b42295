"""Which step runs after which, and over which rows.

Rows are the unit. The request's rows are the first *space*; ``each: detect.crops`` opens another, with a row for each
item, whose parent is the row that the item came from. Steps with the same ``each`` share its rows. A value that is used
in another space is repeated for each item on the way down, and becomes a list of items on the way up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shoal_schema.expressions import Expression, ExpressionError, columns_of, parse
from shoal_schema.graphs.checks import check_spec, step_paths
from shoal_schema.graphs.faults import Fault, GraphError
from shoal_schema.resource.graph import REQUEST, Combine, GraphSpec, OnError, StepSpec

Space = tuple[str, ...]
"""The ``each`` by which its rows came about, from the outermost on; empty: the request's own rows."""
ROOT: Final[Space] = ()
_BY_LIST: Final = frozenset({Combine.CONCAT, Combine.STACK})
"""Combinations that have a place for each value: one that is absent leaves a gap."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor: an output of a step, or, of the step ``request``, what the caller sends."""

    step: str
    tensor: str

    def __str__(self) -> str:
        return f"{self.step}.{self.tensor}"


@dataclass(frozen=True, slots=True)
class Step:
    """A step in its place.

    Args:
        path: of its spec, for sentences.
        each: what its rows are items of, the first one of which names the space; empty: of nothing.
        space: over whose rows it runs.
        after: the steps whose outputs it is given or asks about.
        absent: a row may be without its outputs.
    """

    name: str
    path: str
    inputs: Mapping[str, Ref]
    when: Expression | None
    conditions: tuple[Ref, ...]
    each: tuple[Ref, ...]
    count: Ref | None
    omits: bool
    space: Space
    after: frozenset[str]
    absent: bool


@dataclass(frozen=True, slots=True)
class Output:
    """An output in its place; ``space`` is where its values meet, before they become lists of the request's rows."""

    name: str
    path: str
    of: tuple[Ref, ...]
    combine: Combine
    space: Space
    absent: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph that can run: its steps in an order in which each comes after those it needs."""

    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]

    def space_of(self, ref: Ref) -> Space:
        """Return over whose rows a tensor is."""
        return ROOT if ref.step == REQUEST else next(step.space for step in self.steps if step.name == ref.step)

    def lacks(self, name: str) -> bool:
        """Return whether a row may be without the outputs of the step of this name."""
        return any(step.absent for step in self.steps if step.name == name)

    def opener(self, space: Space) -> Step:
        """Return a step by whose ``each`` a space came about."""
        return next(step for step in self.steps if step.each and step.space == space)

    @property
    def refs(self) -> Iterator[tuple[str, Ref]]:
        """Yield every reference with the path of the field that makes it."""
        for step in self.steps:
            for name, ref in step.inputs.items():
                yield f"{step.path}.inputs.{name}", ref
            yield from ((f"{step.path}.when", ref) for ref in step.conditions)
            yield from ((f"{step.path}.each", ref) for ref in step.each)
            if step.count:
                yield f"{step.path}.count", step.count
        for output in self.outputs:
            yield from ((output.path, ref) for ref in output.of)


def reference(text: str) -> Ref:
    """Return what a reference names; its form is checked where specs are read."""
    step, _, tensor = text.strip().partition(".")
    return Ref(step, tensor)


def make_plan(spec: GraphSpec, name: str = "") -> Plan:
    """Return how a graph runs; ``name`` is its own, to see whether it calls itself.

    Raises:
        GraphError: names the field, and what is wrong with it.
    """
    paths = step_paths(spec)
    check_spec(spec, name, paths)
    drafts = {each.name: _draft(each, paths[each.name], paths) for each in spec.steps}
    placed: dict[str, Step] = {}
    for draft in _ordered(drafts):
        placed[draft.name] = _placed(draft, placed)
    _check_counts(list(placed.values()))
    return Plan(tuple(placed.values()), tuple(_output(spec, each, placed) for each in spec.outputs))


def meeting(a: Space, b: Space) -> Space:
    """Return the innermost space that both lie in."""
    shared = 0
    while shared < min(len(a), len(b)) and a[shared] == b[shared]:
        shared += 1
    return a[:shared]


def is_item(ref: Ref, step: Step) -> bool:
    """Return whether a step is given the item of a tensor, not the tensor: its ``each``, or one around it, names it."""
    return ref in step.each or str(ref) in step.space


def _checked(text: str, path: str, steps: Mapping[str, str]) -> Ref:
    ref = reference(text)
    if ref.step != REQUEST and ref.step not in steps:
        known = ", ".join([REQUEST, *steps])
        raise GraphError(path, f"{text.strip()!r} names no step that there is: there are {known}")
    return ref


def _draft(spec: StepSpec, path: str, steps: Mapping[str, str]) -> Step:
    """Return a step whose place among the others is not known yet."""
    inputs = {name: _checked(text, f"{path}.inputs.{name}", steps) for name, text in spec.inputs.items()}
    each = tuple(_checked(text, f"{path}.each", steps) for text in (spec.each or "").split(",") if text.strip())
    if len({ref.step for ref in each}) > 1:
        raise GraphError(f"{path}.each", "tensors that lie side by side come from one step")
    count = _checked(spec.count, f"{path}.count", steps) if spec.count else None
    if count and not each:
        raise GraphError(f"{path}.count", "it says how many items there are of each: name them, too")
    when, conditions = _condition(spec.when, f"{path}.when", steps)
    needs = {ref.step for ref in (*inputs.values(), *conditions, *each, *((count,) if count else ()))} - {REQUEST}
    return Step(
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


def _condition(text: str | None, path: str, steps: Mapping[str, str]) -> tuple[Expression | None, tuple[Ref, ...]]:
    if text is None:
        return None, ()
    try:
        expression = parse(text)
    except ExpressionError as error:
        raise GraphError(path, f"{text!r:.200} {error}") from None
    names = dict.fromkeys(column.name for column in columns_of(expression))
    for name in names:
        if "." not in name:
            what = f"{name!r} names no tensor: write request.{name}, or STEP.{name}; and a text in quotes, '{name}'"
            raise GraphError(path, what)
    return expression, tuple(_checked(name, path, steps) for name in names)


def _ordered(drafts: Mapping[str, Step]) -> Iterator[Step]:
    """Yield steps so that each comes after those it needs, otherwise as they are written."""
    left = dict(drafts)
    while left:
        ready = [step for step in left.values() if not step.after & left.keys()]
        if not ready:
            circle = _circle(left)
            what = f"the steps wait for one another: {' → '.join(circle)}"
            raise GraphError(drafts[circle[0]].path, what, Fault.CYCLE)
        for step in ready:
            del left[step.name]
            yield step


def _circle(steps: Mapping[str, Step]) -> list[str]:
    """Return one way around, among steps each of which waits for another of them."""
    way = [next(iter(steps))]
    while way[-1] not in way[:-1]:
        way.append(next(name for name in steps if name in steps[way[-1]].after))
    return way[way.index(way[-1]) :]


def _placed(draft: Step, placed: Mapping[str, Step]) -> Step:
    """Return a step with its space, and whether a row may be without it, now that those it needs are known."""
    space = ROOT
    if draft.each:
        first = draft.each[0]
        space = (*_space(first, placed), str(first))
    step = replace(draft, space=space)
    if draft.count and _space(draft.count, placed) != space[:-1]:
        raise GraphError(f"{draft.path}.count", f"{draft.count} is not of the rows that {draft.each[0]} is of")
    if draft.count and draft.count.step != draft.each[0].step and _may_lack(draft.count, space, placed):
        what = f"a row may be without {draft.count}: name one that is there wherever {draft.each[0]} is"
        raise GraphError(f"{draft.path}.count", what)
    used = [ref for ref in step.inputs.values() if not is_item(ref, step)]
    absent = draft.when is not None or draft.omits or any(_may_lack(ref, space, placed) for ref in used)
    return replace(step, absent=absent)


def _space(ref: Ref, placed: Mapping[str, Step]) -> Space:
    return ROOT if ref.step == REQUEST else placed[ref.step].space


def _may_lack(ref: Ref, space: Space, placed: Mapping[str, Step]) -> bool:
    """Return whether a row of a space may be without a tensor; a list of items is there where they are items of one."""
    own = _space(ref, placed)
    shared = meeting(own, space)
    step = ref.step if shared == own else reference(own[len(shared)]).step
    return step != REQUEST and placed[step].absent


def _check_counts(steps: Sequence[Step]) -> None:
    """Refuse two opinions on how many items there are."""
    counts: dict[Space, Step] = {}
    for step in steps:
        first = counts.setdefault(step.space, step)
        if step.each and step.count != first.count:
            raise GraphError(
                f"{step.path}.count", f"{first.name} counts the items of {step.each[0]} otherwise: steps share them"
            )


def _output(spec: GraphSpec, name: str, placed: Mapping[str, Step]) -> Output:
    path = f"outputs.{name}"
    refs = tuple(_checked(text, path, dict.fromkeys(placed, "")) for text in spec.outputs[name])
    combine = spec.combine.get(name, Combine.FIRST)
    space = max((_space(ref, placed) for ref in refs), key=len)
    for ref in refs:
        if meeting(_space(ref, placed), space) != _space(ref, placed):
            raise GraphError(path, f"{', '.join(map(str, refs))} are of rows that do not lie within one another")
    lacks = [_may_lack(ref, space, placed) for ref in refs]
    return Output(name, path, refs, combine, space, any(lacks) if combine in _BY_LIST else all(lacks))
