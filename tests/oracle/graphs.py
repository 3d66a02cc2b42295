"""ONNX graphs and PyTorch's programs over tables."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.entries import Entry, Predict
from tests.oracle.frames import WORDS, columns

THREE = columns(x0="float", x1="float", x2="float")
APART = columns(size="float", count="int", member="bool", colour="text")
WEIGHT = np.array([[1.5], [-2.0], [0.25]], np.float32)
DTYPES = {"float": np.float32, "int": np.int64, "bool": np.bool_, "text": object}


def _session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _save(path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], *constants: Any) -> Path:
    import onnx
    from onnx import helper

    made = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(constants))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(made, opset_imports=opsets, ir_version=8), path)
    return path


def _types() -> Mapping[str, int]:
    from onnx import TensorProto as T

    return {"float": T.FLOAT, "int": T.INT64, "bool": T.BOOL, "text": T.STRING}


def _value(name: str, kind: str, shape: Sequence[Any]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, _types()[kind], list(shape))


def _matrix(table: Any, directory: Path) -> Path:
    from onnx import helper, numpy_helper

    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weight = numpy_helper.from_array(WEIGHT, "w")
    return _save(
        directory / "m.onnx", nodes, [_value("x", "float", ["n", 3])], [_value("y", "float", ["n", 1])], weight
    )


def _matrix_truth(path: Path) -> Predict:
    session = _session(path)
    return lambda table: {"y": session.run(["y"], {"x": table.to_numpy(np.float32)})[0]}


def _classifier(labels: Sequence[Any]) -> Any:
    def save(_: Any, directory: Path) -> Path:
        from onnx import helper

        kind = "text" if isinstance(labels[0], str) else "int"
        key = "classlabels_strings" if kind == "text" else "classlabels_ints"
        labelled: dict[str, Any] = {key: list(labels)}
        coefficients = np.random.default_rng(5).normal(size=9).tolist()
        node = helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", coefficients=coefficients,
            intercepts=[0.1, 0.2, -0.3], multi_class=1, post_transform="SOFTMAX", **labelled,
        )  # fmt: skip
        outputs = [_value("label", kind, ["n"]), _value("scores", "float", ["n", 3])]
        return _save(directory / "m.onnx", [node], [_value("x", "float", ["n", 3])], outputs)

    return save


def _classifier_truth(path: Path) -> Predict:
    session = _session(path)

    def predict(table: Any) -> Mapping[str, Any]:
        label, scores = session.run(["label", "scores"], {"x": table.to_numpy(np.float32)})
        return {"label": label, "scores": scores}

    return predict


def _apart(shape: Sequence[Any]) -> Any:
    """Return how a graph of one input a column is saved: numbers, flags and texts of this shape."""

    def save(_: Any, directory: Path) -> Path:
        from onnx import helper

        encode = helper.make_node(
            "LabelEncoder", ["colour"], ["code"], domain="ai.onnx.ml", keys_strings=list(WORDS),
            values_floats=[1.0, 2.0, 4.0, 8.0], default_float=-1.0,
        )  # fmt: skip
        nodes = [
            encode,
            helper.make_node("Cast", ["count"], ["counted"], to=_types()["float"]),
            helper.make_node("Cast", ["member"], ["flag"], to=_types()["float"]),
            helper.make_node("Sum", ["size", "counted", "flag", "code"], ["score"]),
            helper.make_node("Greater", ["score", "counted"], ["more"]),
        ]
        inputs = [_value(column.name, column.kind, shape) for column in APART]
        return _save(
            directory / "m.onnx", nodes, inputs, [_value("score", "float", shape), _value("more", "bool", shape)]
        )

    return save


def _apart_truth(shape: Sequence[Any]) -> Any:
    def load(path: Path) -> Predict:
        session = _session(path)

        def predict(table: Any) -> Mapping[str, Any]:
            given: Mapping[str, Any] = {
                column.name: np.array(table[column.name].tolist(), DTYPES[column.kind]).reshape(-1, *shape[1:])
                for column in APART
            }
            score, more = session.run(["score", "more"], given)
            return {"score": score, "more": more}

        return predict

    return load


def _export(table: Any, directory: Path) -> Path:
    import torch

    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.tensor(WEIGHT)

    return _exported(Rows().eval(), (torch.zeros(2, 3),), directory)


def _export_apart(table: Any, directory: Path) -> Path:
    import torch

    class Columns(torch.nn.Module):
        def forward(self, size: torch.Tensor, count: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"total": size + count, "more": size > count}

    return _exported(Columns().eval(), (torch.zeros(2), torch.zeros(2, dtype=torch.int64)), directory)


def _exported(module: Any, example: tuple[Any, ...], directory: Path) -> Path:
    import torch

    batch = torch.export.Dim("batch")
    path = directory / "m.pt2"
    torch.export.save(torch.export.export(module, example, dynamic_shapes=tuple({0: batch} for _ in example)), path)
    return path


def _program(path: Path) -> Any:
    import torch

    return torch.export.load(path).module()


def _export_truth(path: Path) -> Predict:
    import torch

    run = _program(path)
    return lambda table: {"output": run(torch.tensor(table.to_numpy(np.float32))).detach().numpy()}


def _export_apart_truth(path: Path) -> Predict:
    import torch

    run = _program(path)

    def predict(table: Any) -> Mapping[str, Any]:
        made = run(
            torch.tensor(table["size"].to_numpy(np.float32)), torch.tensor(np.array(table["count"].tolist(), np.int64))
        )
        return {name: value.numpy() for name, value in made.items()}

    return predict


def entries() -> Iterator[Entry]:
    """Yield the models."""
    yield Entry("onnx-matrix", THREE, _matrix, _matrix_truth, named=False, positional=True)
    for name, labels in (("ints", [3, 5, 7]), ("names", ["low", "middle", "high"])):
        save = _classifier(labels)
        yield Entry(f"onnx-classifier-{name}", THREE, save, _classifier_truth, named=False, positional=True)
    for name, shape in (("apart", ("n",)), ("apart-tall", ("n", 1))):
        yield Entry(f"onnx-{name}", APART, _apart(shape), _apart_truth(shape))
    yield Entry("export-matrix", THREE, _export, _export_truth, named=False, positional=True)
    yield Entry("export-apart", columns(size="float", count="int"), _export_apart, _export_apart_truth)
