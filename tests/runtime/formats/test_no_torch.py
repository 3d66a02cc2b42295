"""Processes that serve a model without torch respond, and never import torch."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import skops.io
from onnx import TensorProto, helper
from sklearn.linear_model import LogisticRegression

from tests.runtime.fakes import UnixConnection
from tests.runtime.formats.test_lightgbm import booster as lightgbm_booster
from tests.runtime.formats.test_xgboost import booster as xgboost_booster

pytestmark = pytest.mark.integration

X = np.random.default_rng(3).standard_normal((64, 4))
KINDS = np.argmax(X[:, :3], axis=1)
PROGRAM = """
import atexit, sys
from shoal_runtime.__main__ import main
atexit.register(lambda: print("torch" in sys.modules, flush=True))
sys.exit(main([]))
"""
LIMIT_S = 60


def save_onnx(folder: Path) -> None:
    rows = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n", 4]) for name in ("input-0", "output-0")]
    graph = helper.make_graph([helper.make_node("Identity", ["input-0"], ["output-0"])], "g", rows[:1], rows[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")


def save_skops(folder: Path) -> None:
    skops.io.dump(LogisticRegression().fit(X, KINDS), folder / "model.skops")


def save_xgboost(folder: Path) -> None:
    xgboost_booster("reg:squarederror", X[:, 0]).save_model(folder / "model.ubj")


def save_lightgbm(folder: Path) -> None:
    lightgbm_booster("regression", X[:, 0]).save_model(folder / "model.lgb")


def wait_until_ready(socket: Path, process: "subprocess.Popen[str]") -> UnixConnection:
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s and process.poll() is None:
        connection = UnixConnection(str(socket))
        try:
            connection.request("GET", "/v2/health/ready")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                return connection
        except OSError:
            pass
        connection.close()
        select.select([], [], [], 0.05)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.mark.parametrize("save", [save_onnx, save_skops, save_xgboost, save_lightgbm])
def test_models_without_torch_never_import_it(tmp_path: Path, save: Callable[[Path], None]) -> None:
    folder, socket = tmp_path / "m", tmp_path / "s"
    folder.mkdir()
    save(folder)
    environ = {"SHOAL_MODEL_URI": str(folder), "SHOAL_RUNTIME_LISTEN": f"unix:{socket}"}
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env={**os.environ, **environ}, stdout=pipe, stderr=pipe, text=True) as process:
        connection = wait_until_ready(socket, process)
        name = "FP32" if save is save_xgboost else "FP64"
        data = {"name": "input-0", "datatype": name, "shape": [1, 4], "data": [1, 2, 3, 4]}
        connection.request("POST", "/v2/models/m/infer", json.dumps({"inputs": [data]}))
        answer = connection.getresponse()
        document = json.loads(answer.read())
        connection.close()
        process.send_signal(signal.SIGTERM)
        printed, log = process.communicate(timeout=LIMIT_S)

    assert answer.status == 200, (document, log)
    assert document["outputs"][0]["name"] == "output-0"
    assert printed == "False\n"


def test_a_handler_that_needs_torch_fails_with_the_missing_package(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("""
from shoal_runtime import TensorSpec
class Mean:
    inputs = [TensorSpec("x", "FP32", [-1, -1])]
    outputs = [TensorSpec("mean", "FP32", [-1, 1])]
    def forward(self, batch):
        return batch["x"].mean(dim=1, keepdim=True)
""")
    hidden = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'torch' else f(n, *a)"
    )
    environ = {"SHOAL_MODEL_URI": str(tmp_path), "SHOAL_RUNTIME_LISTEN": f"unix:{tmp_path / 's'}"}
    command = [sys.executable, "-c", f"{hidden}\n{PROGRAM}"]
    ended = subprocess.run(
        command, check=False, env={**os.environ, **environ}, capture_output=True, text=True, timeout=LIMIT_S
    )

    assert ended.returncode == 3
    last = ended.stderr.splitlines()[-1]
    assert "PyTorch is not installed" in last
    assert "pip install" in last
