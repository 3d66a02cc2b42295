"""Loading of a model's files to a model that the pipeline can run."""

import logging
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Final

from shoal_runtime.batches.padding import powers_of_two
from shoal_runtime.errors import LoadError
from shoal_runtime.execution.machine import Machine, choose_machine, has_torch
from shoal_runtime.execution.placement import is_out_of_memory
from shoal_runtime.formats.library_device import LibraryPlacement
from shoal_runtime.formats.mlmodel import ModelDescription, read_mlmodel
from shoal_runtime.formats.model_config import ModelConfig, read_config
from shoal_runtime.formats.source import LoadedModel, ModelSource, check_row, files_with
from shoal_runtime.formats.table import FORMATS, by_suffix, formats_of, loader, marked_format
from shoal_runtime.handlers.base import Context, Handler, HandlerMethods, methods_of
from shoal_runtime.importing import DEFAULT_FILE, HandlerFailed, import_handler
from shoal_runtime.packages import install_extras
from shoal_runtime.settings import Settings
from shoal_runtime.signature.spec import ANY, TensorSpec, every_length
from shoal_runtime.signature.tensors import Signature, make_signature
from shoal_runtime.storage.code_cache import code_directory, files_digest
from shoal_runtime.storage.fetching import ModelFiles, broken_link
from shoal_schema.fields.declaring import NAME, NAME_IN_WORDS
from shoal_schema.process.log_lines import word
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.resource.runtime import RuntimeSpec
from shoal_schema.resource.suffixes import KNOWN, remedy

COMPILED: Final = "compiled"
"""Directory in the cache with the compiled code of torch."""
TORCH_CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""Variable with which torch finds its compiled code."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model: handler, signature and device."""

    name: str
    platform: str
    handler: Handler
    stages: HandlerMethods
    signature: Signature
    machine: Machine
    graphs: bool
    forward_timeout_s: float | None = None
    """Limit of a forward that the model declares, where the user kept the default."""
    format: Format = Format.AUTO
    apart: bool = True
    """Whether its code was written to keep rows independent."""
    tried: bool = True
    """Whether warm-up tries it with generated rows."""
    rows_proven: bool = False
    """Whether its outputs are proven to have one row for each row of the batch."""


def load_model(files: ModelFiles, settings: Settings) -> Model:
    """Load a model onto its device.

    Raises:
        LoadError: the model cannot be loaded; the message has the remedy.
    """
    try:
        return _load_model(files, settings)
    except HandlerFailed:
        raise
    except LoadError as error:
        # A broken link is the cause of most other errors: no model, or no weights.
        if (link := broken_link(files.directory)) is None:
            raise
        raise LoadError(f"{link}. The missing file probably caused this error: {error}") from error.__cause__


