"""Columns of tables: names, order, categories, nulls and dates, compared with predictions of the library."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import lightgbm
import numpy as np
import pandas as pd
import pytest
import skops.io
import xgboost
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler, TargetEncoder

from shoal_runtime.errors import LoadError
from shoal_runtime.readiness import Readiness
from shoal_runtime.startup.row_trials import RowTrials
from shoal_runtime.startup.starting import warm
from tests.runtime.fakes import Bench, texts
from tests.runtime.formats.frames import wire_inputs

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
ROWS = 48
RNG = np.random.default_rng(7)
CITIES = ["paris", "rome", "oslo"]
FRAME = pd.DataFrame(
    {
        "city": [CITIES[row % 3] for row in range(ROWS)],
        "age": RNG.integers(18, 90, ROWS),
        "height": RNG.normal(1.7, 0.1, ROWS),
        "member": [row % 2 == 0 for row in range(ROWS)],
        "rooms": [[1, 2, 5][row % 3] for row in range(ROWS)],
        "note": ["good fish", "bad fish", "no fish", "fish and fish"] * (ROWS // 4),
    }
)
LABELS = ((FRAME["city"] == "rome") | (FRAME["age"] > 60)).astype(int)
GAPS = FRAME.assign(
    city=[None if row % 5 == 0 else city for row, city in enumerate(FRAME["city"])],
    height=[np.nan if row % 7 == 0 else height for row, height in enumerate(FRAME["height"])],
)
CATEGORIES = pd.DataFrame(
    {
        "city": pd.Categorical(FRAME["city"]),
        "rooms": pd.Categorical(FRAME["rooms"]),
        "height": FRAME["height"],
    }
)


def saved(folder: Path, estimator: Any, how: str = "joblib") -> Path:
    if how == "skops":
        skops.io.dump(estimator, folder / "model.skops")
    else:
        joblib.dump(estimator, folder / "model.joblib")
    return folder


def answers(model: "Model", frame: pd.DataFrame) -> Mapping[str, Any]:
    with Bench.around(model) as bench:
        return bench.run(wire_inputs(frame, model.signature)).outputs


ENCODED = [
    ("one hot", make_column_transformer((OneHotEncoder(), ["city", "rooms"]), (StandardScaler(), ["age", "height"]))),
    ("ordinal", make_column_transformer((OrdinalEncoder(), ["city", "member"]), remainder="drop")),
    ("target", make_column_transformer((TargetEncoder(), ["city"]), ("passthrough", ["age", "rooms"]))),
    ("texts", make_column_transformer((TfidfVectorizer(), "note"), (OneHotEncoder(), ["city"]))),
    (
        "selected",
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_include=[object, "str"])),
            remainder="passthrough",
        ),
    ),
    ("places", make_column_transformer((OneHotEncoder(), [0, 4]), (StandardScaler(), slice(1, 3)))),
    (
        "imputed",
        make_column_transformer(
            (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["city"]),
            (SimpleImputer(), ["height", "age"]),
        ),
    ),
    ("union", FeatureUnion([("all", make_column_transformer((OneHotEncoder(), ["city"]), ("passthrough", ["age"])))])),
]


@pytest.mark.parametrize("how", ["skops", "joblib"])
@pytest.mark.parametrize(("name", "transformer"), ENCODED, ids=[name for name, _ in ENCODED])
def test_a_pipeline_of_text_category_and_number_columns_loads_without_a_model_toml(
    tmp_path: Path, load: Load, name: str, transformer: Any, how: str
) -> None:
    frame = FRAME.drop(columns="note") if name == "selected" else FRAME
    estimator = make_pipeline(transformer, LogisticRegression(max_iter=2000)).fit(frame, LABELS)

    model = load(saved(tmp_path, estimator, how), allow_pickle=how == "joblib", max_batch_size=64)

    made = answers(model, frame[::-1])
    np.testing.assert_array_equal(made["output-0"], estimator.predict(frame[::-1]))
    np.testing.assert_allclose(made["probabilities"], estimator.predict_proba(frame[::-1]), rtol=1e-9)


def test_a_table_with_categories_is_warmed_with_values_of_training(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """The encoder rejects any other value, so that a batch that ran had those of training."""
    transformer = make_column_transformer((OneHotEncoder(), ["city", "rooms"]), (StandardScaler(), ["age"]))
    estimator = make_pipeline(transformer, LogisticRegression()).fit(FRAME, LABELS)
    model = load(saved(tmp_path, estimator, "skops"), max_batch_size=8)
    placement = model.machine.place(model.graphs)
    caplog.set_level("INFO")

    warm(model, placement, Readiness())
    batches = RowTrials(model, placement).batches()

    assert "event=warmup" not in caplog.text
    assert [batch.rows for batch in batches] == [8, 1]
    assert {*batches[0].make()["city"]} <= {*CITIES}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: GridSearchCV(inner, {"logisticregression__C": [0.5, 1.0]}, cv=2),
        lambda inner: VotingClassifier([("a", inner), ("b", inner)]),
    ],
)
def test_a_meta_estimator_has_the_columns_of_its_estimator(
    tmp_path: Path, load: Load, wrap: Callable[[Any], Any]
) -> None:
    encoded = make_column_transformer((OneHotEncoder(), ["city"]), ("passthrough", ["age"]))
    estimator = wrap(make_pipeline(encoded, LogisticRegression(max_iter=2000))).fit(FRAME[["age", "city"]], LABELS)

    model = load(saved(tmp_path, estimator), allow_pickle=True, max_batch_size=64)

    assert {spec.name: spec.datatype for spec in model.signature.inputs} == {"city": "BYTES", "age": "FP64"}
    np.testing.assert_array_equal(answers(model, FRAME)["output-0"], estimator.predict(FRAME[["age", "city"]]))


def test_columns_of_numbers_are_one_tensor_that_names_them(tmp_path: Path, load: Load) -> None:
    frame = FRAME[["height", "age"]]
    estimator = LinearRegression().fit(frame, LABELS)

    [spec] = load(saved(tmp_path, estimator, "skops")).signature.inputs

    assert (spec.name, spec.datatype, spec.shape) == ("input-0", "FP64", (-1, 2))
    assert spec.columns == ("height", "age")
    assert not spec.nullable


@pytest.mark.parametrize("declared", ["abc", "cab", "bca"])
def test_declared_columns_reach_the_estimator_in_its_own_order(tmp_path: Path, load: Load, declared: str) -> None:
    frame = pd.DataFrame(RNG.random((ROWS, 3)) * [1, 10, 100], columns=list("abc"))
    estimator = LinearRegression().fit(frame, frame["a"] - frame["c"])
    lines = [f'[[inputs]]\nname = "{name}"\ndatatype = "FP64"\nshape = [-1]\n' for name in declared]
    (tmp_path / "model.toml").write_text("".join(lines))

    model = load(saved(tmp_path, estimator, "skops"), max_batch_size=64)

    np.testing.assert_allclose(answers(model, frame)["output-0"], estimator.predict(frame), rtol=1e-9)


@pytest.mark.parametrize(
    ("declared", "message"), [("ab", "'c' is missing"), ("abcd", "not trained on 'd'"), ("abx", "'c' is missing")]
)
@pytest.mark.parametrize("kind", ["sklearn", "xgboost", "lightgbm"])
def test_declared_columns_must_match_the_model(
    tmp_path: Path, load: Load, declared: str, message: str, kind: str
) -> None:
    frame = pd.DataFrame(RNG.random((ROWS, 3)), columns=list("abc"))
    if kind == "sklearn":
        saved(tmp_path, LinearRegression().fit(frame, LABELS), "skops")
    elif kind == "xgboost":
        xgboost.XGBRegressor(n_estimators=2).fit(frame, LABELS).save_model(tmp_path / "model.ubj")
    else:
        lightgbm.train({"verbose": -1}, lightgbm.Dataset(frame, LABELS), 2).save_model(tmp_path / "model.lgb")
    lines = [f'[[inputs]]\nname = "{name}"\ndatatype = "FP64"\nshape = [-1]\n' for name in declared]
    (tmp_path / "model.toml").write_text("".join(lines))

    with pytest.raises(LoadError, match=message):
        load(tmp_path)


def test_a_pipeline_that_rejects_examples_shows_a_model_toml(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=12, freq="MS"), "v": 1.0})
    pipeline = make_pipeline(FunctionTransformer(_month), LinearRegression()).fit(frame, range(12))

    with pytest.raises(LoadError, match=r'\[\[inputs\]\](.|\n)*name = "when"'):
        load(saved(tmp_path, pipeline), allow_pickle=True)


def _month(frame: pd.DataFrame) -> Any:
    return pd.DataFrame({"month": frame["when"].dt.month, "v": frame["v"]})


NO_DATES = (
    b"Thursday",
    b"now",
    b"today",
    b"",
    b"nan",
    b"NaT",
    b" 2024-01-01",
    b"2024/01/05",
    b"2024-1-5",
    b"2024-13-01",
)


@pytest.mark.parametrize(
    ("sent", "month"),
    [
        (b"2024-05-01", 5),
        (b"2024-05-01T12:30:00", 5),
        (b"2024-05-31T23:00:00-03:00", 6),
        (b"2024-05-01 00:00:00.123456789", 5),
        (b"20240501", 5),
        (b"20240501T1230", 5),
    ],
)
def test_dates_reach_a_pipeline_as_datetime64(tmp_path: Path, load: Load, sent: bytes, month: int) -> None:
    frame = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=12, freq="MS"), "v": 1.0})
    pipeline = make_pipeline(FunctionTransformer(_month), LinearRegression()).fit(frame, range(1, 13))
    (tmp_path / "model.toml").write_text(
        '[[inputs]]\nname = "when"\ndatatype = "BYTES"\nshape = [-1]\ncontent_type = "text/plain"\n'
        'logical_type = "datetime"\nexample = "2024-01-01"\n'
        '[[inputs]]\nname = "v"\ndatatype = "FP64"\nshape = [-1]\n'
    )
    model = load(saved(tmp_path, pipeline), allow_pickle=True)

    with Bench.around(model) as bench:
        reply = bench.run({"when": texts(sent, *NO_DATES), "v": np.ones(1 + len(NO_DATES))})

    np.testing.assert_allclose(reply.outputs["output-0"], [month], rtol=1e-9)
    assert [(error.row, error.status) for error in reply.errors] == [(row + 1, 400) for row in range(len(NO_DATES))]
    assert "Thursday" in reply.errors[0].message


def test_numbers_of_a_declared_unit_are_dates(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame({"when": pd.date_range("2024-01-01", periods=12, freq="MS"), "v": 1.0})
    pipeline = make_pipeline(FunctionTransformer(_month), LinearRegression()).fit(frame, range(1, 13))
    (tmp_path / "model.toml").write_text(
        '[[inputs]]\nname = "when"\ndatatype = "BYTES"\nshape = [-1]\ncontent_type = "text/plain"\n'
        'logical_type = "datetime"\nunit = "ms"\n[[inputs]]\nname = "v"\ndatatype = "FP64"\nshape = [-1]\n'
    )
    milliseconds = str(pd.Timestamp("2024-07-04").value // 10**6).encode()

    with Bench.around(load(saved(tmp_path, pipeline), allow_pickle=True)) as bench:
        made = bench.run({"when": texts(milliseconds), "v": np.ones(1)}).outputs

    np.testing.assert_allclose(made["output-0"], [7], rtol=1e-9)


NULLS = [
    (
        "imputers",
        make_pipeline(
            make_column_transformer(
                (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["city"]),
                (SimpleImputer(), ["height"]),
            ),
            LogisticRegression(),
        ),
    ),
    (
        "encoder",
        make_pipeline(
            make_column_transformer((OneHotEncoder(), ["city"]), (SimpleImputer(), ["height"])), LogisticRegression()
        ),
    ),
]


@pytest.mark.parametrize(("name", "estimator"), NULLS, ids=[name for name, _ in NULLS])
def test_nulls_have_the_form_that_the_library_expects(tmp_path: Path, load: Load, name: str, estimator: Any) -> None:
    frame = GAPS[["city", "height"]]
    estimator.fit(frame, LABELS)

    model = load(saved(tmp_path, estimator, "skops"), max_batch_size=64)

    assert all(spec.nullable for spec in model.signature.inputs)
    made = answers(model, frame)
    np.testing.assert_allclose(made["probabilities"], estimator.predict_proba(frame), rtol=1e-9)
    [row] = np.flatnonzero(frame["city"].isna())[:1]
    alone = answers(model, frame[row : row + 1])
    np.testing.assert_allclose(alone["probabilities"], estimator.predict_proba(frame[row : row + 1]), rtol=1e-9)


def test_an_imputer_of_none_gets_none(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame({"city": pd.Series([None if pd.isna(city) else city for city in GAPS["city"]], dtype=object)})
    encoded = make_pipeline(SimpleImputer(missing_values=None, strategy="most_frequent"), OneHotEncoder())
    estimator = make_pipeline(make_column_transformer((encoded, ["city"])), LogisticRegression()).fit(frame, LABELS)

    model = load(saved(tmp_path, estimator), allow_pickle=True, max_batch_size=64)

    np.testing.assert_allclose(answers(model, frame)["probabilities"], estimator.predict_proba(frame), rtol=1e-9)


@pytest.mark.parametrize("marker", ["?", ""])
def test_null_is_not_another_marker_of_an_imputer(tmp_path: Path, load: Load, marker: str) -> None:
    frame = pd.DataFrame({"city": [marker if row % 5 == 0 else city for row, city in enumerate(FRAME["city"])]})
    encoded = make_pipeline(SimpleImputer(missing_values=marker, strategy="most_frequent"), OneHotEncoder())
    estimator = make_pipeline(make_column_transformer((encoded, ["city"])), LogisticRegression()).fit(frame, LABELS)

    [spec] = load(saved(tmp_path, estimator), allow_pickle=True).signature.inputs

    assert not spec.nullable


@pytest.mark.parametrize(
    ("estimator", "nullable"),
    [(LogisticRegression(), False), (RandomForestClassifier(3), True), (HistGradientBoostingClassifier(), True)],
)
def test_inputs_are_nullable_if_the_estimator_predicts_nulls(
    tmp_path: Path, load: Load, estimator: Any, nullable: bool
) -> None:
    estimator.fit(FRAME[["age", "height"]], LABELS)

    [spec] = load(saved(tmp_path, estimator, "skops")).signature.inputs

    assert spec.nullable is nullable


def test_a_value_that_the_estimator_rejects_fails_its_row_alone(tmp_path: Path, load: Load) -> None:
    encoded = make_column_transformer((OneHotEncoder(), ["city"]), ("passthrough", ["age"]))
    estimator = make_pipeline(encoded, LogisticRegression(max_iter=2000)).fit(FRAME[["city", "age"]], LABELS)
    model = load(saved(tmp_path, estimator, "skops"))
    frame = FRAME[["city", "age"]].iloc[:5].assign(city=["rome", "atlantis", "oslo", "paris", "mars"])

    with Bench.around(model) as bench:
        reply = bench.run(wire_inputs(frame, model.signature))

    assert [(error.row, error.status) for error in reply.errors] == [(1, 400), (4, 400)]
    assert "atlantis" in reply.errors[0].message
    np.testing.assert_array_equal(reply.outputs["output-0"], estimator.predict(frame.iloc[[0, 2, 3]]))


def boosted(kind: str, folder: Path) -> tuple[Callable[[pd.DataFrame], Any], str]:
    """Train on CATEGORIES, save, and return the library's predict and the name of its output."""
    if kind == "lightgbm":
        booster = lightgbm.train(
            {"objective": "binary", "verbose": -1, "min_data_in_leaf": 2}, lightgbm.Dataset(CATEGORIES, LABELS), 10
        )
        booster.save_model(folder / "model.lgb")
        return booster.predict, "output-0"
    if kind.startswith("xgboost"):
        estimator = xgboost.XGBClassifier(enable_categorical=True, n_estimators=10).fit(CATEGORIES, LABELS)
        estimator.save_model(folder / f"model.{kind.rpartition('.')[2]}")
        return estimator.predict_proba, "probabilities"
    made = {
        "LGBMClassifier": lightgbm.LGBMClassifier(n_estimators=10, min_child_samples=2, verbose=-1),
        "XGBClassifier": xgboost.XGBClassifier(enable_categorical=True, n_estimators=10),
        "histogram": HistGradientBoostingClassifier(categorical_features="from_dtype", max_iter=10),
    }
    wrapped = kind.startswith("pipeline of ")
    estimator = made[kind.removeprefix("pipeline of ")]
    estimator = make_pipeline("passthrough", estimator) if wrapped else estimator
    saved(folder, estimator.fit(CATEGORIES, LABELS))
    return estimator.predict_proba, "probabilities"


