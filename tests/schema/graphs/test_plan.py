"""Plans of graphs: the order of steps, their rows, and errors regardless of the models."""

from typing import Any

import msgspec
import pytest

from shoal_schema.decoding import SpecError, decode
from shoal_schema.graphs.errors import GraphError, GraphFault
from shoal_schema.graphs.plan import make_plan
from shoal_schema.resource.graph import GraphSpec


def step(name: str, *, inputs: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """Return a step with the input ``x``."""
    return {"name": name, "service": name.replace("_", "-"), "inputs": inputs or {"x": "request.x"}, **more}


def graph(*steps: dict[str, Any], outputs: dict[str, list[str]] | None = None, **more: Any) -> GraphSpec:
    """Return a graph whose output is the first step's ``y``."""
    last = steps[0]["name"]
    return msgspec.convert({"steps": steps, "outputs": outputs or {"y": [f"{last}.y"]}, **more}, GraphSpec)


def test_steps_run_after_the_steps_they_need() -> None:
    spec = graph(
        step("last", inputs={"x": "by_each.y"}),
        step("by_each", each="source.items", inputs={"x": "source.items"}, count="counter.n"),
        step("by_when", when="source.score > 0"),
        step("counter"),
        step("source"),
    )
    assert [each.name for each in make_plan(spec).steps] == ["counter", "source", "by_each", "by_when", "last"]


def test_steps_with_the_same_each_share_rows_and_a_nested_each_has_its_own() -> None:
    plan = make_plan(
        graph(
            step("detect"),
            step("fast", each="detect.crops", inputs={"x": "detect.crops"}),
            step("precise", each="detect.crops, detect.scores", inputs={"x": "detect.crops"}),
            step("letters", each="fast.parts", inputs={"x": "fast.parts"}),
            step("whole", inputs={"x": "letters.y"}),
        )
    )
    spaces = {each.name: each.space for each in plan.steps}
    assert spaces["fast"] == spaces["precise"] == ("detect.crops",)
    assert spaces["letters"] == ("detect.crops", "fast.parts")
    assert spaces["detect"] == spaces["whole"] == ()


@pytest.mark.parametrize(
    ("more", "absent"),
    [
        ({}, False),
        ({"when": "first.y > 0"}, True),
        ({"onError": "Omit"}, True),
        ({"inputs": {"x": "maybe.y"}}, True),
        ({"each": "maybe.items", "inputs": {"x": "maybe.items"}}, False),
    ],
)
def test_a_row_may_be_without_omitted_outputs_and_those_derived_from_them(more: Any, absent: bool) -> None:
    plan = make_plan(graph(step("first"), step("maybe", when="first.y < 3"), step("then", **more)))
    assert {each.name: each.absent for each in plan.steps}["then"] is absent


@pytest.mark.parametrize(
    ("spec", "path", "fragment", "fault"),
    [
        (graph(step("a"), step("a")), "steps[1].name", "steps[0] has the same name", GraphFault.INVALID),
        (graph(step("a"), step("class")), "steps[1].name", "'class' is a keyword", GraphFault.INVALID),
        (graph(step("request")), "steps[0].name", "give the step another name", GraphFault.INVALID),
        (
            graph(step("a", inputs={"x": "b.y"})),
            "steps[0].inputs.x",
            "known are request, a",
            GraphFault.INVALID,
        ),
        (graph(step("a", inputs={"x": "a.y"})), "steps[0]", "a → a", GraphFault.CYCLE),
        (
            graph(step("z"), step("a", inputs={"x": "c.y"}), step("b", when="a.y > 0"), step("c", each="b.items")),
            "steps[1]",
            "a → c → b → a",
            GraphFault.CYCLE,
        ),
        (graph(step("a", when="a.y >")), "steps[0].when", "is not an expression", GraphFault.INVALID),
        (graph(step("a", when="y > 0")), "steps[0].when", "request.y or STEP.y", GraphFault.INVALID),
        (graph(step("a", when="open('x')")), "steps[0].when", "cannot hold", GraphFault.INVALID),
        (graph(step("a", when="not " * 60 + "request.x")), "steps[0].when", "deeper than 50", GraphFault.INVALID),
        (graph(step("a", when="b.y > 0")), "steps[0].when", "'b.y' names an unknown step", GraphFault.INVALID),
        (graph(step("a", each="b.y")), "steps[0].each", "'b.y' names an unknown step", GraphFault.INVALID),
        (graph(step("a"), step("b", each="a.y, request.z")), "steps[1].each", "of the same step", GraphFault.INVALID),
        (graph(step("a", count="request.n")), "steps[0].count", "requires each", GraphFault.INVALID),
        (
            graph(step("a"), step("b", each="a.y", count="a.n"), step("c", each="a.y")),
            "steps[2].count",
            "b has another count",
            GraphFault.INVALID,
        ),
        (
            graph(step("a"), step("b", each="a.y"), step("c", each="a.y", count="b.n")),
            "steps[2].count",
            "one value for each list of a.y",
            GraphFault.INVALID,
        ),
        (graph(step("a"), outputs={"y": ["b.y"]}), "outputs.y", "'b.y' names an unknown step", GraphFault.INVALID),
        (
            graph(step("a"), step("b", each="a.p"), step("c", each="a.q"), outputs={"y": ["b.y", "c.y"]}),
            "outputs.y",
            "rows are unrelated",
            GraphFault.INVALID,
        ),
        (graph(step("a"), outputs={"true": ["a.y"]}), "outputs.true", "quote the name", GraphFault.INVALID),
        (
            graph(step("a", inputs={"false": "request.x"})),
            "steps[0].inputs.false",
            "quote the name",
            GraphFault.INVALID,
        ),
        (graph(step("a"), combine={"z": "Mean"}), "combine", "must name outputs", GraphFault.INVALID),
        (
            graph({"name": "a", "graph": "mine", "inputs": {"x": "request.x"}}),
            "steps[0].graph",
            "calls itself (mine)",
            GraphFault.CYCLE,
        ),
    ],
)
def test_an_invalid_graph_is_an_error_with_the_path(
    spec: GraphSpec, path: str, fragment: str, fault: GraphFault
) -> None:
    with pytest.raises(GraphError) as raised:
        make_plan(spec, "mine")
    assert raised.value.path == path
    assert fragment in raised.value.what
    assert raised.value.fault is fault


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"url": "http://m/v2/models/m"}, "exactly one of service, graph and url"),
        ({"service": None}, "exactly one of service, graph and url"),
        ({"name": "Not-One"}, "g.steps[0].name must match"),
        ({"inputs": {"x": "request"}}, "must match"),
        ({"inputs": {"x": "request.x y"}}, "must match"),
        ({"each": "request.x,, request.y"}, "g.steps[0].each must match"),
        ({"service": None, "url": "http://user:key@m/v2/models/m"}, "g.steps[0].url must match"),
        ({"service": None, "url": "ftp://m/v2/models/m"}, "g.steps[0].url must match"),
        ({"service": None, "url": "http://m:8o/v2/models/m"}, "g.steps[0].url must match"),
        ({"service": None, "url": "http://[::1/v2/models/m"}, "g.steps[0].url must match"),
        ({"inputs": {5: "request.x"}}, "g.steps[0].inputs: every name must be of type str"),
        ({"service": None, "url": "http://m/v2/models/m?x=1"}, "g.steps[0].url must match"),
        ({"onError": "Ignore"}, "g.steps[0].onError must be one of Fail, Omit"),
        ({"onerror": "Omit"}, "did you mean onError?"),
    ],
)
def test_an_invalid_step_is_an_error_with_the_field(change: dict[str, Any], fragment: str) -> None:
    with pytest.raises(SpecError) as raised:
        decode(GraphSpec, {"steps": [{**step("a"), **change}], "outputs": {"y": ["a.y"]}}, "g")
    assert fragment in str(raised.value)
