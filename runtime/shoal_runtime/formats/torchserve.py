"""The TorchServe format: archives of `torch-model-archiver`, whose handlers run unchanged.

The installed package `ts` of TorchServe is used; without it, `stand_in` provides the parts that handlers use.
"""

import importlib
import inspect
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.formats.handler import loading
from shoal_runtime.formats.source import LoadedModel, ModelSource
from shoal_runtime.formats.torchserve_context import Context
from shoal_runtime.formats.torchserve_service import INPUTS, OUTPUTS, Handle, Service
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.packages import install_extras, install_package, remedy
from shoal_schema.resource.traffic import BatchingSpec

MANIFEST: Final = Path("MAR-INF", "MANIFEST.json")
STAND_IN: Final = Path(__file__).with_name("stand_in")
DEFAULT_CONFIG: Final = "model-config.yaml"
IDLE: Final = frozenset({
    "asyncCommunication", "clientTimeoutInMills", "continuousBatching", "deviceIds", "deviceType", "jobQueueSize",
    "maxBatchDelay", "maxNumSequence", "maxRetryTimeoutInSec", "maxSequenceJobQueueSize", "maxWorkers", "minWorkers",
    "parallelLevel", "parallelType", "sequenceBatching", "sequenceMaxIdleMSec", "sequenceTimeoutMSec", "startupTimeout",
    "torchrun", "useJobTicket", "useVenv",
})  # fmt: skip
"""Keys of model-config.yaml that TorchServe acts on and Shoal ignores."""

logger = logging.getLogger(__name__)


def load(source: ModelSource) -> LoadedModel:
    """Import an archive's handler and initialize it.

    Raises:
        LoadError: the manifest names no existing handler, or a value in model-config.yaml is not a number.
        HandlerFailed: the handler raised an error.
    """
    directory = Path(os.path.abspath(source.directory))
    manifest = _manifest(directory)
    model = manifest["model"]
    config = {**_config(directory, model.get("configFile")), **source.context.parameters}
    batch_size = int(_positive(config, "batchSize", 1))
    # The archive's batchSize applies unless the user sets another maximum.
    chosen = source.context.max_batch_size != BatchingSpec().max_batch_size
    idle = sorted(IDLE & config.keys())
    if requirements := model.get("requirementsFile"):
        idle.append(f"{requirements} (packages are not installed at start)")
    if idle:
        logger.info("event=torchserve_without_effect keys=%s", ", ".join(idle))
    if not chosen and batch_size == 1:
        logger.info(
            "event=torchserve_batch_size rows=1 advice=the archive sets no larger batchSize;"
            " batching.maxBatchSize allows larger batches, if its handler supports them"
        )
    rows = source.context.max_batch_size if chosen else batch_size
    context = Context(
        model.get("modelName"),
        str(directory),
        manifest,
        rows,
        # Handlers get the index of their GPU, and None on a CPU.
        source.context.device.index or 0 if source.context.device.type == "cuda" else None,
        "0.12.0",
        model_yaml_config=config,
    )
    # As in TorchServe, since handlers open the archive's files by relative names, in `initialize` and in requests.
    os.chdir(directory)
    with loading(str(model["handler"])):
        handle, initialize = _entry_point(_handler_module(directory, model), model["handler"])
        initialize(context)
    timeout_s = _positive(config, "responseTimeout", 0) or None
    return LoadedModel(
        Service(handle, context), INPUTS, OUTPUTS, "torchserve", max_rows=rows, forward_timeout_s=timeout_s
    )


def _manifest(directory: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if not isinstance(manifest["model"]["handler"], str):
            raise TypeError("`handler` is not a text")
    except OSError as error:
        raise LoadError(f"{directory / MANIFEST}, which every archive has, cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise LoadError(f"{directory / MANIFEST} is not a manifest of torch-model-archiver: {why}") from None
    return dict(manifest)


def _config(directory: Path, named: str | None) -> dict[str, Any]:
    path = directory / (named or DEFAULT_CONFIG)
    if not path.is_file():
        if named:
            raise LoadError(f"{named}, the configFile in the archive's manifest, does not exist")
        return {}
    try:
        import yaml  # noqa: PLC0415 (only archives with a configuration require it)
    except ModuleNotFoundError:
        raise LoadError(f"{path.name} requires yaml. {install_extras('torchserve')}") from None
    try:
        config = yaml.safe_load(path.read_bytes()) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise LoadError(f"{path.name} must hold keys and values, not a {type(config).__name__}")
    return config


def _positive(config: Mapping[str, Any], key: str, unset: int) -> float:
    value = config.get(key, unset)
    # type() rejects true, which is an int.
    if type(value) not in (int, float) or value < unset:
        raise LoadError(f"{key} in model-config.yaml or model.parameters must be a number above 0, not {value!r:.80}")
    return float(value)


def _handler_module(directory: Path, model: Mapping[str, Any]) -> ModuleType:
    """Import the handler from the archive, or else TorchServe's default handler of that name."""
    # The archive first; the stand-in last, so that an installed `ts` precedes it.
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    if str(STAND_IN) not in sys.path:
        sys.path.append(str(STAND_IN))
    # A handler is a file of the archive, optionally with ":function", or the name of a default handler.
    named = model["handler"].partition(":")[0]
    name = named.removesuffix(".py").rpartition("/")[2]
    module = name if (directory / f"{name}.py").is_file() else f"ts.torch_handler.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # Otherwise a dependency of the handler is missing.
        if module == error.name:
            raise LoadError(
                f"the handler {name} in the archive's manifest is neither in the archive nor a default handler"
            ) from None
        if (error.name or "").startswith("ts."):
            all_of_it = install_package("torchserve")
            install = f": Shoal includes only part of TorchServe's package; for all of it, {all_of_it}"
        else:
            file = model.get("requirementsFile")
            install = remedy(error) + (f" (or all packages in the archive's {file})" if file else "")
        raise HandlerFailed(f"importing {name} failed: {error}{install}") from error
    except HANDLER_FAULTS as error:
        raise HandlerFailed(f"importing {name} failed: {describe(error)}") from error


def _entry_point(module: ModuleType, handler: str) -> tuple[Handle, Callable[[Context], Any]]:
    """Return the functions `handle` and `initialize` of a module or of its only class."""
    function = getattr(module, handler.partition(":")[2] or "handle", None)
    if function is not None:
        # TorchServe initializes a function by calling it without data.
        return function, lambda context: function(None, context)
    # Imported classes do not count.
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    found = [each for each in classes if callable(getattr(each, "handle", None))]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in found) or "none"
        raise LoadError(
            f"{module.__name__} must define a function `handle`, or one class with that method (it defines: {names})"
        )
    service: Any = found[0]()
    return service.handle, service.initialize
