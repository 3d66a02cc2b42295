"""What a runtime reports of a model, loaded here as `shoal inspect` has it loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal_runtime.inspecting import inspect
from shoal_runtime.settings import Settings

HANDLER = """
import logging
import torch
from shoal_runtime import TensorSpec

class Net:
    def __init__(self):
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2, bias=False))
        self.layers[1].weight = torch.nn.Parameter(torch.ones(2, 2))

class Held:
    inputs = [TensorSpec("x", "FP32", [-1, 4])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def load(self, context):
        self.net = Net()
        self.again = self.net.layers

    def forward(self, batch):
        return self.again(batch["x"])
"""
NO_FORWARD = "class Nothing:\n    pass\n"
RAISES = "raise ValueError('no weights')\n"
WRONG = HANDLER.replace('"FP32", [-1, 2]', '"FP32", [-1, 3]')


def report(folder: Path, handler: str, **variables: str) -> dict[str, Any]:
    (folder / "handler.py").write_text(handler)
    return inspect(Settings.from_env({"SHOAL_MODEL_URI": str(folder), "SHOAL_MODEL_NAME": "m", **variables}))


def test_a_report_holds_signature_format_files_and_size(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "labels.txt").write_text("12345")

    found = report(tmp_path, HANDLER)

    assert (found["name"], found["format"], found["device"], found["refused"]) == ("m", "Handler", "cpu", None)
    assert found["files"] == {"count": 2, "bytes": len(HANDLER) + 5}
    assert [each["name"] for each in found["metadata"]["inputs"]] == ["x"]
    assert found["metadata"]["parameters"]["max_batch_size"] == 32
    assert found["memory_bytes"] > 50_000_000
    assert found["seconds"] > 0
    json.dumps(found)


def test_parameters_are_counted_once_wherever_the_handler_keeps_them(tmp_path: Path) -> None:
    assert report(tmp_path, HANDLER)["parameters"] == {"count": 4 * 2 + 2 + 4, "bytes": 56}


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (NO_FORWARD, "handler.py defines no class with a forward method"),
        (RAISES, "importing handler.py failed: ValueError: no weights"),
        (WRONG, "violates its signature"),
    ],
)
def test_a_model_that_cannot_be_served_is_rejected_with_the_message_of_serve(
    tmp_path: Path, handler: str, words: str
) -> None:
    found = report(tmp_path, handler)

    assert words in found["refused"]
    assert found["files"]["count"] >= 1
    assert found["metadata"] is None


def test_what_the_runtime_warns_of_is_in_the_report(tmp_path: Path) -> None:
    doubtful = HANDLER.replace(
        "    def forward(self, batch):",
        "    def preprocess(self, item):\n        raise ValueError\n\n    def forward(self, batch):",
    )

    warnings = report(tmp_path, doubtful)["warnings"]

    assert warnings
    assert not any(each.startswith("event=") for each in warnings)


def test_a_program_of_a_fixed_batch_is_reported_with_how_to_export_it_for_any(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(1, 4),))
    torch.export.save(program, tmp_path / "model.pt2")

    found = inspect(Settings.from_env({"SHOAL_MODEL_URI": str(tmp_path / "model.pt2")}))

    [warning] = found["warnings"]
    assert warning.startswith("model.pt2 has a fixed batch of 1, ")
    assert "export with a dynamic batch" in warning
    assert found["refused"] is None
    assert found["files"]["count"] == 1


@pytest.mark.integration
def test_a_report_is_written_whatever_the_models_code_prints_or_leaves_running(tmp_path: Path) -> None:
    noisy = f"import threading\nprint('{{')\nthreading.Thread(target=threading.Event().wait).start()\n{HANDLER}"
    (tmp_path / "handler.py").write_text(noisy)
    file = tmp_path.parent / "report.json"

    ended = subprocess.run(
        [sys.executable, "-m", "shoal_runtime", "inspect", str(file)],
        env={**os.environ, "SHOAL_MODEL_URI": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "{\n"
    assert json.loads(file.read_text())["format"] == "Handler"
