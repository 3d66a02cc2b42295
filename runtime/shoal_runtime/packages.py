"""Remedies for missing packages: pip on a machine, another image in a container of Shoal's image.

This module imports little, because it also runs before torch is imported.
"""

import sys
from pathlib import Path
from typing import Final

from shoal_schema.version import VERSION

PACKAGE_LIST: Final = Path("/usr/share/sbom/shoal.cdx.json")
"""List of packages in each of Shoal's images, which have no pip."""
LIGHT: Final = frozenset({"lightgbm", "onnx", "sklearn", "xgboost"})
"""Extras that the image `shoal/runtime-light` has and `shoal/runtime` does not."""
_ON_TORCH: Final = frozenset({"runtime", "keras", "torchserve", "transformers"})
"""PyTorch, and extras of formats that need it. No image has the other extras of formats."""
DISTRIBUTIONS: Final = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Distributions of modules that handlers import, where the names differ."""


def install_extras(*extras: str) -> str:
    """Return what to do if the packages of these extras of Shoal are missing, as a sentence without a period."""
    if not PACKAGE_LIST.is_file():
        return f'Run pip install "shoal[{",".join(extras)}]"'
    if LIGHT.issuperset(extras):
        return f"Set runtime.image to shoal/runtime-light:{VERSION} in the registry of this image"
    if extras == ("runtime",):
        return f"Set runtime.image to shoal/runtime:{VERSION} in the registry of this image"
    built = f"the extra {','.join(extras)}"
    if _ON_TORCH.issuperset(extras):
        built = f"make images ONLY=runtime EXTRAS={','.join(dict.fromkeys(('runtime', *extras, 'stores')))}"
    return f"Set runtime.image to one that is built with {built}"


def replace_package(old: str, extra: str) -> str:
    """Return how to install an extra whose package must not be installed beside ``old``; see `install_extras`."""
    if PACKAGE_LIST.is_file():
        return install_extras(extra)
    return f'Run pip uninstall {old}, then pip install "shoal[{extra}]"'


def install_package(name: str) -> str:
    """Return what to do if a package that is no extra of Shoal is missing, as a clause."""
    return f"set runtime.image to one with {name}" if PACKAGE_LIST.is_file() else f"pip install {name}"


def remedy(error: BaseException) -> str:
    """Return what to do about a missing module, after a colon; an empty text for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    top = error.name.partition(".")[0]
    # The package is installed: the submodule's name is misspelled, or belongs to another version.
    return "" if top in sys.modules else f": {install_package(DISTRIBUTIONS.get(top, top))}"
