"""Type checks of graphs, and the signature of the graph itself."""

import json
from typing import Any

import msgspec
import pytest

from shoal_schema.graphs.errors import GraphError, GraphFault
from shoal_schema.graphs.plan import make_plan
from shoal_schema.graphs.tensors import Tensor
from shoal_schema.graphs.types import TypedGraph, combined_tensor, graph_metadata, type_check
from shoal_schema.resource.graph import CombineRule, GraphSpec

Model = tuple[dict[str, tuple[str, list[int]]], dict[str, tuple[str, list[int]]]]
DETECT: Model = (
    {"image": ("BYTES", [])},
    {"crops": ("BYTES", [-1]), "scores": ("FP32", [-1]), "n": ("INT64", []), "size": ("FP32", [2])},
)
CLASSIFY: Model = (
    {"crop": ("BYTES", [])},
    {"label": ("BYTES", []), "id": ("INT64", []), "p": ("FP32", [1]), "sure": ("BOOL", []), "e": ("FP32", [8])},
)
WIDE: Model = ({"x": ("FP64", [8])}, {"y": ("FP64", [])})


def metadata(model: Model, **parameters: Any) -> dict[str, Any]:
    """Return V2 metadata."""
    sides = [
        [{"name": name, "datatype": kind, "shape": [-1, *shape]} for name, (kind, shape) in side.items()]
        for side in model
    ]
    return {"name": "m", "inputs": sides[0], "outputs": sides[1], "parameters": parameters}


def graph(steps: list[dict[str, Any]], outputs: dict[str, list[str]], **more: Any) -> TypedGraph:
    """Return a graph of steps, each with its ``model``."""
    models = {each["name"]: each.pop("model") for each in [dict(step) for step in steps]}
    written = [{"service": "s", **{k: v for k, v in step.items() if k != "model"}} for step in steps]
    spec = msgspec.convert({"steps": written, "outputs": outputs, **more}, GraphSpec)
    return type_check(make_plan(spec), {name: metadata(model) for name, model in models.items()})


def detect(**more: Any) -> dict[str, Any]:
    """Return the step that finds items."""
    return {"name": "detect", "model": DETECT, "inputs": {"image": "request.image"}, **more}


def classify(**more: Any) -> dict[str, Any]:
    """Return a step that classifies each item."""
    given = {"name": "c", "model": CLASSIFY, "each": "detect.crops", "inputs": {"crop": "detect.crops"}}
    return {**given, **more}


def test_a_graph_has_the_inputs_of_its_steps_and_lists_of_items_outputs() -> None:
    found = graph([detect(), classify()], {"label": ["c.label"], "crops": ["detect.crops"], "e": ["c.e"]})
    assert {name: str(tensor) for name, tensor in found.request.items()} == {"image": "BYTES"}
    assert {name: str(tensor) for name, tensor in found.outputs.items()} == {
        "label": "BYTES[-1]",
        "crops": "BYTES[-1]",
        "e": "FP32[-1, 8]",
    }
    document = graph_metadata(found, "pipeline", frozenset({"pipeline", "inner"}))
    assert document["outputs"][2] == {
        "name": "e",
        "datatype": "FP32",
        "shape": [-1, -1, 8],
        "parameters": {"batch_dim": 0},
    }
    assert document["parameters"] == {"graphs": "inner,pipeline"}


def test_an_each_of_the_request_makes_its_input_a_list() -> None:
    step = classify(each="request.pictures", inputs={"crop": "request.pictures"})
    found = graph([step], {"label": ["c.label"]})
    assert str(found.request["pictures"]) == "BYTES[-1]"


def test_fp32_may_be_passed_for_fp64() -> None:
    step = {"name": "w", "model": WIDE, "inputs": {"x": "c.e"}, "each": "detect.crops"}
    assert str(graph([detect(), classify(), step], {"y": ["w.y"]}).outputs["y"]) == "FP64[-1]"


@pytest.mark.parametrize(
    ("combine", "of", "given"),
    [
        ("First", ["c.label", "d.label"], "BYTES"),
        ("Vote", ["c.id", "d.id"], "INT64"),
        ("Mean", ["c.p", "d.p"], "FP32[1]"),
        ("Max", ["c.id", "d.id"], "INT64"),
        ("Concat", ["c.e", "d.p"], "FP32[9]"),
        ("Stack", ["c.label", "d.label"], "BYTES[2]"),
    ],
)
def test_combined_tensors(combine: str, of: list[str], given: str) -> None:
    steps = [{"name": name, "model": CLASSIFY, "inputs": {"crop": "request.x"}} for name in ("c", "d")]
    found = graph(steps, {"y": of}, combine={"y": combine})
    assert str(found.outputs["y"]) == given


