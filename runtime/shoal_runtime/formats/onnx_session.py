"""Sessions of onnxruntime on the CPU or a CUDA device.

onnxruntime continues on the CPU if a provider fails to start, so the providers of a session are checked.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import exception_message
from shoal_runtime.formats.external_data import linked_files, mapped
from shoal_runtime.formats.library_device import AUTO, CPU, LibraryDevice, cuda_index
from shoal_runtime.formats.source import ModelSource, unreadable_reason
from shoal_runtime.formats.tabular import imported
from shoal_runtime.packages import replace_package
from shoal_runtime.storage.code_cache import code_directory

CPU_PROVIDER: Final = "CPUExecutionProvider"
CUDA_PROVIDER: Final = "CUDAExecutionProvider"
TENSORRT_PROVIDER: Final = "TensorrtExecutionProvider"
ENGINES: Final = "engines"
"""Directory in the cache with engines of TensorRT."""
QUIET: Final = 3
"""Log level for errors only: warnings about graphs come by the thousand, and users cannot act on them."""
EXTERNAL: Final = "external"
"""Word in onnxruntime's errors about external data."""
INSTALL: Final = replace_package("onnxruntime", "onnx-gpu")
REMEDIES: Final = {
    CUDA_PROVIDER: f"{INSTALL}, and check the GPU's driver; or set SHOAL_RUNTIME_DEVICE=cpu (runtime.device: CPU)",
    TENSORRT_PROVIDER: f"{INSTALL} and tensorrt, and check the GPU's driver; or unset SHOAL_RUNTIME_TENSORRT"
    " (runtime.tensorrt)",
}

logger = logging.getLogger(__name__)


def open_session(path: Path, source: ModelSource) -> tuple[Any, LibraryDevice]:
    """Open a session on the device of the settings.

    Raises:
        LoadError: onnxruntime is not installed or cannot run the file, or the settings require a provider that does not
            start.
    """
    onnxruntime = imported("onnxruntime", "onnx")
    wanted = str(source.context.device)
    if wanted == CPU and source.tensorrt:
        raise LoadError("SHOAL_RUNTIME_TENSORRT requires a GPU, and SHOAL_RUNTIME_DEVICE is cpu. Unset one of them")
    provider = TENSORRT_PROVIDER if source.tensorrt else CUDA_PROVIDER
    reason = "the device is cpu"
    if wanted != CPU:
        session, reason = _accelerated(onnxruntime, path, source, provider)
        if session is not None:
            index = cuda_index(wanted)
            # The copy to the device and back fails once the device is lost.
            value, trial = onnxruntime.OrtValue, np.zeros(1, np.float32)
            return session, LibraryDevice(
                f"cuda:{index}", lambda: value.ortvalue_from_numpy(trial, "cuda", index).numpy()
            )
    if wanted not in (AUTO, CPU) or source.tensorrt:
        raise LoadError(f"{path.name} cannot run on the GPU: {reason}. {REMEDIES[provider]}")
    logger.info("event=onnx_device device=cpu reason=%s", reason)
    try:
        return _opened(onnxruntime, path, source.context.threads, [CPU_PROVIDER]), LibraryDevice()
    except Exception as error:  # onnxruntime's exceptions have no common base
        why = unreadable_reason(path) or exception_message(error)
        raise LoadError(_refused(path.name, why, onnxruntime.__version__)) from None


def _accelerated(onnxruntime: Any, path: Path, source: ModelSource, provider: str) -> tuple[Any, str]:
    """Open a session with a provider for GPUs; return None with the reason if the provider does not start."""
    if provider not in onnxruntime.get_available_providers():
        return None, f"the installed onnxruntime {onnxruntime.__version__} has no {provider}"
    # Finds the libraries of CUDA in the packages of NVIDIA.
    onnxruntime.preload_dlls()
    cuda = (CUDA_PROVIDER, {"device_id": str(cuda_index(str(source.context.device)))})
    providers: list[Any] = [cuda, CPU_PROVIDER]
    try:
        if provider == TENSORRT_PROVIDER:
            providers.insert(0, (provider, {**cuda[1], **_tensorrt_options(onnxruntime, path, source)}))
        session = _opened(onnxruntime, path, source.context.threads, providers)
    except Exception as error:
        return None, (unreadable_reason(path) or exception_message(error)).strip().splitlines()[0].rstrip(".")
    started = session.get_providers()
    if provider in started:
        logger.info("event=onnx_device device=cuda providers=%s", ",".join(started))
        return session, ""
    return None, f"{provider} did not start (onnxruntime logs why); only {', '.join(started)} did"


