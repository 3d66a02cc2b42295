"""Ray Data, unmodified, on a cluster of its own with two nodes: every row comes out once, whatever ends under it."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import read_page
from tests.interop.environments import HERE, ROOT, python_with

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

BAD = {3, 700, 701, 1500, 1999}
MARK = "RUN_OF_RAY_TEST"
HANDLER = """
import os, time
from shoal_runtime import ItemError, TensorSpec

class Double:
    tensors = "numpy"
    inputs = (TensorSpec("x", "FP32", [-1, 2]),)
    outputs = (TensorSpec("y", "FP32", [-1]), TensorSpec("node", "BYTES", [-1]))

    def preprocess(self, x):
        if x[0] == -1:
            raise ItemError("fish cannot be negative")
        return x

    def forward(self, batch):
        ends_s = time.monotonic() + 400
        while (batch[:, 0] >= 1000).any() and not os.path.exists("FLAG") and time.monotonic() < ends_s:
            time.sleep(0.05)
        return 2 * batch[:, 0]

    def postprocess(self, y):
        return {"y": y, "node": os.environ.get("RAY_RAYLET_PID", "")}
"""


@contextmanager
def of_ray(folder: Path, *arguments: str, **settings: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a program in Ray's environment, without network; its processes end with it."""
    mark = uuid.uuid4().hex
    # A short path: Ray's sockets lie some folders deeper.
    own = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("client", "runtime", "schema")),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "PYTHONWARNINGS": "ignore",
        "RAY_TMPDIR": own,
        # A machine that is busy with other tests is slow, not dead; a process that is dead refuses the connection.
        "RAY_health_check_timeout_ms": "100000",
        "RAY_worker_register_timeout_seconds": "300",
        MARK: mark,
        **settings,
    }
    command = [str(python_with("ray")), *arguments]
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(own, ignore_errors=True)


def marked(mark: str) -> list[int]:
    """Return the processes whose environment says that they are of this run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def result_of_job(folder: Path) -> dict[str, Any]:
    flag, model, result = folder / "flag", folder / "double", folder / "result.json"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER.replace("FLAG", str(flag)))
    with of_ray(folder, str(HERE / "clients" / "ray_job.py"), str(model), str(flag), str(result)) as process:
        out, err = process.communicate(timeout=550)
    assert process.returncode == 0, f"{out[-2000:]}\n{err[-6000:]}"
    seen: dict[str, Any] = json.loads(result.read_text())
    return seen


def test_every_row_comes_out_once_with_its_error_though_a_node_dies_amid_the_job(tmp_path: Path) -> None:
    result = result_of_job(tmp_path)
    rows = result["rows"]
    assert result["actors_killed"] == 1
    assert Counter(row["id"] for row in rows) == Counter(range(2000))
    errors = {row["id"]: row["shoal_error"] for row in rows if row["shoal_error"] is not None}
    assert errors == dict.fromkeys(BAD, "fish cannot be negative")
    assert all(row["y"] == 2 * row["id"] for row in rows if row["id"] not in BAD)
    assert result["second"] not in {row["node"] for row in rows if row["id"] >= 1000}


def test_the_first_example_of_the_page_runs(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "client" / "shoal" / "templates" / "handler", tmp_path / "mood")
    example = next(
        block
        for block in read_page(ROOT / "docs" / "how-to" / "ray.md", "docs/how-to/ray.md")
        if block.language == "python"
    )
    with of_ray(tmp_path, "-c", example.text) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-6000:]
    assert sorted(line for line in out.splitlines() if line.startswith(("good", "None"))) == [
        "None nan the text is empty",
        "good 0.8807970285415649 None",
    ]