BOOSTED = [
    "lightgbm",
    "xgboost.ubj",
    "xgboost.json",
    "LGBMClassifier",
    "XGBClassifier",
    "histogram",
    "pipeline of LGBMClassifier",
    "pipeline of XGBClassifier",
]


@pytest.mark.parametrize("kind", BOOSTED)
def test_values_of_pandas_categories_are_mapped_as_by_the_library(tmp_path: Path, load: Load, kind: str) -> None:
    predict, output = boosted(kind, tmp_path)

    model = load(tmp_path, allow_pickle=True, max_batch_size=64)

    assert {spec.name: spec.datatype for spec in model.signature.inputs}["city"] == "BYTES"
    np.testing.assert_allclose(answers(model, CATEGORIES)[output], predict(CATEGORIES), rtol=1e-6)
    one = CATEGORIES.iloc[[1]]
    np.testing.assert_allclose(answers(model, one)[output], predict(one), rtol=1e-6)


@pytest.mark.parametrize("kind", BOOSTED)
def test_unknown_and_missing_categories_are_treated_as_by_the_library(tmp_path: Path, load: Load, kind: str) -> None:
    predict, output = boosted(kind, tmp_path)
    model = load(tmp_path, allow_pickle=True, max_batch_size=64)
    missing = pd.DataFrame(
        {
            "city": pd.Categorical(["rome", None], categories=CITIES),
            "rooms": pd.Categorical([None, 5], categories=[1, 2, 5]),
            "height": [np.nan, 1.7],
        }
    )
    np.testing.assert_allclose(answers(model, missing)[output], predict(missing), rtol=1e-6)
    unknown = missing.assign(city=pd.Categorical(["atlantis", "rome"]), rooms=pd.Categorical([5, 1], [1, 2, 5]))

    with Bench.around(model) as bench:
        reply = bench.run(wire_inputs(unknown, model.signature))

    if "XGB" in kind or "xgb" in kind:
        assert [(error.row, error.status) for error in reply.errors] == [(0, 400)]
        np.testing.assert_allclose(
            reply.outputs[output], predict(unknown.iloc[[1]].assign(city=pd.Categorical(["rome"]))), rtol=1e-6
        )
    else:
        assert not reply.errors
        known = unknown.assign(city=pd.Categorical([None, "rome"], categories=CITIES))
        np.testing.assert_allclose(reply.outputs[output], predict(known), rtol=1e-6)


