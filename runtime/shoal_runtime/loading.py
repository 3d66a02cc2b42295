"""From a model's files to something the pipeline can run."""

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from shoal_runtime.batches.padding import powers_of_two
from shoal_runtime.errors import LoadError
from shoal_runtime.fetching import ModelFiles, broken_link
from shoal_runtime.formats.mlmodel import Described, read_mlmodel
from shoal_runtime.formats.source import Loaded, Source, check_row, files_with
from shoal_runtime.formats.table import FORMATS, by_suffix, found, loader, marked
from shoal_runtime.handlers.base import Context, Handler, Stages, stages_of
from shoal_runtime.handlers.signature import Signature, make_signature
from shoal_runtime.handlers.spec import every_length
from shoal_runtime.importing import DEFAULT_FILE, HandlerFailed, import_handler
from shoal_runtime.machine import Machine, choose_machine, has_torch
from shoal_runtime.model_config import ModelConfig, read_config
from shoal_runtime.placement import is_out_of_memory
from shoal_runtime.settings import Settings
from shoal_schema.declaring import NAME, NAME_IN_WORDS
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.resource.runtime import RuntimeSpec
from shoal_schema.resource.suffixes import KNOWN, remedy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory, with all that is known about it."""

    name: str
    platform: str
    handler: Handler
    stages: Stages
    signature: Signature
    machine: Machine
    graphs: bool
    forward_timeout_s: float | None = None
    """How long a forward may take by the model's word, where the user has left it to the default."""
    format: Format = Format.AUTO
    apart: bool = True
    """Whether what keeps its rows apart was written for that."""
    tried: bool = True
    """Whether warm-up tries it with made-up rows."""
    rows_proven: bool = False
    """Whether its outputs are proven to have one row for each of the batch's."""


def load_model(files: ModelFiles, settings: Settings) -> Model:
    """Load a model onto its device.

    Raises:
        LoadError: says what is wrong and what to do next.
    """
    try:
        return _load_model(files, settings)
    except HandlerFailed:
        raise
    except LoadError as error:
        # Otherwise the error would name the consequence: no model, or no weights.
        if (link := broken_link(files.directory)) is None:
            raise
        raise LoadError(f"{link}; without that file: {error}") from error.__cause__


def _load_model(files: ModelFiles, settings: Settings) -> Model:
    # Also for what handlers and their libraries load, now and later: without the user's leave,
    # torch.load takes plain weights only, whatever its arguments say.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "0" if settings.model.allow_pickle else "1"
    start_s = time.monotonic()
    config = read_config(files.directory)
    name = settings.metadata.name or config.name or files.stem
    if not re.search(NAME, name):
        raise LoadError(f"{name!r} cannot be a model's name ({NAME_IN_WORDS}): set SHOAL_MODEL_NAME")
    file, handler = _named_file(files, config), _handler(files, settings, config)
    named = [form for form in (settings.model.format, config.format) if form is not Format.AUTO]
    form = named[0] if named else _guess(files.directory, file, handler)
    described = Described(file, config.inputs, config.outputs)
    if form is Format.MLFLOW:
        form, described = read_mlmodel(files.directory, described)
    machine = choose_machine(settings.runtime, torch=_needs_torch(form, handler), extra=FORMATS[form].extra)
    context = Context(
        model_dir=files.directory,
        device=machine.device,
        dtype=machine.dtype,
        max_batch_size=settings.batching.max_batch_size,
        parameters={**config.parameters, **(settings.model.parameters or {})},
        threads=machine.threads,
    )
    source = Source(
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
    )
    load = loader(form)
    # PyTorch and what a handler imports; some formats bring more with their files.
    logger.info("event=libraries_imported format=%s seconds=%.1f", form, time.monotonic() - start_s)
    loaded = _loaded(load, source)
    stages = stages_of(loaded.handler)
    if machine.compile is not None:
        stages = replace(stages, forward=machine.compile(stages.forward))
    elif _on_cpu(machine):
        # Buckets keep down the number of forms to record or to compile; here they would only add padding.
        stages = replace(stages, preprocess_padding=[every_length(rule) for rule in stages.preprocess_padding])
    signature = _signature(loaded, settings, machine)
    for spec in signature.inputs:
        check_row(spec, settings.process.max_body_bytes)
    limit_s = _forward_timeout_s(loaded, settings)
    if signature.returned and stages.postprocess is not None:
        raise LoadError("ragged outputs are grouped by row without postprocess: leave the one or the other out")
    return Model(
        name,
        loaded.platform,
        loaded.handler,
        stages,
        signature,
        machine,
        # A captured graph has tensors of one shape.
        loaded.graphs and not signature.returned,
        limit_s,
        form,
        apart=FORMATS[form].apart,
        tried=FORMATS[form].tried,
        rows_proven=loaded.rows_proven,
    )


def _forward_timeout_s(loaded: Loaded, settings: Settings) -> float | None:
    by_default = settings.runtime.forward_timeout_seconds == RuntimeSpec().forward_timeout_seconds
    return loaded.forward_timeout_s if by_default else None


