"""`shoal inspect` of a graph with a composer: its code is loaded, and its errors are reported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GRAPH = """\
apiVersion: serving.shoal.dev/v1alpha1
kind: InferenceGraph
metadata: {name: voters}
spec:
  steps:
  - {name: first, url: "http://127.0.0.1:1/v2/models/first"}
  composer: {importPath: "voters:Voters"}
"""
VOTERS = """\
print("loaded")


class Voters:
    inputs = {"text": "BYTES"}
    outputs = {"label": "BYTES[-1, 3]"}

    async def run(self, inputs, steps):
        return await steps.first(text=inputs["text"])
"""


def inspected(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Inspect a graph of this folder."""
    (folder / "graph.yaml").write_text(GRAPH)
    command = [sys.executable, "-m", "shoal", "inspect", str(folder / "graph.yaml"), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "ModuleNotFoundError: No module named 'voters'"),
        (VOTERS.replace("class Voters", "class Votes"), "AttributeError: module 'voters' has no attribute 'Voters'"),
        (f"import nmpy\n{VOTERS}", "ModuleNotFoundError: No module named 'nmpy'"),
        (VOTERS.replace("BYTES[-1, 3]", "TEXT"), "as in 'FP32[-1, 4]', not 'TEXT'"),
        ("import os\nos._exit(3)", "the proxy cannot start (exit status 3)"),
    ],
)
def test_code_that_cannot_be_loaded_is_refused_with_the_remedy_last(
    tmp_path: Path, source: str | None, said: str
) -> None:
    if source is not None:
        (tmp_path / "voters.py").write_text(source)
    ended = inspected(tmp_path)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("shoal: ")
    assert said in last


def test_code_that_loads_is_drawn_and_its_models_are_told_as_unknown(tmp_path: Path) -> None:
    (tmp_path / "voters.py").write_text(VOTERS)
    ended = inspected(tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    assert "serves it: first" in ended.stderr
    assert "loaded" in ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout)
    assert (report["composer"], report["refused"]) == ("voters:Voters", None)


def test_a_missing_package_has_one_remedy(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text('raise ModuleNotFoundError("No module named \'uvicorn\'", name="uvicorn")\n')
    (tmp_path / "httptools.py").write_text((tmp_path / "uvicorn.py").read_text().replace("uvicorn", "httptools"))
    model = tmp_path / "mean"
    model.mkdir()
    (model / "handler.py").write_text("class Mean:\n    def forward(self, batch):\n        return batch\n")
    ended = subprocess.run(
        [sys.executable, "-m", "shoal", "inspect", str(model)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1
    assert [line for line in ended.stderr.splitlines() if "pip install" in line] == [ended.stderr.splitlines()[-1]]
    assert '"shoal[serve]"' in ended.stderr
