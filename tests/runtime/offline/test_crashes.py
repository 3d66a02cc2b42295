"""A job that is killed at each of its writes in turn and resumed: the same bytes."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.offline.jobs import environment, run, start, write_numbers

KILLER = """
import os
import signal
from pathlib import Path

left = int(os.environ.get("KILLED_AT", "0"))


def counted(function):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)

    return call


if left and b"\\0batch\\0" in Path("/proc/self/cmdline").read_bytes():
    for name in ("fsync", "replace", "link", "unlink", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
"""
"""Loaded by Python at its start: kills the job's process at the n-th call that changes the disk."""
MOST = 200


def written(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def kills(given: Path, folder: Path, shim: Path) -> Iterator[Path]:
    """Yield the output of each killed job, until one completes."""
    for number in range(1, MOST):
        output = folder / str(number)
        known = environment(given, output, shard_bytes=1024)
        status = start({**known, "PYTHONPATH": f"{shim}:{known.get('PYTHONPATH', '')}", "KILLED_AT": str(number)}).wait(
            60
        )
        if status == 0:
            return
        assert status == -signal.SIGKILL
        yield output
    pytest.fail(f"a job of two shards does not write {MOST} times")


def test_a_job_killed_at_any_write_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(40)], row_groups=2)
    assert run(tmp_path / "a.parquet", tmp_path / "whole", shard_bytes=1024).status == 0
    whole = written(tmp_path / "whole")
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(KILLER)
    names = [name for name in whole if name.startswith("part-")]
    assert len(names) > 1

    outputs = list(kills(tmp_path / "a.parquet", tmp_path / "killed", tmp_path / "shim"))
    assert len(outputs) > 4 * len(names)
    seen: list[dict[str, bytes]] = []
    for output in outputs:
        state = {re.sub(r"-[0-9a-f]{12}$", "", name): text for name, text in written(output).items()}
        if state in seen:
            # The same bytes as of an earlier kill, which was resumed.
            continue
        seen.append(state)
        there = written(output) if output.exists() else {}
        # A file with its final name is complete.
        assert {name: text for name, text in there.items() if name in whole} == {
            name: whole[name] for name in there if name in whole
        }
        ended = run(tmp_path / "a.parquet", output, shard_bytes=1024)
        assert ended.status == 0, ended.output
        assert written(output) == whole
