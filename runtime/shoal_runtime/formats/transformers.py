"""The Transformers format: directories of `save_pretrained` with weights in safetensors.

The task follows from the architecture in config.json, or from `task` in `[parameters]`. Code in the directory is never
run.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import exception_message
from shoal_runtime.formats import encoders, sentences
from shoal_runtime.formats.encoders import ModelParts
from shoal_runtime.formats.source import TRANSFORMERS_CONFIG as CONFIG
from shoal_runtime.formats.source import LoadedModel, ModelSource, UntrustedFile, files_with, read_json
from shoal_runtime.formats.tabular import imported


@dataclass(frozen=True, slots=True)
class Task:
    """A task that a Transformers model can serve, such as text classification."""

    architecture: str
    """Suffix of the class name in config.json."""
    auto: str
    """Class of the library that loads the model."""
    make: Callable[[ModelParts], Any]
    """Handler class."""
    processor: str = "AutoTokenizer"
    """Class of the library that prepares inputs."""
    unused: tuple[str, ...] = ()
    """Prefixes of weights that do not affect results and may be missing."""


TASKS: Final[Mapping[str, Task]] = {
    "text-classification": Task(
        "ForSequenceClassification", "AutoModelForSequenceClassification", encoders.ClassifyText
    ),
    "rerank": Task("ForSequenceClassification", "AutoModelForSequenceClassification", sentences.Rerank),
    "token-classification": Task("ForTokenClassification", "AutoModelForTokenClassification", encoders.ClassifyTokens),
    "fill-mask": Task("ForMaskedLM", "AutoModelForMaskedLM", encoders.FillMask),
    "image-classification": Task(
        "ForImageClassification", "AutoModelForImageClassification", encoders.ClassifyImage, "AutoImageProcessor"
    ),
    "embeddings": Task("Model", "AutoModel", sentences.Embed, unused=("pooler.",)),
}

FOREIGN: Final = (
    "attn_implementation",
    "_attn_implementation",
    "experts_implementation",
    "_experts_implementation",
    "fusion_config",
    "quantization_config",
    "transformers_weights",
)
"""Keys by which config.json would load code or files from elsewhere than the library and the directory."""
PARAMETERS: Final = ("task", "top_k", "max_tokens", "aggregation_strategy", "ignore_labels")
_OWN: Final = (None, "eager", "sdpa")


def load(source: ModelSource) -> LoadedModel:
    """Load a Transformers model directory onto the device.

    Raises:
        LoadError: the task is not supported, weights are missing or not safetensors, or the model is custom code.
    """
    config = read_json(source.directory / CONFIG)
    if (source.directory / "adapter_config.json").exists():
        raise LoadError("the directory holds an adapter. Merge it into its model (merge_and_unload) and save that")
    if not files_with(source.directory, (".safetensors",)):
        held = ", ".join(path.name for path in files_with(source.directory, (".bin", ".pt", ".h5", ".msgpack")))
        raise LoadError(
            f"{source.directory} holds no .safetensors file (found: {held or 'no weights'})."
            " Load the model with transformers once and save it again with model.save_pretrained(...)"
        )
    foreign = sorted({key for key, value in _items(config) if key in FOREIGN and value not in _OWN})
    if foreign and not source.allow_pickle:
        raise UntrustedFile(CONFIG, foreign[0])
    for key in source.context.parameters:
        if key not in PARAMETERS:
            raise LoadError(f"parameter {key} is unknown; Transformers models have {', '.join(PARAMETERS)}")
    name = str(source.context.parameters.get("task") or choose_task(config, source.directory))
    if name not in TASKS:
        raise LoadError(f"parameter task is {name!r}; it must be one of {', '.join(TASKS)}")
    parts = _load_parts(TASKS[name], config, source)
    handler = TASKS[name].make(parts)
    return LoadedModel(handler, handler.inputs, handler.outputs, f"transformers_{name.replace('-', '_')}")


def choose_task(config: Mapping[str, Any], directory: Path) -> str:
    """Return the task of a model directory, derived from config.json and its pooling step.

    Raises:
        LoadError: the task is not supported.
    """
    architecture = next(iter(config.get("architectures") or ()), "")
    if architecture.endswith("ForSequenceClassification"):
        # A head with one label scores pairs of texts.
        labels = config.get("id2label", {0: "", 1: ""})
        return "rerank" if len(labels) == 1 else "text-classification"
    if sentences.has_pooling(directory):
        return "embeddings"
    # Generation needs a loop of forwards, which batches of rows cannot express.
    generates = architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    found = [name for name, task in TASKS.items() if architecture.endswith(task.architecture)]
    if found and not generates:
        return found[0]
    what = "which generates text token by token" if generates else "which is not supported"
    raise LoadError(
        f"{CONFIG} names {architecture or 'no architecture'}, {what}; supported are {', '.join(TASKS)}."
        " Set `task` in [parameters] of model.toml to serve it as one of them, or write a handler"
    )


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of all dicts in a JSON document, at any depth."""
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _items(inner)


def _load_parts(task: Task, config: Mapping[str, Any], source: ModelSource) -> ModelParts:
    transformers = imported("transformers", "transformers")
    transformers.utils.logging.disable_progress_bar()
    # Neither code from the directory nor downloads.
    own = {"trust_remote_code": False, "local_files_only": True}
    if "auto_map" in config and config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise LoadError(
            f"{CONFIG} requires code in the directory (auto_map), which is never run. Write a handler that imports it"
        )
    device = source.context.device
    # CPUs compute half precision slowly, so float32 is the default there.
    dtype = source.context.dtype or (torch.float32 if device.type == "cpu" else "auto")
    try:
        model, report = getattr(transformers, task.auto).from_pretrained(
            source.directory, dtype=dtype, use_safetensors=True, output_loading_info=True, **own
        )
        processor = getattr(transformers, task.processor).from_pretrained(source.directory, **own)
    except Exception as error:  # transformers, safetensors and tokenizers raise types of their own
        reason = exception_message(error).strip().splitlines() or [type(error).__name__]
        raise LoadError(f"{source.directory} cannot be loaded by transformers: {reason[0]}") from error
    missing = sorted(key for key in report["missing_keys"] if not key.startswith(task.unused or ("\0",)))
    if missing:
        # The library would continue with random weights.
        raise LoadError(
            f"the weights do not have {missing[0]}, which {type(model).__name__} requires. Train that head first,"
            " or set another `task` in [parameters] of model.toml"
        )
    model = model.to(device).eval().requires_grad_(requires_grad=False)
    return ModelParts(model, processor, source.directory, source.context.parameters)
