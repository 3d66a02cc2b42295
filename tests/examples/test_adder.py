import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from examples.adder.model.handler import Adder, sleep_until
from shoal_runtime import Context


def loaded(context: Context) -> Adder:
    adder = Adder()
    adder.load(context)
    return adder


def test_it_adds_one(context_of: Callable[..., Context]) -> None:
    adder = loaded(context_of("adder"))

    y = adder.forward({"x": torch.zeros(3, 16)})

    assert torch.equal(y, torch.ones(3, 16))


def test_a_batch_lasts_its_base_and_its_rows(context_of: Callable[..., Context]) -> None:
    adder = loaded(context_of("adder", baseMicroseconds=2000, perRowMicroseconds=500))
    started_s = time.monotonic()

    adder.forward({"x": torch.zeros(4, 16)})

    elapsed_s = time.monotonic() - started_s
    assert 0.004 <= elapsed_s < 0.5  # the upper bound is for a machine that is busy elsewhere


def test_a_deadline_that_has_passed_is_not_slept() -> None:
    now_s = time.monotonic()

    sleep_until(now_s - 3600)

    assert time.monotonic() - now_s < 1


@pytest.mark.parametrize("value", [-1, "4000", True, float("nan"), float("inf"), 60_000_001, None])
def test_a_cost_that_is_no_time_is_refused_by_name(value: Any, context_of: Callable[..., Context]) -> None:
    with pytest.raises(ValueError, match=r"perRowMicroseconds must be .* 0 to 60000000"):
        loaded(context_of("adder", perRowMicroseconds=value))
