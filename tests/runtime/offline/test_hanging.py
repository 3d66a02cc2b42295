"""A row over which the model hangs, with the real runtime: it is found, and costs no other row its answer."""

import subprocess
import sys
from pathlib import Path

from tests.runtime.offline.jobs import answers, environment, write_numbers

HANDLER = """
import time
from shoal_runtime import TensorSpec

class Double:
    tensors = "numpy"
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


def test_a_row_over_which_the_model_hangs_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "handler.py").write_text(HANDLER)
    numbers = [float(each) for each in range(40)]
    numbers[13] = -4.0
    write_numbers(tmp_path / "a.parquet", numbers)
    model = {
        "SHOAL_BATCH_ENGINE": "",
        "SHOAL_MODEL_NAME": "double",
        "SHOAL_MODEL_URI": str(tmp_path / "model"),
        "SHOAL_RUNTIME_DEVICE": "CPU",
        "SHOAL_RUNTIME_FORWARD_TIMEOUT_S": "1",
    }
    known = {**environment(tmp_path / "a.parquet", tmp_path / "out", size=4), **model}
    command = [sys.executable, "-m", "shoal_runtime", "batch"]
    ended = subprocess.run(command, env=known, capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    rows = answers(tmp_path / "out")
    assert [row["y"] for row in rows] == [None if each < 0 else 2 * each for each in numbers]
    errors = {row["id"]: row["shoal_error"] for row in rows if row["shoal_error"]}
    assert list(errors) == [13]
    assert "took longer than runtime.forwardTimeoutSeconds" in errors[13]
