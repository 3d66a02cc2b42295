"""A composer's source, as it is read without being run."""

from typing import Any

import pytest

from shoal_schema.decoding import MOST_GRAPH_BYTES, SpecError, parse_graph_spec
from shoal_schema.graphs.composer import read_source
from shoal_schema.graphs.faults import GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.graphs.types import graph_metadata, typed

SOURCE = """
import numpy as np

class Other:
    def run(self):
        pass

class Way:
    inputs: dict = {"image": "BYTES", "size": "INT32[2]"}
    outputs = {"boxes": "FP32[-1, 4]"}

    async def run(self, inputs, steps):
        return {}
"""


def graph(**spec: Any) -> dict[str, Any]:
    """Return a graph of one step, as it is stored."""
    return {"metadata": {"name": "g"}, "spec": {"steps": [{"name": "a", "service": "a"}], **spec}}


def test_what_it_takes_and_gives_is_read_without_running_it() -> None:
    declared = read_source(SOURCE + "raise SystemExit(1)\n")
    assert declared.name == "Way"
    assert declared.signature.inputs == {"image": Tensor("BYTES", (), {}), "size": Tensor("INT32", (2,), {})}
    assert {name: str(each) for name, each in declared.signature.outputs.items()} == {"boxes": "FP32[-1, 4]"}


def test_its_graph_tells_what_the_source_tells() -> None:
    spec = parse_graph_spec(graph(composer={"source": SOURCE}))
    plan = make_plan(spec)
    tensors = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    known = typed(plan, {"a": {"inputs": tensors, "outputs": tensors}}, "g", read_source(SOURCE).signature)
    metadata = graph_metadata(known, "g", frozenset({"g"}))
    assert [(each["name"], each["shape"]) for each in metadata["inputs"]] == [("image", [-1]), ("size", [-1, 2])]
    assert metadata["outputs"][0]["shape"] == [-1, -1, 4]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Way:\n  inputs = (", "line 2: '(' was never closed"),
        ("x = 1", "it defines 0 composers, not one"),
        (SOURCE + SOURCE, "it defines 2 composers, not one"),
        (SOURCE.replace("outputs =", "puts ="), "Way has no `outputs`"),
        (SOURCE.replace('"FP32[-1, 4]"', '"FP32[n, 4]"'), "not 'FP32[n, 4]'"),
        (SOURCE.replace('"FP32[-1, 4]"', '"FLOAT"'), "not 'FLOAT'"),
        (SOURCE.replace('"FP32[-1, 4]"', "3"), "not 3"),
        (SOURCE.replace('{"boxes": "FP32[-1, 4]"}', "{}"), "`outputs` is to be a dict of tensors by name, not {}"),
        (SOURCE.replace('{"boxes": "FP32[-1, 4]"}', "dict(boxes=1)"), "line 10: Way.outputs is to be written out"),
        (SOURCE + "x = " + "-" * 60_000 + "1", "it is nested too deeply to be read"),
        (SOURCE + "x = " + "(" * 60_000, "too many nested parentheses"),
        (SOURCE + "\0", "null bytes"),
        (SOURCE + "\ud800", "it cannot be read"),
    ],
)
def test_what_is_no_composer_is_refused_with_the_line(source: str, said: str) -> None:
    with pytest.raises(GraphError) as refused:
        read_source(source)
    assert str(refused.value).startswith("composer.source: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "spec.steps[0].inputs"),
        ({"steps": [{"name": "a", "service": "a", "inputs": {"x": "request.x"}}]}, "spec.outputs"),
        ({"composer": {}}, "spec.composer"),
        ({"composer": {"source": SOURCE, "importPath": "a:B"}}, "spec.composer"),
        ({"composer": {"importPath": "a.b"}}, "spec.composer.importPath"),
        ({"composer": {"source": SOURCE}, "outputs": {"y": ["a.y"]}}, "spec.outputs"),
        ({"composer": {"source": SOURCE}, "combine": {"y": "Mean"}}, "spec.combine"),
        ({"composer": {"source": SOURCE}, "steps": [{"name": "left_s", "service": "a"}]}, "spec.steps[0].name"),
        ({"composer": {"source": SOURCE}, "steps": [{"name": "class", "service": "a"}]}, "spec.steps[0].name"),
        *(
            (
                {"composer": {"source": SOURCE}, "steps": [{"name": "a", "service": "a", name: value}]},
                f"spec.steps[0].{name}",
            )
            for name, value in (
                ("inputs", {"x": "request.x"}),
                ("when", "request.x > 1"),
                ("each", "request.x"),
                ("onError", "Omit"),
            )
        ),
    ],
)
def test_a_graph_says_its_way_in_the_document_or_in_code(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_graph_spec(graph(**spec))
    assert str(refused.value).startswith(path), refused.value


def test_a_graph_that_no_variable_can_hold_is_refused() -> None:
    steps = [
        {
            "name": f"s{index}",
            "service": "a",
            "when": "request.x < 1 or " * 240 + "request.x < 2",
            "inputs": {"x": "request.x"},
        }
        for index in range(32)
    ]
    with pytest.raises(SpecError, match=f"at most {MOST_GRAPH_BYTES} are taken"):
        parse_graph_spec(graph(steps=steps, outputs={"y": ["s0.y"]}))