@pytest.mark.parametrize(
    ("combine", "others", "kept"),
    [("Mean", ["a", "b"], True), ("Mean", ["b", "a"], False), ("Concat", ["a", "b"], False)],
)
def test_combined_probabilities_keep_the_classes_on_which_all_agree(
    combine: str,
    others: list[str],
    kept: bool,
) -> None:
    first, other = (Tensor("FP64", (2,), {"columns": json.dumps(names)}) for names in (["a", "b"], others))
    found = combined_tensor(CombineRule(combine), [first, other], "outputs")
    assert ("columns" in found.parameters) is kept


@pytest.mark.parametrize(
    ("steps", "outputs", "combine", "path", "fragment"),
    [
        ([detect(inputs={"picture": "request.x"})], {"y": ["detect.n"]}, {}, "steps[0].inputs.picture", "image"),
        ([detect(), classify(inputs={"crop": "detect.pieces"})], {"y": ["c.label"]}, {}, "steps[1].inputs.crop",
         "crops, scores, n, size"),
        ([detect(), classify(inputs={"crop": "detect.scores"})], {"y": ["c.label"]}, {}, "steps[1].inputs.crop",
         "detect.scores, which is FP32[-1]"),
        ([detect(), classify(each="detect.n", inputs={"crop": "request.image"})], {"y": ["c.label"]}, {},
         "steps[1].each", "detect.n is INT64"),
        ([detect(), classify(count="detect.size")], {"y": ["c.label"]}, {}, "steps[1].count", "one integer"),
        ([detect(), classify(when="detect.scores > 0")], {"y": ["c.label"]}, {}, "steps[1].when", "one value"),
        ([detect(), classify(when="detect.n > 'a'")], {"y": ["c.label"]}, {}, "steps[1].when", "is text"),
        ([detect(), classify(when="detect.n")], {"y": ["c.label"]}, {}, "steps[1].when", "not a truth value"),
        ([detect(), classify(when="detect.n in [1, 'a']")], {"y": ["c.label"]}, {}, "steps[1].when", "is text"),
        ([detect(), classify(when="not (detect.n == true)")], {"y": ["c.label"]}, {}, "steps[1].when", "is a truth"),
        ([detect(), classify(when="detect.x == null")], {"y": ["c.label"]}, {}, "steps[1].when", "no output 'x'"),
        ([detect(), classify(when="detect.n > detect.size")], {"y": ["c.label"]}, {}, "steps[1].when", "one value"),
        ([detect()], {"y": ["request.other"]}, {}, "outputs.y", "request.other is unknown"),
        ([detect(), classify(when="detect.n > 0")], {"y": ["c.id"]}, {}, "outputs.y", "INT64 has no value for"),
        ([detect(), classify(onError="Omit"), {"name": "w", "model": WIDE, "inputs": {"x": "c.id"}}],
         {"y": ["w.y"]}, {}, "steps[2].inputs.x", "has gaps"),
        ([detect(onError="Omit"), classify()], {"y": ["c.id"]}, {}, "outputs.y",
         "the items of detect.crops"),
        ([detect(), classify()], {"y": ["c.label", "detect.crops"]}, {}, "outputs.y",
         "BYTES and BYTES[-1] cannot be combined by First, for each item of detect.crops"),
        ([detect(), {"name": "w", "model": WIDE, "inputs": {"x": "detect.size"}}], {"y": ["w.y"]}, {},
         "steps[1].inputs.x", "detect.size, which is FP32[2]"),
        ([detect(), {"name": "w", "model": WIDE, "inputs": {"x": "request.image"}}], {"y": ["w.y"]}, {},
         "steps[1].inputs.x", "another step as BYTES"),
        ([detect()], {"y": ["detect.n", "detect.size"]}, {}, "outputs.y", "cannot be combined by First"),
        ([detect()], {"y": ["detect.n", "detect.n"]}, {"y": "Mean"}, "outputs.y", "Mean needs FP16"),
        ([detect()], {"y": ["detect.crops", "detect.crops"]}, {"y": "Max"}, "outputs.y", "Max needs numbers"),
        ([detect()], {"y": ["detect.n", "detect.n"]}, {"y": "Concat"}, "outputs.y", "use Stack"),
        ([{"name": "c", "model": ({"a": ("FP32", []), "b": ("FP32", [])}, {"y": ("FP32", [])}),
           "inputs": {"a": "request.a"}}], {"y": ["c.y"]}, {}, "steps[0].inputs", "c also needs b"),
    ],
)  # fmt: skip
def test_a_type_error_has_the_path(
    steps: list[dict[str, Any]], outputs: dict[str, list[str]], combine: dict[str, str], path: str, fragment: str
) -> None:
    with pytest.raises(GraphError) as raised:
        graph(steps, outputs, combine=combine)
    assert raised.value.path == path
    assert fragment in raised.value.what
    assert raised.value.fault is GraphFault.MISMATCH


