"""Load skops files and ask each about two rows, in a process of its own, which one that is let in may crash."""

import json
import sys
from pathlib import Path

import numpy as np

from shoal_runtime.formats.skops import load
from shoal_runtime.formats.source import Source
from shoal_runtime.handlers.base import Context


def main() -> None:
    """Print for each folder what its file is refused for, or that it answered."""
    for folder in map(Path, sys.argv[1:]):
        said = "it answered"
        try:
            loaded = load(Source(folder, None, None, Context(folder, "cpu", None, 8), (), (), allow_pickle=False))
            [spec] = loaded.inputs
            loaded.handler.forward({spec.name: np.zeros((2, *spec.row_shape))})
        except Exception as error:
            said = str(error)
        print(json.dumps([folder.name, said]), flush=True)  # noqa: T201


main()
