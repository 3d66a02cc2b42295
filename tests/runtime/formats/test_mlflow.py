import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightgbm
import numpy as np
import onnx
import pandas as pd
import pytest
import torch
import xgboost
import yaml
from mlflow.models import infer_signature
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench, texts
from tests.runtime.formats.rounds import assert_answers_as
from tests.runtime.formats.test_onnx import product

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

with warnings.catch_warnings(action="ignore"):
    import mlflow

# Warnings of mlflow are not under test.
pytestmark = pytest.mark.filterwarnings("ignore")

Load = Callable[..., "Model"]
X = np.random.default_rng(3).standard_normal((64, 3))
FRAME = pd.DataFrame(X, columns=["sepal length", "width", "petal"])
KINDS = np.argmax(X, axis=1)
COLUMNS = {name: FRAME[name].to_numpy() for name in FRAME}


def test_columns_of_the_signature_are_inputs(tmp_path: Path, load: Load) -> None:
    made = LogisticRegression().fit(FRAME, KINDS)
    mlflow.sklearn.save_model(
        made,
        tmp_path / "m",
        serialization_format="skops",
        pip_requirements=[],
        signature=infer_signature(FRAME, made.predict(FRAME)),
    )

    model = load(tmp_path / "m", max_batch_size=64)

    assert model.platform == "sklearn"
    assert [(each.name, each.datatype, each.shape) for each in model.signature.inputs] == [
        (name, "FP64", (-1,)) for name in FRAME
    ]
    assert_answers_as(
        model,
        COLUMNS,
        lambda rows: {"output-0": made.predict(FRAME[:rows]), "probabilities": made.predict_proba(FRAME[:rows])},
    )


def test_unknown_outputs_are_those_of_the_signature(tmp_path: Path, load: Load) -> None:
    frame = pd.DataFrame({"colour": ["red", "blue"] * 32, "size": X[:, 0]})
    encoded = make_column_transformer((OneHotEncoder(), ["colour"]), ("passthrough", ["size"]))
    made = make_pipeline(encoded, LinearRegression()).fit(frame, X[:, 1])
    mlflow.sklearn.save_model(
        made,
        tmp_path / "m",
        serialization_format="skops",
        pip_requirements=[],
        signature=infer_signature(frame, made.predict(frame)),
    )

    model = load(tmp_path / "m", max_batch_size=64)

    colours = texts(*(colour.encode() for colour in frame["colour"]))
    assert_answers_as(
        model, {"colour": colours, "size": X[:, 0]}, lambda rows: {"output-0": made.predict(frame[:rows])}
    )


def test_a_pickle_must_be_allowed(tmp_path: Path, load: Load) -> None:
    made = LogisticRegression().fit(X, KINDS)
    mlflow.sklearn.save_model(made, tmp_path / "m", serialization_format="cloudpickle", pip_requirements=[])

    with pytest.raises(LoadError, match=r"model\.pkl is a pickle, which can run any code"):
        load(tmp_path / "m")

    assert load(tmp_path / "m", allow_pickle=True).platform == "sklearn"


def test_results_of_an_xgboost_estimator_are_those_of_mlflow(tmp_path: Path, load: Load) -> None:
    made = xgboost.XGBClassifier(n_estimators=5, n_jobs=1).fit(FRAME, KINDS)
    mlflow.xgboost.save_model(
        made, tmp_path / "m", pip_requirements=[], signature=infer_signature(FRAME, made.predict(FRAME))
    )

    model = load(tmp_path / "m", max_batch_size=64)

    expected = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    assert_answers_as(model, COLUMNS, lambda rows: {"output-0": expected.predict(FRAME[:rows])})


