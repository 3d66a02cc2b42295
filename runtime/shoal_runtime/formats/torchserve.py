"""TorchServe's archives, as `torch-model-archiver` makes them: their handlers run as they are.

TorchServe's own package `ts` is used where it is installed; else the part of it that handlers know, in `stand_in`.
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
from shoal_runtime.faults import HANDLER_FAULTS, describe, remedy
from shoal_runtime.formats.handler import loading
from shoal_runtime.formats.source import Loaded, Source
from shoal_runtime.formats.torchserve_context import Context
from shoal_runtime.formats.torchserve_service import INPUTS, OUTPUTS, Handle, Service
from shoal_runtime.importing import HandlerFailed
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
"""Keys of model-config.yaml that TorchServe itself acts on, and Shoal does not."""

logger = logging.getLogger(__name__)


def load(source: Source) -> Loaded:
    """Import the archive's handler and let it initialize.

    Raises:
        LoadError: the manifest names no handler that is there, or a key of model-config.yaml is no number.
        HandlerFailed: the handler raised.
    """
    directory = Path(os.path.abspath(source.directory))
    manifest = _manifest(directory)
    model = manifest["model"]
    config = {**_config(directory, model.get("configFile")), **source.context.parameters}
    batch_size = int(_positive(config, "batchSize", 1))
    chosen = source.context.max_batch_size != BatchingSpec().max_batch_size
    _tell(model, config, None if chosen else batch_size)
    rows = source.context.max_batch_size if chosen else batch_size
    context = Context(
        model.get("modelName"),
        str(directory),
        manifest,
        rows,
        source.context.device.index or 0 if source.context.device.type == "cuda" else None,
        "0.12.0",
        model_yaml_config=config,
    )
    # As TorchServe's workers: handlers open the archive's files by name, in `initialize` and in requests.
    os.chdir(directory)
    with loading(str(model["handler"])):
        handle, initialize = _entry_point(_handler_module(directory, model), model["handler"])
        initialize(context)
    timeout_s = _positive(config, "responseTimeout", 0) or None
    return Loaded(Service(handle, context), INPUTS, OUTPUTS, "torchserve", max_rows=rows, forward_timeout_s=timeout_s)


def _manifest(directory: Path) -> Mapping[str, Any]:
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if not isinstance(manifest["model"]["handler"], str):
            raise TypeError("`handler` is no text")
    except OSError as error:
        raise LoadError(
            f"{directory / MANIFEST} cannot be read: {error.strerror}; it makes a folder an archive"
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise LoadError(f"{directory / MANIFEST} is no manifest of torch-model-archiver: {why}") from None
    return dict(manifest)


def _config(directory: Path, named: str | None) -> dict[str, Any]:
    path = directory / (named or DEFAULT_CONFIG)
    if not path.is_file():
        if named:
            raise LoadError(f"the archive's manifest names {named} as its configFile, and there is none")
        return {}
    try:
        import yaml  # noqa: PLC0415 (not every model needs it)
    except ModuleNotFoundError:
        raise LoadError(f'reading {path.name} needs yaml: pip install "shoal[torchserve]"') from None
    try:
        config = yaml.safe_load(path.read_bytes()) or {}
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise LoadError(f"{path.name} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise LoadError(f"{path.name} must hold keys and values, not a {type(config).__name__}")
    return config


def _positive(config: Mapping[str, Any], key: str, unset: int) -> float:
    value = config.get(key, unset)
    if type(value) not in (int, float) or value < unset:
        raise LoadError(
            f"{key} in model-config.yaml, or among model.parameters, must be a number above 0, not {value!r:.80}"
        )
    return float(value)


def _tell(model: Mapping[str, Any], config: Mapping[str, Any], batch_size: int | None) -> None:
    """Name, in one line, what of the archive has no effect."""
    idle = sorted(IDLE & config.keys())
    if requirements := model.get("requirementsFile"):
        idle.append(f"{requirements} (nothing is installed at start)")
    if idle:
        logger.info("event=torchserve_without_effect keys=%s", ", ".join(idle))
    if batch_size == 1:
        logger.info(
            "event=torchserve_batch_size rows=1 advice=the archive sets no larger batchSize:"
            " batching.maxBatchSize allows larger batches, if its handler takes them"
        )


def _handler_module(directory: Path, model: Mapping[str, Any]) -> ModuleType:
    """Import the handler's file of the archive, or else the default handler of that name."""
    _put_on_path(directory)
    named = model["handler"].partition(":")[0]
    name = named.removesuffix(".py").rpartition("/")[2]
    module = name if (directory / f"{name}.py").is_file() else f"ts.torch_handler.{name}"
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if module == error.name:
            raise LoadError(
                f"the archive names {name} as its handler, which is neither in it nor a default one"
            ) from None
        raise HandlerFailed(f"importing {name} failed: {error}{_how_to_get(error, model)}") from error
    except HANDLER_FAULTS as error:
        raise HandlerFailed(f"importing {name} failed: {describe(error)}") from error


def _put_on_path(directory: Path) -> None:
    """Let handlers import their siblings, and `ts`: the real one, if there is one."""
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))
    if str(STAND_IN) not in sys.path:
        sys.path.append(str(STAND_IN))


def _how_to_get(error: ModuleNotFoundError, model: Mapping[str, Any]) -> str:
    if (error.name or "").startswith("ts."):
        return ": Shoal stands in for the usual part of TorchServe's package: pip install torchserve brings all of it"
    file = model.get("requirementsFile")
    return remedy(error) + (f" (or all that the archive's {file} names)" if file else "")


def _entry_point(module: ModuleType, handler: str) -> tuple[Handle, Callable[[Context], Any]]:
    """Return what answers, and what initializes: one function for both, or two methods of the module's one class."""
    function = getattr(module, handler.partition(":")[2] or "handle", None)
    if function is not None:
        return function, lambda context: function(None, context)
    classes = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    found = [each for each in classes if callable(getattr(each, "handle", None))]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in found) or "none"
        raise LoadError(
            f"{module.__name__} must define a function `handle`, or one class with that method (it defines: {names})"
        )
    service: Any = found[0]()
    return service.handle, service.initialize
