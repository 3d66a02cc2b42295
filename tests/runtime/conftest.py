import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal_runtime.loading import Model, load_model
from shoal_runtime.readiness import Readiness
from shoal_runtime.settings import Settings
from shoal_runtime.storage.fetching import Fetcher
from tests.arranged import arranged


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Model]]:
    """Load the model at a path onto the CPU, with settings by field."""
    path, modules, directory = list(sys.path), set(sys.modules), Path.cwd()

    def load_it(where: Path, **settings: Any) -> Model:
        files = Fetcher(tmp_path / "cache", Readiness()).fetch(str(where))
        own = {"device": "cpu", "cache_dir": str(tmp_path / "cache"), **settings}
        made = arranged(Settings.from_env({"SHOAL_MODEL_URI": str(where)}), **own)
        return load_model(files, made)

    yield load_it
    for name in ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "LOKY_MAX_CPU_COUNT", "TORCHINDUCTOR_CACHE_DIR"):
        os.environ.pop(name, None)
    sys.path[:] = path
    os.chdir(directory)  # an archive's handlers run in their own
    for name in set(sys.modules) - modules:
        if name.startswith("shoal_model"):
            del sys.modules[name]
