"""What else lies in a clone is neither judged nor packed."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.project.built import make


@pytest.fixture(scope="module")
def sdist(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder)]
    subprocess.run(command, cwd=clone, capture_output=True, check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.integration
def test_lint_passes_beside_a_model_that_is_not_the_projects(clone: Path) -> None:
    linted = make(clone, "lint")
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.integration
def test_lint_still_sees_the_projects_own_files(clone: Path) -> None:
    own = clone / "client" / "shoal" / "unformatted.py"
    own.write_text('"""One."""\nx=1\n')
    try:
        linted = make(clone, "lint")
    finally:
        own.unlink()
    assert linted.returncode != 0
    assert "unformatted.py" in linted.stdout + linted.stderr


def test_every_tracked_file_is_looked_at(clone: Path, tracked: list[str]) -> None:
    listed = make(clone, "--silent", "--eval=texts: ; @echo $(TEXTS)", "texts").stdout.split()
    outside = {name for name in tracked if name.partition("/")[0] not in listed}
    assert outside == {".dockerignore", ".gitignore", "LICENSE"}


@pytest.mark.integration
def test_the_sdist_holds_what_git_knows_and_nothing_else(sdist: set[str], tracked: list[str]) -> None:
    assert sdist - {"PKG-INFO"} == set(tracked)
