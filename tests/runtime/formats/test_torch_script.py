import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

TOML = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 2]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 1]
"""
HANDLER = """
import torch
class Linear(torch.nn.Linear):
    def __init__(self, width): super().__init__(width, 1, bias=False)
"""
X = np.array([[1, 2], [3, 4]], dtype=np.float32)


class Linear(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 1, bias=False)
        torch.nn.init.ones_(self.weight)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    made = tmp_path / "linear"
    made.mkdir()
    (made / "model.toml").write_text(TOML)
    return made


def script(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(torch.nn.Sequential(Linear())), path)


def test_an_archive_is_not_unpickled(model_dir: Path, load: Callable[..., "Model"]) -> None:
    script(model_dir / "model.pt")

    model = load(model_dir)

    assert model.platform == "pytorch_torchscript"
    with Bench.around(model) as bench:
        assert bench.run({"x": X}).outputs["y"].tolist() == [[3], [7]]


def test_a_module_runs_in_another_dtype(model_dir: Path, load: Callable[..., "Model"]) -> None:
    script(model_dir / "model.pt")

    with Bench.around(load(model_dir, dtype="bfloat16")) as bench:
        result = bench.run({"x": X + np.float32(0.001)})

    assert result.outputs["y"].dtype == np.float32
    assert result.outputs["y"].tolist() == [[3], [7]]


def test_an_archive_needs_a_signature(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    script(tmp_path / "model.pt")

    with pytest.raises(LoadError, match=r"\[\[inputs\]\].*model\.toml"):
        load(tmp_path / "model.pt")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["torch", "legacy", "pickle"])
def test_a_pickle_is_rejected_without_running_it(model_dir: Path, load: Callable[..., "Model"], how: str) -> None:
    bomb, path = Bomb(model_dir / "exploded"), model_dir / "model.pt"
    if how == "pickle":
        path.write_bytes(pickle.dumps(bomb))
    else:
        torch.save(bomb, path, _use_new_zipfile_serialization=how == "torch")

    with pytest.raises(LoadError, match=r"model\.pt is a pickle.*SHOAL_MODEL_ALLOW_PICKLE=true"):
        load(model_dir)

    assert not bomb.path.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"ab", "it is neither an archive nor a pickle"),
        (b"PK\3\4" + bytes(100), "it is neither an archive nor a pickle"),
        (b"", "it is empty"),
        (b"\n<!DOCTYPE html><html>Sign in", "it is a web page"),
    ],
)
def test_other_files_are_not_reported_as_pickles(
    model_dir: Path, load: Callable[..., "Model"], content: bytes, reason: str
) -> None:
    (model_dir / "model.pt").write_bytes(content)
    with pytest.raises(LoadError, match=rf"^model\.pt is not a readable PyTorch model: {reason}"):
        load(model_dir)


def test_a_state_dict_is_recognized_without_unpickling(model_dir: Path, load: Callable[..., "Model"]) -> None:
    torch.save(torch.nn.Linear(2, 1).state_dict(), model_dir / "model.pt")
    with pytest.raises(LoadError, match=r"^model\.pt holds only weights .*SHOAL_MODEL_HANDLER.*PICKLE"):
        load(model_dir)
    torch.save({"epoch": 3, "model": torch.nn.Linear(2, 1).state_dict()}, model_dir / "model.pt")
    with pytest.raises(LoadError, match="only weights"):
        load(model_dir)
    torch.save(torch.nn.Linear(2, 1), model_dir / "model.pt")
    with pytest.raises(LoadError, match="is a pickle"):
        load(model_dir)


def test_a_pickled_module_is_loaded_if_allowed(model_dir: Path, load: Callable[..., "Model"]) -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(module.weight)
    torch.save(module, model_dir / "model.pt")

    with Bench.around(load(model_dir, allow_pickle=True)) as bench:
        assert bench.run({"x": X}).outputs["y"].tolist() == [[3], [7]]


def test_pickled_weights_require_a_class(model_dir: Path, load: Callable[..., "Model"]) -> None:
    torch.save({"weight": torch.ones(1, 2)}, model_dir / "model.pt")
    with pytest.raises(LoadError, match="SHOAL_MODEL_HANDLER"):
        load(model_dir, allow_pickle=True)
    (model_dir / "handler.py").write_text(HANDLER)

    with Bench.around(load(model_dir, allow_pickle=True, parameters={"width": 2})) as bench:
        assert bench.run({"x": X}).outputs["y"].tolist() == [[3], [7]]
    with pytest.raises(LoadError, match="Linear"):
        load(model_dir, allow_pickle=True, parameters={"width": 3})


def test_other_pickles_are_rejected(model_dir: Path, load: Callable[..., "Model"]) -> None:
    torch.save([1], model_dir / "model.pt")

    with pytest.raises(LoadError, match="holds a list, neither a module nor weights"):
        load(model_dir, allow_pickle=True)


def test_a_corrupt_archive_is_rejected(model_dir: Path, load: Callable[..., "Model"]) -> None:
    script(model_dir / "model.pt")
    content = (model_dir / "model.pt").read_bytes()
    (model_dir / "model.pt").write_bytes(content.replace(b"\x80\x02", b"\x00\x00"))

    with pytest.raises(
        LoadError,
        match=r"model\.pt is not a readable TorchScript archive",
    ):
        load(model_dir)
