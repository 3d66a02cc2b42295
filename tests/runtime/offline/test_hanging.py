"""Failures with the real runtime: a row that hangs the model, and a file that cannot be read."""

import subprocess
import sys
from pathlib import Path

from tests.runtime.offline.jobs import environment, results, write_numbers

HANDLER = """
import time
from shoal_runtime import TensorSpec

class Double:
    tensors = "numpy"
    inputs = (TensorSpec("x", "FP32", [-1, 1]),)
    outputs = (TensorSpec("y", "FP32", [-1]),)

    def preprocess(self, x):
        return x

    def forward(self, batch):
        while (batch == -4).any():
            time.sleep(0.05)
        return 2 * batch[:, 0]

    def postprocess(self, y):
        return {"y": y}
"""


def run_model(tmp_path: Path, given: Path | str, **settings: object) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "handler.py").write_text(HANDLER)
    model = {
        "SHOAL_BATCH_ENGINE": "",
        "SHOAL_MODEL_NAME": "double",
        "SHOAL_MODEL_URI": str(tmp_path / "model"),
        "SHOAL_RUNTIME_DEVICE": "CPU",
        "SHOAL_RUNTIME_FORWARD_TIMEOUT_S": "1",
    }
    known = {**environment(given, tmp_path / "out", **settings), **model}
    command = [sys.executable, "-m", "shoal_runtime", "batch"]
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=60, check=False)


def test_a_row_that_hangs_the_model_fails_alone(tmp_path: Path) -> None:
    numbers = [float(each) for each in range(40)]
    numbers[13] = -4.0
    write_numbers(tmp_path / "a.parquet", numbers)
    ended = run_model(tmp_path, tmp_path / "a.parquet", size=4)

    assert ended.returncode == 0, ended.stderr
    rows = results(tmp_path / "out")
    assert [row["y"] for row in rows] == [None if each < 0 else 2 * each for each in numbers]
    errors = {row["id"]: row["shoal_error"] for row in rows if row["shoal_error"]}
    assert list(errors) == [13]
    assert "runtime.forwardTimeoutSeconds" in errors[13]


def test_an_unreadable_first_file_does_not_affect_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x\n1\n"2\n3\n')
    (tmp_path / "b.csv").write_text("x\n1\n2\n")
    ended = run_model(tmp_path, f"{tmp_path}/*.csv")

    assert ended.returncode == 1
    assert "a.csv cannot be read: a quote in line 3 never closes" in ended.stderr
    assert [row["y"] for row in results(tmp_path / "out")] == [2.0, 4.0]
