"""Random graphs over small models, and what they should give, found one value at a time without numpy."""

import asyncio
import math
from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import numpy as np

from shoal_proxy.errors import ProxyError, RowsFailed
from shoal_proxy.graph.graph_request import GraphRequest, RowsError
from shoal_proxy.graph.walk import walk
from shoal_schema.expressions.grammar import BooleanOperation, Column, Comparison, IsNull, Membership, Negation
from shoal_schema.graphs.errors import GraphError
from shoal_schema.graphs.plan import GraphPlan, GraphStep, Space, TensorRef, innermost_common, is_item, make_plan
from shoal_schema.graphs.types import TypedGraph, type_check
from shoal_schema.resource.graph import CombineRule, GraphSpec
from shoal_schema.wire.row_errors import RowError

Row = dict[str, Any]
ABSENT = object()


class Failed(Exception):
    """A row that a model refuses, and the step that did."""


def _io(*tensors: tuple[str, str, list[int]]) -> list[Row]:
    return [{"name": name, "datatype": kind, "shape": [-1, *shape]} for name, kind, shape in tensors]


X: tuple[str, str, list[int]] = ("x", "FP32", [])
MODELS: dict[str, tuple[list[Row], list[Row]]] = {
    "affine": (_io(X), _io(("y", "FP32", []))),
    "label": (_io(X), _io(("t", "BYTES", []))),
    "split": (_io(X), _io(("items", "FP32", [-1]), ("tags", "BYTES", [-1]), ("count", "INT64", []))),
    "length": (_io(("t", "BYTES", [])), _io(("y", "FP32", []))),
    "total": (_io(("xs", "FP32", [-1])), _io(("y", "FP32", []))),
}


def compute(model: str, row: Row) -> Row:
    """Return what a model gives for one row; one number in 23 it refuses."""
    if model == "length":
        return {"y": float(row["t"][-1] % 5)}
    if model == "total":
        return {"y": float(sum(x for x in row["xs"] if not math.isnan(x)))}
    x = row["x"]
    if int(x) % 23 == 22:
        raise Failed(f"{x:g} is none of mine")
    if model == "affine":
        return {"y": (x * 3 + 1) % 23}
    if model == "label":
        return {"t": f"t{int(x) % 3}".encode()}
    count = int(x) % 4
    return {
        "items": [float((x + index) % 23) for index in range(count)],
        "tags": [f"tag{(int(x) + index) % 3}".encode() for index in range(count)],
        "count": count,
    }


def random_spec(random: Random) -> tuple[GraphSpec, dict[str, str]]:
    """Return a graph and the model of each step; it may be one that cannot work."""
    maker = _Maker(random)
    steps = [maker.step(f"s{index}") for index in range(random.randint(1, 7))]
    outputs, combine = maker.outputs()
    random.shuffle(steps)
    return msgspec.convert({"steps": steps, "outputs": outputs, "combine": combine}, GraphSpec), maker.models


