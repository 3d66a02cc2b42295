"""A folder as `save_pretrained` writes it: config.json, safetensors, a tokenizer or image processor.

The task follows from the architecture that config.json names, or from `task` in `[parameters]`. The library's own
classes are used, never code of the folder's, and of weights only safetensors.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import said
from shoal_runtime.formats import encoders, sentences
from shoal_runtime.formats.encoders import Parts
from shoal_runtime.formats.source import TRANSFORMERS_CONFIG as CONFIG
from shoal_runtime.formats.source import Loaded, NotTrusted, Source, files_with, read_json
from shoal_runtime.formats.tabular import imported


@dataclass(frozen=True, slots=True)
class Task:
    """One thing that a folder can be served for.

    Args:
        architecture: how the class's name ends that config.json gives.
        auto: the library's class that loads it.
        make: the handler.
        processor: the library's class for what comes before the network.
        unused: weights whose absence changes no answer begin like this.
    """

    architecture: str
    auto: str
    make: Callable[[Parts], Any]
    processor: str = "AutoTokenizer"
    unused: tuple[str, ...] = ()


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
"""Keys by which config.json would have other code or other files loaded than the library's and the folder's."""
PARAMETERS: Final = ("task", "top_k", "max_tokens", "aggregation_strategy", "ignore_labels")
_OWN: Final = (None, "eager", "sdpa")


def load(source: Source) -> Loaded:
    """Load the folder onto the device.

    Raises:
        LoadError: no task or weights for it, weights that lack some, or code of the folder's own.
    """
    config = read_json(source.directory / CONFIG)
    _check(config, source)
    for key in source.context.parameters:
        if key not in PARAMETERS:
            raise LoadError(f"parameter {key} is not one of those of Transformers folders: {', '.join(PARAMETERS)}")
    name = str(source.context.parameters.get("task") or choose_task(config, source.directory))
    if name not in TASKS:
        raise LoadError(f"parameter task is {name!r}; it may be {', '.join(TASKS)}")
    parts = _load_parts(TASKS[name], config, source)
    handler = TASKS[name].make(parts)
    return Loaded(handler, handler.inputs, handler.outputs, f"transformers_{name.replace('-', '_')}")


def choose_task(config: Mapping[str, Any], directory: Path) -> str:
    """Return what a folder is for, as its files tell.

    Raises:
        LoadError: it is for nothing that is served here.
    """
    architecture = next(iter(config.get("architectures") or ()), "")
    if architecture.endswith("ForSequenceClassification"):
        # A head of one label says how well two texts go together.
        labels = config.get("id2label", {0: "", 1: ""})
        return "rerank" if len(labels) == 1 else "text-classification"
    if sentences.tells_pooling(directory):
        return "embeddings"
    generates = architecture.endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    found = [name for name, task in TASKS.items() if architecture.endswith(task.architecture)]
    if found and not generates:
        return found[0]
    what = "which generates text token by token" if generates else "which is none of its tasks"
    raise LoadError(
        f"{CONFIG} names {architecture or 'no architecture'}, {what}: Shoal serves {', '.join(TASKS)};"
        " set `task` in [parameters] of model.toml to serve it as one of them, or write a handler"
    )


def _check(config: Mapping[str, Any], source: Source) -> None:
    """Raise LoadError for a folder that holds no safetensors, or asks for more than the library's own code."""
    if (source.directory / "adapter_config.json").exists():
        raise LoadError("the folder holds an adapter: merge it into its model (merge_and_unload) and save that")
    if not files_with(source.directory, (".safetensors",)):
        held = ", ".join(path.name for path in files_with(source.directory, (".bin", ".pt", ".h5", ".msgpack")))
        raise LoadError(
            f"{source.directory} holds no .safetensors file (found: {held or 'no weights'}):"
            " load the model with transformers once and save it again with model.save_pretrained(...)"
        )
    asked = sorted({key for key, value in _items(config) if key in FOREIGN and value not in _OWN})
    if asked and not source.allow_pickle:
        raise NotTrusted(CONFIG, asked[0])


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _items(inner)


def _load_parts(task: Task, config: Mapping[str, Any], source: Source) -> Parts:
    transformers = imported("transformers", "transformers")
    transformers.utils.logging.disable_progress_bar()
    own = {"trust_remote_code": False, "local_files_only": True}
    if "auto_map" in config and config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise LoadError(
            f"{CONFIG} asks for code of the folder's own (auto_map), which is never run: write a handler that"
            " imports it"
        )
    device = source.context.device
    dtype = source.context.dtype or (torch.float32 if device.type == "cpu" else "auto")
    try:
        model, report = getattr(transformers, task.auto).from_pretrained(
            source.directory, dtype=dtype, use_safetensors=True, output_loading_info=True, **own
        )
        processor = getattr(transformers, task.processor).from_pretrained(source.directory, **own)
    except Exception as error:  # every class of theirs, safetensors and tokenizers have their own kinds
        reason = said(error).strip().splitlines() or [type(error).__name__]
        raise LoadError(f"{source.directory} is not a folder that transformers can read: {reason[0]}") from error
    lacking = sorted(key for key in report["missing_keys"] if not key.startswith(task.unused or ("\0",)))
    if lacking:
        # The library would go on with random numbers in their place.
        raise LoadError(
            f"the weights lack {lacking[0]}, which {type(model).__name__} needs: train that head first,"
            " or set another `task` in [parameters] of model.toml"
        )
    model = model.to(device).eval().requires_grad_(requires_grad=False)
    return Parts(model, processor, source.directory, source.context.parameters)
