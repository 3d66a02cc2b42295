import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.script_check import faults_of_code, faults_of_state
from tests.runtime.fakes import FOUR_NUMBERS, Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

PLACE = "/tmp/place"
"""Placeholder in the attacks, which a test replaces by its path."""


class ReadsAFile(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file("/tmp/place", False, 4, dtype=torch.float32)


class WritesAFile(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, "/tmp/place")
        return x


class WritesAFileWhenItIsLoaded(torch.nn.Module):
    @torch.jit.export
    def __getstate__(self) -> tuple[bool]:
        return (self.training,)

    @torch.jit.export
    def __setstate__(self, state: tuple[bool]) -> None:
        self.training = state[0]
        torch.save(torch.ones(1), "/tmp/place")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def script(module: torch.nn.Module, path: Path, place: Path) -> Path:
    """Save the module with another path in its code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(module), path.with_suffix(".made"))
    with zipfile.ZipFile(path.with_suffix(".made")) as made, zipfile.ZipFile(path, "w") as archive:
        for name in made.namelist():
            content = made.read(name)
            archive.writestr(
                name, content.replace(PLACE.encode(), str(place).encode()) if name.endswith(".py") else content
            )
    path.with_suffix(".made").unlink()
    (path.parent / "model.toml").write_text(FOUR_NUMBERS)
    return path


@pytest.mark.parametrize("attack", [ReadsAFile, WritesAFile, WritesAFileWhenItIsLoaded])
def test_a_script_accesses_no_files(
    tmp_path: Path, load: Callable[..., "Model"], attack: Callable[[], torch.nn.Module]
) -> None:
    place = tmp_path / "place"
    path = script(attack(), tmp_path / "evil.pt", place)

    with pytest.raises(LoadError, match=r"evil\.pt holds the operator '(from_file|save)'.*SHOAL_MODEL_ALLOW_PICKLE"):
        load(path)

    assert not place.exists()


@pytest.mark.parametrize("attack", [WritesAFile, WritesAFileWhenItIsLoaded])
def test_a_trusted_script_accesses_files(
    tmp_path: Path, load: Callable[..., "Model"], attack: Callable[[], torch.nn.Module]
) -> None:
    """Verify that the attacks are real."""
    place = tmp_path / "place"
    model = load(script(attack(), tmp_path / "evil.pt", place), allow_pickle=True)

    with Bench.around(model) as bench:
        bench.run({"x": np.ones((1, 4), dtype=np.float32)})

    assert place.exists()


@pytest.mark.parametrize(
    "code",
    [
        'torch.save(x, "f")',
        'torch . from_file("f")',
        'getattr(torch, "x")',
        'getattr(x, "sa" "ve")("f")',
        'getattr(x, "\\163ave")("f")',
        'getattr(x, "\\163" \'ave\')("f")',
        "t = torch\nt.cat([x])",
        "t = ops",
        "ops.prim.rpc_sync(x)",
        "ops.inductor._reinterpret_tensor(x, [9], [1], 0)",
        "ops.mkldnn.data_ptr(x)",
        "ops . c10d.barrier(x)",
        "torch._sparse_csr_tensor_unsafe(x, x, x)",
        "store : __torch__.torch.classes.dist_c10d.FileStore",
    ],
)
def test_code_that_does_more_than_compute_is_found(code: str) -> None:
    assert list(faults_of_code(code))


@pytest.mark.parametrize(
    "code",
    [
        '_0 = torch.add(x, getattr(self, "0"))',
        "ops.prim.RaiseException(torch.format(\"expected a torch tensor, got {}\\n\", x), 'ops')",
        "packed : __torch__.torch.classes.quantized.LinearPackedParamsBase",
        "_1 = ops.quantized.linear(x, packed, 0.1, 0)",
        "boxes = ops.torchvision.nms(x, y, 0.5)",
        "saved = self.save_state",
    ],
)
def test_code_that_computes_is_accepted(code: str) -> None:
    assert list(faults_of_code(code)) == []


def test_classes_in_the_state_are_found_wherever_their_name_is_split() -> None:
    name = "__torch__.torch.classes.dist_c10d.FileStore"
    for cut in re.finditer(r"\.", name):
        pickled = f"c{name[: cut.start()]}\n{name[cut.end() :]}\n".encode()
        assert list(faults_of_state(pickled)) == ["a native class of 'dist_c10d'"]


def test_a_quantized_script_is_loaded(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = torch.nn.Sequential(torch.nn.Linear(4, 4))
        quantized = torch.ao.quantization.quantize_dynamic(network)  # type: ignore[no-untyped-call]
    path = script(quantized, tmp_path / "quantized.pt", tmp_path)

    with Bench.around(load(path)) as bench:
        assert bench.run({"x": np.ones((2, 4), dtype=np.float32)}).outputs["y"].shape == (2, 4)


def test_two_records_with_one_name_are_rejected(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    path = script(torch.nn.Sequential(torch.nn.Identity()), tmp_path / "model.pt", tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        name = next(name for name in archive.namelist() if name.endswith(".py"))
        archive.writestr(name.replace("code/", "CODE/"), "torch.save(x)")

    with pytest.raises(LoadError, match="two records"):
        load(path)


def test_huge_code_is_not_read(tmp_path: Path, load: Callable[..., "Model"], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_runtime.formats.script_check.MAX_RECORD_BYTES", 100)

    with pytest.raises(LoadError, match="100 bytes"):
        load(script(torch.nn.Sequential(torch.nn.Identity()), tmp_path / "model.pt", tmp_path))
