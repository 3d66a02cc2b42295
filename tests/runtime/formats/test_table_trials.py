"""Trials of table models hold values from training, so that they reach predict."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.columns import Column, category
from shoal_runtime.formats.table_trials import trial_values
from shoal_runtime.readiness import Readiness
from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.signature.tensors import make_signature
from shoal_runtime.startup.starting import warm
from shoal_runtime.startup.trial_rows import GeneratedRows, RowKind
from shoal_schema.wire.columns import NULL

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
FRAME = pd.DataFrame({"colour": ["red", "blue", "green"] * 4, "size": np.arange(12.0)})


class Leaky(LogisticRegression):  # type: ignore[misc]
    """Predicts the distance of a row from the mean of the batch."""

    def predict(self, X: Any) -> Any:  # noqa: N803 (as scikit-learn calls it)
        rows = np.asarray(X, dtype=np.float64)
        return (rows - rows.mean(0)).sum(1)


def warmed(load: Load, path: Path, estimator: Any) -> "Model":
    joblib.dump(estimator, path)
    model = load(path, allow_pickle=True)
    warm(model, model.machine.place(False), Readiness())
    return model


def test_values_are_those_of_the_columns() -> None:
    colour, size = TensorSpec("colour", "BYTES", [-1], content_type="text/plain"), TensorSpec("size", "FP64", [-1])
    known = Column("colour", "BYTES", known=("red", "blue", float("nan")))

    assert trial_values([colour, size], [known, Column("size")]) == {"colour": [("red", "blue")]}
    assert trial_values([size], [category("size", [3, 7])]) == {"size": [(3, 7)]}
    rows = TensorSpec("x", "FP64", [-1, 2], columns=("b", "a"))
    assert trial_values([rows], [category("a", [3, 7]), Column("b")]) == {"x": [(), (3, 7)]}


def test_rows_hold_these_values_and_nulls() -> None:
    text = TensorSpec("t", "BYTES", [-1], content_type="text/plain", nullable=True)
    number = TensorSpec("n", "FP64", [-1, 2], nullable=True)
    signature = make_signature(
        [text, number], [TensorSpec("y", "FP64", [-1])], max_batch_size=8, allowed_batch_sizes=()
    )
    source = GeneratedRows(signature, {"t": [("red", "blue")], "n": [(), (3, 7)]})

    drawn = source.join(source.draw(RowKind(), 50, np.random.default_rng(0)))
    holed = source.join(source.draw(RowKind(missing=True), 50, np.random.default_rng(0)))

    assert set(drawn["t"].tolist()) == {b"red", b"blue"}
    assert set(drawn["n"][:, 1].tolist()) == {3, 7}
    assert set(holed["t"].tolist()) == {b"red", b"blue", NULL}
    assert np.isnan(holed["n"]).any()


@pytest.mark.parametrize("encoder", [OneHotEncoder(sparse_output=False), OrdinalEncoder()])
def test_trials_reach_the_predict_of_a_model_with_categories(tmp_path: Path, load: Load, encoder: Any) -> None:
    labels = [0, 1, 0] * 4
    parts = make_column_transformer((encoder, ["colour"]), (SimpleImputer(), ["size"]))

    with pytest.raises(LoadError, match="affect each other's"):
        warmed(load, tmp_path / "leaky.joblib", make_pipeline(parts, Leaky()).fit(FRAME, labels))

    assert warmed(load, tmp_path / "kept.joblib", make_pipeline(parts, LogisticRegression()).fit(FRAME, labels))


def test_a_model_of_categories_is_tried_without_a_warning(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_pipeline(make_column_transformer((OneHotEncoder(), ["colour"])), LogisticRegression())
    warmed(load, tmp_path / "m.joblib", model.fit(FRAME, [0, 1, 0] * 4))

    assert "rows_not_tried" not in caplog.text


def test_trials_of_texts_use_known_words(tmp_path: Path, load: Load) -> None:
    texts = ["great day", "awful night", "good day", "bad night"]
    model = warmed(
        load, tmp_path / "m.joblib", make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, [1, 0, 1, 0])
    )

    [[known]] = model.handler.trial_values.values()  # type: ignore[attr-defined]
    assert "great" in known
