"""From a model's files to something the pipeline can run."""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import PurePath
from typing import Final

import torch

from shoal_runtime.batches.padding import powers_of_two
from shoal_runtime.errors import LoadError
from shoal_runtime.fetching import ModelFiles
from shoal_runtime.formats import handler as handler_format
from shoal_runtime.formats import safetensors as safetensors_format
from shoal_runtime.formats import torch_export, torch_script
from shoal_runtime.formats.source import Loaded, Source, files_with
from shoal_runtime.handlers.base import Context, Handler, Stages, stages_of
from shoal_runtime.handlers.signature import Signature, make_signature
from shoal_runtime.handlers.spec import ANY, TensorSpec, every_length
from shoal_runtime.importing import DEFAULT_FILE, import_handler
from shoal_runtime.model_config import ModelConfig, read_config
from shoal_runtime.placement import choose_dtype
from shoal_runtime.settings import Settings
from shoal_schema.declaring import NAME, NAME_IN_WORDS
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.wire.datatypes import DTYPES


def _lazy(name):
    def load(source):
        import importlib

        return importlib.import_module(f"shoal_runtime.formats.{name}").load(source)

    return load


LOADERS: Final[Mapping[Format, Callable[[Source], Loaded]]] = {
    Format.HANDLER: handler_format.load,
    Format.SAFETENSORS: safetensors_format.load,
    Format.TORCH_EXPORT: torch_export.load,
    Format.TORCH_SCRIPT: torch_script.load,
    Format.KERAS: _lazy("keras"),
    Format.TRANSFORMERS: _lazy("transformers"),
}
SUFFIXES: Final[Mapping[Format, tuple[str, ...]]] = {
    Format.TORCH_EXPORT: torch_export.SUFFIXES,
    Format.SAFETENSORS: (".safetensors",),
    Format.TORCH_SCRIPT: torch_script.SUFFIXES,
    Format.KERAS: (".keras",),
}
WITHOUT_CODE: Final = (Format.TORCH_EXPORT, Format.TORCH_SCRIPT)
"""Programs that need no class of the user's; weights do."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory, with all that is known about it."""

    name: str
    platform: str
    handler: Handler
    stages: Stages
    signature: Signature
    graphs: bool


def load_model(files: ModelFiles, settings: Settings, device: torch.device) -> Model:
    """Load a model onto the device.

    Raises:
        LoadError: says what is wrong and what to do next.
    """
    # Also for what handlers and their libraries load, now and later: without the user's leave,
    # torch.load takes plain weights only, whatever its arguments say.
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "0" if settings.model.allow_pickle else "1"
    config = read_config(files.directory)
    name = settings.metadata.name or config.name or files.stem
    if not re.search(NAME, name):
        raise LoadError(f"{name!r} cannot be a model's name ({NAME_IN_WORDS}): set SHOAL_MODEL_NAME")
    context = Context(
        model_dir=files.directory,
        device=device,
        dtype=choose_dtype(settings.runtime.dtype.lower()),
        max_batch_size=settings.batching.max_batch_size,
        parameters={**config.parameters, **(settings.model.parameters or {})},
    )
    source = _source(files, settings, config, context)
    named = [form for form in (settings.model.format, config.format) if form is not Format.AUTO]
    loaded = LOADERS[named[0] if named else _guess(source)](source)
    stages = stages_of(loaded.handler)
    if settings.runtime.compile:
        stages = replace(stages, forward=torch.compile(stages.forward))
    elif device.type == "cpu":
        # Buckets keep down the number of forms to record or to compile; here they would only add padding.
        stages = replace(stages, preprocess_padding=[every_length(rule) for rule in stages.preprocess_padding])
    signature = _signature(loaded, settings, device)
    for spec in signature.inputs:
        _check_row(spec, settings.process.max_body_bytes)
    return Model(name, loaded.platform, loaded.handler, stages, signature, loaded.graphs)


def _check_row(spec: TensorSpec, max_body_bytes: int) -> None:
    """Raise LoadError where no request can hold a row: warm-up would tell it as a lack of memory."""
    elements = math.prod(size for size in spec.row_shape if size != ANY)
    # Of bytes the length alone, which precedes each element.
    row_bytes = elements * (4 if spec.datatype == "BYTES" else DTYPES[spec.datatype].itemsize)
    if row_bytes > max_body_bytes:
        raise LoadError(
            f"input {spec.name}: a row of shape {list(spec.row_shape)} has {row_bytes} bytes, more than a request may"
            f" (SHOAL_RUNTIME_MAX_BODY_BYTES={max_body_bytes}): correct the shape that it declares"
        )


