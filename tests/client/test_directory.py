"""Folders of servers that live, that were killed, and of others."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shoal.directory import OWNED, own_directory

TIMEOUT_S = 30.0
OWNER = """
import signal
from shoal.directory import own_directory
with own_directory() as folder:
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.integration
def test_the_next_start_removes_the_folder_of_one_that_was_killed(parent: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], env={**os.environ, "TMPDIR": str(parent)}, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        left = Path(owner.stdout.readline().strip())
    with own_directory():
        assert left.is_dir()  # its owner lives

    owner.send_signal(signal.SIGKILL)
    owner.wait(TIMEOUT_S)

    assert left.is_dir()
    with own_directory() as own:
        assert os.listdir(parent) == [Path(own).name]


def test_it_goes_with_its_owner_and_others_folders_stay(parent: Path) -> None:
    others = parent / "shoal-notes"
    others.mkdir()
    elsewhere = parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNED).touch()
    (parent / "shoal-link").symlink_to(elsewhere)

    with own_directory() as own:
        assert Path(own).is_dir()

    assert sorted(os.listdir(parent)) == ["elsewhere", "shoal-link", "shoal-notes"]
    assert (elsewhere / OWNED).exists()
