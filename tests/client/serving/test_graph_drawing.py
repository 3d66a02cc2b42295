"""A graph as `shoal inspect` shows it."""

from typing import Any

import msgspec

from shoal.serving.graph_drawing import describe_graph, draw_graph
from shoal_schema.graphs.plan import make_plan
from shoal_schema.graphs.types import type_check
from shoal_schema.resource.graph import GraphSpec

SPEC: GraphSpec = msgspec.convert(
    {
        "steps": [
            {"name": "detect", "service": "detector", "inputs": {"image": "request.image"}},
            {"name": "fast", "service": "small", "each": "detect.crops", "inputs": {"crop": "detect.crops"}},
            {
                "name": "precise",
                "graph": "large",
                "each": "detect.crops",
                "inputs": {"crop": "detect.crops"},
                "when": "fast.p < 0.8",
                "onError": "Omit",
            },
            {"name": "other", "url": "http://m/v2/models/other", "inputs": {"image": "request.image"}},
        ],
        "outputs": {"label": ["precise.label", "fast.label"], "p": ["fast.p", "precise.p"]},
        "combine": {"p": "Mean"},
    },
    GraphSpec,
)
PICTURE = """\
pipeline: image BYTES
  ▼                                 ▼
┌ detect ──────────────────────┐  ┌ other ───────────────────────┐
│ service detector             │  │ http://m/v2/models/other     │
│ image ← request.image  BYTES │  │ image ← request.image  BYTES │
│ → crops BYTES[-1]            │  │ → z FP32                     │
└──────────────────────────────┘  └──────────────────────────────┘
  ▼
┌ fast ───────────────────────┐
│ service small               │
│ crop ← detect.crops  BYTES  │
│ each item of detect.crops   │
│ → label BYTES, p FP32       │
└─────────────────────────────┘
  ▼
┌ precise ────────────────────┐
│ graph large                 │
│ crop ← detect.crops  BYTES  │
│ each item of detect.crops   │
│ when fast.p < 0.8           │
│ omitted if it fails     │
│ → label BYTES, p FP32       │
└─────────────────────────────┘
  ▼
┌ response ──────────────────────────────────────────┐
│ label ← precise.label, else fast.label  BYTES[-1]  │
│ p ← Mean of fast.p, precise.p  FP32[-1]            │
└────────────────────────────────────────────────────┘"""


def tensors(**given: str) -> list[dict[str, Any]]:
    """Return tensors of V2 metadata; a name that ends in ``s`` is a list in each row."""
    return [
        {"name": name, "datatype": kind, "shape": [-1, -1] if name.endswith("s") else [-1]}
        for name, kind in given.items()
    ]


CLASSIFIER = {"inputs": tensors(crop="BYTES"), "outputs": tensors(label="BYTES", p="FP32")}
MODELS = {
    "detect": {"inputs": tensors(image="BYTES"), "outputs": tensors(crops="BYTES")},
    "fast": CLASSIFIER,
    "precise": CLASSIFIER,
    "other": {"inputs": tensors(image="BYTES"), "outputs": tensors(z="FP32")},
}


def squeezed(text: str) -> list[str]:
    """Return lines without the padding that boxes need."""
    return [" ".join(line.replace("─", "").split()) for line in text.splitlines()]


def test_what_runs_at_the_same_time_stands_side_by_side_below_what_it_needs() -> None:
    plan = make_plan(SPEC)
    render = draw_graph(describe_graph("pipeline", SPEC, plan, type_check(plan, MODELS)))

    assert squeezed(render) == squeezed(PICTURE)
    for box in render.split("  ▼\n")[2:]:  # each as wide as its longest line
        assert len({len(line) for line in box.rstrip().splitlines()}) == 1, box


def test_without_the_models_types_are_unknown_and_the_rest_is_drawn() -> None:
    description = describe_graph("pipeline", SPEC, make_plan(SPEC), None)
    assert description["steps"][0]["inputs"] == {"image": {"from": "request.image", "type": "?"}}
    assert "pipeline: its inputs are not known here" in draw_graph(description)


def test_boxes_that_are_too_wide_stand_below_one_another() -> None:
    steps = [
        {"name": f"s{index}", "url": f"http://{'m' * 60}/v2/models/m", "inputs": {"x": "request.x"}}
        for index in range(2)
    ]
    spec = msgspec.convert({"steps": steps, "outputs": {"z": ["s0.z"]}}, GraphSpec)
    lines = draw_graph(describe_graph("wide", spec, make_plan(spec), None)).splitlines()
    assert [line for line in lines if line.startswith("┌")][1].startswith("┌ s1")
