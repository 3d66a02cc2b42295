from collections.abc import Callable
from typing import Any

import torch

from shoal_runtime.execution.graph_cache import GraphCache, batch_form


class Recorded:
    def __init__(self) -> None:
        self.replayed: list[list[tuple[int, ...]]] = []

    def replay(self, tensors: list[torch.Tensor]) -> Any:
        self.replayed.append([tuple(t.shape) for t in tensors])
        return "replayed"


def test_a_captured_form_is_replayed_and_others_run_eagerly() -> None:
    graph = Recorded()
    cache = GraphCache(lambda function, batch: graph)
    cache.add(lambda batch: None, {"x": torch.ones(4, 2)})

    assert cache.run(lambda batch: "eager", {"x": torch.zeros(4, 2)}) == "replayed"
    assert graph.replayed == [[(4, 2)]]
    for other in (
        {"x": torch.ones(3, 2)},
        {"x": torch.ones(4, 2, dtype=torch.float64)},
        {"y": torch.ones(4, 2)},
        torch.ones(4, 2),
        ["text"],
        {},
    ):
        assert cache.run(lambda batch: "eager", other) == "eager"


def test_a_form_is_captured_once() -> None:
    captured: list[Any] = []

    def capture(function: Callable[[Any], Any], batch: Any) -> Recorded:
        captured.append(batch)
        return Recorded()

    cache = GraphCache(capture)
    for _ in range(2):
        cache.add(lambda batch: None, torch.ones(2))
    cache.add(lambda batch: None, ["text"])

    assert len(captured) == 1


def test_a_model_that_cannot_be_captured_runs_eagerly_and_is_not_captured_again() -> None:
    asked: list[Any] = []

    def capture(function: Callable[[Any], Any], batch: Any) -> Recorded | None:
        asked.append(batch)
        return Recorded() if len(asked) == 1 else None

    cache = GraphCache(capture)
    for rows in (3, 2, 1):
        cache.add(lambda batch: None, torch.ones(rows))

    assert len(asked) == 2
    assert cache.run(lambda batch: "eager", torch.ones(3)) == "eager"


def test_only_tensors_have_a_form() -> None:
    assert batch_form([torch.ones(1), "a"]) is None
    assert batch_form({}) is None
    assert batch_form({"a": torch.ones(1)}) != batch_form({"b": torch.ones(1)})