def _load_model(files: ModelFiles, settings: Settings) -> Model:
    # Without the user's permission torch.load reads plain weights only, whatever its arguments; also when handlers and
    # their libraries call it later.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "0" if settings.model.allow_pickle else "1"
    start_s = time.monotonic()
    # Settings win over model.toml, which wins over the files' names.
    config = read_config(files.directory)
    name = settings.metadata.name or config.name or files.stem
    if not re.search(NAME, name):
        raise LoadError(f"{name!r} cannot be a model's name ({NAME_IN_WORDS}). Set SHOAL_MODEL_NAME")
    form, file, handler = _selected(files, settings, config)
    described = ModelDescription(file, config.inputs, config.outputs)
    if form is Format.MLFLOW:
        form, described = read_mlmodel(files.directory, described)
    if settings.runtime.tensorrt and form is not Format.ONNX:
        raise LoadError("SHOAL_RUNTIME_TENSORRT=true applies only to ONNX models, and this is not one. Unset it")
    entry = FORMATS[form]
    machine = choose_machine(
        settings.runtime,
        torch=_needs_torch(form, handler),
        extra=entry.extra,
        own_device=entry.own_device,
        sharing=1 if settings.process.instance is None else settings.instances,
    )
    if machine.compile is not None:
        _keep_compiled_code(files, settings, machine)
    context = Context(
        model_dir=files.directory,
        device=machine.device,
        dtype=machine.dtype,
        max_batch_size=settings.batching.max_batch_size,
        parameters={**config.parameters, **(settings.model.parameters or {})},
        threads=machine.threads,
    )
    source = ModelSource(
        directory=files.directory,
        file=described.file,
        handler=handler,
        context=context,
        inputs=described.inputs,
        outputs=described.outputs,
        allow_pickle=settings.model.allow_pickle,
        trusted_types=settings.model.trusted_types,
        described_outputs=described.described_outputs,
        max_body_bytes=settings.process.max_body_bytes,
        tensorrt=settings.runtime.tensorrt,
        cache_dir=settings.cache_dir,
        code_key=files_digest(files) if settings.runtime.tensorrt else "",
    )
    load = loader(form)
    # Includes PyTorch and the handler's imports; some formats import more with their files.
    logger.info("event=libraries_imported format=%s seconds=%.1f", form, time.monotonic() - start_s)
    try:
        loaded = load(source)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise LoadError(f"the model does not fit into the memory of {context.device}") from None
        raise
    if loaded.device is not None:
        probe = loaded.device.probe
        machine = replace(machine, device=loaded.device.name, place=lambda _: LibraryPlacement(probe))
    stages = methods_of(loaded.handler)
    if machine.compile is not None:
        stages = replace(stages, forward=machine.compile(stages.forward))
    elif _on_cpu(machine):
        # Buckets limit the number of shapes to capture or compile. On a CPU they would only add padding.
        stages = replace(stages, preprocess_padding=[every_length(rule) for rule in stages.preprocess_padding])
    signature = _signature(loaded, settings, machine)
    if form is Format.HANDLER:
        _warn_of_fixed_rows(loaded.inputs)
    for spec in signature.inputs:
        check_row(spec, settings.process.max_body_bytes)
    by_default = settings.runtime.forward_timeout_seconds == RuntimeSpec().forward_timeout_seconds
    if signature.returned and stages.postprocess is not None:
        raise LoadError(
            "a model with ragged outputs must have no postprocess. Remove the ragged outputs or the postprocess"
        )
    return Model(
        name,
        loaded.platform,
        loaded.handler,
        stages,
        signature,
        machine,
        # A captured graph has tensors of one shape.
        loaded.graphs and not signature.returned,
        loaded.forward_timeout_s if by_default else None,
        form,
        apart=FORMATS[form].apart,
        tried=FORMATS[form].tried,
        rows_proven=loaded.rows_proven,
    )


def _keep_compiled_code(files: ModelFiles, settings: Settings, machine: Machine) -> None:
    """Let torch.compile store its code in the runtime's cache, where later processes find it.

    Torch itself checks whether a stored kernel fits the graph. A directory that the user set is used as it is.
    """
    import torch  # noqa: PLC0415 (models without torch must not import it)

    if TORCH_CACHE in os.environ:
        return
    on_cpu = _on_cpu(machine)
    processor = torch.backends.cpu.get_cpu_capability() if on_cpu else torch.cuda.get_device_name(machine.device)
    key = (torch.__version__, platform.python_version(), platform.machine(), processor, files_digest(files))
    directory = code_directory(settings.cache_dir, COMPILED, *key)
    if directory is not None:
        state = "found" if any(directory.iterdir()) else "new"
        logger.info("event=compiled_code directory=%s state=%s", directory, state)
        os.environ[TORCH_CACHE] = str(directory)


def _on_cpu(machine: Machine) -> bool:
    return str(machine.device) == "cpu"


def _needs_torch(form: Format, handler: type[Any] | None) -> bool:
    """Return whether to run a model with PyTorch.

    The format decides, or else the handler's attribute `tensors`. A handler gets numpy arrays if torch is not
    installed.
    """
    needs = FORMATS[form].torch
    if needs is not None:
        return needs
    if misses_torch(form, handler):
        logger.warning(
            "event=no_torch message=PyTorch is not installed, so %s receives numpy arrays. %s if it needs tensors,"
            ' else set tensors = "numpy" in the class',
            getattr(handler, "__name__", "the handler"),
            install_extras("runtime"),
        )
    return _wants_torch(handler) and has_torch()


def misses_torch(form: Format, handler: object) -> bool:
    """Return whether a handler, or its class, asks for PyTorch, which is not installed."""
    return not has_torch() and FORMATS[form].torch is None and _wants_torch(handler)


def _wants_torch(handler: object) -> bool:
    return bool(getattr(handler, "tensors", "torch") == "torch")


