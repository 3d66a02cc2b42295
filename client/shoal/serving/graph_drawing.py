"""What ``shoal inspect`` tells of a graph: its steps in the order in which they run, as values and as a drawing."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_schema.graphs.composer import read_source
from shoal_schema.graphs.plan import Output, Plan, Step
from shoal_schema.graphs.types import Typed
from shoal_schema.resource.graph import Combine, GraphSpec

Told = dict[str, Any]
UNKNOWN = "?"
_COMPOSER = "composer"
_WIDEST = 110
"""Of boxes that stand side by side."""


def described(name: str, spec: GraphSpec, plan: Plan, graph: Typed | None) -> Told:
    """Return what a graph is; ``graph`` is None where not everything could be looked at."""
    models = {each.name: f"service {each.service}" if each.service else each.url or "" for each in spec.steps}
    models |= {each.name: f"graph {each.graph}" for each in spec.steps if each.graph}
    written = {each.name: each for each in spec.steps}
    composer = _composer(spec)
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
                "inputs": _asked(graph, step)
                if composer
                else {each: _input(graph, step, each) for each in step.inputs},
                "outputs": _given(graph, step),
            }
            for step in plan.steps
        ],
        "outputs": _composed(graph) if composer else {output.name: _made(graph, output) for output in plan.outputs},
    }


def _composer(spec: GraphSpec) -> str:
    """Return what of Python takes requests through the steps; empty where the document says it all."""
    if spec.composer is None:
        return ""
    return spec.composer.import_path or read_source(spec.composer.source or "").name


def _asked(graph: Typed | None, step: Step) -> Told:
    wanted = {} if graph is None else graph.signatures[step.name].inputs
    return {each: {"from": _COMPOSER, "type": str(tensor)} for each, tensor in wanted.items()}


def _composed(graph: Typed | None) -> Told:
    outputs = {} if graph is None else graph.outputs
    return {each: {"of": [_COMPOSER], "combine": "First", "type": str(tensor)} for each, tensor in outputs.items()}


def _made(graph: Typed | None, output: Output) -> Told:
    return {
        "of": [str(ref) for ref in output.of],
        "combine": str(output.combine),
        "type": UNKNOWN if graph is None else str(graph.outputs[output.name]),
    }


def _input(graph: Typed | None, step: Step, name: str) -> Told:
    ref = step.inputs[name]
    return {"from": str(ref), "type": UNKNOWN if graph is None else str(graph.seen(ref, step, step.path))}


def _given(graph: Typed | None, step: Step) -> dict[str, str]:
    return {} if graph is None else {each: str(one) for each, one in graph.signatures[step.name].outputs.items()}


def drawn(told: Told) -> str:
    """Return boxes and arrows: what runs at the same time side by side, below what it needs."""
    parts = [f"{told['name']}: {_words(told['request']) or 'what it takes is not known here'}"]
    if told["composer"]:
        parts += ["  ▼", *_boxed(_COMPOSER, [told["composer"]])]
    for level in _levels(told["steps"]):
        parts += _arranged([_box(step) for step in level])
    parts += ["  ▼", *_boxed("answer", [_output(name, each) for name, each in told["outputs"].items()])]
    return "\n".join(parts)


def _levels(steps: Sequence[Told]) -> list[list[Told]]:
    """Return the steps in rows: each below the last of those that it needs."""
    depth: dict[str, int] = {}
    for step in steps:
        depth[step["name"]] = 1 + max((depth[each] for each in step["after"]), default=0)
    return [[step for step in steps if depth[step["name"]] == each] for each in range(1, max(depth.values()) + 1)]


def _box(step: Told) -> list[str]:
    lines = [step["model"]]
    lines += [f"{name} ← {given['from']}  {given['type']}" for name, given in step["inputs"].items()]
    if step["rows"].startswith("each"):
        lines.append(step["rows"])
    if step["when"]:
        lines.append(f"when {step['when']}")
    if step["on_error"] != "Fail":
        lines.append("left out where it fails")
    if step["outputs"]:
        lines.append(f"→ {_words(step['outputs'])}")
    return _boxed(step["name"], lines)


def _output(name: str, output: Told) -> str:
    first = output["combine"] == Combine.FIRST
    made = ", else ".join(output["of"]) if first else f"{output['combine']} of {', '.join(output['of'])}"
    return f"{name} ← {made}  {output['type']}"


def _words(tensors: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in tensors.items())


def _boxed(title: str, lines: Sequence[str]) -> list[str]:
    width = max([len(title) + 1, *map(len, lines)])
    body = [f"│ {line:<{width}} │" for line in lines]
    return [f"┌ {title} {'─' * (width - len(title))}┐", *body, f"└{'─' * (width + 2)}┘"]


def _arranged(boxes: Sequence[Sequence[str]]) -> list[str]:
    """Return boxes side by side, each below an arrow; one below the other, with a word, where they are too wide."""
    if sum(len(box[0]) + 2 for box in boxes) > _WIDEST:
        first, *others = boxes
        return ["  ▼", *first, *(line for box in others for line in ("  beside it", *box))]
    height = max(len(box) for box in boxes)
    columns = [["  ▼", *box, *[""] * (height - len(box))] for box in boxes]
    widths = [len(box[0]) for box in boxes]
    rows = zip(*columns, strict=True)
    return ["  ".join(f"{part:<{width}}" for part, width in zip(row, widths, strict=True)).rstrip() for row in rows]
