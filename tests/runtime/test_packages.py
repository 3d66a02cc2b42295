"""Remedies for missing packages, on a machine and in an image."""

from pathlib import Path

import pytest

from shoal_runtime import packages
from shoal_runtime.packages import install_extras, install_package, remedy, replace_package


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as in one of Shoal's images."""
    (tmp_path / "shoal.cdx.json").touch()
    monkeypatch.setattr(packages, "PACKAGE_LIST", tmp_path / "shoal.cdx.json")


def test_a_machine_installs_with_pip() -> None:
    assert install_extras("runtime", "keras") == 'Run pip install "shoal[runtime,keras]"'
    assert install_package("torchao") == "pip install torchao"
    assert "pip uninstall onnxruntime" in replace_package("onnxruntime", "onnx-gpu")


@pytest.mark.parametrize(
    ("extras", "image_name"),
    [
        (("sklearn",), "shoal/runtime-light:"),
        (("onnx",), "shoal/runtime-light:"),
        (("runtime",), "shoal/runtime:"),
        (("keras",), "EXTRAS=runtime,keras,stores"),
        (("runtime", "keras"), "EXTRAS=runtime,keras,stores"),
        (("batch",), "built with the extra batch"),
    ],
)
@pytest.mark.usefixtures("image")
def test_a_pod_gets_another_image(extras: tuple[str, ...], image_name: str) -> None:
    assert install_extras(*extras).startswith("Set runtime.image to ")
    assert image_name in install_extras(*extras)
    assert "pip" not in install_extras(*extras)


@pytest.mark.usefixtures("image")
def test_a_pod_replaces_no_package() -> None:
    assert (
        replace_package("onnxruntime", "onnx-gpu") == "Set runtime.image to one that is built with the extra onnx-gpu"
    )


@pytest.mark.usefixtures("image")
def test_a_module_that_a_handler_imports_belongs_into_an_image() -> None:
    error = ModuleNotFoundError("No module named 'no_such_part'", name="no_such_part")

    assert remedy(error) == ": set runtime.image to one with no_such_part"