def _loaded(load: Callable[[Source], Loaded], source: Source) -> Loaded:
    try:
        return load(source)
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise LoadError(f"the model does not fit into the memory of {source.context.device}") from None
        raise


def _on_cpu(machine: Machine) -> bool:
    return str(machine.device) == "cpu"


def _needs_torch(form: Format, handler: type[Any] | None) -> bool:
    """Return whether a model computes with torch; a handler says otherwise, or has it where it is installed."""
    needs = FORMATS[form].torch
    if needs is not None:
        return needs
    wanted = getattr(handler, "tensors", "torch") == "torch"
    if wanted and not has_torch():
        logger.warning(
            "event=no_torch message=PyTorch is not installed, so %s gets arrays of numpy: if it wants tensors,"
            ' pip install "shoal[runtime]"; else say so with tensors = "numpy" in the class',
            getattr(handler, "__name__", "the handler"),
        )
    return wanted and has_torch()


def _named_file(files: ModelFiles, config: ModelConfig) -> Path | None:
    named = files.file or config.file
    return files.directory / named if named and not named.endswith(".py") else None


def _handler(files: ModelFiles, settings: Settings, config: ModelConfig) -> type[Any] | None:
    text = settings.model.handler or _handler_asked_for(files, settings, config)
    return import_handler(text, files.directory) if text else None


def _handler_asked_for(files: ModelFiles, settings: Settings, config: ModelConfig) -> str | None:
    """Return the handler that the model's directory asks for, as far as the user let it ask.

    Code that merely lies beside the file that was named is never imported: who names a format whose files are
    no code, or such a file, has not asked for any.
    """
    named = files.file or config.file
    if named is not None and named.endswith(".py"):
        return named
    form = _named_format(files, settings, config)
    mark = marked(files.directory) if files.file is None else None
    if mark is not None and FORMATS[mark].own_code and form in (Format.AUTO, mark):
        return None
    if form is not Format.AUTO and not FORMATS[form].code and not settings.model.allow_pickle:
        return None
    by_default = form in (Format.AUTO, Format.HANDLER) and (files.directory / DEFAULT_FILE).is_file()
    return config.handler or (DEFAULT_FILE if by_default else None)


def _named_format(files: ModelFiles, settings: Settings, config: ModelConfig) -> Format:
    """Return the format that somebody named, in the settings, by the URI's file, or in model.toml."""
    if settings.model.format is not Format.AUTO:
        return settings.model.format
    suffix = PurePath(files.file).suffix if files.file is not None else ""
    return by_suffix(suffix) or config.format


def _guess(directory: Path, file: Path | None, handler: type[Any] | None) -> Format:
    """Return the format that the files suggest; a class that is not a module is a handler."""
    is_module = _is_module(handler)
    if handler is not None and not is_module:
        return Format.HANDLER
    # A class that is a module says how weights are read, whatever lies beside them.
    if file is None and handler is None and (form := marked(directory)) is not None:
        return form
    forms = found([file] if file else files_with(directory))
    if len(forms) == 1:
        return forms[0]
    if is_module and not forms:
        return Format.HANDLER
    several = (
        f"{directory} holds {' and '.join(forms)}: set SHOAL_MODEL_FORMAT (model.format), or `format` in model.toml"
    )
    raise LoadError(several if forms else _none(directory, file))


def _is_module(handler: type[Any] | None) -> bool:
    # Who defines one has imported torch.
    torch = sys.modules.get("torch")
    return torch is not None and handler is not None and issubclass(handler, torch.nn.Module)


def _none(directory: Path, file: Path | None) -> str:
    """Return what was looked for; a format helps where a file was named, and no empty folder."""
    known = f"{', '.join(KNOWN)} or {DEFAULT_FILE}"
    if foreign := remedy([file.name] if file else [path.name for path in files_with(directory)]):
        return foreign
    if file is not None:
        return f"{file.name} is not a {known}: set SHOAL_MODEL_FORMAT (model.format), or `format` in model.toml"
    if not any(directory.iterdir()):
        return f"{directory} is empty: a model is a {known} in it; `shoal init` writes one to begin from"
    return (
        f"{directory} holds no {known}: a model is one of these; if it has another name, give that as `file`,"
        " and its `format`, in model.toml"
    )


def _signature(loaded: Loaded, settings: Settings, machine: Machine) -> Signature:
    limit = settings.batching.max_batch_size
    sizes = settings.batch_sizes
    if loaded.max_rows is not None and loaded.max_rows < limit:
        limit = loaded.max_rows
        sizes = (*(size for size in sizes if size < limit), limit) if sizes else ()
    if not sizes and (not _on_cpu(machine) or loaded.min_rows > 1):
        sizes = powers_of_two(limit)
    if loaded.min_rows > 1:
        kept = {size for size in sizes if size >= loaded.min_rows}
        sizes = tuple(sorted(kept | {min(loaded.min_rows, limit)}))
    return make_signature(tuple(loaded.inputs), tuple(loaded.outputs), max_batch_size=limit, allowed_batch_sizes=sizes)