def test_results_of_a_lightgbm_booster_are_those_of_mlflow(tmp_path: Path, load: Load) -> None:
    made = lightgbm.train({"verbose": -1, "num_threads": 1}, lightgbm.Dataset(X, X[:, 0]), num_boost_round=5)
    mlflow.lightgbm.save_model(made, tmp_path / "m", pip_requirements=[], signature=infer_signature(X, made.predict(X)))

    model = load(tmp_path / "m", max_batch_size=64)

    expected = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    assert_answers_as(model, {"input-0": X}, lambda rows: {"output-0": expected.predict(X[:rows])})


def test_a_graph_keeps_its_own_names(tmp_path: Path, load: Load) -> None:
    product(tmp_path / "product.onnx")
    given = np.zeros((2, 4), np.float32)
    mlflow.onnx.save_model(
        onnx.load(tmp_path / "product.onnx"),
        tmp_path / "m",
        pip_requirements=[],
        signature=infer_signature(given, given[:, :3]),
    )

    model = load(tmp_path / "m")

    assert (model.platform, [each.name for each in model.signature.inputs]) == ("onnx", ["x"])


def test_a_program_is_found_in_its_folder(tmp_path: Path, load: Load) -> None:
    folder = folder_of(
        tmp_path / "m", pytorch={"model_data": "data"}, python_function={"loader_module": "mlflow.pytorch"}
    )
    (folder / "data").mkdir()
    batch = torch.export.Dim("batch")
    program = torch.export.export(torch.nn.Linear(4, 3), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "data" / "model.pt2")

    assert load(folder).platform == "pytorch_export"


def folder_of(path: Path, **flavours: Any) -> Path:
    path.mkdir()
    (path / "MLmodel").write_text(yaml.safe_dump({"flavors": flavours}))
    return path


def test_python_function_must_be_allowed_and_requires_mlflow(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The import warns, which pytest would report as an error outside of a test.
    from mlflow.pyfunc import PythonModel  # type: ignore[attr-defined]

    class Doubled(PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return model_input * 2

    mlflow.pyfunc.save_model(
        tmp_path / "m", python_model=Doubled(), pip_requirements=[], signature=infer_signature(X, X * 2)
    )

    with pytest.raises(LoadError, match=r"python_function.*SHOAL_MODEL_ALLOW_PICKLE=true"):
        load(tmp_path / "m")

    with Bench.around(load(tmp_path / "m", allow_pickle=True)) as bench:
        np.testing.assert_array_equal(bench.run({"input-0": X[:8]}).outputs["output-0"], X[:8] * 2)

    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    with pytest.raises(LoadError, match=r"mlflow.pyfunc.*pip install mlflow"):
        load(tmp_path / "m", allow_pickle=True)


@pytest.mark.parametrize("name", ["/etc/passwd", "../elsewhere.ubj", "a/../../b.ubj", "", 7])
def test_a_file_outside_the_directory_is_rejected(tmp_path: Path, load: Load, name: Any) -> None:
    with pytest.raises(LoadError, match="MLmodel must name a file"):
        load(folder_of(tmp_path / "m", xgboost={"data": name}))


@pytest.mark.parametrize(
    "text",
    [
        '[{"type": "array", "name": "a"}]',
        '[{"type": "tensor", "tensor-spec": {"dtype": "complex64", "shape": [-1]}}]',
        '["x"]',
        "{",
        "7",
    ],
)
def test_a_signature_without_tensors_is_rejected(tmp_path: Path, load: Load, text: str) -> None:
    folder = folder_of(tmp_path / "m", xgboost={"data": "model.ubj"})
    document = yaml.safe_load((folder / "MLmodel").read_text())
    (folder / "MLmodel").write_text(yaml.safe_dump({**document, "signature": {"inputs": text}}))

    with pytest.raises(LoadError, match=r"signature in MLmodel.*\[\[inputs\]\]"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"- 1", b"\xff\xfe\xff", b"a: [", b"flavors: 7", b"[" * 1500])
def test_a_corrupt_mlmodel_is_rejected(tmp_path: Path, load: Load, content: bytes) -> None:
    (tmp_path / "MLmodel").write_bytes(content)

    with pytest.raises(LoadError, match="MLmodel"):
        load(tmp_path)
