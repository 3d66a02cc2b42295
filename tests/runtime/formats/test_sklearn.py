import json
import pickle
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.cluster import KMeans
from sklearn.compose import make_column_transformer
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_info

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench, texts
from tests.runtime.formats.rounds import assert_answers_as

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
X = np.random.default_rng(3).standard_normal((64, 4))
KINDS = np.argmax(X[:, :3], axis=1)
NAMES = np.array(["setosa", "versicolor", "virginica"])[KINDS]
WORDS = ["good fish", "bad fish", "no fish at all", "fish and fish"] * 16
SPEC = '[[{}]]\nname = "{}"\ndatatype = "{}"\nshape = [-1]\n{}'
TEXT = 'content_type = "text/plain"\n'


def saved(folder: Path, estimator: Any) -> Path:
    skops.io.dump(estimator, folder / "model.skops")
    return folder


@pytest.mark.parametrize(
    ("estimator", "labels", "datatype"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()), KINDS, "INT64"),
        (LogisticRegression(), NAMES, "BYTES"),
        (LogisticRegression(), KINDS > 0, "BOOL"),
        (RandomForestClassifier(10, random_state=0, n_jobs=2), KINDS, "INT64"),
    ],
)
def test_a_classifier_returns_labels_and_probabilities(
    tmp_path: Path, load: Load, estimator: Any, labels: Any, datatype: str
) -> None:
    estimator.fit(X, labels)

    model = load(saved(tmp_path, estimator), max_batch_size=64)

    assert model.platform == "sklearn"
    (x,) = model.signature.inputs
    assert (x.name, x.datatype, x.shape) == ("input-0", "FP64", (-1, 4))
    outputs = [(spec.name, spec.datatype, spec.shape) for spec in model.signature.outputs]
    count = len(set(labels))
    assert outputs == [("output-0", datatype, (-1,)), ("probabilities", "FP64", (-1, count))]
    assert model.signature.outputs[1].columns == tuple(str(each) for each in estimator.classes_)
    assert_answers_as(
        model,
        {"input-0": X},
        lambda rows: {"output-0": estimator.predict(X[:rows]), "probabilities": estimator.predict_proba(X[:rows])},
    )


@pytest.mark.parametrize(
    ("estimator", "labels", "output"),
    [
        (LinearRegression(), X[:, 0] * 2, ("FP64", (-1,))),
        (LinearRegression(), X[:, :2] * 2, ("FP64", (-1, 2))),
        (SVC(), KINDS, ("INT64", (-1,))),
        (KMeans(3, random_state=0, n_init=1), None, ("INT32", (-1,))),
        (IsolationForest(n_estimators=5, random_state=0), None, ("INT64", (-1,))),
    ],
)
def test_any_estimator_with_predict_is_served(
    tmp_path: Path, load: Load, estimator: Any, labels: Any, output: tuple[str, Any]
) -> None:
    estimator.fit(X, labels)

    model = load(saved(tmp_path, estimator), max_batch_size=64)

    assert [(spec.datatype, spec.shape) for spec in model.signature.outputs] == [output]
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": estimator.predict(X[:rows])})


@pytest.mark.parametrize(
    "estimator", [OneVsRestClassifier(LogisticRegression()), MLPClassifier(8, solver="lbfgs", max_iter=2000)]
)
def test_a_multilabel_classifier_returns_all_labels(tmp_path: Path, load: Load, estimator: Any) -> None:
    estimator.fit(X, X[:, :3] > 0)
    model = load(saved(tmp_path, estimator), max_batch_size=64)

    assert [spec.shape for spec in model.signature.outputs] == [(-1, 3), (-1, 3)]
    assert_answers_as(
        model,
        {"input-0": X},
        lambda rows: {"output-0": estimator.predict(X[:rows]), "probabilities": estimator.predict_proba(X[:rows])},
    )


def test_a_pipeline_with_a_vectorizer_accepts_texts(tmp_path: Path, load: Load) -> None:
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(WORDS, [1, 0, 0, 1] * 16)

    model = load(saved(tmp_path, pipeline), max_batch_size=64)

    assert model.signature.inputs[0].media_types == ("text/plain",)
    given = texts(*(word.encode() for word in WORDS))
    assert_answers_as(model, {"input-0": given}, lambda rows: {"output-0": pipeline.predict(WORDS[:rows])})


