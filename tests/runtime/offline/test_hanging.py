"""A row that never ends, with the runtime itself: its process is ended in time, and the row alone is to blame."""

from pathlib import Path

import pytest

from tests.runtime.offline.jobs import answers, environment, run_in, write_numbers

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
        if (batch == 13).any():
            time.sleep(100)
        return 2 * batch[:, 0]
"""


@pytest.mark.timeout(120)
def test_a_row_that_hangs_is_found_and_all_others_are_computed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER)
    write_numbers(tmp_path / "a.parquet", [float(each) for each in range(40)])
    known = environment(tmp_path / "a.parquet", tmp_path / "out", engine="", size=8) | {
        "SHOAL_MODEL_URI": str(model),
        "SHOAL_MODEL_NAME": "double",
        "SHOAL_RUNTIME_FORWARD_TIMEOUT_S": "2",
    }
    ended = run_in(known)

    assert ended.status == 0, ended.said
    rows = answers(tmp_path / "out")
    assert [row["y"] for row in rows] == [None if each == 13 else 2.0 * each for each in range(40)]
    errors = {row["id"]: row["shoal_error"] for row in rows if row["shoal_error"]}
    assert errors == {13: "the model's process ended with exit status 4 while it ran this row"}
