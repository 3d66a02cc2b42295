"""A file with a graph and the models of its steps."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from shoal.graph_file import graphs_in, main_graph
from shoal.serving.errors import FieldError
from shoal.serving.fields import to_environment
from shoal.targets import plan_services
from shoal_schema.resource import API_VERSION

STEP = {"name": "first", "service": "one", "inputs": {"x": "request.x"}}


def graph(name: str = "chain", *steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a graph's document."""
    spec = {"steps": list(steps) or [STEP], "outputs": {"z": [f"{(steps or (STEP,))[0]['name']}.z"]}}
    made = {"apiVersion": API_VERSION, "kind": "InferenceGraph", "metadata": {"name": name}, "spec": spec}
    return {**made, **changes}


def service(name: str = "one", uri: str = "model") -> dict[str, Any]:
    """Return a service's document."""
    spec = {"model": {"uri": uri}}
    return {"apiVersion": API_VERSION, "kind": "InferenceService", "metadata": {"name": name}, "spec": spec}


def written(folder: Path, *documents: Any) -> str:
    """Write a file of documents, and a model beside it."""
    (folder / "model").mkdir(exist_ok=True)
    file = folder / "graph.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


def test_a_graph_comes_after_those_that_it_calls_and_steps_are_found_by_their_sockets(tmp_path: Path) -> None:
    outer = graph("outer", {"name": "inner", "graph": "chain", "inputs": {"x": "request.x"}})
    file = written(tmp_path, outer, graph(), service())

    found = graphs_in(file)
    assert [each.name for each in found] == ["chain", "outer"]
    document = msgspec.json.decode(found[1].environment({"chain": "/run/2/proxy.sock"})["SHOAL_PROXY_GRAPH"])
    assert document["steps"][0]["url"] == "unix:/run/2/proxy.sock/v2/models/chain"
    (plan,) = plan_services(file, [])
    assert (plan.name, plan.fields["model.uri"]) == ("one", str(tmp_path / "model"))


def test_what_is_no_file_with_a_graph_has_none(tmp_path: Path) -> None:
    assert graphs_in(written(tmp_path, service())) == []
    assert graphs_in(str(tmp_path)) == []
    assert graphs_in("https://models.example.com/cat.zip") == []


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([graph()], "chain has a step of service one"),
        ([graph(apiVersion="v9")], "apiVersion must be"),
        ([graph(metadata={})], "metadata.name of the InferenceGraph must be letters"),
        ([graph("a/b\n")], "must be letters, digits, '.', '_' and '-', not 'a/b"),
        ([graph("one", STEP), service()], "one: spec.steps[0].service: "),
        ([graph(), service(), service("chain")], "both named chain"),
        ([graph(spec=None)], "spec.steps is required"),
        ([graph("chain", {**STEP, "inputs": {"x": "other.y"}}), service()], "chain: spec.steps: inputs must name"),
        ([graph("chain", {"name": "a", "graph": "b", "inputs": {"x": "request.x"}})], "graph b, which is not in"),
        (
            [
                graph("a", {"name": "s", "graph": "b", "inputs": {"x": "request.x"}}),
                graph("b", {"name": "s", "graph": "a", "inputs": {"x": "request.x"}}),
            ],
            "cycle: a, b",
        ),
    ],
)
def test_what_cannot_be_served_is_told_with_what_to_write(tmp_path: Path, documents: list[Any], said: str) -> None:
    with pytest.raises(FieldError) as raised:
        graphs_in(written(tmp_path, *documents))
    assert said in str(raised.value)


def test_a_setting_for_all_models_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="--set applies to one model"):
        plan_services(written(tmp_path, graph(), service()), ["batching.maxBatchSize=4"])


def test_what_a_graph_says_of_its_proxy_is_its_proxys(tmp_path: Path) -> None:
    (tmp_path / "g.yaml").write_text(
        "apiVersion: serving.shoal.dev/v1alpha1\nkind: InferenceGraph\nmetadata: {name: g}\nspec:\n"
        "  proxy: {forwardHeaders: [x-tenant]}\n  queue: {timeoutMilliseconds: 750}\n  scaling: {maxReplicas: 3}\n"
        "  steps: [{name: a, url: 'http://m:1/v2/models/m', inputs: {x: request.x}}]\n  outputs: {y: [a.y]}\n"
    )
    (graph,) = graphs_in(str(tmp_path / "g.yaml"))
    document = to_environment(graph.fields)
    assert document == {"SHOAL_PROXY_FORWARD_HEADERS": "x-tenant", "SHOAL_QUEUE_TIMEOUT_MS": "750"}
    assert graph.environment({})["SHOAL_PROXY_COMPOSER_DIR"] == str(tmp_path)


def test_the_main_graph_is_the_one_that_no_other_calls(tmp_path: Path) -> None:
    outer = graph("outer", {"name": "inner", "graph": "chain", "inputs": {"x": "request.x"}})
    assert main_graph(graphs_in(written(tmp_path, outer, graph(), service()))) == "outer"
    assert main_graph(graphs_in(written(tmp_path, graph("other"), graph(), service()))) == ""
    assert main_graph([]) == ""


def test_what_has_no_effect_on_one_machine_is_known(tmp_path: Path) -> None:
    document = graph()
    document["spec"] |= {
        "access": {"apiKeys": {"secretName": "keys"}},
        "replicas": 2,
        "scaling": {"maxReplicas": 2},
        "queue": {"maxRows": 8},
        "deadlineMilliseconds": 300,
    }
    (found,) = graphs_in(written(tmp_path, document, service()))
    assert set(found.ignored) == {"access.apiKeys.secretName", "replicas", "scaling.maxReplicas"}
    assert found.fields == {"queue.maxRows": 8}


def test_a_model_that_is_not_there_is_told_by_its_service(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"service one: there is no model at .*model.uri"):
        plan_services(written(tmp_path, graph(), service(uri="nowhere")), [])
