import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench, texts
from tests.runtime.formats.rounds import assert_answers_as

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
X = np.random.default_rng(3).standard_normal((64, 4), dtype=np.float32)
WEIGHT = np.random.default_rng(4).standard_normal((4, 3), dtype=np.float32)
FLOAT, TEXT = TensorProto.FLOAT, TensorProto.STRING
value = helper.make_tensor_value_info


def save(
    path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], *constants: Any, opset: int = 17
) -> Path:
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    onnx.save(model, path)
    return path


def product(path: Path, batch: int | str | None = "batch", *, opset: int = 17) -> Path:
    """Save a graph that multiplies rows with a matrix."""
    return save(
        path,
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", FLOAT, [batch, 4])],
        [value("y", FLOAT, [batch, 3])],
        onnx.numpy_helper.from_array(WEIGHT, "w"),
        opset=opset,
    )


def test_results_are_those_of_onnxruntime(tmp_path: Path, load: Load) -> None:
    session = onnxruntime.InferenceSession(str(product(tmp_path / "model.onnx")))

    model = load(tmp_path, max_batch_size=64)

    assert model.platform == "onnx"
    shapes = [(each.name, each.datatype, each.shape) for each in (*model.signature.inputs, *model.signature.outputs)]
    assert shapes == [("x", "FP32", (-1, 4)), ("y", "FP32", (-1, 3))]
    assert_answers_as(model, {"x": X}, lambda rows: {"y": session.run(["y"], {"x": X[:rows]})[0]})


def test_a_graph_with_a_fixed_batch_is_served_with_a_warning(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        model = load(product(tmp_path / "fixed.onnx", 2))

    assert model.signature.max_batch_size == 2
    assert "event=static_batch message=fixed.onnx has a fixed batch of 2" in caplog.text
    with Bench.around(model) as bench:
        for rows in (1, 2):
            np.testing.assert_allclose(bench.run({"x": X[:rows]}).outputs["y"], X[:rows] @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize("batch", ["n", 2, 1])
def test_an_input_without_rows_is_rejected(tmp_path: Path, load: Load, batch: str | int) -> None:
    path = save(
        tmp_path / "model.onnx",
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", FLOAT, [batch, 3]), value("w", FLOAT, [3])],
        [value("y", FLOAT, [batch, 3])],
    )

    with pytest.raises(LoadError, match=r"x \[-?\d, 3\], w \[3\].* model\.toml"):
        load(path)


def test_an_ambiguous_fixed_dimension_is_rejected(tmp_path: Path, load: Load) -> None:
    path = save(
        tmp_path / "model.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", FLOAT, [3, "n"])],
        [value("y", FLOAT, [3, "n"])],
    )
    with pytest.raises(LoadError, match=r"x as \[3, -1\].*batch_dim"):
        load(path)

    sides = "\n".join(
        f'[[{side}]]\nname="{name}"\ndatatype="FP32"\nshape=[3, -1]\nbatch_dim=1'
        for side, name in (("inputs", "x"), ("outputs", "y"))
    )
    (tmp_path / "model.toml").write_text(sides)
    with Bench.around(load(tmp_path)) as bench:
        assert bench.run({"x": X[:3]}).outputs["y"].shape == (3, 4)


def test_texts_go_in_and_out(tmp_path: Path, load: Load) -> None:
    save(
        tmp_path / "model.onnx",
        [helper.make_node("Identity", ["t"], ["same"])],
        [value("t", TEXT, [None])],
        [value("same", TEXT, [None])],
    )

    with Bench.around(load(tmp_path)) as bench:
        assert bench.run({"t": texts(b"a", "ü".encode())}).outputs["same"].tolist() == [b"a", "ü".encode()]


def test_outputs_without_rows_are_omitted(tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture) -> None:
    save(
        tmp_path / "model.onnx",
        [
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("ReduceSum", ["x"], ["loss"], keepdims=0),
            helper.make_node("SequenceConstruct", ["x"], ["list"]),
        ],
        [value("x", FLOAT, [None, 4])],
        [
            value("y", FLOAT, [None, 4]),
            value("loss", FLOAT, []),
            helper.make_tensor_sequence_value_info("list", FLOAT, [None, 4]),
        ],
    )

    with caplog.at_level(logging.WARNING), Bench.around(load(tmp_path)) as bench:
        assert list(bench.run({"x": X[:2]}).outputs) == ["y"]

    assert [record.message.split()[0] for record in caplog.records] == ["event=output_left_out"] * 2
    assert "zipmap: False" in caplog.text


def test_an_output_declared_with_one_row_does_not_limit_batches(tmp_path: Path, load: Load) -> None:
    save(
        tmp_path / "model.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", FLOAT, ["batch", 4])],
        [value("y", FLOAT, ["other", 4])],
    )

    assert load(tmp_path, max_batch_size=64).signature.max_batch_size == 64


def test_a_later_opset_is_rejected_with_the_supported_one(tmp_path: Path, load: Load) -> None:
    with pytest.raises(LoadError, match=r"opset 99;.*opset_version=\d\d"):
        load(product(tmp_path / "model.onnx", opset=99))


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x08\x08", b"<!doctype html>"])
def test_a_corrupt_file_is_rejected(tmp_path: Path, load: Load, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)

    with pytest.raises(LoadError, match=r"model\.onnx is not an ONNX model"):
        load(tmp_path)


def test_a_graph_without_rows_is_rejected(tmp_path: Path, load: Load) -> None:
    save(
        tmp_path / "model.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [value("x", FLOAT, [])],
        [value("y", FLOAT, [])],
    )

    with pytest.raises(LoadError, match="input x of the graph"):
        load(tmp_path)


def test_the_number_of_threads_is_that_of_the_runtime(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Kept(onnxruntime.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Kept)
    load(product(tmp_path / "model.onnx"), threads=3)

    assert made[0].get_session_options().intra_op_num_threads == 3
