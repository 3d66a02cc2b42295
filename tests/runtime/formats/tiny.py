"""Tiny model directories of transformers and sentence-transformers with random weights, created offline."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = (
    *("a", "the", "cat", "dog", "kitten", "sleeps", "naps", "sits", "runs", "on", "under", "sofa", "couch", "in"),
    *("paris", "berlin", "rain", "falls", "##ing", "##s", "##ed", "who"),
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WIDTH, MAX_TOKENS = 16, 48
SENTENCES = (
    "The cat sleeps on the sofa",
    "a dog",
    "who sits in Paris",
    "",
    "The kitten naps under the couch in Berlin and the rain falls " * 2,
    "  unheard words, here: zebra!  ",
    "runs",
    "the dogs in paris sleepsing",
)
TEXTS = [SENTENCES[n % 8] + " cat" * (n // 8) for n in range(64)]


def tokenizer(*, roberta: bool = False) -> Any:
    """Return a small tokenizer with the special tokens of BERT or RoBERTa."""
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS, *letters]))}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    first, second = ("[CLS] $A [SEP]", "$B [SEP]") if roberta else ("[CLS] $A [SEP]", "$B:1 [SEP]:1")
    special = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(single=first, pair=f"{first} {second}", special_tokens=special)
    names = ("pad", "unk", "cls", "sep", "mask")
    make: Any = transformers.PreTrainedTokenizerFast
    return make(
        tokenizer_object=made,
        model_max_length=MAX_TOKENS,
        model_input_names=["input_ids", *([] if roberta else ["token_type_ids"]), "attention_mask"],
        **{f"{name}_token": token for name, token in zip(names, SPECIAL, strict=True)},
    )


def encoder(head: str, directory: Path, *, kind: str = "Bert", labels: int = 3, **config: Any) -> Path:
    """Save a network of one layer, `KindHead`, and its tokenizer; large weights make results differ."""
    words = tokenizer(roberta=kind == "Roberta")
    torch.manual_seed(len(head))
    made = getattr(transformers, f"{kind}Config")(
        vocab_size=len(words),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        max_position_embeddings=MAX_TOKENS + (1 if kind == "Roberta" else 0),
        initializer_range=0.5,
        pad_token_id=words.pad_token_id,
        **({} if head == "Model" else {"id2label": {n: f"L{n}" for n in range(labels)}}),
        **config,
    )
    getattr(transformers, f"{kind}{head}")(made).save_pretrained(directory)
    words.save_pretrained(directory)
    return directory


def sees(directory: Path, **config: Any) -> Path:
    """Save a network for pictures of 16 x 16, and its image processor."""
    torch.manual_seed(1)
    made = transformers.ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        image_size=16,
        patch_size=8,
        initializer_range=0.5,
        id2label={n: f"L{n}" for n in range(7)},
        **config,
    )
    transformers.ViTForImageClassification(made).save_pretrained(directory)
    transformers.ViTImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(directory)
    return directory


def write(path: Path, value: Any) -> None:
    """Write a JSON file and create its directory."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def pooled(directory: Path, *, normalize: bool, **pooling: Any) -> Path:
    """Add the files of sentence-transformers to an encoder's directory."""
    step = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{step}Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{step}Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{step}Normalize"},
    ]
    write(directory / "modules.json", modules if normalize else modules[:2])
    write(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **pooling})
    (directory / "2_Normalize").mkdir(exist_ok=True)
    return directory