@pytest.mark.parametrize("values", [[10, 20, 30], [10.5, 20.5, 30.5]])
def test_numeric_categories_are_values_and_not_codes(tmp_path: Path, load: Load, values: list[float]) -> None:
    frame = pd.DataFrame({"c": pd.Categorical([values[row % 3] for row in range(ROWS)]), "v": RNG.random(ROWS)})
    labels = [row % 3 == 1 for row in range(ROWS)]
    data = lightgbm.Dataset(frame, labels)
    booster = lightgbm.train({"objective": "binary", "verbose": -1, "min_data_in_leaf": 2}, data, 20)
    booster.save_model(tmp_path / "model.lgb")

    model = load(tmp_path, max_batch_size=64)

    [spec] = model.signature.inputs
    assert spec.columns == ("c", "v")
    with Bench.around(model) as bench:
        made = bench.run({"input-0": np.array([[value, 0.5] for value in (*values, 99)])}).outputs["output-0"]
    asked = pd.DataFrame({"c": pd.Categorical([*values, None], categories=values), "v": 0.5})
    np.testing.assert_allclose(made, booster.predict(asked), rtol=1e-9)


def test_a_file_without_its_categories_is_rejected(tmp_path: Path, load: Load) -> None:
    codes = np.array([[row % 3, row] for row in range(ROWS)], dtype=float)
    data = xgboost.DMatrix(
        codes, LABELS, feature_types=["c", "q"], feature_names=["city", "v"], enable_categorical=True
    )
    xgboost.train({"tree_method": "hist"}, data, 3).save_model(tmp_path / "model.ubj")

    with pytest.raises(LoadError, match=r"city.*missing in the file"):
        load(tmp_path)


