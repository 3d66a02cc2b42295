"""A thousand random graphs give what an evaluator gives that knows neither batches nor masks."""

import math
import random
from typing import Any

import numpy as np
import pytest

from shoal_schema.resource.graph import CombineRule
from tests.proxy.graph.naive import ABSENT, Failed, Naive, make, random_spec, run

SEEDS = range(1000)
_GRAPHS_EACH = 100


@pytest.mark.parametrize("first", SEEDS[::_GRAPHS_EACH])
def test_a_random_graph_gives_what_the_naive_evaluator_gives(first: int) -> None:
    seeds = iter(range(first * 1000, (first + _GRAPHS_EACH) * 1000))
    ran = answered = 0
    while ran < _GRAPHS_EACH:
        seed = next(seeds)
        chance = random.Random(seed)
        spec, models = random_spec(chance)
        graph = make(spec, models)
        if graph is None:
            continue
        ran += 1
        xs = [float(chance.randint(0, 22)) for _ in range(chance.randint(1, 6))]
        naive = Naive(graph.plan, models, xs)
        expected: list[Any] = []
        for row in range(len(xs)):
            try:
                expected.append(naive.outputs(row))
            except Failed as error:
                expected.append(error)
        found = run(graph, models, xs)
        answered += isinstance(found, dict)
        _check(found, expected, graph.plan, f"seed {seed}: {spec}")
    assert answered > _GRAPHS_EACH / 2  # or else little was compared


def _check(found: Any, expected: list[Any], plan: Any, what: str) -> None:
    failed = {row for row, answer in enumerate(expected) if isinstance(answer, Failed)}
    if failed:
        # The first step that fails ends the request: it names rows that fail, not those of all steps.
        assert isinstance(found, list), what
        assert {error.row for error in found} <= failed, what
        assert all(error.message.startswith("step s") for error in found), what
        return
    assert isinstance(found, dict), f"{what} {found!r}"
    for output in plan.outputs:
        for row, answer in enumerate(expected):
            _same(found[output.name][row], answer[output.name], f"{what} {output.name} row {row}")
        assert len(found[output.name]) == len(expected), what
        assert output.combine is CombineRule.STACK or found[output.name].dtype in (np.float32, object), what


def _same(found: Any, expected: Any, what: str) -> None:
    if isinstance(expected, list):
        for index, each in enumerate(expected):
            _same(found[index], each, what)
        for each in found[len(expected) :]:  # filled up
            for value in np.asarray(each).ravel():
                assert value == b"" or math.isnan(value), what
        return
    if expected is ABSENT or (isinstance(expected, float) and math.isnan(expected)):  # a gap
        assert all(value == b"" or math.isnan(value) for value in np.asarray(found).ravel()), f"{what} {found!r}"
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5), f"{what} {found!r} {expected!r}"
    else:
        assert found == expected, f"{what} {found!r} {expected!r}"
