import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

os.environ["KERAS_BACKEND"] = "torch"
keras = pytest.importorskip("keras")

# Keras asks its tensors for arrays in a way that numpy 2 does not like.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")

SIZES = (1, 2, 7, 64)


def network() -> Any:
    """Return a network with layers that differ between training and inference, and weights other than zero."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,), name="x"),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax", name="probability"),
        ]
    )
    model.compile("sgd", "mse")
    rows = np.random.default_rng(0).standard_normal((64, 6), dtype=np.float32)
    model.fit(rows, np.eye(3)[np.arange(64) % 3], epochs=2, verbose=0)
    return model


def save(model: Any, path: Path) -> Path:
    model.save(path)
    return path


def test_the_signature_is_in_the_file(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    model = load(save(network(), tmp_path / "net.keras"))

    assert (model.name, model.platform) == ("net", "keras")
    assert [(s.name, s.datatype, s.shape) for s in model.signature.inputs] == [("x", "FP32", (-1, 6))]
    assert [(s.name, s.datatype, s.shape) for s in model.signature.outputs] == [("probability", "FP32", (-1, 3))]


def test_results_are_those_of_predict_at_every_batch_size(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    original = network()
    rows = np.random.default_rng(1).standard_normal((64, 6), dtype=np.float32)
    expected = original.predict(rows, verbose=0)

    with Bench.around(load(save(original, tmp_path / "net.keras"), max_batch_size=64)) as bench:
        for size in SIZES:
            answers = bench.run({"x": rows[:size]}).outputs["probability"]
            np.testing.assert_allclose(answers, expected[:size], atol=1e-6)


def test_several_inputs_and_outputs_go_by_name(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    words, length = keras.Input((5,), dtype="int32", name="words"), keras.Input((1,), name="length")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4, mask_zero=True)(words))
    both = keras.layers.Concatenate()([hidden, length])
    outputs = {"topic": keras.layers.Dense(2)(both), "angry": keras.layers.Dense(1)(both)}
    original = keras.Model({"words": words, "length": length}, outputs)
    rng = np.random.default_rng(2)
    given = {
        "words": rng.integers(0, 20, (9, 5), dtype=np.int32),
        "length": rng.standard_normal((9, 1), dtype=np.float32),
    }
    expected = original.predict(given, verbose=0)

    model = load(save(original, tmp_path / "two.keras"), max_batch_size=64)

    assert {(s.name, s.datatype) for s in model.signature.inputs} == {("words", "INT32"), ("length", "FP32")}
    with Bench.around(model) as bench:
        answers = bench.run(given).outputs
    assert set(answers) == {"topic", "angry"}
    for name, values in expected.items():
        np.testing.assert_allclose(answers[name], values, atol=1e-6)


def test_inputs_and_outputs_in_a_list_keep_their_order(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    a, b = keras.Input((2,), name="zebra"), keras.Input((2,), name="ant")
    original = keras.Model([a, b], [keras.layers.Subtract(name="less")([a, b]), keras.layers.Add(name="more")([a, b])])
    given = {name: np.full((2, 2), value, dtype=np.float32) for name, value in (("zebra", 3), ("ant", 1))}

    with Bench.around(load(save(original, tmp_path / "m.keras"))) as bench:
        answers = bench.run(given).outputs

    assert answers["less"].tolist() == [[2, 2]] * 2
    assert answers["more"].tolist() == [[4, 4]] * 2


def test_batches_are_padded_to_a_fixed_batch_with_a_warning(
    tmp_path: Path, load: Callable[..., "Model"], caplog: pytest.LogCaptureFixture
) -> None:
    fixed = keras.Sequential([keras.Input(batch_shape=(4, 2), name="x"), keras.layers.Rescaling(2.0, name="y")])

    model = load(save(fixed, tmp_path / "m.keras"))

    assert model.signature.allowed_batch_sizes == (4,)
    assert "event=static_batch message=m.keras has a fixed batch of 4" in caplog.text
    with Bench.around(model) as bench:
        assert bench.run({"x": np.ones((3, 2), dtype=np.float32)}).outputs["y"].tolist() == [[2, 2]] * 3


def test_mlflows_keras_flavor_is_served(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    (tmp_path / "data").mkdir()
    save(network(), tmp_path / "data" / "model.keras")
    # As mlflow.keras.save_model of 3.17 writes it, without environments.
    (tmp_path / "MLmodel").write_text(
        "flavors:\n  keras:\n    data: data\n    keras_backend: torch\n    save_exported_model: false\n"
        "  python_function:\n    data: data\n    loader_module: mlflow.keras\n"
        """signature:\n  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 6]}}]'\n"""
    )

    model = load(tmp_path)

    assert model.platform == "keras"
    assert [spec.name for spec in (*model.signature.inputs, *model.signature.outputs)] == ["x", "probability"]


