"""Whether models fit one another, and what the graph takes and gives."""

from typing import Any

import msgspec
import pytest

from shoal_schema.graphs.faults import Fault, GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.graphs.types import Typed, graph_metadata, typed
from shoal_schema.resource.graph import GraphSpec

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


def graph(steps: list[dict[str, Any]], outputs: dict[str, list[str]], **more: Any) -> Typed:
    """Return a graph of steps, each with its ``model``."""
    models = {each["name"]: each.pop("model") for each in [dict(step) for step in steps]}
    written = [{"service": "s", **{k: v for k, v in step.items() if k != "model"}} for step in steps]
    spec = msgspec.convert({"steps": written, "outputs": outputs, **more}, GraphSpec)
    return typed(make_plan(spec), {name: metadata(model) for name, model in models.items()})


def detect(**more: Any) -> dict[str, Any]:
    """Return the step that finds items."""
    return {"name": "detect", "model": DETECT, "inputs": {"image": "request.image"}, **more}


def classify(**more: Any) -> dict[str, Any]:
    """Return a step that is asked about each of them."""
    given = {"name": "c", "model": CLASSIFY, "each": "detect.crops", "inputs": {"crop": "detect.crops"}}
    return {**given, **more}


def test_a_graph_takes_what_its_steps_take_and_gives_lists_of_what_items_give() -> None:
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


def test_items_of_what_the_caller_sends_make_it_send_lists() -> None:
    step = classify(each="request.pictures", inputs={"crop": "request.pictures"})
    found = graph([step], {"label": ["c.label"]})
    assert str(found.request["pictures"]) == "BYTES[-1]"


def test_smaller_floats_may_be_given_where_wider_ones_are_taken() -> None:
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
def test_what_several_become(combine: str, of: list[str], given: str) -> None:
    steps = [{"name": name, "model": CLASSIFY, "inputs": {"crop": "request.x"}} for name in ("c", "d")]
    found = graph(steps, {"y": of}, combine={"y": combine})
    assert str(found.outputs["y"]) == given


@pytest.mark.parametrize(
    ("steps", "outputs", "combine", "path", "said"),
    [
        ([detect(inputs={"picture": "request.x"})], {"y": ["detect.n"]}, {}, "steps[0].inputs.picture", "takes image"),
        ([detect(), classify(inputs={"crop": "detect.pieces"})], {"y": ["c.label"]}, {}, "steps[1].inputs.crop",
         "gives crops, scores, n, size"),
        ([detect(), classify(inputs={"crop": "detect.scores"})], {"y": ["c.label"]}, {}, "steps[1].inputs.crop",
         "c takes BYTES in each row, and detect.scores is FP32[-1]"),
        ([detect(), classify(each="detect.n", inputs={"crop": "request.image"})], {"y": ["c.label"]}, {},
         "steps[1].each", "detect.n is INT64"),
        ([detect(), classify(count="detect.size")], {"y": ["c.label"]}, {}, "steps[1].count", "one whole number"),
        ([detect(), classify(when="detect.scores > 0")], {"y": ["c.label"]}, {}, "steps[1].when", "one value"),
        ([detect(), classify(when="detect.n > 'a'")], {"y": ["c.label"]}, {}, "steps[1].when", "with a text"),
        ([detect(), classify(when="detect.n")], {"y": ["c.label"]}, {}, "steps[1].when", "compare it with something"),
        ([detect(), classify(when="detect.n in [1, 'a']")], {"y": ["c.label"]}, {}, "steps[1].when", "with a text"),
        ([detect(), classify(when="not (detect.n == true)")], {"y": ["c.label"]}, {}, "steps[1].when", "truth value"),
        ([detect(), classify(when="detect.x == null")], {"y": ["c.label"]}, {}, "steps[1].when", "gives no 'x'"),
        ([detect(), classify(when="detect.n > detect.size")], {"y": ["c.label"]}, {}, "steps[1].when", "one value"),
        ([detect()], {"y": ["request.other"]}, {}, "outputs.y", "no step takes it"),
        ([detect(), classify(when="detect.n > 0")], {"y": ["c.id"]}, {}, "outputs.y", "no value that says so"),
        ([detect(), classify(onError="Omit"), {"name": "w", "model": WIDE, "inputs": {"x": "c.id"}}],
         {"y": ["w.y"]}, {}, "steps[2].inputs.x", "has gaps, and INT64 has no value for one"),
        ([detect(onError="Omit"), classify()], {"y": ["c.id"]}, {}, "outputs.y",
         "without detect.crops, and so without a list of what is made of its items: INT64 has no value that says so"),
        ([detect(), classify()], {"y": ["c.label", "detect.crops"]}, {}, "outputs.y",
         "BYTES and BYTES[-1] cannot become one by First, for each item of detect.crops"),
        ([detect(), {"name": "w", "model": WIDE, "inputs": {"x": "detect.size"}}], {"y": ["w.y"]}, {},
         "steps[1].inputs.x", "w takes FP64[8] in each row, and detect.size is FP32[2]"),
        ([detect(), {"name": "w", "model": WIDE, "inputs": {"x": "request.image"}}], {"y": ["w.y"]}, {},
         "steps[1].inputs.x", "w takes request.image as FP64[8], another step as BYTES"),
        ([detect()], {"y": ["detect.n", "detect.size"]}, {}, "outputs.y", "cannot become one by First"),
        ([detect()], {"y": ["detect.n", "detect.n"]}, {"y": "Mean"}, "outputs.y", "Mean is of FP16"),
        ([detect()], {"y": ["detect.crops", "detect.crops"]}, {"y": "Max"}, "outputs.y", "Max is of numbers"),
        ([detect()], {"y": ["detect.n", "detect.n"]}, {"y": "Concat"}, "outputs.y", "use Stack"),
        ([{"name": "c", "model": ({"a": ("FP32", []), "b": ("FP32", [])}, {"y": ("FP32", [])}),
           "inputs": {"a": "request.a"}}], {"y": ["c.y"]}, {}, "steps[0].inputs", "c takes b, too"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_with_its_path(
    steps: list[dict[str, Any]], outputs: dict[str, list[str]], combine: dict[str, str], path: str, said: str
) -> None:
    with pytest.raises(GraphError) as raised:
        graph(steps, outputs, combine=combine)
    assert raised.value.path == path
    assert said in raised.value.what
    assert raised.value.fault is Fault.MISMATCH


@pytest.mark.parametrize(
    ("document", "said", "fault"),
    [
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}], "outputs": []}, "no batch dim", Fault.MISMATCH),
        ({"inputs": [{"name": "x", "datatype": "COMPLEX", "shape": [-1]}], "outputs": []}, "unusable", Fault.MISMATCH),
        ({"inputs": [{"name": "x"}], "outputs": []}, "unusable", Fault.MISMATCH),
        ({"inputs": "x", "outputs": None}, "unusable", Fault.MISMATCH),
        ({}, "unusable", Fault.MISMATCH),
        (metadata(WIDE, graphs="inner,mine"), "calls mine, which calls it", Fault.CYCLE),
    ],
)
def test_models_that_a_graph_cannot_work_with(document: Any, said: str, fault: Fault) -> None:
    spec = {"steps": [{"name": "a", "service": "s", "inputs": {"x": "request.x"}}], "outputs": {"y": ["a.y"]}}
    with pytest.raises(GraphError) as raised:
        typed(make_plan(msgspec.convert(spec, GraphSpec)), {"a": document}, "mine")
    assert raised.value.path == "steps[0]"
    assert said in raised.value.what
    assert raised.value.fault is fault


