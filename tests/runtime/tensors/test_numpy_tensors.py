"""Models with numpy arrays as tensors: the same pipeline without PyTorch."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_runtime import PaddingRule, TensorSpec
from shoal_runtime.errors import ForwardFailed, LoadError
from shoal_runtime.execution.machine import choose_machine
from shoal_runtime.execution.placement import HostPlacement
from shoal_runtime.handlers.base import methods_of
from shoal_runtime.loading import Model
from shoal_runtime.readiness import Readiness
from shoal_runtime.startup.starting import warm
from shoal_schema.resource.runtime import RuntimeSpec
from tests.runtime.fakes import Adder, Bench, signature_of, texts

HANDLER = """
import numpy as np
from shoal_runtime import TensorSpec

class Doubler:
    tensors = "numpy"
    inputs = (TensorSpec("x", "FP32", [-1, 2]),)
    outputs = (TensorSpec("y", "FP32", [-1, 2]),)

    def forward(self, batch):
        assert type(batch["x"]) is np.ndarray
        return {"y": batch["x"] * 2}
"""


def run(handler: Any, inputs: Mapping[str, Any], sizes: Sequence[int] = ()) -> Any:
    with Bench(handler, placement=HostPlacement(), allowed_batch_sizes=sizes) as bench:
        return bench.run(inputs)


def test_arrays_are_not_converted() -> None:
    answered = run(Adder(), {"x": np.zeros((3, 2), np.float32)})

    assert answered.outputs["y"].tolist() == [[1, 1]] * 3
    assert answered.errors == []


def test_a_batch_is_padded_to_an_allowed_size_and_cut_back() -> None:
    class Counting(Adder):
        def forward(self, batch: Mapping[str, Any]) -> Any:
            return {"y": np.full_like(batch["x"], len(batch["x"]))}

    answered = run(Counting(), {"x": np.zeros((3, 2), np.float32)}, sizes=(4, 8))

    assert answered.outputs["y"].tolist() == [[4, 4]] * 3
    assert answered.padded_rows == 1


def test_texts_are_arrays_and_come_back_as_bytes() -> None:
    class Shouting:
        inputs = (TensorSpec("t", "BYTES", [-1], content_type="text/plain"),)
        outputs = (TensorSpec("y", "BYTES", [-1], content_type="text/plain"),)

        def forward(self, batch: Mapping[str, Any]) -> Any:
            return {"y": np.array([text.upper() for text in batch["t"]], dtype=object)}

    answered = run(Shouting(), {"t": texts(b"a", b"\xff", "ß".encode())})

    assert answered.outputs["y"].tolist() == [b"A", b"SS"]
    assert [(error.row, error.status) for error in answered.errors] == [(1, 400)]


def test_bfloat16_is_computed_as_float32() -> None:
    class Halves:
        inputs = (TensorSpec("x", "BF16", [-1]),)
        outputs = (TensorSpec("y", "BF16", [-1]),)

        def forward(self, batch: Mapping[str, Any]) -> Any:
            assert batch["x"].dtype == np.float32
            return {"y": batch["x"] / 2}

    answered = run(Halves(), {"x": np.array([0x3F80, 0x4000], np.uint16)})

    assert answered.outputs["y"].tolist() == [0x3F00, 0x3F80]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bfloat16_outputs_accept_any_floating_point_type(dtype: Any) -> None:
    class Ones(Adder):
        outputs = (TensorSpec("y", "BF16", [-1, 2]),)

        def forward(self, batch: Mapping[str, Any]) -> Any:
            return np.ones((len(batch["x"]), 2), dtype)

    answered = run(Ones(), {"x": np.zeros((2, 2), np.float32)})

    assert answered.outputs["y"].dtype == np.uint16
    assert answered.outputs["y"].tolist() == [[0x3F80, 0x3F80]] * 2


def test_numbers_that_would_lose_their_fractions_are_rejected() -> None:
    class Whole(Adder):
        outputs = (TensorSpec("y", "INT32", [-1, 2]),)

    with pytest.raises(ForwardFailed, match="output y is float32"):
        run(Whole(), {"x": np.zeros((1, 2), np.float32)})


def test_rows_of_different_lengths_are_padded_with_a_mask() -> None:
    class Lengths:
        inputs = (TensorSpec("t", "BYTES", [-1]),)
        outputs = (TensorSpec("y", "INT64", [-1]),)
        preprocess_padding = (PaddingRule("ids", pad_axis=1, pad_mask="mask"),)

        def preprocess(self, item: bytes) -> Any:
            return {"ids": np.frombuffer(item, np.uint8)}

        def forward(self, batch: Mapping[str, Any]) -> Any:
            assert batch["ids"].shape == batch["mask"].shape
            return {"y": batch["mask"].sum(1)}

    assert run(Lengths(), {"t": texts(b"abc", b"a")}).outputs["y"].tolist() == [3, 1]


def test_warm_up_requires_no_torch() -> None:
    signature = signature_of(Adder())
    machine = choose_machine(RuntimeSpec(), torch=False)
    model = Model("m", "p", Adder(), methods_of(Adder()), signature, machine, graphs=False, forward_timeout_s=60)

    assert [rows for rows, _ in warm(model, machine.place(False), Readiness())] == [1, 2, 4, 8]


def test_a_handler_of_numpy_is_loaded_and_served_without_importing_torch(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    program = f"""
import sys
from shoal_runtime.settings import Settings
from shoal_runtime.readiness import Readiness
from shoal_runtime.startup.starting import start_model
import shoal_runtime.execution.pipeline, shoal_runtime.http.server, shoal_runtime.serving
started = start_model(Settings.from_env({{"SHOAL_MODEL_URI": {str(tmp_path)!r}}}), Readiness())
print(started.model.machine.device, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["cpu", "False"]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ({"device": "Cuda"}, "DEVICE=cuda"),
        ({"dtype": "BFloat16"}, "DTYPE=bfloat16"),
        ({"compile": True}, "COMPILE=true"),
        ({"memory_fraction": "0.5"}, "MEMORY_FRACTION=0.5"),
    ],
)
def test_settings_for_torch_are_rejected_by_name(wanted: Mapping[str, Any], name: str) -> None:
    with pytest.raises(LoadError, match=f"SHOAL_RUNTIME_{name} .*without PyTorch"):
        choose_machine(RuntimeSpec(**wanted), torch=False)
