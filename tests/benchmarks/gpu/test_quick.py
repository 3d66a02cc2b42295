"""One piece of the benchmark, with a tiny network on the CPU: the command runs from start to report."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main

pytest.importorskip("torch")


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_piece_runs_without_a_gpu_and_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--device", "cpu", "--quick", "--results", str(tmp_path)]

    assert main([*quick, "--piece", "mlp"]) == 0
    (written,) = tmp_path.glob("gpu-mlp-*.json")
    cases = set(json.loads(written.read_text())["cases"])
    assert {"mlp, loop, eager", "mlp, 1 client", "mlp, 8 clients", "mlp, 8 clients, objective"} <= cases
    assert main([*quick, "--report", "--picture", str(tmp_path / "gpu.svg")]) == 0
    assert "of loop" in capsys.readouterr().out