def test_inputs_that_a_model_does_not_need_may_be_left_out() -> None:
    document = metadata(({"x": ("FP32", []), "mask": ("FP32", []), "h": ("BYTES", []), "o": ("FP32", [])}, WIDE[1]))
    document["inputs"][0]["parameters"] = {"pad_mask": "mask"}
    document["inputs"][2]["parameters"] = {"carries": "request_headers"}
    document["inputs"][3]["parameters"] = {"optional": True, "content_type": "text/plain"}
    spec = {
        "steps": [{"name": "a", "service": "s", "inputs": {"x": "request.x"}}],
        "outputs": {"y": ["a.y"]},
    }
    found = typed(make_plan(msgspec.convert(spec, GraphSpec)), {"a": document})
    assert graph_metadata(found, "g", frozenset({"g"}))["inputs"][0]["parameters"] == {"batch_dim": 0}


@pytest.mark.parametrize("combine", ["First", "Mean", "Max", "Vote"])
def test_of_lists_of_which_one_has_any_length_the_answer_has_any(combine: str) -> None:
    other: Model = ({"image": ("BYTES", [])}, {"size": ("FP32", [-1])})
    steps = [detect(), detect(name="other", model=other, when="request.image != ''")]
    for of in (["detect.size", "other.size"], ["other.size", "detect.size"]):
        assert str(graph(steps, {"size": of}, combine={"size": combine}).outputs["size"]) == "FP32[-1]"


def step(name: str, *, item: bool = False, **parameters: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a step that takes the request's x, or each item of it, and the metadata of its model."""
    told = metadata(({"x": ("FP64", [2])}, {"y": ("FP64", [])}))
    told["inputs"][0]["parameters"] = parameters
    each = {"each": "request.x"} if item else {}
    return {"name": name, "service": name, "inputs": {"x": "request.x"}, **each}, told


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
def test_columns_of_a_request_have_names_where_all_steps_have_the_same(models: list[Any], kept: Any) -> None:
    steps = [each for each, _ in models]
    spec = msgspec.convert({"steps": steps, "outputs": {"y": [f"{steps[0]['name']}.y"]}}, GraphSpec)
    found = typed(make_plan(spec), {each["name"]: told for each, told in models})
    [made] = graph_metadata(found, "g", frozenset({"g"}))["inputs"]
    assert made["parameters"] == {**kept, "batch_dim": 0}