def test_an_estimator_that_was_trained_on_a_frame_gets_one(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame({"colour": ["red", "blue"] * 32, "size": X[:, 0]})
    encoded = make_column_transformer((OneHotEncoder(), ["colour"]), ("passthrough", ["size"]))
    pipeline = make_pipeline(encoded, LogisticRegression()).fit(frame, KINDS > 0)
    saved(tmp_path, pipeline)
    (tmp_path / "model.toml").write_text(
        SPEC.format("inputs", "colour", "BYTES", TEXT) + SPEC.format("inputs", "size", "FP64", "")
    )

    model = load(tmp_path, max_batch_size=64)

    colours = texts(*(colour.encode() for colour in frame["colour"]))
    assert_answers_as(
        model, {"colour": colours, "size": X[:, 0]}, lambda rows: {"output-0": pipeline.predict(frame[:rows])}
    )


def test_rows_become_a_frame_if_names_are_known(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = load(saved(tmp_path, LogisticRegression().fit(frame, KINDS)))

    with Bench.around(model) as bench:
        assert bench.run({"input-0": X[:8]}).outputs["output-0"].shape == (8,)


def test_only_declared_outputs_are_computed(tmp_path: Path, load: Load) -> None:
    saved(tmp_path, LogisticRegression().fit(X, KINDS))
    declared = '[[outputs]]\nname = "probabilities"\ndatatype = "FP32"\nshape = [-1, 3]\n'
    (tmp_path / "model.toml").write_text(declared)

    with Bench.around(load(tmp_path)) as bench:
        outputs = bench.run({"input-0": X[:8]}).outputs

    assert list(outputs) == ["probabilities"]
    assert outputs["probabilities"].dtype == np.float32


def own(x: Any) -> Any:
    return x


def test_the_settings_and_not_the_file_trust_types(tmp_path: Path, load: Load) -> None:
    saved(tmp_path, make_pipeline(FunctionTransformer(own), LogisticRegression()).fit(X, KINDS))
    name = f"{__name__}.own"

    with pytest.raises(LoadError, match=f"SHOAL_MODEL_TRUSTED_TYPES={name}"):
        load(tmp_path)

    assert load(tmp_path, trusted_types=(name,)).platform == "sklearn"


def crafted(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Return a directory with a changed skops file."""
    saved(folder, LogisticRegression().fit(X, KINDS))
    with zipfile.ZipFile(folder / "model.skops") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(members["schema.json"])
    change(schema)
    members["schema.json"] = json.dumps(schema).encode()
    with zipfile.ZipFile(folder / "model.skops", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder


def call_what_it_likes(schema: dict[str, Any]) -> None:
    schema.update({"__class__": "eval", "__module__": "builtins", "__loader__": "OperatorFuncNode", "attrs": {}})


def be_another_class(schema: dict[str, Any]) -> None:
    schema.update({"__class__": "Popen", "__module__": "subprocess"})


def lie_about_the_loader(schema: dict[str, Any]) -> None:
    schema.update({"__class__": "system", "__module__": "posix", "__loader__": "TypeNode"})


def have_no_content(schema: dict[str, Any]) -> None:
    del schema["content"]


def name_an_unknown_loader(schema: dict[str, Any]) -> None:
    schema["__loader__"] = "NoSuchNode"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (call_what_it_likes, "is not a readable skops file: ValueError: Expected module 'operator'"),
        (be_another_class, r"not trusted: subprocess\.Popen"),
        (lie_about_the_loader, r"not trusted: posix\.system"),
        (have_no_content, "has no attribute"),
        (name_an_unknown_loader, "is not a readable skops file"),
    ],
)
def test_a_crafted_file_is_rejected(
    tmp_path: Path, load: Load, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        load(crafted(tmp_path, change))


@pytest.mark.parametrize("content", [b"", b"PK", pickle.dumps([1])])
def test_a_corrupt_file_is_rejected(tmp_path: Path, load: Load, content: bytes) -> None:
    (tmp_path / "model.skops").write_bytes(content)

    with pytest.raises(LoadError, match=r"model\.skops is not a readable skops file: "):
        load(tmp_path)


def test_an_estimator_without_predict_is_rejected(tmp_path: Path, load: Load) -> None:
    with pytest.raises(LoadError, match="holds a StandardScaler, which has no predict"):
        load(saved(tmp_path, StandardScaler().fit(X)))


def test_unknown_outputs_must_be_declared(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame({"colour": ["red", "blue"] * 32})
    pipeline = make_pipeline(FunctionTransformer(_upper), OneHotEncoder(), LinearRegression())
    joblib.dump(pipeline.fit(frame, X[:, 0]), tmp_path / "model.joblib")
    columns = SPEC.format("inputs", "colour", "BYTES", TEXT)
    (tmp_path / "model.toml").write_text(columns)

    with pytest.raises(LoadError, match=r"unknown categories.*\[\[inputs\]\]"):
        load(tmp_path, allow_pickle=True)

    (tmp_path / "model.toml").write_text(columns + SPEC.format("outputs", "price", "FP64", ""))
    with Bench.around(load(tmp_path, allow_pickle=True)) as bench:
        answer = bench.run({"colour": texts(b"red", b"blue")}).outputs["price"]
    np.testing.assert_array_equal(answer, pipeline.predict(frame[:2]))


def _upper(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"upper": frame["colour"].str.upper(), "first": frame["colour"].str[:1]})


@pytest.mark.parametrize("suffix", ["joblib", "pkl", "pickle"])
def test_a_pickle_must_be_allowed(tmp_path: Path, load: Load, suffix: str) -> None:
    joblib.dump(LogisticRegression().fit(X, KINDS), tmp_path / f"model.{suffix}")

    with pytest.raises(LoadError, match=r"is a pickle, which can run any code.*SHOAL_MODEL_ALLOW_PICKLE=true"):
        load(tmp_path)

    with Bench.around(load(tmp_path, allow_pickle=True)) as bench:
        assert bench.run({"input-0": X[:8]}).outputs["output-0"].shape == (8,)


class Elsewhere:
    """A class of a library that is not installed."""

    def __reduce__(self) -> Any:
        return (__import__, ("no_such_library",))


def test_a_library_that_a_pickle_needs_is_named(tmp_path: Path, load: Load) -> None:
    joblib.dump(Elsewhere(), tmp_path / "model.joblib")

    with pytest.raises(LoadError, match="No module named 'no_such_library': pip install no_such_library"):
        load(tmp_path, allow_pickle=True)


@pytest.mark.parametrize("save", [skops.io.dump, joblib.dump])
def test_a_function_of_the_script_that_saved_the_model_must_move_to_a_module(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch, save: Callable[[Any, Path], Any]
) -> None:
    suffix = "skops" if save is skops.io.dump else "joblib"
    with monkeypatch.context() as script:
        script.setattr(_double, "__module__", "__main__")
        script.setattr(sys.modules["__main__"], "_double", _double, raising=False)
        save(make_pipeline(FunctionTransformer(_double), LogisticRegression()).fit(X, KINDS), tmp_path / f"m.{suffix}")

    for trusted in ((), ("__main__._double",)):
        with pytest.raises(LoadError, match=r"names __main__\._double of the script .*PYTHONPATH"):
            load(tmp_path, allow_pickle=True, trusted_types=trusted)


def _double(rows: Any) -> Any:
    return rows * 2


def test_a_trusted_function_whose_module_is_missing_is_named(tmp_path: Path, load: Load) -> None:
    module = types.ModuleType("no_such_features")
    module.double = _double  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "no_such_features", module)
        patch.setattr(_double, "__module__", "no_such_features")
        patch.setattr(_double, "__name__", "double")
        patch.setattr(_double, "__qualname__", "double")
        saved(tmp_path, make_pipeline(FunctionTransformer(_double), LogisticRegression()).fit(X, KINDS))

    with pytest.raises(LoadError, match=r"No module named 'no_such_features': pip install .*PYTHONPATH"):
        load(tmp_path, trusted_types=["no_such_features.double"])


def test_a_library_that_the_format_needs_is_named(tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, LogisticRegression().fit(X, KINDS))
    monkeypatch.setitem(sys.modules, "skops.io", None)

    with pytest.raises(LoadError, match=r'skops.io.*pip install "shoal\[sklearn\]"'):
        load(tmp_path)


def test_the_number_of_threads_is_that_of_the_runtime(tmp_path: Path, load: Load) -> None:
    load(saved(tmp_path, RandomForestClassifier(3, n_jobs=-1).fit(X, KINDS)), threads=1)

    assert {each["num_threads"] for each in threadpool_info() if each["internal_api"] == "openblas"} == {1}
    assert joblib.effective_n_jobs(-1) == 1
