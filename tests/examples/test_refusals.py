"""Directories that cannot be served: ``serve`` and ``inspect`` end with the same last line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def broken(folder: Path) -> None:
    (folder / "model.pt2").write_bytes(b"no archive")


def lacking(folder: Path) -> None:
    (folder / "handler.py").write_text("import no_such_package\n")


def nothing(folder: Path) -> None:
    (folder / "handler.py").write_text("class Model:\n    pass\n")


def last_line(command: str, folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", command, str(folder), *(["--port", "0"] if command == "serve" else [])],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ended.returncode == 1, ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("fill", "remedy"),
    [
        (broken, "or export it again"),
        (lacking, "pip install no_such_package"),
        (nothing, "name an imported class: handler.py:CLASS"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_remedy_last(
    tmp_path: Path, fill: Callable[[Path], None], remedy: str
) -> None:
    fill(tmp_path)

    line = last_line("inspect", tmp_path)

    assert line.startswith("shoal: the model cannot be loaded: ")
    assert line.endswith(remedy)
    assert last_line("serve", tmp_path) == line
