from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np
import pytest

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench
from tests.runtime.formats.rounds import assert_answers_as

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
X = np.random.default_rng(3).standard_normal((64, 4))
KINDS = np.argmax(X[:, :3], axis=1)


def booster(objective: str, labels: Any, **more: Any) -> Any:
    parameters = {"objective": objective, "min_data_in_leaf": 2, "num_threads": 1, "verbose": -1, **more}
    return lightgbm.train(parameters, lightgbm.Dataset(X, labels), num_boost_round=5)


@pytest.mark.parametrize("suffix", ["lgb", "txt", "bst"])
@pytest.mark.parametrize(
    ("objective", "labels", "more"),
    [("regression", X[:, 0] * 2, {}), ("binary", KINDS > 0, {}), ("multiclass", KINDS, {"num_class": 3})],
)
def test_a_booster_answers_as_it_predicts(
    tmp_path: Path, load: Load, objective: str, labels: Any, more: dict[str, Any], suffix: str
) -> None:
    made = booster(objective, labels, **more)
    made.save_model(tmp_path / f"model.{suffix}")

    model = load(tmp_path, max_batch_size=64)

    assert model.platform == "lightgbm_booster"
    (x,) = model.signature.inputs
    assert (x.name, x.datatype, x.shape) == ("input-0", "FP64", (-1, 4))
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": made.predict(X[:rows])}, tolerance=0)


def test_columns_are_found_by_the_names_of_features_in_whatever_order(tmp_path: Path, load: Load) -> None:
    data = lightgbm.Dataset(X, X[:, 0] - X[:, 1], feature_name=list("abcd"))
    made = lightgbm.train({"min_data_in_leaf": 2, "num_threads": 1, "verbose": -1}, data, num_boost_round=5)
    made.save_model(tmp_path / "model.lgb")
    columns = "".join(f'[[inputs]]\nname = "{name}"\ndatatype = "FP64"\nshape = [-1]\n' for name in "dbca")
    (tmp_path / "model.toml").write_text(columns)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({name: X[:8, index] for index, name in enumerate("abcd")}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(X[:8]))


@pytest.mark.parametrize("part", [20, 4, 2])
def test_half_a_file_is_refused(tmp_path: Path, load: Load, part: int) -> None:
    booster("regression", X[:, 0]).save_model(tmp_path / "model.txt")
    whole = (tmp_path / "model.txt").read_bytes()
    (tmp_path / "model.txt").write_bytes(whole[: len(whole) // part])

    with pytest.raises(LoadError, match=r"model\.txt is not a readable LightGBM model: it ends before its trees do"):
        load(tmp_path)


def test_a_broken_file_is_refused(tmp_path: Path, load: Load) -> None:
    (tmp_path / "model.txt").write_text("tree\nversion=v4\nend of trees\n")

    with pytest.raises(LoadError, match=r"model\.txt is not a readable LightGBM model: "):
        load(tmp_path)


def test_a_text_of_another_kind_is_no_model(tmp_path: Path, load: Load) -> None:
    (tmp_path / "notes.txt").write_text("a tree\n")

    with pytest.raises(LoadError, match=r"holds no \.pt2"):
        load(tmp_path)


def test_it_uses_the_threads_that_the_runtime_may(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    booster("regression", X[:, 0]).save_model(tmp_path / "model.txt")
    asked: list[Any] = []

    class Asked(lightgbm.Booster):
        def predict(self, *given: Any, **more: Any) -> Any:
            asked.append(more["num_threads"])
            return super().predict(*given, **more)

    monkeypatch.setattr(lightgbm, "Booster", Asked)
    load(tmp_path, threads=3)

    assert set(asked) == {3}
