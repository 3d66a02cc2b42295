"""ONNX graphs with weights in other files, behind links of every layout."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.external_data import linked_files, locations
from tests.runtime.fakes import Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
X = np.ones((2, 4), np.float32)
FLOAT = TensorProto.FLOAT
value = helper.make_tensor_value_info
FOUND = np.arange(12, dtype=np.float32).reshape(4, 3)


def external(name: str, array: np.ndarray, location: str, offset: int = 0) -> TensorProto:
    tensor = onnx.numpy_helper.from_array(array, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in (("location", location), ("offset", str(offset)), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=text)
    return tensor


def graph(*weights: TensorProto) -> bytes:
    """Return a graph that multiplies rows with the sum of its weights."""
    names = [weight.name for weight in weights]
    nodes = [helper.make_node("Sum", names, ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    made = helper.make_graph(nodes, "g", [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 3])], weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return bytes(model.SerializeToString())


def laid(root: Path, files: Mapping[str, str]) -> Path:
    """Return a directory of links by name to files below `root` that hold the model and its weights."""
    content = {"model.onnx": graph(external("a", FOUND, "model.onnx.data")), "model.onnx.data": FOUND.tobytes()}
    for name, target in files.items():
        real, link = root / target, root / "served" / name
        real.parent.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        real.write_bytes(content[name])
        if real != link:
            link.symlink_to(os.path.relpath(real, link.parent))
    return root / "served"


def assert_served(path: Path, load: Load) -> None:
    with Bench.around(load(path)) as bench:
        np.testing.assert_array_equal(bench.run({"x": X}).outputs["y"], X @ FOUND)


@pytest.mark.parametrize(
    "files",
    [
        {"model.onnx": "served/model.onnx", "model.onnx.data": "served/model.onnx.data"},
        {"model.onnx": "blobs/A", "model.onnx.data": "blobs/B"},
        {"model.onnx": "one/A", "model.onnx.data": "other/B"},
        {"model.onnx": "served/model.onnx", "model.onnx.data": "other/B"},
        {"model.onnx": "other/A", "model.onnx.data": "served/model.onnx.data"},
        {"model.onnx": "served/..2024/model.onnx", "model.onnx.data": "served/..2024/model.onnx.data"},
    ],
    ids=["no links", "hub cache", "two directories", "a linked data file", "a linked model", "config map"],
)
def test_links_are_followed_to_the_weights(files: Mapping[str, str], tmp_path: Path, load: Load) -> None:
    directory = laid(tmp_path, files)

    assert_served(directory, load)
    assert_served(directory / "model.onnx", load)


def test_a_link_to_a_link_finds_the_weights_beside_either(tmp_path: Path, load: Load) -> None:
    directory = laid(tmp_path, {"model.onnx": "one/A", "model.onnx.data": "other/B"})
    alone = tmp_path / "elsewhere" / "alone.onnx"
    alone.parent.mkdir()
    alone.symlink_to(directory / "model.onnx")

    assert_served(alone, load)


def test_a_linked_directory_below_the_model_is_followed(tmp_path: Path, load: Load) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "w.bin").write_bytes(FOUND.tobytes() + FOUND.tobytes())
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "weights").symlink_to(tmp_path / "store")
    weights = (external("a", FOUND, "weights/w.bin"), external("b", FOUND, "weights/w.bin", FOUND.nbytes))
    (tmp_path / "served" / "model.onnx").write_bytes(graph(*weights))

    with Bench.around(load(tmp_path / "served")) as bench:
        np.testing.assert_array_equal(bench.run({"x": X}).outputs["y"], X @ (2 * FOUND))


@pytest.mark.parametrize("location", ["../secret", "sub/../../secret", "{}/secret", "linked/../../secret"])
def test_weights_outside_the_directory_are_rejected(location: str, tmp_path: Path, load: Load) -> None:
    (tmp_path / "secret").write_bytes(FOUND.tobytes())
    (tmp_path / "other").mkdir()
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "linked").symlink_to(tmp_path / "other")
    (tmp_path / "served" / "model.onnx").write_bytes(graph(external("a", FOUND, location.format(tmp_path))))

    with pytest.raises(LoadError, match="outside its directory"):
        load(tmp_path / "served")


def test_a_dangling_link_is_reported_with_its_target_and_a_remedy(tmp_path: Path, load: Load) -> None:
    directory = laid(tmp_path, {"model.onnx": "one/A", "model.onnx.data": "other/B"})
    (tmp_path / "other" / "B").unlink()

    with pytest.raises(LoadError, match=r"model\.onnx\.data is a link to \.\./other/B, .*cp -rL"):
        load(directory)


def test_missing_weights_are_reported(tmp_path: Path, load: Load) -> None:
    directory = laid(tmp_path, {"model.onnx": "served/model.onnx"})

    with pytest.raises(LoadError, match=r"external data model\.onnx\.data"):
        load(directory)


def test_truncated_weights_are_rejected_by_the_library(tmp_path: Path, load: Load) -> None:
    directory = laid(tmp_path, {"model.onnx": "one/A", "model.onnx.data": "other/B"})
    (tmp_path / "other" / "B").write_bytes(b"")

    with pytest.raises(LoadError, match=r"model\.onnx is not an ONNX model"):
        load(directory)


def test_locations_are_read_from_every_tensor(tmp_path: Path) -> None:
    tensors = [external(f"t{number}", FOUND, f"w{number}.bin") for number in range(5)]
    inner = helper.make_graph([helper.make_node("Constant", [], ["c"], value=tensors[0])], "i", [], [], [tensors[1]])
    nodes = [
        helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Several", [], ["z"], domain="own", values=[tensors[2]]),
    ]
    made = helper.make_model(helper.make_graph(nodes, "g", [], [], [tensors[3]]))
    sparse = made.graph.sparse_initializer.add()
    sparse.values.CopyFrom(tensors[4])
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())

    assert sorted(locations(tmp_path / "m.onnx")) == [f"w{number}.bin" for number in range(5)]


@given(content=st.binary(max_size=64), cut=st.integers(0, 400))
def test_corrupt_graphs_have_no_locations(content: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "m.onnx"
    for broken in (content, graph(external("a", FOUND, "w.bin"))[:cut] + content):
        path.write_bytes(broken)
        try:
            found = linked_files(path)
        except LoadError:
            continue
        assert found == {}
