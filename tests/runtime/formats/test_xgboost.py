import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import xgboost

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench
from tests.runtime.formats.rounds import assert_answers_as

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((64, 4), dtype=np.float32)
KINDS = np.argmax(X[:, :3], axis=1)


def booster(objective: str, labels: Any, **more: Any) -> Any:
    parameters = {"objective": objective, "nthread": 1, "verbosity": 0, **more}
    return xgboost.train(parameters, xgboost.DMatrix(X, labels), num_boost_round=5)


@pytest.mark.parametrize("suffix", ["ubj", "json"])
@pytest.mark.parametrize(
    ("objective", "labels", "more"),
    [
        ("reg:squarederror", X[:, 0] * 2, {}),
        ("reg:squarederror", X[:, 0] * 2, {"booster": "gblinear"}),
        ("reg:squarederror", X[:, :2], {"multi_strategy": "multi_output_tree", "tree_method": "hist"}),
        ("binary:logistic", KINDS > 0, {}),
        ("multi:softprob", KINDS, {"num_class": 3}),
        ("multi:softmax", KINDS, {"num_class": 3}),
    ],
)
def test_a_booster_answers_as_it_predicts(
    tmp_path: Path, load: Load, objective: str, labels: Any, more: dict[str, Any], suffix: str
) -> None:
    made = booster(objective, labels, **more)
    made.save_model(tmp_path / f"model.{suffix}")

    model = load(tmp_path, max_batch_size=64)

    assert model.platform == "xgboost_booster"
    (x,) = model.signature.inputs
    assert (x.name, x.datatype, x.shape) == ("input-0", "FP32", (-1, 4))
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": made.predict(xgboost.DMatrix(X[:rows]))})


@pytest.mark.parametrize("classes", [2, 3])
def test_what_a_classifier_saved_gives_labels_and_probabilities_of_its_best_round(
    tmp_path: Path, load: Load, classes: int
) -> None:
    labels = np.minimum(KINDS, classes - 1)
    made = xgboost.XGBClassifier(n_estimators=60, learning_rate=1.0, early_stopping_rounds=2, n_jobs=1)
    made.fit(X[:40], labels[:40], eval_set=[(X[40:], RANDOM.permutation(labels[40:]))], verbose=False)
    assert made.best_iteration < made.get_booster().num_boosted_rounds() - 1
    made.save_model(tmp_path / "model.ubj")

    model = load(tmp_path / "model.ubj", max_batch_size=64)

    outputs = [(spec.name, spec.datatype, spec.shape) for spec in model.signature.outputs]
    assert outputs == [("output-0", "INT64", (-1,)), ("probabilities", "FP32", (-1, classes))]
    assert_answers_as(
        model,
        {"input-0": X},
        lambda rows: {"output-0": made.predict(X[:rows]), "probabilities": made.predict_proba(X[:rows])},
    )


def test_a_classifier_of_labels_alone_gives_labels(tmp_path: Path, load: Load) -> None:
    made = xgboost.XGBClassifier(objective="multi:softmax", n_estimators=5, n_jobs=1).fit(X, KINDS)
    made.save_model(tmp_path / "model.ubj")

    model = load(tmp_path, max_batch_size=64)

    assert [spec.name for spec in model.signature.outputs] == ["output-0"]
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": made.predict(X[:rows])})


def test_a_classifier_of_several_labels_a_row_gives_all_of_them(tmp_path: Path, load: Load) -> None:
    made = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(X, X[:, :2] > 0)
    made.save_model(tmp_path / "model.ubj")

    assert_answers_as(
        load(tmp_path, max_batch_size=64),
        {"input-0": X},
        lambda rows: {"output-0": made.predict(X[:rows]), "probabilities": made.predict_proba(X[:rows])},
    )


def test_columns_are_found_by_the_names_of_features_in_whatever_order(tmp_path: Path, load: Load) -> None:
    data = xgboost.DMatrix(X, X[:, 0] - X[:, 1], feature_names=list("abcd"))
    made = xgboost.train({"nthread": 1, "verbosity": 0}, data, num_boost_round=5)
    made.save_model(tmp_path / "model.ubj")
    columns = "".join(f'[[inputs]]\nname = "{name}"\ndatatype = "FP32"\nshape = [-1]\n' for name in "dbca")
    (tmp_path / "model.toml").write_text(columns)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({name: X[:8, index] for index, name in enumerate("abcd")}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(data)[:8])


def test_missing_numbers_are_nan(tmp_path: Path, load: Load) -> None:
    made = booster("reg:squarederror", X[:, 0])
    made.save_model(tmp_path / "model.ubj")
    holes = np.where(X > 0.5, np.nan, X).astype(np.float32)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({"input-0": holes[:8]}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(xgboost.DMatrix(holes[:8])))


def test_columns_that_are_declared_are_the_features(tmp_path: Path, load: Load) -> None:
    made = booster("reg:squarederror", X[:, 0])
    made.save_model(tmp_path / "model.ubj")
    columns = "".join(f'[[inputs]]\nname = "{name}"\ndatatype = "FP32"\nshape = [-1]\n' for name in "abcd")
    (tmp_path / "model.toml").write_text(columns)

    with Bench.around(load(tmp_path)) as bench:
        answer = bench.run({name: X[:8, index] for index, name in enumerate("abcd")}).outputs["output-0"]

    np.testing.assert_array_equal(answer, made.predict(xgboost.DMatrix(X[:8])))


@pytest.mark.parametrize("content", [b"", b"{", b'{"learner": {}}', b"{L\0\0\0\0\0\0\0\x07learner{"], ids=range(4))
def test_a_broken_file_is_refused(tmp_path: Path, load: Load, content: bytes) -> None:
    (tmp_path / "model.ubj").write_bytes(content)

    with pytest.raises(LoadError, match=r"model\.ubj is not a readable XGBoost model: "):
        load(tmp_path)


@pytest.mark.parametrize("part", [20, 4, 2])
def test_half_a_file_is_refused(tmp_path: Path, load: Load, part: int) -> None:
    booster("reg:squarederror", X[:, 0]).save_model(tmp_path / "model.ubj")
    whole = (tmp_path / "model.ubj").read_bytes()
    (tmp_path / "model.ubj").write_bytes(whole[: len(whole) // part])

    with pytest.raises(LoadError, match=r"model\.ubj is not a readable XGBoost model: it ends too soon"):
        load(tmp_path)


def test_it_uses_the_threads_that_the_runtime_may(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    booster("reg:squarederror", X[:, 0]).save_model(tmp_path / "model.ubj")
    made: list[Any] = []

    class Kept(xgboost.Booster):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

    monkeypatch.setattr(xgboost, "Booster", Kept)
    load(tmp_path, threads=3)

    assert json.loads(made[0].save_config())["learner"]["generic_param"]["nthread"] == "3"
