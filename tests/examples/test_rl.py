from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.runtime.conftest import load  # noqa: F401 (a fixture)
from tests.runtime.fakes import Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model


@pytest.mark.filterwarnings("ignore::DeprecationWarning:gymnasium", "ignore::UserWarning")
def test_an_exported_policy_decides_as_the_original_at_every_batch_size(
    tmp_path: Path,
    load: Callable[..., "Model"],  # noqa: F811
) -> None:
    pytest.importorskip("stable_baselines3")
    from examples.rl.train import export, train

    trained = train(256)
    export(trained.policy, tmp_path / "policy.pt2")
    seen = np.random.default_rng(3).uniform(-2, 2, (64, 4)).astype(np.float32)
    expected, _ = trained.predict(seen, deterministic=True)

    with Bench.around(load(tmp_path / "policy.pt2", max_batch_size=64)) as bench:
        for size in (1, 2, 7, 64):
            answers = bench.run({"observation": seen[:size]}).outputs
            assert answers["action"].tolist() == expected[:size].tolist()
            np.testing.assert_allclose(answers["probability"].sum(1), 1, atol=1e-6)
    assert set(expected.tolist()) == {0, 1}
