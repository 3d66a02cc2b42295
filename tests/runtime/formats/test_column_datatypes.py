"""Datatypes of columns: numbers reach the library without rounding, and categories stay with their column."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import StackingRegressor, VotingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, TargetEncoder

from shoal_runtime.errors import LoadError
from tests.runtime.formats.test_columns import answers, saved

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
SECONDS = pd.DataFrame({"at": 1.7e9 + 10.0 * np.arange(64), "age": np.arange(64.0) % 7})
"""Numbers that single precision rounds to other values."""


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: make_pipeline(FunctionTransformer(_since), inner),
        lambda inner: VotingRegressor([("a", inner), ("b", LinearRegression())]),
        lambda inner: VotingRegressor([("b", LinearRegression()), ("a", inner)]),
        lambda inner: StackingRegressor([("a", inner), ("b", LinearRegression())], cv=2),
    ],
    ids=["function", "voting", "voting, turned around", "stacking"],
)
def test_functions_and_ensembles_get_exact_numbers(tmp_path: Path, load: Load, wrap: Callable[[Any], Any]) -> None:
    estimator = wrap(xgboost.XGBRegressor(n_estimators=20)).fit(SECONDS, np.arange(64.0))

    model = load(saved(tmp_path, estimator), allow_pickle=True, max_batch_size=64)

    np.testing.assert_allclose(answers(model, SECONDS)["output-0"], estimator.predict(SECONDS), rtol=1e-6)


def _since(frame: pd.DataFrame) -> pd.DataFrame:
    return frame - 1.7e9


@pytest.mark.parametrize("encoder", [OneHotEncoder(), OrdinalEncoder(), TargetEncoder(cv=2)])
@pytest.mark.parametrize(
    ("values", "datatype"),
    [
        (np.array([2**53 + 1, 2**53 + 2, 2**53 + 3, 2**53 + 4], np.uint64), "UINT64"),
        (np.array([2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1], np.uint64), "UINT64"),
        (np.array([2**53 + 1, 2**53 + 2, -(2**53) - 1, 2**62 + 1], np.int64), "INT64"),
        (np.array([0.1, 0.7, 1e30, -0.3], np.float32), "FP32"),
    ],
)
def test_categories_of_an_encoder_keep_the_type_of_training(
    tmp_path: Path, load: Load, encoder: Any, values: np.ndarray[Any, Any], datatype: str
) -> None:
    frame = pd.DataFrame({"id": np.tile(values, 8), "v": 0.5})
    estimator = make_pipeline(make_column_transformer((encoder, ["id"]), remainder="passthrough"), LinearRegression())
    estimator.fit(frame, np.tile([0.0, 10.0, 20.0, 30.0], 8))

    model = load(saved(tmp_path, estimator), allow_pickle=True)

    assert {spec.name: spec.datatype for spec in model.signature.inputs}["id"] == datatype
    np.testing.assert_allclose(answers(model, frame)["output-0"], estimator.predict(frame), atol=1e-6)


@pytest.mark.parametrize("kind", ["xgboost", "XGBClassifier"])
def test_categories_that_single_precision_rounds_stay_distinct(tmp_path: Path, load: Load, kind: str) -> None:
    ids = pd.DataFrame({"id": pd.Categorical(100_000_000 + np.arange(64) % 8), "age": np.arange(64.0)})
    estimator = xgboost.XGBClassifier(enable_categorical=True, n_estimators=10).fit(ids, np.arange(64) % 8 % 2)
    if kind == "xgboost":
        estimator.save_model(tmp_path / "model.ubj")
    else:
        saved(tmp_path, estimator)

    model = load(tmp_path / "model.ubj" if kind == "xgboost" else tmp_path, allow_pickle=True, max_batch_size=64)

    np.testing.assert_allclose(answers(model, ids)["probabilities"], estimator.predict_proba(ids), rtol=1e-5)


def test_categories_of_another_column_are_rejected(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame(
        {"store": 100 + np.arange(200) % 5, "size": pd.Categorical(np.arange(200) % 3 * 10, ordered=True)}
    )
    booster = lightgbm.train(
        {"objective": "regression", "verbose": -1, "min_data_in_leaf": 2, "min_data_per_group": 1},
        lightgbm.Dataset(frame, np.arange(200) % 5.0, categorical_feature=["store"]),
        5,
    )
    booster.save_model(tmp_path / "model.lgb")

    with pytest.raises(LoadError, match="categorical_feature='auto'"):
        load(tmp_path / "model.lgb")