@pytest.mark.parametrize(
    ("document", "fragment", "fault"),
    [
        (
            {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}], "outputs": []},
            "no batch dim",
            GraphFault.MISMATCH,
        ),
        (
            {"inputs": [{"name": "x", "datatype": "COMPLEX", "shape": [-1]}], "outputs": []},
            "unusable",
            GraphFault.MISMATCH,
        ),
        ({"inputs": [{"name": "x"}], "outputs": []}, "unusable", GraphFault.MISMATCH),
        ({"inputs": "x", "outputs": None}, "unusable", GraphFault.MISMATCH),
        ({}, "unusable", GraphFault.MISMATCH),
        (metadata(WIDE, graphs="inner,mine"), "calls mine, which calls it", GraphFault.CYCLE),
    ],
)
def test_unusable_metadata_is_an_error(document: Any, fragment: str, fault: GraphFault) -> None:
    spec = {"steps": [{"name": "a", "service": "s", "inputs": {"x": "request.x"}}], "outputs": {"y": ["a.y"]}}
    with pytest.raises(GraphError) as raised:
        type_check(make_plan(msgspec.convert(spec, GraphSpec)), {"a": document}, "mine")
    assert raised.value.path == "steps[0]"
    assert fragment in raised.value.what
    assert raised.value.fault is fault


def test_optional_inputs_may_be_left_out() -> None:
    document = metadata(({"x": ("FP32", []), "mask": ("FP32", []), "h": ("BYTES", []), "o": ("FP32", [])}, WIDE[1]))
    document["inputs"][0]["parameters"] = {"pad_mask": "mask"}
    document["inputs"][2]["parameters"] = {"carries": "request_headers"}
    document["inputs"][3]["parameters"] = {"optional": True, "content_type": "text/plain"}
    spec = {
        "steps": [{"name": "a", "service": "s", "inputs": {"x": "request.x"}}],
        "outputs": {"y": ["a.y"]},
    }
    found = type_check(make_plan(msgspec.convert(spec, GraphSpec)), {"a": document})
    assert graph_metadata(found, "g", frozenset({"g"}))["inputs"][0]["parameters"] == {"batch_dim": 0}


@pytest.mark.parametrize("combine", ["First", "Mean", "Max", "Vote"])
def test_lists_with_a_dynamic_length_combine_to_one(combine: str) -> None:
    other: Model = ({"image": ("BYTES", [])}, {"size": ("FP32", [-1])})
    steps = [detect(), detect(name="other", model=other, when="request.image != ''")]
    for of in (["detect.size", "other.size"], ["other.size", "detect.size"]):
        assert str(graph(steps, {"size": of}, combine={"size": combine}).outputs["size"]) == "FP32[-1]"


def step(name: str, *, item: bool = False, **parameters: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a step on the request's x, or on each item of it, and its model's metadata."""
    document = metadata(({"x": ("FP64", [2])}, {"y": ("FP64", [])}))
    document["inputs"][0]["parameters"] = parameters
    each = {"each": "request.x"} if item else {}
    return {"name": name, "service": name, "inputs": {"x": "request.x"}, **each}, document


@pytest.mark.parametrize(
    ("models", "kept"),
    [
        pytest.param([step("a", columns='["p", "q"]', nullable=True)], {"columns": '["p", "q"]', "nullable": True},
                     id="one step"),
        pytest.param([step("a", columns='["p", "q"]'), step("b", columns='["p", "q"]')], {"columns": '["p", "q"]'},
                     id="the same columns"),
        pytest.param([step("a", columns='["p", "q"]', nullable=True), step("b", columns='["q", "p"]')], {},
                     id="columns in another order"),
        pytest.param([step("a", nullable=True), step("b", columns='["q", "p"]', nullable=True)], {"nullable": True},
                     id="a step without names"),
        pytest.param([step("a", item=True, columns='["p", "q"]', nullable=True)], {"nullable": True}, id="items"),
    ],
)  # fmt: skip
def test_a_request_has_column_names_if_all_steps_agree(models: list[Any], kept: Any) -> None:
    steps = [each for each, _ in models]
    spec = msgspec.convert({"steps": steps, "outputs": {"y": [f"{steps[0]['name']}.y"]}}, GraphSpec)
    found = type_check(make_plan(spec), {each["name"]: document for each, document in models})
    [made] = graph_metadata(found, "g", frozenset({"g"}))["inputs"]
    assert made["parameters"] == {**kept, "batch_dim": 0}
