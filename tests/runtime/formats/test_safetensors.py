from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model

from shoal_runtime.errors import LoadError
from shoal_runtime.importing import HandlerFailed
from tests.runtime.fakes import Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

HANDLER = """
import torch
from shoal_runtime import TensorSpec
class Tied(torch.nn.Module):
    inputs = [TensorSpec("x", "FP32", [-1, 2]), TensorSpec("bias", "FP32", [-1, 2], optional=True)]
    outputs = [TensorSpec("y", "FP32", [-1, 2]), TensorSpec("z", "FP32", [-1, 2])]
    def __init__(self, width):
        super().__init__()
        self.a = torch.nn.Linear(width, width, bias=False)
        self.b = torch.nn.Linear(width, width, bias=False)
        self.b.weight = self.a.weight
        self.scale = torch.nn.Parameter(torch.ones(1))
    def forward(self, x, bias):
        return self.a(x) if bias is None else self.a(x) + bias, self.b(x) * self.scale
"""
X = np.array([[1, 2]], dtype=np.float32)
WEIGHT = torch.tensor([[2.0, 0.0], [0.0, 3.0]])


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    made = tmp_path / "tied"
    made.mkdir()
    (made / "handler.py").write_text(HANDLER)
    (made / "model.toml").write_text("[parameters]\nwidth = 2\n")
    return made


def save(path: Path, **tensors: torch.Tensor) -> None:
    save_file(tensors, path)


def test_weights_are_loaded_into_their_class(model_dir: Path, load: Callable[..., "Model"]) -> None:
    save(model_dir / "m.safetensors", **{"a.weight": WEIGHT, "scale": torch.tensor([5.0])})

    model = load(model_dir)

    assert model.platform == "pytorch_safetensors"
    with Bench.around(model) as bench:
        outputs = bench.run({"x": X}).outputs
        assert outputs["y"].tolist() == [[2, 6]]
        assert outputs["z"].tolist() == [[10, 30]]
        assert bench.run({"x": X, "bias": X}).outputs["y"].tolist() == [[3, 8]]


def test_shards_are_combined(model_dir: Path, load: Callable[..., "Model"]) -> None:
    save(model_dir / "m-1.safetensors", **{"a.weight": WEIGHT})
    save(model_dir / "m-2.safetensors", scale=torch.tensor([5.0]))

    with Bench.around(load(model_dir)) as bench:
        assert bench.run({"x": X}).outputs["z"].tolist() == [[10, 30]]


def test_what_save_model_writes_is_read(model_dir: Path, load: Callable[..., "Model"]) -> None:
    module = torch.nn.Linear(2, 2, bias=False)
    save_model(module, str(model_dir / "m.safetensors"))
    (model_dir / "handler.py").write_text(
        "import torch\nfrom shoal_runtime import TensorSpec\n"
        "class Net(torch.nn.Linear):\n"
        "    inputs = [TensorSpec('x', 'FP32', [-1, 2])]\n"
        "    outputs = [TensorSpec('y', 'FP32', [-1, 2])]\n"
        "    def __init__(self, width): super().__init__(width, width, bias=False)\n"
        "    def forward(self, x): return super().forward(x)\n"
    )

    with Bench.around(load(model_dir)) as bench:
        y = bench.run({"x": X}).outputs["y"]

    assert np.allclose(y, module(torch.from_numpy(X)).detach().numpy())


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        pytest.param({"a.weight": WEIGHT}, "scale", id="missing"),
        pytest.param(
            {"a.weight": WEIGHT, "scale": torch.ones(1), "more": torch.ones(1)},
            "unknown more",
            id="unknown",
        ),
        pytest.param({"a.weight": torch.ones(3, 3)}, "size mismatch", id="shape"),
    ],
)
def test_weights_of_another_module_are_rejected(
    model_dir: Path,
    load: Callable[..., "Model"],
    tensors: dict[str, torch.Tensor],
    message: str,
) -> None:
    save(model_dir / "m.safetensors", **tensors)

    with pytest.raises(LoadError, match=message):
        load(model_dir)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100])
def test_a_corrupt_file_is_rejected(model_dir: Path, load: Callable[..., "Model"], content: bytes) -> None:
    (model_dir / "m.safetensors").write_bytes(content)

    with pytest.raises(LoadError, match="not a readable safetensors file"):
        load(model_dir)


def test_weights_require_a_class(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    save(tmp_path / "m.safetensors", scale=torch.ones(1))

    with pytest.raises(LoadError, match="SHOAL_MODEL_HANDLER"):
        load(tmp_path / "m.safetensors")


def test_a_class_that_raises_keeps_its_cause(model_dir: Path, load: Callable[..., "Model"]) -> None:
    save(model_dir / "m.safetensors", **{"a.weight": WEIGHT})
    (model_dir / "model.toml").write_text("[parameters]\nheight = 2\n")

    with pytest.raises(HandlerFailed, match="Tied failed to load: TypeError"):
        load(model_dir)
