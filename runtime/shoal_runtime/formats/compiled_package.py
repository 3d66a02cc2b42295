"""Packages of AOTInductor: `.pt2` archives with native code, loaded only if the user trusts them."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch._inductor import aoti_load_package
from torch.export.pt2_archive import PT2ArchiveReader
from torch.export.pt2_archive.constants import AOTINDUCTOR_DIR

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.module import ModuleHandler, require_tensors
from shoal_runtime.formats.source import LoadedModel, ModelSource, UnreadableFile, check_static_batch
from shoal_runtime.signature.spec import ANY

PLATFORM: Final = "pytorch_aotinductor"
METADATA: Final = "_metadata.json"
MODEL: Final = "model"
"""Name that torch gives to the only model of a package."""
MULTI_ARCH: Final = ".fatbin"
"""Suffix of kernels for several GPU architectures."""
CHECK_INPUTS: Final = "AOTI_RUNTIME_CHECK_INPUTS"
"""Variable with which compiled code checks types, shapes and strides; otherwise it reads wrong memory."""
MIN_DYNAMIC_ROWS: Final = 2
"""Inductor compiles a dynamic dimension for two and more, whatever the range of the export."""
VECTORS: Final = ("AVX2", "AVX512")
"""Vector instructions of x86 in increasing order."""


def native_records(path: Path) -> list[str]:
    """Return the names of an archive's records of AOTInductor; empty if it is not readable."""
    try:
        return [name for name in PT2ArchiveReader(str(path)).get_file_names() if name.startswith(AOTINDUCTOR_DIR)]
    except Exception:  # torch's reader has no common type of errors
        return []


def load_compiled(path: Path, source: ModelSource, records: Sequence[str]) -> LoadedModel:
    """Load a trusted package of AOTInductor.

    Its native code checks the shapes and types of each batch. It has no names, so model.toml has the signature.

    Args:
        path: file of the package.
        source: description of the model.
        records: names of the package's records (`native_records`).

    Raises:
        LoadError: the package was compiled for another device, has several models, or is corrupt; or model.toml has no
            signature.
    """
    inputs, outputs = source.declared()
    require_tensors(inputs, outputs, path.name)
    models = sorted({name.removeprefix(AOTINDUCTOR_DIR).partition("/")[0] for name in records})
    if models != [MODEL]:
        raise LoadError(f"{path.name} holds the compiled models {', '.join(models)}. Package one, named {MODEL}")
    device = source.context.device
    try:
        reader = PT2ArchiveReader(str(path))
        built: dict[str, str] = {}
        for name in records:
            if name.endswith(METADATA):
                built |= json.loads(reader.read_string(name))
        multi_arch = any(name.endswith(MULTI_ARCH) for name in records)
        if why := misfit(built, device, multi_arch=multi_arch):
            raise LoadError(f"{path.name} was compiled for {why}. Compile it again on a machine like this one")
        os.environ[CHECK_INPUTS] = "1"
        package = aoti_load_package(str(path), device_index=-1 if device.index is None else device.index)
    except LoadError:
        raise
    except Exception as error:
        raise UnreadableFile(path.name, "AOTInductor package", error, "Compile it again with this torch") from None
    check_static_batch(source, path.name, inputs, "compile it with a dynamic batch")

    def run(*tensors: torch.Tensor) -> Any:
        # Native code expects the strides of the compilation.
        return package.loader.boxed_run([tensor.contiguous() for tensor in tensors])

    dynamic = inputs[0].shape[inputs[0].batch_dim] == ANY
    return LoadedModel(
        ModuleHandler(run, inputs, outputs), inputs, outputs, PLATFORM, min_rows=MIN_DYNAMIC_ROWS if dynamic else 1
    )


def misfit(built: dict[str, str], device: torch.device, *, multi_arch: bool) -> str:
    """Return for what device or processor a package was compiled, if it cannot run here; else an empty text.

    Args:
        built: metadata of the package.
        device: device of the runtime.
        multi_arch: whether its kernels are for several GPU architectures.
    """
    wanted = built.get("AOTI_DEVICE_KEY", device.type)
    if wanted != device.type:
        return f"{wanted}, and the device is {device.type} (SHOAL_RUNTIME_DEVICE)"
    machine = built.get("AOTI_MACHINE", platform.machine())
    if machine != platform.machine():
        return f"{machine}, and the processor is {platform.machine()}"
    if device.type == "cuda":
        compiled, own = built.get("AOTI_COMPUTE_CAPABILITY", ""), torch.cuda.get_device_capability(device)
        # Kernels run on later devices of the same major version.
        fits = not compiled.isdigit() or (int(compiled) // 10 == own[0] and int(compiled) % 10 <= own[1])
        return "" if fits or multi_arch else f"compute capability {compiled}, and the GPU has {own[0]}{own[1]}"
    # An instruction that the processor does not have would end the process.
    needed, have = _vectors(built.get("AOTI_CPU_ISA", "")), _vectors(torch.backends.cpu.get_cpu_capability())
    return f"{VECTORS[needed - 1]}, which the processor does not have" if needed > have else ""


def _vectors(names: str) -> int:
    """Return the rank of the latest vector instructions in a text; 0 for none."""
    return max((rank for rank, name in enumerate(VECTORS, start=1) if name in names.split()), default=0)