class _Maker:
    """Makes steps of what those before them give."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.models: dict[str, str] = {}
        self._scalars = ["request.x"]
        self._lists: list[str] = []
        self._texts: list[str] = []
        self._splits: list[str] = []

    def step(self, name: str) -> Row:
        """Return a step."""
        chance, choose = self._random.random, self._random.choice
        kind = self.models[name] = choose(list(MODELS))
        step: Row = {"name": name, "url": f"http://m:1/v2/models/{name}"}
        if self._splits and chance() < 0.6:
            source = choose(self._splits)
            beside = f", {source}.tags" if chance() < 0.5 else ""
            step |= {"each": f"{source}.items{beside}", "count": f"{source}.count"}
        step["inputs"] = self._inputs(kind, step.get("each", ""))
        if chance() < 0.4:
            step["when"] = random_condition(self._random, self._scalars[1:] or self._scalars)
        if chance() < 0.4:
            step["onError"] = "Omit"
        self._note(name, kind)
        return step

    def _inputs(self, kind: str, each: str) -> Row:
        chance, choose = self._random.random, self._random.choice
        items, _, tags = each.partition(", ")
        if kind == "total":
            return {"xs": choose(self._lists if self._lists and chance() < 0.6 else self._scalars)}
        if kind == "length":
            return {"t": tags if tags and chance() < 0.7 else choose(self._texts or self._scalars)}
        return {"x": items if items and chance() < 0.6 else choose(self._scalars)}

    def _note(self, name: str, kind: str) -> None:
        if kind == "split":
            self._lists.append(f"{name}.items")
            self._splits.append(name)
        elif kind == "label":
            self._texts.append(f"{name}.t")
        else:
            self._scalars.append(f"{name}.y")

    def outputs(self) -> tuple[dict[str, list[str]], dict[str, str]]:
        """Return outputs, and how some of them are combined."""
        choose = self._random.choice
        outputs, combine = {}, {}
        for index in range(self._random.randint(1, 4)):
            pool = choose([self._texts or self._scalars, [*self._scalars, *self._lists]])
            outputs[f"o{index}"] = [choose(pool) for _ in range(self._random.randint(1, 3))]
            if self._random.random() < 0.5:
                combine[f"o{index}"] = choose([str(each) for each in CombineRule])
        return outputs, combine


def random_condition(random: Random, names: list[str]) -> str:
    """Return an expression over numbers."""

    def part() -> str:
        name = random.choice(names)
        return random.choice(
            [
                f"{name} < {random.randint(0, 22)}",
                f"{name} >= {random.randint(0, 22)}.0",
                f"not ({name} == {random.randint(0, 5)})",
                f"{name} in [1, 2, 3, null, 4]",
                f"{name} == null",
                f"{name} != {random.choice(names)}",
            ]
        )

    return f" {random.choice(['and', 'or'])} ".join(part() for _ in range(random.randint(1, 3)))


class Naive:
    """Evaluates one graph for a request's rows, each value by itself and from the top."""

    def __init__(self, plan: GraphPlan, models: Mapping[str, str], xs: list[float]) -> None:
        self.plan = plan
        self.models = models
        self.xs = xs
        self.steps = {step.name: step for step in plan.steps}
        self._known: dict[tuple[str, tuple[int, ...]], Any] = {}

    def outputs(self, row: int) -> Row:
        """Return a row's answer, lists of items without padding; raises Failed."""
        for step in self.plan.steps:
            for context in self.contexts(step.space, (row,)):
                self.row_of(step, context)
        return {output.name: self.output(output, (row,)) for output in self.plan.outputs}

    def contexts(self, space: Space, context: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the rows of a space that lie below a row of one around it."""
        if len(context) == len(space) + 1:
            return [context]
        opener = self.plan.opener(space[: len(context)])
        items = self.value(opener.each[0], context)
        count = 0 if items is ABSENT else len(items)
        return [found for index in range(count) for found in self.contexts(space, (*context, index))]

    def row_of(self, step: GraphStep, context: tuple[int, ...]) -> Any:
        """Return what a step gives for one of its rows, or ABSENT."""
        key = (step.name, context)
        if key not in self._known:
            self._known[key] = self._row_of(step, context)
        return self._known[key]

    def _row_of(self, step: GraphStep, context: tuple[int, ...]) -> Any:
        inputs = {name: self.seen(ref, step, context) for name, ref in step.inputs.items()}
        if any(value is ABSENT for value in inputs.values()):
            return ABSENT
        if step.when is not None and self.condition(step.when, step, context) is not True:
            return ABSENT
        try:
            return compute(self.models[step.name], inputs)
        except Failed as error:
            if step.omits:
                return ABSENT
            raise Failed(f"step {step.name}: {error}") from None

    def value(self, ref: TensorRef, context: tuple[int, ...]) -> Any:
        """Return a tensor's value in a row of its own space."""
        if ref.step == "request":
            return self.xs[context[0]]
        row = self.row_of(self.steps[ref.step], context)
        return ABSENT if row is ABSENT else row[ref.tensor]

    def seen(self, ref: TensorRef, step: GraphStep, context: tuple[int, ...]) -> Any:
        """Return what a step sees of it."""
        if is_item(ref, step):
            depth = len(step.space) if ref in step.each else step.space.index(str(ref)) + 1
            return self.value(ref, context[:depth])[context[depth]]
        return self.moved(ref, step.space, context)

    def moved(self, ref: TensorRef, space: Space, context: tuple[int, ...]) -> Any:
        """Return it as a row of another space has it."""
        own = self.plan.space_of(ref)
        shared = innermost_common(own, space)
        return self.nested(lambda inner: self.value(ref, inner), own, context[: len(shared) + 1])

    def nested(self, value: Any, space: Space, context: tuple[int, ...]) -> Any:
        """Return a value, or lists of lists of it; an absent one in a list is a gap, and items of none are no list."""
        if len(context) == len(space) + 1:
            return value(context)
        if self.value(self.plan.opener(space[: len(context)]).each[0], context) is ABSENT:
            return ABSENT
        inner = self.contexts(space[: len(context)], context)
        found = [self.nested(value, space, each) for each in inner]
        return [self._gap if each is ABSENT else each for each in found]

    _gap: Any = math.nan

    def condition(self, expression: Any, step: GraphStep, context: tuple[int, ...]) -> bool | None:
        """Return whether it is so; None: unknown."""

        def of(column: Column) -> Any:
            ref = next(ref for ref in step.conditions if str(ref) == column.name)
            found = self.seen(ref, step, context)
            return None if found is ABSENT else found

        match expression:
            case Comparison(column=column, operator=name, value=value):
                return _compared(of(column), name, of(value) if isinstance(value, Column) else value)
            case Membership(column=column, values=values):
                left = of(column)
                return None if left is None else left in [each for each in values if each is not None]
            case IsNull(column=column):
                return of(column) is None
            case Negation(part=part):
                found = self.condition(part, step, context)
                return None if found is None else not found
            case _:
                return _joined(expression, [self.condition(part, step, context) for part in expression.parts])

    def output(self, output: Any, context: tuple[int, ...]) -> Any:
        """Return an output of one row."""

        def value(inner: tuple[int, ...]) -> Any:
            return combine(output.combine, [self.moved(ref, output.space, inner) for ref in output.of])

        return self.nested(value, output.space, context)


def _compared(left: Any, name: str, right: Any) -> bool | None:
    if left is None or right is None:
        return None
    return bool({"<": left < right, ">=": left >= right, "==": left == right, "!=": left != right}[name])


def _joined(expression: BooleanOperation, parts: list[bool | None]) -> bool | None:
    decisive = not expression.every
    if decisive in parts:
        return decisive
    return None if None in parts else expression.every


def combine(how: CombineRule, values: list[Any]) -> Any:
    """Return several values as one."""
    there = [each for each in values if each is not ABSENT]
    if how is CombineRule.STACK:
        return values
    if not there:
        return ABSENT
    if len(values) == 1 or how is CombineRule.FIRST:
        return there[0]
    return {
        CombineRule.MEAN: lambda: sum(there) / len(there),
        CombineRule.MAX: lambda: max(there),
        CombineRule.VOTE: lambda: max(there, key=there.count),
    }[how]()


def run(graph: TypedGraph, models: Mapping[str, str], xs: list[float]) -> Any:
    """Return what the product gives, or the rows that it says failed."""

    async def call_step(step: GraphStep, inputs: Mapping[str, Any], rows: int) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        return _batch(models[step.name], inputs, rows)

    frame = GraphRequest(graph, {"x": np.array(xs, np.float32)}, len(xs), 1 << 28)
    try:
        return asyncio.run(walk(graph.plan, frame, call_step))
    except RowsFailed as error:
        return list(error.errors)
    except (RowsError, ProxyError) as error:
        return error


def _batch(model: str, inputs: Mapping[str, Any], rows: int) -> Mapping[str, Any]:
    """Compute a whole batch as a model's server would: padded lists, and errors of rows."""
    answers, errors = [], []
    for index in range(rows):
        row = {name: array[index : index + 1].tolist()[0] for name, array in inputs.items()}
        try:
            answers.append(compute(model, row))
        except Failed as error:
            errors.append(RowError(index, 422, str(error)))
    if errors:
        raise RowsFailed(errors)
    if model != "split":
        (name,) = answers[0]
        return {name: np.array([answer[name] for answer in answers], object if model == "label" else np.float32)}
    width = max(answer["count"] for answer in answers) + 1
    items, tags = np.full((rows, width), np.nan, np.float32), np.full((rows, width), b"", object)
    for index, answer in enumerate(answers):
        items[index, : answer["count"]] = answer["items"]
        tags[index, : answer["count"]] = answer["tags"]
    return {"items": items, "tags": tags, "count": np.array([answer["count"] for answer in answers])}


def make(spec: GraphSpec, models: Mapping[str, str]) -> TypedGraph | None:
    """Return the graph, or None where it cannot work."""
    documents = {
        name: {"name": name, "inputs": MODELS[kind][0], "outputs": MODELS[kind][1]} for name, kind in models.items()
    }
    try:
        graph = type_check(make_plan(spec), documents)
    except GraphError:
        return None
    scalar = all(str(tensor) == "FP32" for tensor in graph.request.values())
    # A model's own padding of lists counts as values, which the naive evaluator does not model.
    ragged = any(
        len(each.of) > 1
        and each.combine not in (CombineRule.FIRST, CombineRule.STACK)
        and any(graph.tensor(ref, "").shape for ref in each.of)
        for each in graph.plan.outputs
    )
    return graph if scalar and not ragged else None
