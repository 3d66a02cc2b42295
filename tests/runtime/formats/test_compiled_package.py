"""Packages of AOTInductor. One is compiled for real where there is a C++ compiler."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import FOUR_NUMBERS, Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

METADATA = {"AOTI_DEVICE_KEY": "cpu", "AOTI_MACHINE": os.uname().machine, "AOTI_CPU_ISA": "", "AOTI_PLATFORM": "linux"}


class Shift(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def package(directory: Path, *, model: str = "model", **metadata: str) -> Path:
    """Write an archive that looks like a package, with code that cannot be loaded."""
    path = directory / "shift.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        place = f"shift/data/aotinductor/{model}/code.wrapper"
        archive.writestr(f"{place}_metadata.json", json.dumps({**METADATA, **metadata}))
        archive.writestr(f"{place}.so", b"not a library")
        archive.writestr("shift/archive_format", "pt2")
        archive.writestr("shift/archive_version", "0")
        archive.writestr("shift/byteorder", "little")
        archive.writestr("shift/.data/version", "3")
    (directory / "model.toml").write_text(FOUR_NUMBERS)
    return path


def test_native_code_is_refused_unless_trusted(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    with pytest.raises(LoadError, match=r"shift\.pt2 holds native code.*SHOAL_MODEL_ALLOW_PICKLE=true"):
        load(package(tmp_path))


@pytest.mark.parametrize(
    ("metadata", "key"),
    [
        ({"AOTI_DEVICE_KEY": "cuda"}, "compiled for cuda, and the device is cpu"),
        ({"AOTI_MACHINE": "vax"}, "compiled for vax"),
    ],
)
def test_a_package_for_another_machine_is_refused_with_both(
    tmp_path: Path, load: Callable[..., "Model"], metadata: dict[str, str], key: str
) -> None:
    with pytest.raises(LoadError, match=key):
        load(package(tmp_path, **metadata), allow_pickle=True)


def test_instructions_that_the_processor_does_not_have_are_refused(
    tmp_path: Path, load: Callable[..., "Model"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")

    with pytest.raises(LoadError, match="AVX512"):
        load(package(tmp_path, AOTI_CPU_ISA="AVX512 AVX512_VNNI"), allow_pickle=True)


@pytest.mark.parametrize(
    ("compiled", "own", "fits"),
    [("80", (8, 6), True), ("86", (8, 0), False), ("90", (8, 9), False), ("", (9, 0), True)],
)
def test_gpu_code_runs_on_later_gpus_of_the_same_major_version(
    compiled: str, own: tuple[int, int], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal_runtime.formats.compiled_package import misfit

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: own)
    built = {"AOTI_DEVICE_KEY": "cuda", "AOTI_COMPUTE_CAPABILITY": compiled}

    assert (misfit(built, torch.device("cuda:0"), multi_arch=False) == "") is fits
    assert misfit(built, torch.device("cuda:0"), multi_arch=True) == ""


def test_a_package_of_several_models_is_refused(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    with pytest.raises(LoadError, match="compiled models other"):
        load(package(tmp_path, model="other"), allow_pickle=True)


def test_a_package_needs_a_declared_signature(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    path = package(tmp_path)
    (tmp_path / "model.toml").unlink()

    with pytest.raises(LoadError, match=r"model\.toml"):
        load(path, allow_pickle=True)


def test_a_corrupt_package_is_unreadable(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    with pytest.raises(LoadError, match="readable AOTInductor package"):
        load(package(tmp_path), allow_pickle=True)


@pytest.fixture(scope="module")
def shift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("AOTInductor needs a C++ compiler")
    directory = tmp_path_factory.mktemp("compiled")
    rows = torch.export.Dim("rows", min=1, max=16)
    program = torch.export.export(Shift(), (torch.ones(2, 4),), dynamic_shapes=({0: rows},))
    options: dict[str, Any] = {"aot_inductor.compile_wrapper_opt_level": "O0", "cpp_cache_precompile_headers": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(directory / "cache"))
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(directory / "shift.pt2"), inductor_configs=options
        )
    (directory / "model.toml").write_text(FOUR_NUMBERS)
    return directory / "shift.pt2"


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # torch's compiler raises several
def test_a_trusted_package_runs(shift: Path, load: Callable[..., "Model"]) -> None:
    model = load(shift, allow_pickle=True)

    assert model.platform == "pytorch_aotinductor"
    # Code of a dynamic dimension does not run one row, so it is padded.
    assert model.signature.allowed_batch_sizes[0] == 2
    with Bench.around(model) as bench:
        for rows in (1, 3):
            assert bench.run({"x": np.ones((rows, 4), dtype=np.float32)}).outputs["y"].tolist() == [[2.0] * 4] * rows
    # More rows than the compiled range are an error, not a wrong result.
    with pytest.raises(RuntimeError, match="<= 16"):
        model.stages.forward({"x": torch.ones(17, 4)})
