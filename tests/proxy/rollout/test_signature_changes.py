"""The difference between a candidate's signature and the stable one's, in a sentence."""

from typing import Any

import pytest

from shoal_proxy.rollout.signatures import MAX_CLAUSE, input_change, output_change
from tests.fakes import tensor
from tests.proxy.signatures import DOUBLED, FLOATS, signature

STABLE = signature()


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([FLOATS], ""),
        ([tensor("x", "FP32", [-1, 4], content_type="x"), tensor("mask", "FP32", [-1, 4], optional=True)], ""),
        ([tensor("z", "FP32", [-1, 4])], "has no `x`; requires `z`"),
        ([tensor("x", "FP64", [-1, 4])], "`x` as FP64, not FP32"),
        ([tensor("x", "FP32", [-1, 5])], "`x` with shape [-1, 5], not [-1, 4]"),
        ([tensor("x", "FP32", [-1, 4, 1])], "shape"),
        ([FLOATS, tensor("z", "INT64", [-1])], "requires `z`"),
        ([tensor("x", "FP32", [4])], "no batch dimension"),
    ],
)
def test_a_difference_of_inputs_is_named(inputs: list[Any], said: str) -> None:
    found = input_change(STABLE, signature(inputs))
    assert said in found
    assert bool(found) == bool(said)


def test_an_input_that_becomes_required_is_a_difference() -> None:
    before = signature([FLOATS, tensor("z", "FP32", [-1], optional=True)])
    assert "optional" in input_change(before, signature([FLOATS, tensor("z", "FP32", [-1])]))


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([DOUBLED], ""),
        ([tensor("y", "FP16", [-1, 4])], "`y` as FP16, not FP32"),
        ([DOUBLED, tensor("z", "FP32", [-1])], "also returns `z`"),
        ([tensor("z", "FP32", [-1, 4])], "has no `y`"),
        ([tensor("y", "FP32", [-1, -1])], "shape [-1, -1]"),
    ],
)
def test_a_difference_of_outputs_is_named(outputs: list[Any], said: str) -> None:
    found = output_change(STABLE, signature(outputs=outputs))
    assert said in found
    assert bool(found) == bool(said)


def test_a_clause_about_many_outputs_is_cut() -> None:
    many = [tensor(f"{number}{'n' * 99}", "FP32", [-1]) for number in range(99)]
    assert len(output_change(STABLE, signature(outputs=many))) == MAX_CLAUSE
