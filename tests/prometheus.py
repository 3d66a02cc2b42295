"""The real Prometheus and its promtool: installed, or Debian's package unpacked into ``.tools``."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.debian import PackageError, unpack

FOLDER = Path(__file__).parents[1] / ".tools" / "prometheus"


def program(name: str) -> Path:
    """Return ``prometheus`` or ``promtool``; skip the test where there is none and no apt."""
    if found := shutil.which(name):
        return Path(found)
    path = FOLDER / "usr/bin" / name
    if not path.is_file():
        try:
            unpack(FOLDER, ["prometheus"])
        except PackageError as error:
            pytest.skip(f"no {name} on PATH, and Debian's package prometheus cannot be fetched: {error}")
    return path


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool in a folder."""
    command = [str(program("promtool")), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
