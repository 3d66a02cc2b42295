"""A graph that is built in Python is the one that is written by hand."""

import random
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import yaml

from shoal.graph import Graph, How
from shoal_schema.decoding import SpecError, parse_graph_spec
from shoal_schema.graphs.errors import GraphError
from shoal_schema.resource.graph import CombineRule

BY_HAND = """\
apiVersion: serving.shoal.dev/v1alpha1
kind: InferenceGraph
metadata: {name: pipeline}
spec:
  deadlineMilliseconds: 300
  steps:
  - {name: detect, service: detector, inputs: {image: request.image}}
  - {name: fast, service: small, each: detect.crops, inputs: {x: detect.crops}}
  - name: precise
    service: large
    each: detect.crops
    inputs: {x: detect.crops}
    when: (fast.probability < 0.8) and (not (fast.label in ['cat', 'dog']))
    onError: Omit
  outputs: {boxes: [detect.boxes], label: [precise.label, fast.label]}
"""


def test_a_built_graph_is_the_one_written_by_hand() -> None:
    graph = Graph("pipeline", deadline_ms=300)
    detect = graph.step("detect", service="detector", image=graph.request.image)
    fast = graph.step("fast", service="small", each=detect.crops, x=detect.crops)
    unsure = (fast.probability < 0.8) & ~fast.label.isin(["cat", "dog"])
    precise = graph.step("precise", service="large", each=detect.crops, x=detect.crops, when=unsure, on_error="Omit")
    graph.output(boxes=detect.boxes, label=[precise.label, fast.label])

    assert graph.to_dict() == yaml.safe_load(BY_HAND)
    assert yaml.safe_load(graph.to_yaml()) == graph.to_dict()


def test_a_graph_that_cannot_work_is_refused() -> None:
    graph = Graph("pipeline")
    first = graph.step("first", service="one", x=graph.request.x)
    graph.step("second", service="two", x=first.y, when=graph.request["nothing"] == first.y)
    graph.output(y=Graph("other").step("elsewhere", service="one", x=first.y).y)
    with pytest.raises(SpecError, match=r"spec\.outputs: "):
        graph.to_dict()


def test_a_condition_is_not_for_python_to_ask() -> None:
    with pytest.raises(TypeError, match="ombine conditions"):
        bool(Graph("pipeline").request.x < 1)


def test_names_that_python_or_yaml_take_for_something_else_stay_what_they_are() -> None:
    graph = Graph("odd")
    first = graph.step("first", service="one", inputs={"input:0": graph.request["text/x"]})
    graph.step("second", service="two", x=first["dense/y:0"], when=first["dense/y:0"] > np.float32(0.5))  # type: ignore[arg-type]
    graph.output(y=first["dense/y:0"])
    document = graph.to_dict()

    assert document["spec"]["steps"][1]["when"] == "first['dense/y:0'] > 0.5"
    assert yaml.safe_load(graph.to_yaml()) == document
    assert list(document["spec"]["outputs"]) == ["y"]


def test_what_is_wrong_with_a_step_is_told_by_its_name() -> None:
    graph = Graph("wrong")
    first = graph.step("first", service="one", x=graph.request.x)
    graph.step("second", graph="wrong", x=first.y)
    graph.output(z=first.y)
    with pytest.raises(GraphError, match=r"steps\[1\].graph: \(step 'second'\) the graph calls itself"):
        graph.to_dict()


def test_random_graphs_are_what_the_schema_reads() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        graph, known = Graph("g"), [Graph("g").request.x]
        for index in range(chance.randint(1, 6)):
            condition = chance.choice(known) < chance.random()
            when = chance.choice([None, condition, ~condition & (chance.choice(known) == "a")])
            each = chance.choice([None, chance.choice(known)])
            step = graph.step(f"s{index}", service=f"m{index}", x=chance.choice(known), when=when, each=each)
            known.append(step.y)
        graph.output(z=known[-1])
        document = graph.to_dict()
        assert yaml.safe_load(graph.to_yaml()) == document
        assert parse_graph_spec(document).steps[0].name == "s0"


