"""Describe a graph for ``shoal inspect``: its steps in execution order, as values and as a drawing."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_schema.graphs.composer import read_source
from shoal_schema.graphs.plan import GraphPlan, GraphStep
from shoal_schema.graphs.types import TypedGraph
from shoal_schema.resource.graph import CombineRule, GraphSpec

Described = dict[str, Any]
"""A description, which can be written as JSON."""
UNKNOWN = "?"
_COMPOSER = "composer"
_WIDEST = 110
"""Characters of boxes side by side."""


def describe_graph(name: str, spec: GraphSpec, plan: GraphPlan, graph: TypedGraph | None) -> Described:
    """Return the description of a graph; ``graph`` is None if the types of some models are unknown."""
    models = {each.name: f"service {each.service}" if each.service else each.url or "" for each in spec.steps}
    models |= {each.name: f"graph {each.graph}" for each in spec.steps if each.graph}
    written = {each.name: each for each in spec.steps}
    composer = ""
    if spec.composer is not None:
        composer = spec.composer.import_path or read_source(spec.composer.source or "").name
    outputs: Described = {}
    if composer:
        # The composer, not the document, declares the outputs.
        for each, tensor in ({} if graph is None else graph.outputs).items():
            outputs[each] = {"of": [_COMPOSER], "combine": "First", "type": str(tensor)}
    else:
        for output in plan.outputs:
            kind = UNKNOWN if graph is None else str(graph.outputs[output.name])
            outputs[output.name] = {"of": [str(ref) for ref in output.of], "combine": str(output.combine), "type": kind}
    return {
        "name": name,
        "composer": composer,
        "request": {} if graph is None else {each: str(tensor) for each, tensor in graph.request.items()},
        "steps": [
            {
                "name": step.name,
                "model": models[step.name],
                "rows": f"each item of {step.space[-1]}" if step.space else "rows of the request",
                "when": written[step.name].when,
                "on_error": str(written[step.name].on_error),
                "after": sorted(step.after),
                "inputs": _inputs(graph, step, composed=bool(composer)),
                "outputs": {}
                if graph is None
                else {each: str(tensor) for each, tensor in graph.signatures[step.name].outputs.items()},
            }
            for step in plan.steps
        ],
        "outputs": outputs,
    }


def _inputs(graph: TypedGraph | None, step: GraphStep, *, composed: bool) -> Described:
    if composed:
        wanted = {} if graph is None else graph.signatures[step.name].inputs
        return {each: {"from": _COMPOSER, "type": str(tensor)} for each, tensor in wanted.items()}
    return {
        each: {"from": str(ref), "type": UNKNOWN if graph is None else str(graph.tensor_in_step(ref, step, step.path))}
        for each, ref in step.inputs.items()
    }


def draw_graph(graph: Described) -> str:
    """Return a text drawing of a graph: concurrent steps side by side, below the steps that they need."""
    parts = [f"{graph['name']}: {_tensors(graph['request']) or 'its inputs are not known here'}"]
    if graph["composer"]:
        parts += ["  ▼", *_boxed(_COMPOSER, [graph["composer"]])]
    # The level of a step is one below the last step that it needs.
    depth: dict[str, int] = {}
    boxes: dict[str, list[str]] = {}
    for step in graph["steps"]:
        depth[step["name"]] = 1 + max((depth[each] for each in step["after"]), default=0)
        lines = [step["model"]]
        lines += [f"{name} ← {given['from']}  {given['type']}" for name, given in step["inputs"].items()]
        if step["rows"].startswith("each"):
            lines.append(step["rows"])
        if step["when"]:
            lines.append(f"when {step['when']}")
        if step["on_error"] != "Fail":
            lines.append("omitted if it fails")
        if step["outputs"]:
            lines.append(f"→ {_tensors(step['outputs'])}")
        boxes[step["name"]] = _boxed(step["name"], lines)
    for level in range(1, max(depth.values()) + 1):
        parts += _arranged([box for name, box in boxes.items() if depth[name] == level])
    lines = []
    for name, output in graph["outputs"].items():
        first = output["combine"] == CombineRule.FIRST
        made = ", else ".join(output["of"]) if first else f"{output['combine']} of {', '.join(output['of'])}"
        lines.append(f"{name} ← {made}  {output['type']}")
    return "\n".join([*parts, "  ▼", *_boxed("response", lines)])


def _tensors(tensors: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in tensors.items())


def _boxed(title: str, lines: Sequence[str]) -> list[str]:
    width = max([len(title) + 1, *map(len, lines)])
    body = [f"│ {line:<{width}} │" for line in lines]
    return [f"┌ {title} {'─' * (width - len(title))}┐", *body, f"└{'─' * (width + 2)}┘"]


def _arranged(boxes: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of boxes side by side, each below an arrow.

    Boxes that are too wide for that are placed one below the other.
    """
    if sum(len(box[0]) + 2 for box in boxes) > _WIDEST:
        first, *others = boxes
        return ["  ▼", *first, *(line for box in others for line in ("  at the same time", *box))]
    # Shorter boxes are filled with empty lines, so that rows can be joined.
    height = max(len(box) for box in boxes)
    columns = [["  ▼", *box, *[""] * (height - len(box))] for box in boxes]
    widths = [len(box[0]) for box in boxes]
    rows = zip(*columns, strict=True)
    return ["  ".join(f"{part:<{width}}" for part, width in zip(row, widths, strict=True)).rstrip() for row in rows]
