"""A job whose disk is full: one error, no partial file under a final name, and it resumes when there is space."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.offline.jobs import run, write_numbers
from tests.runtime.offline.test_jobs import written


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"a disk of 128 KiB cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("form", ["parquet", "jsonlines"])
def test_a_job_on_a_full_disk_fails_and_later_resumes_to_the_same_bytes(tmp_path: Path, small: Path, form: str) -> None:
    # Numbers that do not compress.
    write_numbers(tmp_path / "a.parquet", [(each * 7919 % 100003) / 7 for each in range(12_000)], row_groups=12)
    settings = {"shard_bytes": 16_384, "output_format": form}
    assert run(tmp_path / "a.parquet", tmp_path / "whole", **settings).status == 0
    whole = written(tmp_path / "whole")
    ended = run(tmp_path / "a.parquet", small / "out", **settings)

    assert ended.status == 1
    assert "has no space left" in ended.output
    assert "Traceback" not in ended.output
    assert len(ended.output.strip().splitlines()) == 1, ended.output
    there = written(small / "out")
    assert there == {name: whole[name] for name in there}
    assert 0 < len(there) < len(whole)

    subprocess.run(["mount", "-o", "remount,size=8m", str(small)], check=True)
    again = run(tmp_path / "a.parquet", small / "out", **settings)
    assert again.status == 0, again.output
    assert written(small / "out") == whole
