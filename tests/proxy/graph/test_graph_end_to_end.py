"""A graph as its callers meet it: real sockets, fake models."""

from typing import Any

import numpy as np

from tests import plain
from tests.calls import v2_body
from tests.fakes import FakeRuntime, tensor
from tests.graphs import RunningGraph, running_graph

Array = np.ndarray[Any, Any]
ROWS = [tensor("x", "FP32", [-1, 4])]
CHAIN = {
    "steps": [
        {"name": "first", "inputs": {"x": "request.x"}},
        {"name": "second", "inputs": {"x": "first.y"}},
    ],
    "outputs": {"y": ["second.y"]},
}


def model(**given: Any) -> FakeRuntime:
    """Return a model that doubles rows of four floats, or another one."""
    return FakeRuntime(**given)


def ask(running: RunningGraph, rows: list[list[float]], **more: Any) -> Any:
    """Ask with V2's JSON."""
    return plain.post(running.infer_url, json=v2_body(rows), timeout=20, **more)


def test_a_chain_takes_each_row_from_model_to_model() -> None:
    with running_graph({"first": model(), "second": model()}, CHAIN) as running:
        answer = ask(running, [[1, 2, 3, 4], [5, 6, 7, 8]])
        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["outputs"]
        assert (output["name"], output["shape"]) == ("y", [2, 4])
        assert output["data"] == [4, 8, 12, 16, 20, 24, 28, 32]
        described = plain.get(f"{running.url}/v2/models/graph").json()
        assert [each["name"] for each in described["inputs"]] == ["x"]
        assert described["platform"] == "shoal_graph"
        timing = answer.headers["server-timing"]
        assert "first;dur=" in timing
        assert "second;dur=" in timing