@pytest.mark.parametrize("colours", [["rot", "grün", "blau"], ["rot", "blau", "grün"]])
def test_an_xgboost_file_with_truncated_categories_is_rejected(colours: list[str], tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame({"colour": pd.Categorical(colours * 20, categories=colours), "size": np.arange(60.0)})
    model = xgboost.XGBRegressor(n_estimators=2, enable_categorical=True).fit(frame, np.arange(60.0))
    model.save_model(tmp_path / "m.ubj")

    with pytest.raises(LoadError, match="beyond ASCII"):
        load(tmp_path / "m.ubj")


def test_an_array_without_names_accepts_codes(tmp_path: Path, load: Load) -> None:
    codes = np.array([[row % 3, row] for row in range(ROWS)], dtype=np.float32)
    data = xgboost.DMatrix(codes, LABELS, feature_types=["c", "q"], enable_categorical=True)
    booster = xgboost.train({"tree_method": "hist"}, data, 3)
    booster.save_model(tmp_path / "model.ubj")

    model = load(tmp_path, max_batch_size=64)

    with Bench.around(model) as bench:
        made = bench.run({"input-0": codes}).outputs["output-0"]
    np.testing.assert_allclose(made, booster.inplace_predict(codes), rtol=1e-6)


def test_lightgbm_matches_declared_names_with_blanks(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame(RNG.random((ROWS, 2)), columns=["per capita", "age"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        booster = lightgbm.train({"verbose": -1}, lightgbm.Dataset(frame, frame["per capita"]), 5)
    booster.save_model(tmp_path / "model.lgb")
    lines = [f'[[inputs]]\nname = "{name}"\ndatatype = "FP64"\nshape = [-1]\n' for name in ("age", "per capita")]
    (tmp_path / "model.toml").write_text("".join(lines))

    model = load(tmp_path, max_batch_size=64)

    np.testing.assert_allclose(answers(model, frame)["output-0"], booster.predict(frame.to_numpy()), rtol=1e-9)


def test_columns_that_a_transformer_drops_are_not_inputs(tmp_path: Path, load: Load) -> None:
    encoded = make_column_transformer((OneHotEncoder(), ["city"]), remainder="drop")
    estimator = make_pipeline(encoded, LogisticRegression()).fit(FRAME, LABELS)

    model = load(saved(tmp_path, estimator, "skops"), max_batch_size=64)

    assert [spec.name for spec in model.signature.inputs] == ["city"]
    np.testing.assert_array_equal(answers(model, FRAME)["output-0"], estimator.predict(FRAME))


def test_an_array_of_texts_is_one_tensor_of_texts(tmp_path: Path, load: Load) -> None:
    array = FRAME[["city", "note"]].to_numpy(dtype=object)
    estimator = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(array, LABELS)

    model = load(saved(tmp_path, estimator, "skops"), max_batch_size=64)

    [spec] = model.signature.inputs
    assert (spec.datatype, spec.shape, spec.columns) == ("BYTES", (-1, 2), ())
    rows = np.empty(array.shape, dtype=object)
    for index, value in np.ndenumerate(array):
        rows[index] = value.encode()
    with Bench.around(model) as bench:
        made = bench.run({"input-0": rows}).outputs["output-0"]
    np.testing.assert_array_equal(made, estimator.predict(array))
