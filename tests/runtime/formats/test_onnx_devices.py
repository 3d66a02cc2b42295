"""Providers of onnxruntime. Without a GPU, a fake of its module stands for one; the binding runs on the CPU."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from shoal_runtime.errors import LoadError
from shoal_runtime.formats import onnx_binding
from shoal_runtime.formats.onnx_binding import BoundSession
from shoal_runtime.formats.onnx_session import profile_shapes
from tests.runtime.fakes import Bench
from tests.runtime.formats.test_onnx import TEXT, WEIGHT, X, product, save, value

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


class Accelerated:
    """The functions of onnxruntime with providers for GPUs, whose sessions and memory are on the CPU."""

    def __init__(self, offered: list[str], started: list[str] | Exception) -> None:
        self.offered, self.started = offered, started
        self.requested: list[Any] = []
        self.bound: tuple[str, int] | None = None
        self.preload_dlls = lambda: None
        self.OrtValue = SimpleNamespace(ortvalue_from_numpy=lambda array, *_: SimpleNamespace(numpy=lambda: array))

    def __getattr__(self, name: str) -> Any:
        return getattr(onnxruntime, name)

    def get_available_providers(self) -> list[str]:
        return [*self.offered, CPU]

    def InferenceSession(self, path: str, options: Any, *, providers: list[Any], **more: Any) -> Any:  # noqa: N802
        session = onnxruntime.InferenceSession(path, options, providers=[CPU], **more)
        if providers == [CPU]:
            return session
        self.requested.append(providers)
        if isinstance(self.started, Exception):
            raise self.started
        started = [*self.started, CPU]
        return SimpleNamespace(
            get_inputs=session.get_inputs,
            get_outputs=session.get_outputs,
            io_binding=session.io_binding,
            run_with_iobinding=session.run_with_iobinding,
            get_providers=lambda: started,
        )


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Accelerated]:
    def install(offered: list[str], started: list[str] | Exception) -> Accelerated:
        made = Accelerated(offered, started)
        monkeypatch.setattr("shoal_runtime.formats.onnx_session.imported", lambda *_: made)

        class OnCpu(BoundSession):
            def __init__(self, session: Any, device: str, index: int) -> None:
                made.bound = (device, index)
                super().__init__(session, "cpu", 0)

        monkeypatch.setattr("shoal_runtime.formats.onnx.BoundSession", OnCpu)
        return made

    return install


@pytest.mark.parametrize(("device", "index"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_session_runs_on_cuda_where_it_is_offered(
    tmp_path: Path, load: Load, accelerated: Callable[..., Accelerated], device: str, index: int
) -> None:
    fake = accelerated([CUDA], [CUDA])

    model = load(product(tmp_path / "model.onnx"), device=device)

    assert fake.requested == [[(CUDA, {"device_id": str(index)}), CPU]]
    assert (model.machine.device, fake.bound) == (f"cuda:{index}", ("cuda", index))
    assert not model.machine.place(False).is_lost(RuntimeError())
    with Bench.around(model) as bench:
        np.testing.assert_allclose(bench.run({"x": X[:3]}).outputs["y"], X[:3] @ WEIGHT, rtol=1e-5)


@pytest.mark.parametrize(
    ("offered", "started"), [([], []), ([CUDA], []), ([CUDA], RuntimeError("CUDA failure 100: no device"))]
)
def test_a_missing_provider_is_an_error_for_cuda_and_logged_for_auto(
    tmp_path: Path,
    load: Load,
    accelerated: Callable[..., Accelerated],
    caplog: pytest.LogCaptureFixture,
    offered: list[str],
    started: Any,
) -> None:
    accelerated(offered, started)
    path = product(tmp_path / "model.onnx")

    with pytest.raises(LoadError, match=r"cannot run on the GPU.*onnx-gpu"):
        load(path, device="cuda")
    with caplog.at_level("INFO"):
        assert load(path, device="auto").machine.device == "cpu"
    assert "event=onnx_device device=cpu reason=" in caplog.text


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_real_onnxruntime_does_not_fall_back_to_the_cpu(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    if CUDA in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has CUDA")
    path = product(tmp_path / "model.onnx")

    with pytest.raises(LoadError, match=f"has no {CUDA}"):
        load(path, device="cuda")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    with pytest.raises(LoadError, match=f"{CUDA} did not start"):
        load(path, device="cuda")


def test_tensorrt_builds_one_engine_for_all_batches_in_the_cache(
    tmp_path: Path, load: Load, accelerated: Callable[..., Accelerated]
) -> None:
    fake = accelerated([TENSORRT, CUDA], [TENSORRT, CUDA])

    load(product(tmp_path / "model.onnx"), tensorrt=True, device="auto", max_batch_size=8)

    [[(first, options), (second, _), _]] = fake.requested
    assert (first, second) == (TENSORRT, CUDA)
    assert [options[f"trt_profile_{name}_shapes"] for name in ("min", "opt", "max")] == ["x:1x4", "x:8x4", "x:8x4"]
    assert Path(options["trt_engine_cache_path"]).parent == tmp_path / "cache" / "engines"


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_tensorrt_is_never_replaced(
    tmp_path: Path, load: Load, accelerated: Callable[..., Accelerated], device: str
) -> None:
    accelerated([TENSORRT, CUDA], [CUDA])

    with pytest.raises(LoadError, match="SHOAL_RUNTIME_TENSORRT"):
        load(product(tmp_path / "model.onnx"), tensorrt=True, device=device)


def test_tensorrt_is_for_onnx(tmp_path: Path, load: Load) -> None:
    (tmp_path / "handler.py").write_text("class A:\n    def forward(self, batch): ...\n")

    with pytest.raises(LoadError, match="only to ONNX"):
        load(tmp_path, tensorrt=True)


@pytest.mark.parametrize(
    ("shape", "batch_dim", "shapes"),
    [(["n", 4], 0, "x:7x4"), ([3, "n"], 1, "x:3x7"), ([2, 4], 0, ""), (["n", "m"], 0, None), ([None, -1], 0, None)],
)
def test_a_profile_has_the_rows_where_only_they_are_dynamic(shape: Any, batch_dim: int, shapes: str | None) -> None:
    assert profile_shapes([SimpleNamespace(name="x", shape=shape)], {"x": batch_dim}, 7) == shapes


def test_a_bound_session_reuses_its_inputs_and_returns_the_results_of_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_binding, "MAX_BUFFERS", 2)
    session = onnxruntime.InferenceSession(str(product(tmp_path / "model.onnx")), providers=[CPU])
    bound = BoundSession(session, "cpu", 0)
    kept = X.copy()

    for rows in (1, 3, 3, 5, 1):
        [first] = bound.run(["y"], {"x": X[:rows]})
        # A result is not changed by the next batch.
        [second] = bound.run(["y"], {"x": X[rows : 2 * rows]})
        np.testing.assert_array_equal(first, session.run(["y"], {"x": X[:rows]})[0])
        np.testing.assert_array_equal(second, session.run(["y"], {"x": X[rows : 2 * rows]})[0])
    np.testing.assert_array_equal(X, kept)


def test_a_model_of_texts_runs_without_a_binding(
    tmp_path: Path, load: Load, accelerated: Callable[..., Accelerated]
) -> None:
    fake = accelerated([CUDA], [CUDA])
    nodes = [helper.make_node("Identity", ["t"], ["u"])]
    path = save(tmp_path / "texts.onnx", nodes, [value("t", TEXT, ["n", 1])], [value("u", TEXT, ["n", 1])])

    assert load(path, device="cuda").machine.device == "cuda:0"
    assert fake.bound is None


def test_memory_of_the_device_that_runs_out_is_a_memory_error() -> None:
    def binding() -> Any:
        raise RuntimeError("BFCArena: Failed to allocate memory for requested buffer of size 8")

    with pytest.raises(MemoryError):
        BoundSession(SimpleNamespace(io_binding=binding), "cuda", 0).run([], {})
