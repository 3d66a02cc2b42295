"""What ``shoal inspect`` tells of a graph: its steps in the order in which they run, as values and as a drawing."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_schema.graphs.plan import Plan, Step
from shoal_schema.graphs.types import Typed
from shoal_schema.resource.graph import Combine, GraphSpec

Told = dict[str, Any]
UNKNOWN = "?"
_WIDEST = 110
"""Of boxes that stand side by side."""


def described(name: str, spec: GraphSpec, plan: Plan, graph: Typed | None) -> Told:
    """Return what a graph is; ``graph`` is None where not every model could be looked at."""
    models = {each.name: f"service {each.service}" if each.service else each.url or "" for each in spec.steps}
    models |= {each.name: f"graph {each.graph}" for each in spec.steps if each.graph}
    written = {each.name: each for each in spec.steps}
    outputs = {output.name: output for output in plan.outputs}
    return {
        "name": name,
        "request": {} if graph is None else {each: str(tensor) for each, tensor in graph.request.items()},
        "steps": [
            {
                "name": step.name,
                "model": models[step.name],
                "rows": f"each item of {step.space[-1]}" if step.space else "rows of the request",
                "when": written[step.name].when,
                "on_error": str(written[step.name].on_error),
                "after": sorted(step.after),
                "inputs": {each: _input(graph, step, each) for each in step.inputs},
                "outputs": _given(graph, step),
            }
            for step in plan.steps
        ],
        "outputs": {
            each: {
                "of": [str(ref) for ref in output.of],
                "combine": str(output.combine),
                "type": UNKNOWN if graph is None else str(graph.outputs[each]),
            }
            for each, output in outputs.items()
        },
    }


def _input(graph: Typed | None, step: Step, name: str) -> Told:
    ref = step.inputs[name]
    return {"from": str(ref), "type": UNKNOWN if graph is None else str(graph.seen(ref, step, step.path))}


def _given(graph: Typed | None, step: Step) -> dict[str, str]:
    return {} if graph is None else {each: str(one) for each, one in graph.signatures[step.name].outputs.items()}


def drawn(told: Told) -> str:
    """Return boxes and arrows: what runs at the same time side by side, below what it needs."""
    parts = [f"{told['name']}: {_words(told['request']) or 'what it takes is not known here'}"]
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
    width = max(len(title) + 1, *(len(line) for line in lines))
    body = [f"│ {line:<{width}} │" for line in lines]
    return [f"┌ {title} {'─' * (width - len(title))}┐", *body, f"└{'─' * (width + 2)}┘"]


def _arranged(boxes: Sequence[Sequence[str]]) -> list[str]:
    """Return boxes side by side, each below an arrow; one below the other where they are too wide."""
    if sum(len(box[0]) + 2 for box in boxes) > _WIDEST:
        return [line for box in boxes for line in ("  ▼", *box)]
    height = max(len(box) for box in boxes)
    columns = [["  ▼", *box, *[""] * (height - len(box))] for box in boxes]
    widths = [len(box[0]) for box in boxes]
    rows = zip(*columns, strict=True)
    return ["  ".join(f"{part:<{width}}" for part, width in zip(row, widths, strict=True)).rstrip() for row in rows]
