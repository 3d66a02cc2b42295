"""Composer sources are parsed without running them."""

from typing import Any

import pytest

from shoal_schema.decoding import MAX_GRAPH_BYTES, SpecError, parse_graph_spec
from shoal_schema.graphs.composer import read_source
from shoal_schema.graphs.errors import GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.graphs.types import graph_metadata, type_check

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


def test_the_signature_is_parsed_without_running_the_source() -> None:
    declared = read_source(SOURCE + "raise SystemExit(1)\n")
    assert declared.name == "Way"
    assert declared.signature.inputs == {"image": Tensor("BYTES", (), {}), "size": Tensor("INT32", (2,), {})}
    assert {name: str(each) for name, each in declared.signature.outputs.items()} == {"boxes": "FP32[-1, 4]"}


def test_the_graph_has_the_signature_of_its_composer() -> None:
    spec = parse_graph_spec(graph(composer={"source": SOURCE}))
    plan = make_plan(spec)
    tensors = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    known = type_check(plan, {"a": {"inputs": tensors, "outputs": tensors}}, "g", read_source(SOURCE).signature)
    metadata = graph_metadata(known, "g", frozenset({"g"}))
    assert [(each["name"], each["shape"]) for each in metadata["inputs"]] == [("image", [-1]), ("size", [-1, 2])]
    assert metadata["outputs"][0]["shape"] == [-1, -1, 4]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Way:\n  inputs = (", "line 2: '(' was never closed"),
        ("x = 1", "defines 0 composers"),
        (SOURCE + SOURCE, "defines 2 composers"),
        (SOURCE.replace("outputs =", "puts ="), "Way has no `outputs`"),
        (SOURCE.replace('"FP32[-1, 4]"', '"FP32[n, 4]"'), "not 'FP32[n, 4]'"),
        (SOURCE.replace('"FP32[-1, 4]"', '"FLOAT"'), "not 'FLOAT'"),
        (SOURCE.replace('"FP32[-1, 4]"', "3"), "not 3"),
        (SOURCE.replace('{"boxes": "FP32[-1, 4]"}', "{}"), "`outputs` must be a dict"),
        (SOURCE.replace('{"boxes": "FP32[-1, 4]"}', "dict(boxes=1)"), "line 10: Way.outputs must be a literal"),
        (SOURCE + "x = " + "-" * 60_000 + "1", "nested too deeply"),
        (SOURCE + "x = " + "(" * 60_000, "too many nested parentheses"),
        (SOURCE + "\0", "null bytes"),
        (SOURCE + "\ud800", "cannot be parsed"),
    ],
)
def test_an_invalid_composer_is_an_error_with_the_line(source: str, said: str) -> None:
    with pytest.raises(GraphError) as refused:
        read_source(source)
    assert str(refused.value).startswith("composer.source: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({}, "spec.outputs"),
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
                "spec.steps",
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
def test_data_flow_is_declared_in_fields_or_in_code(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_graph_spec(graph(**spec))
    assert str(refused.value).startswith(path), refused.value


def test_a_graph_too_large_for_a_variable_is_rejected() -> None:
    steps = [
        {
            "name": f"s{index}",
            "service": "a",
            "when": "request.x < 1 or " * 240 + "request.x < 2",
            "inputs": {"x": "request.x"},
        }
        for index in range(32)
    ]
    with pytest.raises(SpecError, match=f"more than {MAX_GRAPH_BYTES}"):
        parse_graph_spec(graph(steps=steps, outputs={"y": ["s0.y"]}))