def _tensorrt_options(onnxruntime: Any, path: Path, source: ModelSource) -> dict[str, str]:
    """Return options of TensorRT: the cache of engines, and the range of rows for which to build one engine."""
    options: dict[str, str] = {}
    if source.code_key and source.cache_dir is not None:
        directory = code_directory(source.cache_dir, ENGINES, onnxruntime.__version__, source.code_key)
        if directory is not None:
            for cache in ("engine", "timing"):
                options |= {f"trt_{cache}_cache_enable": "True", f"trt_{cache}_cache_path": str(directory)}
    # Only the shapes are read.
    inputs = _opened(onnxruntime, path, source.context.threads, [CPU_PROVIDER], optimize=False).get_inputs()
    batch_dims = {spec.name: spec.batch_dim for spec in source.inputs}
    for name, rows in (("min", 1), ("opt", source.context.max_batch_size), ("max", source.context.max_batch_size)):
        if (profile := profile_shapes(inputs, batch_dims, rows)) is None:
            logger.warning(
                "event=tensorrt_profile_missing message=Dimensions other than the batch are dynamic,"
                " so TensorRT builds its engine again for each new range of shapes"
            )
            break
        if profile:
            options[f"trt_profile_{name}_shapes"] = profile
    return options


def profile_shapes(inputs: Sequence[Any], batch_dims: dict[str, int], rows: int) -> str | None:
    """Return the shapes of a graph's inputs for a number of rows, in TensorRT's notation.

    Returns:
        Empty if all shapes are fixed; None if a dimension other than the batch is dynamic.
    """
    shapes, dynamic = [], False
    for node in inputs:
        batch_dim = batch_dims.get(node.name, 0)
        free = [place for place, size in enumerate(node.shape) if not isinstance(size, int) or size <= 0]
        if free not in ([], [batch_dim]):
            return None
        dynamic = dynamic or bool(free)
        sizes = [str(rows if place in free else size) for place, size in enumerate(node.shape)]
        shapes.append(f"{node.name}:{'x'.join(sizes)}")
    return ",".join(shapes) if dynamic else ""


def _opened(onnxruntime: Any, path: Path, threads: int, providers: Sequence[Any], *, optimize: bool = True) -> Any:
    def opened(options: Any) -> Any:
        # With the fallback, onnxruntime prints an error and continues on the CPU.
        return onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)

    try:
        return opened(_options(onnxruntime, threads, optimize=optimize))
    except Exception as error:
        if EXTERNAL not in exception_message(error).lower() or not (files := linked_files(path)):
            raise
    # Weights behind links, which onnxruntime does not follow out of the model's directory.
    names, contents, sizes = mapped(files)
    options = _options(onnxruntime, threads, optimize=optimize)
    options.add_external_initializers_from_files_in_memory(names, contents, sizes)
    return opened(options)


def _options(onnxruntime: Any, threads: int, *, optimize: bool) -> Any:
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads must sleep, since other containers share the cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = QUIET
    return options


def _refused(name: str, why: str, version: str) -> str:
    found = re.search(r"Opset (\d+) is under .* till opset (\d+)", why)
    if found:
        return (
            f"{name} is of opset {found[1]}; onnxruntime {version} supports opsets up to {found[2]}. Export it with"
            f" opset_version={found[2]}, or install a later onnxruntime"
        )
    # onnxruntime's errors begin with codes and the position in its sources.
    reason = re.sub(r"^.*?(failed:|[A-Z_]+ : (?!.*failed:))(\S+\.(cc|h):\d+ .*?\) )?", "", why.strip().splitlines()[0])
    return (
        f"{name} is not an ONNX model that onnxruntime {version} can run: {reason.rstrip('.')}."
        " Copy it here again, or export it again"
    )
