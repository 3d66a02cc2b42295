"""A model that is loaded and measured in several precisions, on the CPU."""

import logging
import sys
from pathlib import Path

import pytest
import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.measuring import measure_precisions
from shoal_runtime.readiness import Readiness
from shoal_runtime.settings import Settings
from shoal_runtime.startup.starting import StartedModel, start_model

# `speeds` are seconds, `errors` are added to the output, by dtype.
HANDLER = """
import time
import torch
from shoal_runtime import TensorSpec

SECONDS = {seconds}
ERRORS = {errors}

class Model:
    inputs = [TensorSpec("x", "FP32", [-1, 2])]
    outputs = [TensorSpec("y", "FP32", [-1, 2])]

    def load(self, context):
        self.dtype = str(context.dtype)
        if "{refused}" in self.dtype:
            raise RuntimeError("not implemented for this type")
        self.unloaded = False

    def unload(self):
        assert not self.unloaded
        self.unloaded = True

    def forward(self, batch):
        end = time.perf_counter() + SECONDS.get(self.dtype, 0.02)
        while time.perf_counter() < end:
            pass
        return {{"y": batch["x"] + ERRORS.get(self.dtype, 0.0)}}
"""
# Float16 is slow, so that noise does not choose it.
FAST = {"torch.bfloat16": 0.002, "torch.float16": 0.05}


def handler(
    folder: Path, seconds: dict[str, float], errors: dict[str, float] | None = None, refused: str = "nothing"
) -> dict[str, str]:
    text = HANDLER.format(seconds=seconds, errors=errors or {}, refused=refused)
    # repr(nan) is no Python.
    (folder / "handler.py").write_text(text.replace("nan", "float('nan')"))
    return {"SHOAL_MODEL_URI": str(folder), "SHOAL_BATCHING_MAX_BATCH_SIZE": "32"}


def started(environment: dict[str, str], limit: str = "0.1", **variables: str) -> StartedModel:
    variables = {"SHOAL_RUNTIME_PRECISION_ABS_ERROR": limit, **variables}
    return start_model(Settings.from_env({**environment, **variables}), Readiness())


def test_the_fastest_precision_within_the_tolerance_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    model = started(handler(tmp_path, FAST))

    assert model.precision == "BFloat16"
    assert vars(model.model.handler) == {"dtype": "torch.bfloat16", "unloaded": False}
    assert "event=precision_chosen precision=BFloat16" in caplog.text
    assert "event=precision_rejected precision=TF32" in caplog.text


@pytest.mark.parametrize("error", [0.2, float("nan")])
def test_a_deviation_beyond_the_tolerance_keeps_float32(
    tmp_path: Path, error: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    model = started(handler(tmp_path, FAST, {"torch.bfloat16": error}))

    assert model.precision == "Float32"
    assert vars(model.model.handler) == {"dtype": "torch.float32", "unloaded": False}
    assert "event=precision_rejected precision=BFloat16 message=output y has" in caplog.text


@pytest.mark.parametrize(("chosen", "dtype"), [("Float16", "torch.float16"), ("Float32", "torch.float32")])
def test_the_choice_of_another_instance_is_not_measured_again(
    tmp_path: Path, chosen: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    model = started(handler(tmp_path, FAST), SHOAL_RUNTIME_CHOSEN_PRECISION=chosen)

    assert (model.precision, vars(model.model.handler)["dtype"]) == (chosen, dtype)
    assert "event=precision_chosen" not in caplog.text


def test_without_a_tolerance_a_choice_has_no_effect(tmp_path: Path) -> None:
    environment = {**handler(tmp_path, FAST), "SHOAL_RUNTIME_CHOSEN_PRECISION": "Float32"}
    model = start_model(Settings.from_env(environment), Readiness())

    assert (model.precision, vars(model.model.handler)["dtype"]) == ("", "None")


def test_a_precision_that_fails_is_rejected_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    assert started(handler(tmp_path, FAST, refused="bfloat16")).precision == "Float32"
    assert "not implemented for this type" in caplog.text


def test_without_a_tolerance_nothing_is_measured(tmp_path: Path) -> None:
    model = start_model(Settings.from_env(handler(tmp_path, FAST)), Readiness())

    assert (model.precision, vars(model.model.handler)["dtype"]) == ("", "None")


def test_a_fixed_dtype_excludes_a_tolerance(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="SHOAL_RUNTIME_DTYPE"):
        started(handler(tmp_path, FAST), SHOAL_RUNTIME_DTYPE="float16")


def test_without_rows_the_model_stays_in_float32_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = handler(tmp_path, FAST)
    text = (tmp_path / "handler.py").read_text()
    (tmp_path / "handler.py").write_text(
        text.replace('"x", "FP32", [-1, 2]', '"x", "BYTES", [-1], content_type="image/png"')
    )

    model = started(environment)

    assert model.precision == "Float32"
    assert "event=precision_not_measured" in caplog.text


def test_a_format_that_keeps_its_dtype_is_served_in_it_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = ({0: torch.export.Dim("n", max=64)},)
    program = torch.export.export(torch.nn.Linear(4, 2), (torch.ones(2, 4),), dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "model.pt2")

    model = started({"SHOAL_MODEL_URI": str(tmp_path / "model.pt2")})

    assert model.precision == ""
    assert "event=reference_keeps_dtype" in caplog.text
    # Another instance, which receives Float32, keeps it too.
    again = started({"SHOAL_MODEL_URI": str(tmp_path / "model.pt2")}, SHOAL_RUNTIME_CHOSEN_PRECISION="Float32")
    assert again.precision == ""


def test_a_report_has_speed_and_deviation_of_each_precision(tmp_path: Path) -> None:
    environment = handler(tmp_path, FAST, {"torch.bfloat16": 0.5}, refused="float16'")

    report = measure_precisions(Settings.from_env({**environment, "SHOAL_RUNTIME_PRECISION_ABS_ERROR": "1"}))

    assert report["refused"] is None
    assert report["rows"] == {"source": "generated", "batch_size": 32, "batches": 2, "count": 64}
    found = {each["precision"]: each for each in report["precisions"]}
    assert found["BFloat16"]["speed"] > 2
    assert found["BFloat16"]["outputs"][0]["max_abs_error"] == pytest.approx(0.5, abs=1e-3)
    assert found["Float32"]["outputs"][0]["max_abs_error"] == 0
    assert "CUDA" in found["TF32"]["failure"]
    assert report["chosen"]["precision"] == "BFloat16"


def test_rows_of_a_file_are_measured(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"x": [1, 2]}\n{"x": [3, 4]}\n' * 20)
    model = tmp_path / "model"
    model.mkdir()

    report = measure_precisions(Settings.from_env(handler(model, FAST)), str(rows))

    assert report["rows"] == {"source": str(rows), "batch_size": 32, "batches": 2, "count": 40}


def test_without_the_library_for_files_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [name for name in sys.modules if name.startswith("shoal_runtime.offline.")]:
        monkeypatch.delitem(sys.modules, name)

    report = measure_precisions(Settings.from_env(handler(tmp_path, FAST)), "rows.parquet")

    assert 'pip install "shoal[batch]"' in report["refused"]


@pytest.mark.parametrize("content", ["", '{"z": [1, 2], "w": 1}\n', '{"x": [1]}\n'])
def test_rows_that_do_not_fit_are_an_error_with_a_remedy(tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.jsonl").write_text(content)
    model = tmp_path / "model"
    model.mkdir()

    report = measure_precisions(Settings.from_env(handler(model, FAST)), str(tmp_path / "rows.jsonl"))

    assert "--rows" in report["refused"]