def with_config(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """Rewrite the config.json of a saved model."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(held["config.json"])
    change(config)
    held["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in held.items():
            archive.writestr(name, content)
    return path


def test_a_lambda_is_rejected_unless_the_file_is_trusted(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    model = keras.Sequential([keras.Input((2,), name="x"), keras.layers.Lambda(lambda x: x + 1, name="y")])
    path = save(model, tmp_path / "m.keras")

    with pytest.raises(LoadError, match=r"m\.keras holds code .*SHOAL_MODEL_ALLOW_PICKLE"):
        load(path)
    with Bench.around(load(path, allow_pickle=True)) as bench:
        assert bench.run({"x": np.zeros((1, 2), dtype=np.float32)}).outputs["y"].tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("module", "name"),
    [("os", "system"), ("subprocess", "Popen"), ("builtins", "exec"), ("keras.src.utils", "get_file")],
)
def test_a_config_that_names_a_foreign_function_never_calls_it(
    tmp_path: Path, load: Callable[..., "Model"], module: str, name: str
) -> None:
    mark = tmp_path / "mark"
    argument = {
        "command": f"touch {mark}",
        "args": ["touch", str(mark)],
        "fname": str(mark),
        "origin": "file:///etc/hosts",
    }

    def point(config: dict[str, Any]) -> None:
        config["config"]["layers"][1] |= {
            "module": module,
            "class_name": name,
            "config": argument,
            "registered_name": name,
        }

    with pytest.raises(LoadError, match=r"m\.keras"):
        load(with_config(save(network(), tmp_path / "m.keras"), point))
    assert not mark.exists()


def test_a_custom_class_is_named(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    class Twice(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            return x * 2

    path = save(keras.Sequential([keras.Input((2,)), Twice()]), tmp_path / "m.keras")

    with pytest.raises(LoadError, match="uses Twice"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\3\4" + bytes(100), b"<html>Sign in"])
def test_a_corrupt_file_is_rejected(tmp_path: Path, load: Callable[..., "Model"], content: bytes) -> None:
    (tmp_path / "m.keras").write_bytes(content)

    with pytest.raises(LoadError, match=r"m\.keras is not a readable Keras model: it is"):
        load(tmp_path / "m.keras")


def test_weights_of_another_shape_are_rejected(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    def widen(config: dict[str, Any]) -> None:
        dense = next(layer for layer in config["config"]["layers"] if layer["class_name"] == "Dense")
        dense["config"]["units"] = 9
        del dense["build_config"]

    with pytest.raises(LoadError, match=r"m\.keras is not a readable Keras model"):
        load(with_config(save(network(), tmp_path / "m.keras"), widen))


def test_the_dtype_of_the_file_is_kept(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    with pytest.raises(LoadError, match="keeps the dtype"):
        load(save(network(), tmp_path / "m.keras"), dtype="bfloat16")


def test_an_input_without_rows_is_rejected(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    x, w = keras.Input((3,), name="x"), keras.Input(batch_shape=(3, 3), name="w")
    path = save(keras.Model([x, w], keras.ops.add(x, w)), tmp_path / "net.keras")

    with pytest.raises(LoadError, match=r"x \[-1, 3\], w \[3, 3\]"):
        load(path)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_stateful_layer_is_rejected(tmp_path: Path, load: Callable[..., "Model"], rows: int) -> None:
    x = keras.Input(batch_shape=(rows, 5, 3), name="x")
    inner = keras.Sequential([keras.Input(batch_shape=(rows, 5, 3)), keras.layers.LSTM(4, stateful=True, name="kept")])

    with pytest.raises(LoadError, match=r"net\.keras keeps state .*kept is stateful.*stateful=False"):
        load(save(keras.Model(x, inner(x)), tmp_path / "net.keras"))


@pytest.mark.parametrize("nested", [lambda a, b, c: [a, [b, c]], lambda a, b, c: {"a": a, "more": {"b": b, "c": c}}])
def test_nested_outputs_go_one_by_one(tmp_path: Path, load: Callable[..., "Model"], nested: Callable[..., Any]) -> None:
    x = keras.Input((6,), name="x")
    original = keras.Model(x, nested(*(keras.layers.Dense(units, name=f"d{units}")(x) for units in (1, 2, 3))))
    rows = np.random.default_rng(1).standard_normal((5, 6), dtype=np.float32)

    with Bench.around(load(save(original, tmp_path / "net.keras"))) as bench:
        answers = bench.run({"x": rows}).outputs

    for answer, expected in zip(answers.values(), keras.tree.flatten(original(rows)), strict=True):
        np.testing.assert_allclose(answer, expected.detach(), atol=1e-6)
