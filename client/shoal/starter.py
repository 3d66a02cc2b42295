"""``shoal init``: write a small model directory that can be served."""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from shoal.serving.errors import FieldError, LocalError
from shoal_schema.fields.declaring import NAME, NAME_IN_WORDS

TEMPLATES: Final = Path(__file__).with_name("templates")
TRAIN: Final = "train.py"
NEEDS: Final[Mapping[str, Sequence[str]]] = {
    "torch": ("torch",),
    "sklearn": ("sklearn", "skops"),
    "transformers": ("torch", "transformers"),
    "handler": ("numpy",),
}
"""The packages that each template imports."""
EXTRAS: Final = {
    "torch": "serve", "sklearn": "serve-light,sklearn", "transformers": "serve,transformers", "handler": "serve-light"
}  # fmt: skip


def make(directory: Path, template: str) -> list[Path]:
    """Write a template into a new directory and run its script, which makes the model; return the files.

    Raises:
        FieldError: the directory exists, or its name is not a model's name.
        LocalError: a package of the template is missing, or its script failed.
    """
    # The directory's name becomes the model's.
    if not re.search(NAME, directory.name):
        raise FieldError(f"a model's name must be {NAME_IN_WORDS}, not {directory.name!r:.200}")
    if directory.exists():
        raise FieldError(f"{directory} already exists. Choose another name")
    if missing := [each for each in NEEDS[template] if find_spec(each) is None]:
        raise LocalError(f'--from {template} needs {", ".join(missing)}. Run pip install "shoal[{EXTRAS[template]}]"')
    # Checked before anything is written.
    try:
        shutil.copytree(TEMPLATES / template, directory, ignore=shutil.ignore_patterns("__pycache__"))
    except OSError as error:
        raise LocalError(f"cannot write {directory}: {error.strerror or error}") from error
    if (directory / TRAIN).exists():
        print(f"running {directory / TRAIN}", file=sys.stderr)
        ended = subprocess.run([sys.executable, TRAIN], cwd=directory, stdout=sys.stderr, check=False)
        if ended.returncode:
            raise LocalError(f"{directory / TRAIN} failed (see above). Correct it, and run python {directory / TRAIN}")
    return sorted(directory.iterdir())
