from collections.abc import Callable

import torch

from examples.mlp.model.handler import Mlp
from shoal_runtime import Context


def loaded(context: Context) -> Mlp:
    mlp = Mlp()
    mlp.load(context)
    return mlp


def test_two_starts_give_the_same_answers(context_of: Callable[..., Context]) -> None:
    x = torch.linspace(-1, 1, 32).reshape(2, 16)

    with torch.inference_mode():
        first, second = (loaded(context_of("mlp")).forward({"x": x}) for _ in range(2))

    assert torch.equal(first, second)
    assert first.shape == (2, 16)
    assert first.std() > 0


def test_loading_leaves_the_global_generator_alone(context_of: Callable[..., Context]) -> None:
    before = torch.get_rng_state()

    loaded(context_of("mlp"))

    assert torch.equal(before, torch.get_rng_state())
