"""A clone of this repository with what its owner keeps beside the project's own files."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project.built import Wheels, build

ROOT = Path(__file__).parents[2]
STRANGE = "class Mean :\n  def forward(self,batch): return batch['x'].mean( )\n"


@pytest.fixture(scope="session")
def tracked() -> list[str]:
    """Every file that git knows."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone: what belongs to the project is git's to say")
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def clone(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the tracked files and put a model, notes and a backup beside them."""
    folder = tmp_path_factory.mktemp("clone")
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for stray in ("mean/handler.py", "models/mean/model.py", "scratch.py"):
        (folder / stray).parent.mkdir(parents=True, exist_ok=True)
        (folder / stray).write_text(STRANGE)
    (folder / "notes.md").write_text("recie" + "ve\n")
    return folder


@pytest.fixture(scope="session")
def wheels(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """Build both distributions, pure, from the clone."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (clone, clone / "local"):
        built = build(source, folder)
        assert built.returncode == 0, built.stderr
    [local] = folder.glob("shoal_local-*.whl")
    [shoal] = folder.glob("shoal-*.whl")
    return Wheels(shoal, local)