def _warn_of_fixed_rows(inputs: Sequence[TensorSpec]) -> None:
    """Log a warning for each input of a handler whose first dimension is probably not meant to count rows."""
    for spec in inputs:
        shape = list(spec.shape)
        # A fixed number of rows is valid: 1 in many exported models, more where `batch_dim` is given.
        if spec.batch_dim == 0 and shape[0] > 1:
            logger.warning(
                "event=fixed_rows input=%s message=the first dimension of shape %s counts the rows, so each batch has"
                " %d of them. Did you mean %s?",
                word(spec.name),
                shape,
                shape[0],
                [ANY, *shape],
            )


def _selected(
    files: ModelFiles, settings: Settings, config: ModelConfig
) -> tuple[Format, Path | None, type[Any] | None]:
    """Return a model's format, file and handler class."""
    named = files.file or config.file
    file = files.directory / named if named and not named.endswith(".py") else None
    text = settings.model.handler or _own_handler(files, settings, config)
    handler = import_handler(text, files.directory) if text else None
    for form in (settings.model.format, config.format):
        if form is not Format.AUTO:
            return form, file, handler
    return _guess(files.directory, file, handler), file, handler


def _own_handler(files: ModelFiles, settings: Settings, config: ModelConfig) -> str | None:
    """Return the handler class or file that a model's directory names.

    If a file or format without code is configured, and pickles are not allowed, the directory's code must not be
    imported.

    Returns:
        None if the directory names no handler, or its code must not be imported.
    """
    named = files.file or config.file
    if named is not None and named.endswith(".py"):
        return named
    form = settings.model.format
    if form is Format.AUTO:
        form = by_suffix(PurePath(files.file).suffix if files.file is not None else "") or config.format
    # Some directories, such as those of transformers, are marked by a file of their own.
    mark = marked_format(files.directory) if files.file is None else None
    if mark is not None and FORMATS[mark].own_code and form in (Format.AUTO, mark):
        return None
    if form is not Format.AUTO and not FORMATS[form].code and not settings.model.allow_pickle:
        return None
    by_default = form in (Format.AUTO, Format.HANDLER) and (files.directory / DEFAULT_FILE).is_file()
    return config.handler or (DEFAULT_FILE if by_default else None)


def _guess(directory: Path, file: Path | None, handler: type[Any] | None) -> Format:
    """Return the format that the files in a directory imply."""
    # A module can only be defined after torch was imported.
    torch = sys.modules.get("torch")
    is_module = torch is not None and handler is not None and issubclass(handler, torch.nn.Module)
    if handler is not None and not is_module:
        return Format.HANDLER
    # A torch module as the class decides how the weights are read, whatever other files there are.
    if file is None and handler is None and (form := marked_format(directory)) is not None:
        return form
    forms = formats_of([file] if file else files_with(directory))
    if len(forms) == 1:
        return forms[0]
    if is_module and not forms:
        return Format.HANDLER
    set_format = "Set SHOAL_MODEL_FORMAT (model.format), or `format` in model.toml"
    if forms:
        raise LoadError(f"{directory} holds {' and '.join(forms)}. {set_format}")
    known = f"{', '.join(KNOWN)} or {DEFAULT_FILE}"
    if foreign := remedy([file.name] if file else [path.name for path in files_with(directory)]):
        raise LoadError(foreign)
    if file is not None:
        raise LoadError(f"{file.name} is not a {known}. {set_format}")
    if not any(directory.iterdir()):
        raise LoadError(f"{directory} is empty: expected a {known}. `shoal init` writes one to begin with")
    raise LoadError(
        f"{directory} holds no {known}. If the model's file has another name, set `file` and `format` in model.toml"
    )


def _signature(loaded: LoadedModel, settings: Settings, machine: Machine) -> Signature:
    limit = settings.batching.max_batch_size
    sizes = settings.batch_sizes
    # The model's own limits of rows apply before those of the settings.
    if loaded.max_rows is not None and loaded.max_rows < limit:
        limit = loaded.max_rows
        sizes = (*(size for size in sizes if size < limit), limit) if sizes else ()
    # Fixed sizes on a GPU, whose graphs and kernels are made for one shape each.
    if not sizes and (not _on_cpu(machine) or loaded.min_rows > 1):
        sizes = powers_of_two(limit)
    if loaded.min_rows > 1:
        kept = {size for size in sizes if size >= loaded.min_rows}
        sizes = tuple(sorted(kept | {min(loaded.min_rows, limit)}))
    return make_signature(tuple(loaded.inputs), tuple(loaded.outputs), max_batch_size=limit, allowed_batch_sizes=sizes)