SOURCE = """\
class Way:
    inputs = {"x": "FP32"}
    outputs = {"y": "FP32"}

    async def run(self, inputs, steps):
        return await steps.first(x=inputs["x"])
"""


def test_a_composer_of_a_file_stands_in_the_document(tmp_path: Path) -> None:
    (tmp_path / "way.py").write_text(SOURCE)
    graph = Graph("way", composer=tmp_path / "way.py")
    graph.step("first", service="small")
    text = graph.to_yaml()
    assert "    source: |\n      class Way:\n" in text
    document = yaml.safe_load(text)
    assert document["spec"] == {"steps": [{"name": "first", "service": "small"}], "composer": {"source": SOURCE}}
    assert parse_graph_spec(document).composer is not None


@pytest.mark.parametrize(
    "odd", ["\n", " x = 1\n", "x = 1", "x = 1 \n", "x = 1\n\n", "x = '\t'\n", "x = '\x85'\ny = 1\n"]
)
def test_a_source_comes_back_as_it_was(odd: str, tmp_path: Path) -> None:
    source = SOURCE + odd if odd[:1] != " " else "if True:\n" + odd + SOURCE
    (tmp_path / "way.py").write_bytes(source.encode())
    graph = Graph("way", composer=tmp_path / "way.py")
    graph.step("first", service="small")
    assert yaml.safe_load(graph.to_yaml())["spec"]["composer"]["source"] == source


def test_a_composer_of_an_image() -> None:
    graph = Graph("way", composer="ways:Way")
    graph.step("first", service="small")
    assert graph.to_dict()["spec"]["composer"] == {"importPath": "ways:Way"}


def test_what_is_no_tensor_and_no_condition_is_told() -> None:
    graph = Graph("g")
    with pytest.raises(TypeError, match="a: the input x must be a tensor"):
        graph.step("a", service="a", x="request.x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a: when must be a comparison"):
        graph.step("a", service="a", x=graph.request.x, when="a.x < 1")  # type: ignore[arg-type]
    first = graph.step("a", service="a", x=graph.request.x)
    for given in (first, [first.y, first], "a.y", None):
        with pytest.raises(TypeError, match=r"mood must be a tensor"):
            graph.output(mood=given)  # type: ignore[arg-type]


def test_what_a_document_has_and_python_has_not_is_told() -> None:
    graph = Graph("g")
    first = graph.step("a", service="a", x=graph.request.x)
    with pytest.raises(TypeError, match=r"the input onError must be .*count, when and on_error"):
        graph.step("b", service="b", x=first.y, onError="Omit")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="combine must be one word"):
        graph.output(mood=first.y, combine={"mood": "Vote"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="in parentheses"):
        bool(first.score < 0.8 & first.score > 0.2)  # type: ignore
    with pytest.raises(TypeError, match="in parentheses"):
        bool(first.score < 1 | first.score > 2)  # type: ignore


def test_the_words_of_the_document_are_those_of_python() -> None:
    assert get_args(How) == tuple(CombineRule)


@pytest.mark.parametrize("name", ["Moods Of Mine", "", "moods\n"])
def test_a_name_that_is_none_is_told(name: str) -> None:
    graph = Graph(name)
    graph.output(y=graph.step("a", service="a", x=graph.request.x).y)
    with pytest.raises(GraphError, match=r"metadata\.name: it must be letters, digits"):
        graph.to_dict()


def test_texts_and_numbers_are_written_as_they_are() -> None:
    graph = Graph("g")
    first = graph.step("first", service="a", x=graph.request.x)
    said = "\U0001f600\x85\u2028\\ud83d"
    both = (first.t == said) & (first.n == np.int64(9007199254740993))
    graph.step("second", service="a", x=first.y, when=both)
    graph.output(y=first.y)
    text = graph.to_yaml()
    assert yaml.safe_load(text) == graph.to_dict()
    assert "9007199254740993" in text
    assert parse_graph_spec(yaml.safe_load(text)).steps[1].when == both.text
