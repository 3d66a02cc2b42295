"""Handlers for sentence embeddings and reranking, configured by the files of sentence-transformers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.encoders import WARM_TEXT, ModelParts, Texts, by_length
from shoal_runtime.formats.source import read_json
from shoal_runtime.signature.spec import TensorSpec

MODULES: Final = "modules.json"
SETTINGS: Final = "config_sentence_transformers.json"
TOKENS: Final = "sentence_bert_config.json"


def has_pooling(directory: Path) -> bool:
    """Return whether a model directory configures the pooling of tokens to one vector."""
    return "Pooling" in _modules(directory)


def _modules(directory: Path) -> dict[str, str]:
    """Return the path of each processing step by class name, in order; empty for a plain encoder."""
    steps = read_json(directory / MODULES, [])
    return {str(step["type"]).rpartition(".")[2]: str(step.get("path", "")) for step in steps}


POOLINGS: Final[Mapping[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "cls": lambda hidden, _: hidden[:, 0],
    "max": lambda hidden, mask: hidden.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(1),
    # Padding has weight 0.
    "mean": lambda hidden, mask: (
        (hidden * (weights := mask.unsqueeze(-1).to(hidden.dtype))).sum(1) / weights.sum(1).clamp(min=1e-9)
    ),
    # The last token that is not padding.
    "lasttoken": lambda hidden, mask: hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1],
}
_FLAGS: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Names in files of sentence-transformers before version 6."""


def poolings_of(config: Mapping[str, Any]) -> list[str]:
    """Return the pooling methods in a Pooling step's config.json; their vectors are concatenated.

    Raises:
        LoadError: a pooling method is not supported.
    """
    stated = config.get("pooling_mode") or [name for flag, name in _FLAGS.items() if config.get(flag)] or "mean"
    names = [stated] if isinstance(stated, str) else list(stated)
    for name in names:
        if name not in POOLINGS:
            raise LoadError(f"pooling {name!r} is not supported, only {', '.join(POOLINGS)}. Write a handler")
    return names


class Embed(Texts):
    """Text embedding, pooled and normalized as configured; by default the mean of the tokens."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        modules = _modules(parts.directory)
        # Other steps, such as Dense, would change the vector.
        strange = [name for name in modules if name not in ("Transformer", "Pooling", "Normalize")]
        if strange:
            raise LoadError(f"{MODULES} has the step {strange[0]}, which is not supported. Write a handler")
        pooling = read_json(parts.directory / modules.get("Pooling", "") / "config.json", {})
        self._poolings = poolings_of(pooling)
        self._lowers = bool(read_json(parts.directory / TOKENS, {}).get("do_lower_case"))
        self._normalize = "Normalize" in modules
        settings = read_json(parts.directory / SETTINGS, {})
        self._prompt = (settings.get("prompts") or {}).get(settings.get("default_prompt_name"), "")
        if self._prompt and not pooling.get("include_prompt", True):
            raise LoadError(
                "the prompt is excluded from pooling (include_prompt), which is not supported. Write a handler"
            )
        width = self.config.hidden_size * len(self._poolings)
        self.outputs = (TensorSpec("embedding", "FP32", [-1, width]),)

    def preprocess(self, text: str) -> dict[str, Any]:
        """Tokenize a text, preceded by the configured prompt."""
        whole = self._prompt + text
        # Character by character, as tokenizers do: str.lower of a whole text depends on the context.
        return super().preprocess("".join(map(str.lower, whole)) if self._lowers else whole)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return embeddings of shape [rows, width]."""

        def embed(rows: dict[str, Tensor]) -> Tensor:
            hidden = self.model(**rows).last_hidden_state.float()
            pooled = torch.cat([POOLINGS[name](hidden, rows["attention_mask"]) for name in self._poolings], 1)
            return functional.normalize(pooled, dim=1) if self._normalize else pooled

        return by_length(embed, batch)


class Rerank(Texts):
    """Reranking: the relevance of a document to a query, computed by a cross-encoder."""

    inputs = (
        TensorSpec("query", "BYTES", [-1], content_type="text/plain"),
        TensorSpec("document", "BYTES", [-1], content_type="text/plain"),
    )
    outputs = (TensorSpec("score", "FP32", [-1]),)

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        if self.config.num_labels != 1:
            raise LoadError(f"rerank requires a head with one label; this one has {self.config.num_labels}")
        # Sigmoid, unless one of these files configures another activation.
        settings = read_json(parts.directory / SETTINGS, {})
        stated = (
            settings.get("activation_fn")
            or (getattr(self.config, "sentence_transformers", None) or {}).get("activation_fn")
            or getattr(self.config, "sbert_ce_default_activation_function", None)
            or "Sigmoid"
        )
        activation = str(stated).rpartition(".")[2]
        if activation not in ("Sigmoid", "Identity"):
            raise LoadError(f"activation {stated} is not supported, only Sigmoid and Identity")
        self._plain = activation == "Identity"

    def preprocess(self, pair: dict[str, str]) -> dict[str, Any]:  # type: ignore[override]
        """Tokenize a query and a document to one row; the longer text is truncated."""
        return dict(self.tokens.row(pair["query"], pair["document"])[0])

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return one score per row."""
        logits = by_length(lambda rows: self.model(**rows).logits.float()[:, 0], batch)
        return logits if self._plain else logits.sigmoid()

    def warmup_items(self) -> list[dict[str, str]]:
        """Return an example query and document for warm-up."""
        return [{"query": "What does the fox do?", "document": WARM_TEXT}]
