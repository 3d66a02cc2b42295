from pathlib import Path

import pytest
import yaml

from shoal_schema.decoding import parse_graph_spec, parse_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
WRITTEN = ["adder", "cat", "embed", "mlp"]
TRAINED = ["keras", "mlflow", "rl", "sklearn"]
NAMES = [*WRITTEN, *TRAINED]
GRAPHS = ["pipeline", "stacking"]


def test_every_example_is_checked_here() -> None:
    handlers = EXAMPLES.glob("*/model/handler.py")

    assert sorted(path.parts[-3] for path in handlers) == WRITTEN
    assert sorted(path.parts[-2] for path in EXAMPLES.glob("*/train.py")) == sorted([*TRAINED, "stacking"])
    graphs = [path.parent.name for path in EXAMPLES.glob("*/*.yaml") if "kind: InferenceGraph" in path.read_text()]
    assert sorted(graphs) == GRAPHS


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_stands_in_one_file_with_its_services(name: str) -> None:
    graph, *services = yaml.safe_load_all((EXAMPLES / name / f"{name}.yaml").read_text())

    parse_graph_spec(graph)
    for each in services:
        parse_spec(each)
    assert graph["metadata"] == {"name": name}
    assert {step["service"] for step in graph["spec"]["steps"]} == {each["metadata"]["name"] for each in services}


@pytest.mark.parametrize("name", [*NAMES, *GRAPHS])
def test_the_manifest_is_the_only_object_in_the_folder(name: str) -> None:
    # kubectl apply -f examples/NAME sends every yaml and json file that lies in it.
    objects = [p.name for p in (EXAMPLES / name).iterdir() if p.suffix in {".yaml", ".yml", ".json"}]

    assert objects == [f"{name}.yaml"]


@pytest.mark.parametrize("name", NAMES)
def test_the_manifest_names_the_service_after_its_folder(name: str) -> None:
    manifest = yaml.safe_load((EXAMPLES / name / f"{name}.yaml").read_text())

    assert manifest["apiVersion"] == "serving.shoal.dev/v1alpha1"
    assert manifest["kind"] == "InferenceService"
    assert manifest["metadata"] == {"name": name}
    assert manifest["spec"]["model"]["uri"] == f"file:///models/{name}"
    assert (EXAMPLES / name / ("train.py" if name in TRAINED else "model/handler.py")).is_file()


@pytest.mark.parametrize("name", [*NAMES, *GRAPHS])
def test_the_readme_has_five_lines_and_a_command_that_serves_it(name: str) -> None:
    text = (EXAMPLES / name / "README.md").read_text()

    assert len(text.splitlines()) == 5
    assert f"shoal serve examples/{name}" in text