def _source(files: ModelFiles, settings: Settings, config: ModelConfig, context: Context) -> Source:
    named = files.file or config.file
    text = settings.model.handler or _handler_asked_for(files, settings, config)
    return Source(
        directory=files.directory,
        file=files.directory / named if named and not named.endswith(".py") else None,
        handler=import_handler(text, files.directory) if text else None,
        context=context,
        inputs=config.inputs,
        outputs=config.outputs,
        allow_pickle=settings.model.allow_pickle,
    )


def _handler_asked_for(files: ModelFiles, settings: Settings, config: ModelConfig) -> str | None:
    """Return the handler that the model's directory asks for, as far as the user let it ask.

    Code that merely lies beside the file that was named is never imported: who names a format whose files are
    no code, or such a file, has not asked for any.
    """
    named = files.file or config.file
    if named is not None and named.endswith(".py"):
        return named
    form = _named_format(files, settings, config)
    if form in WITHOUT_CODE and not settings.model.allow_pickle:
        return None
    by_default = form in (Format.AUTO, Format.HANDLER) and (files.directory / DEFAULT_FILE).is_file()
    return config.handler or (DEFAULT_FILE if by_default else None)


def _named_format(files: ModelFiles, settings: Settings, config: ModelConfig) -> Format:
    """Return the format that somebody named, in the settings, by the URI's file, or in model.toml."""
    if settings.model.format is not Format.AUTO:
        return settings.model.format
    suffix = PurePath(files.file).suffix if files.file is not None else ""
    return next((form for form, suffixes in SUFFIXES.items() if suffix in suffixes), config.format)


def _guess(source: Source) -> Format:
    """Return the format that the files suggest; a class that is not a module is a handler."""
    is_module = source.handler is not None and issubclass(source.handler, torch.nn.Module)
    if source.handler is not None and not is_module:
        return Format.HANDLER
    from shoal_runtime.formats.source import is_transformers

    if source.file is None and source.handler is None and is_transformers(source.directory):
        return Format.TRANSFORMERS
    held = {path.suffix for path in ([source.file] if source.file else files_with(source.directory))}
    found = [form for form, suffixes in SUFFIXES.items() if not held.isdisjoint(suffixes)]
    if len(found) == 1:
        return found[0]
    if is_module and not found:
        return Format.HANDLER
    several = f"{source.directory} holds {' and '.join(found)}: set SHOAL_MODEL_FORMAT, or `format` in model.toml"
    raise LoadError(several if found else _none(source))


def _none(source: Source) -> str:
    """Return what was looked for; a format helps where a file was named, and no empty folder."""
    known = f"{', '.join(chain.from_iterable(SUFFIXES.values()))} or {DEFAULT_FILE}"
    if source.file is not None:
        return f"{source.file.name} is not a {known}: set SHOAL_MODEL_FORMAT, or `format` in model.toml"
    if not any(source.directory.iterdir()):
        return f"{source.directory} is empty: a model is a {known} in it"
    return (
        f"{source.directory} holds no {known}: a model is one of these; if it has another name, give that as `file`,"
        " and its `format`, in model.toml"
    )


def _signature(loaded: Loaded, settings: Settings, device: torch.device) -> Signature:
    limit = settings.batching.max_batch_size
    sizes = settings.batch_sizes
    if loaded.max_rows is not None and loaded.max_rows < limit:
        limit = loaded.max_rows
        sizes = (*(size for size in sizes if size < limit), limit) if sizes else ()
    if not sizes and (device.type == "cuda" or loaded.min_rows > 1):
        sizes = powers_of_two(limit)
    if loaded.min_rows > 1:
        kept = {size for size in sizes if size >= loaded.min_rows}
        sizes = tuple(sorted(kept | {min(loaded.min_rows, limit)}))
    return make_signature(tuple(loaded.inputs), tuple(loaded.outputs), max_batch_size=limit, allowed_batch_sizes=sizes)
