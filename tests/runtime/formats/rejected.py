"""Load models and predict two rows, in a separate process, which an accepted model may crash."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shoal_runtime.formats.source import ModelSource
from shoal_runtime.formats.table import formats_of, loader
from shoal_runtime.handlers.base import Context
from shoal_schema.wire.datatypes import DTYPES


def outcomes(folders: Mapping[str, Path]) -> dict[str, str]:
    """Return the message for the model in each directory, until a model ends the process."""
    command = [sys.executable, "-m", "tests.runtime.formats.rejected", *map(str, folders.values())]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=100, check=False)
    return dict(map(json.loads, ended.stdout.splitlines()))


def main() -> None:
    """Print the error for the model in each directory, or that it predicted."""
    for folder in map(Path, sys.argv[1:]):
        said = "it answered"
        try:
            [form] = formats_of(folder.iterdir())
            loaded = loader(form)(
                ModelSource(folder, None, None, Context(folder, "cpu", None, 8), (), (), allow_pickle=False)
            )
            [spec] = loaded.inputs
            loaded.handler.forward({spec.name: np.zeros((2, *spec.row_shape), DTYPES[spec.datatype])})
        except Exception as error:
            said = str(error)
        print(json.dumps([folder.name, said]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
