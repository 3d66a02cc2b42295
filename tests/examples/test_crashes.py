"""A row that crashes the runtime, and several instances of it: real processes throughout."""

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.server import free_ports, start, stop, tail
from tests import plain

pytestmark = pytest.mark.integration

HANDLER = """
import os, signal
from shoal_runtime import TensorSpec

class Model:
    inputs = [TensorSpec("x", "FP32", [-1, 2])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def forward(self, batch):
        if (batch["x"] == 13).any():
            os.kill(os.getpid(), signal.SIGSEGV)
        return batch["x"]
"""


def test_a_row_that_crashes_two_runtimes_is_rejected_and_others_are_served(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    port, admin_port = free_ports(2)
    options = [f"--port={port}", f"--admin-port={admin_port}", "--set", "runtime.instances=2"]
    options += ["--set", "batching.idempotent=true", "--set", "runtime.device=cpu"]
    command = [sys.executable, "-m", "shoal", "serve", f"m={tmp_path}", *options]
    with tempfile.TemporaryFile() as log, plain.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        process = start(command, log)
        try:
            metrics = f"http://127.0.0.1:{admin_port}/metrics"
            ends_s = time.monotonic() + 60
            while time.monotonic() < ends_s and "all 2 instances ready" not in tail(log):
                time.sleep(0.1)
            said = os.pread(log.fileno(), 1 << 20, 0).decode()
            readiness = plain.get(f"http://127.0.0.1:{admin_port}/readyz").json()

            def post(value: float) -> tuple[int, str]:
                answer = client.post("/v1/models/m:predict", json={"instances": [[value, value]]})
                return answer.status_code, answer.headers.get("x-shoal-executed", "")

            with ThreadPoolExecutor(8) as clients:
                answers = list(clients.map(post, [13.0 if number == 20 else number + 100 for number in range(60)]))
                again = [post(13.0) for _ in range(3)]
                after = list(clients.map(post, range(200, 220)))
            lost = [
                line
                for line in client.get(metrics).text.splitlines()
                if line.startswith("shoal_proxy_runtime_losses_total ")
            ]
        finally:
            stop(process)

    assert "1 of 2 instances ready after" in said
    assert "all 2 instances ready after" in said
    assert readiness["instances"]["of"] == 2
    assert [status for number, (status, _) in enumerate(answers) if number != 20] == [200] * 59
    assert answers[20] == (503, "maybe")
    assert again[-1] == (500, "no")
    assert {status for status, _ in after} == {200}
    assert float(lost[0].split()[1]) <= 3
