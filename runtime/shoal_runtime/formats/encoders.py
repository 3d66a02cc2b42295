"""Handlers for encoder models (classification, fill-mask), with the results of transformers pipelines.

Texts become rows of tokens, padded to the longest row of the batch and masked. Pictures become rows of pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import Embedding

from shoal_runtime.errors import ItemError, LoadError
from shoal_runtime.formats.source import read_json
from shoal_runtime.signature.spec import PaddingRule, TensorSpec
from shoal_schema.wire.datatypes import Array

MAX_TOKENS: Final = 512
"""Default limit if tokenizer and network state none."""
MAX_PIXELS: Final = 50_000_000
"""Phones take pictures of 12 to 48 million pixels. A file of 100 KB can decompress to a billion."""
LENGTH_STEP: Final = 16
"""Maximum difference in tokens between rows of one forward on a CPU."""
WARM_TEXT: Final = "The quick brown fox jumps over the lazy dog."

TEXT: Final = TensorSpec("text", "BYTES", [-1], content_type="text/plain")
PREDICTION: Final = TensorSpec("prediction", "BYTES", [-1], content_type="application/json")


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A loaded model directory: network, tokenizer or image processor, and parameters."""

    model: Any
    """Network on its device."""
    processor: Any
    """Tokenizer or image processor."""
    directory: Path
    """Model directory."""
    parameters: Mapping[str, Any]
    """From model.toml and the InferenceService."""


class Tokens:
    """Tokenizer of one model, with its length limit and padding rules.

    The fast tokenizer is called directly, because the wrapper of transformers sets padding and truncation at each call,
    which is not thread-safe.
    """

    def __init__(self, parts: ModelParts, *, cuts: bool) -> None:
        tokenizer = parts.processor
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is None:
            raise LoadError(f"{type(tokenizer).__name__} has no tokenizer.json. Save the fast tokenizer")
        self.limit = token_limit(parts)
        self._backend.no_padding()
        if cuts:
            self._backend.enable_truncation(self.limit, direction=tokenizer.truncation_side)
        else:
            self._backend.no_truncation()
        self._typed = "token_type_ids" in tokenizer.model_input_names
        if tokenizer.pad_token_id is None:
            raise LoadError(
                "the tokenizer has no padding token, so texts of different lengths cannot be batched."
                " Set pad_token in tokenizer_config.json and pad_token_id in config.json"
            )
        # Powers of two from 16 tokens on, up to the limit.
        buckets = [*(size for size in (1 << power for power in range(4, 20)) if size < self.limit), self.limit]
        ids, types = tokenizer.pad_token_id, tokenizer.pad_token_type_id
        self.rules = [
            PaddingRule("input_ids", pad_axis=1, pad_value=ids, pad_buckets=buckets, pad_mask="attention_mask"),
            PaddingRule("token_type_ids", pad_axis=1, pad_value=types, pad_buckets=buckets),
        ]

    def row(self, *texts: str) -> tuple[dict[str, Array], Any]:
        """Tokenize a text or a pair of texts; return the network's inputs and the encoding.

        Raises:
            ItemError: there are no tokens, or more than the limit.
        """
        encoding = self._backend.encode(*texts)
        count = len(encoding.ids)
        if not count:
            raise ItemError("the text is empty")
        if count > self.limit:
            raise ItemError(f"the text has {count} tokens; the model accepts {self.limit}. Send it in parts")
        row = {"input_ids": np.array(encoding.ids, dtype=np.int64)}
        if self._typed:
            row["token_type_ids"] = np.array(encoding.type_ids, dtype=np.int64)
        return row, encoding


def token_limit(parts: ModelParts) -> int:
    """Return the maximum number of tokens per row.

    It is the lowest of the tokenizer's limit, the network's, and `max_tokens` in `[parameters]`.
    """
    # sentence-transformers limits some models below their positions.
    stated = read_json(parts.directory / "sentence_bert_config.json", {}).get("max_seq_length")
    limits = [stated or parts.processor.model_max_length, parts.parameters.get("max_tokens", MAX_TOKENS)]
    positions = getattr(parts.model.config, "max_position_embeddings", -1)
    if positions > 0:
        # RoBERTa and its relatives count positions from the padding index, so the first ones are unused.
        embedded = (m for m in parts.model.modules() if isinstance(getattr(m, "position_embeddings", None), Embedding))
        padding = getattr(next(embedded, None), "padding_idx", None)
        unused = padding + 1 if isinstance(padding, int) else 0
        limits[1:] = [positions - unused, parts.parameters.get("max_tokens", positions)]
    return int(min(limits))


class Texts:
    """Base class of handlers whose input is text."""

    inputs: Sequence[TensorSpec] = (TEXT,)
    outputs: Sequence[TensorSpec] = (PREDICTION,)
    cuts = True
    """Whether long texts are truncated, as by the libraries; otherwise they are rejected."""

    def __init__(self, parts: ModelParts) -> None:
        self.model, self.config = parts.model, parts.model.config
        self.tokens = Tokens(parts, cuts=self.cuts)
        self.preprocess_padding = self.tokens.rules

    def preprocess(self, text: str) -> dict[str, Any]:
        """Tokenize a text."""
        return dict(self.tokens.row(text)[0])

    def warmup_items(self) -> list[Any]:
        """Return an example sentence for warm-up."""
        return [WARM_TEXT]


def by_length(answer: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]) -> Tensor:
    """Run a forward, on a CPU in parts with rows of similar length.

    Shorter parts need less padding, which costs a CPU as much time as text. On a GPU, and in a compiled forward, the
    whole batch runs at once.

    Args:
        answer: forward that returns one result per row.
        batch: padded inputs, including `attention_mask`.

    Returns:
        The results in the order of the batch.
    """
    mask = batch["attention_mask"]
    if mask.device.type != "cpu" or torch.compiler.is_compiling():
        return answer(batch)
    lengths = mask.sum(1)
    steps = (lengths - 1).div(LENGTH_STEP, rounding_mode="floor")
    order, made = [], []
    for step in set(steps.tolist()):
        rows = torch.nonzero(steps == step)[:, 0]
        longest = int(lengths[rows].max())
        made.append(answer({name: each[rows, :longest] for name, each in batch.items()}))
        order.append(rows)
    # Back to the order of the batch.
    return torch.cat(made)[torch.cat(order).argsort()]


class ClassifyText(Texts):
    """Text classification: the best label of a text, or the best `top_k` labels."""

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        self._top_k = parts.parameters.get("top_k")

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return scores of shape [rows, labels]."""
        return by_length(lambda rows: scores_of(self.config, self.model(**rows).logits), batch)

    def postprocess(self, scores: Array) -> Any:
        """Return the best label of a text, or a list of labels if `top_k` is set."""
        return best(scores, self.config, self._top_k) if self._top_k else best(scores, self.config, 1)[0]


class ClassifyImage:
    """Image classification: the best `top_k` labels of a picture, 5 by default."""

    inputs = (TensorSpec("image", "BYTES", [-1], content_type="image/jpeg,image/png"),)
    outputs = (PREDICTION,)

    def __init__(self, parts: ModelParts) -> None:
        self._model, self._config = parts.model, parts.model.config
        self._processor = parts.processor
        self._top_k = parts.parameters.get("top_k", 5)

    def preprocess(self, image: bytes) -> dict[str, Array]:
        """Convert a picture to the network's inputs."""
        made = self._processor(images=picture(image), return_tensors="np")
        return {name: np.asarray(value[0]) for name, value in made.items()}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return scores of shape [rows, labels]."""
        dtype = self._model.dtype
        inputs = {name: each.to(dtype) if each.is_floating_point() else each for name, each in batch.items()}
        return scores_of(self._config, self._model(**inputs).logits)

    def postprocess(self, scores: Array) -> list[dict[str, Any]]:
        """Return the best labels of a picture."""
        return best(scores, self._config, self._top_k)

    def warmup_items(self) -> list[bytes]:
        """Return a black picture of 64 by 48 pixels for warm-up."""
        from PIL import Image  # noqa: PLC0415

        file = BytesIO()
        Image.new("RGB", (64, 48)).save(file, "PNG")
        return [file.getvalue()]


class ClassifyTokens(Texts):
    """Token classification, such as named entities; `aggregation_strategy` joins tokens to words."""

    cuts = False

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        from transformers import TokenClassificationPipeline  # noqa: PLC0415 (takes a second)

        known = ("aggregation_strategy", "ignore_labels")
        wanted = {name: parts.parameters[name] for name in known if name in parts.parameters}
        # The pipeline joins tokens to words, which differs by tokenizer.
        pipeline: Any = TokenClassificationPipeline(  # type: ignore[no-untyped-call]
            model=parts.model, tokenizer=parts.processor, device=parts.model.device, **wanted
        )
        self._finish = pipeline.postprocess
        self._wanted = pipeline._postprocess_params

    def preprocess(self, text: str) -> dict[str, Any]:
        """Tokenize a text; keep the text and its encoding for `postprocess`."""
        row, encoding = self.tokens.row(text)
        return {**row, "text": (text, encoding)}

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return logits of shape [rows, tokens, labels]."""
        tokens = {name: each for name, each in batch.items() if name != "text"}
        return {"logits": self.model(**tokens).logits.float(), "text": batch["text"]}

    def postprocess(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return a text's entities in the order of the text."""
        text, encoding = row["text"]
        output = {
            "logits": torch.from_numpy(row["logits"][None, : len(encoding.ids)]),
            "sentence": text,
            "input_ids": torch.tensor([encoding.ids]),
            "offset_mapping": [encoding.offsets],
            "special_tokens_mask": torch.tensor([encoding.special_tokens_mask]),
        }
        found: list[dict[str, Any]] = self._finish([output], **self._wanted)
        return found


class FillMask(Texts):
    """Fill-mask: the best `top_k` tokens for each mask in a text, 5 by default."""

    cuts = False

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        self._tokenizer = parts.processor
        self._mask = parts.processor.mask_token_id
        if self._mask is None:
            raise LoadError("the tokenizer has no mask token, which fill-mask requires")
        self.inputs = (replace(TEXT, example=f"a small {self._tokenizer.mask_token} among many"),)
        self._top_k = parts.parameters.get("top_k", 5)

    def preprocess(self, text: str) -> dict[str, Any]:
        """Tokenize a text.

        Raises:
            ItemError: the text has no mask.
        """
        row = super().preprocess(text)
        if self._mask not in row["input_ids"]:
            raise ItemError(f"the text holds no {self._tokenizer.mask_token}. Put one in place of a word")
        return row

    def forward(self, batch: dict[str, Tensor]) -> list[Any]:
        """Return each row's tokens, and the probabilities and ids of the best tokens at each mask."""
        logits, ids = self.model(**batch).logits, batch["input_ids"]
        # Only at the masks: the logits of a whole row are a megabyte.
        at = ids == self._mask
        values, tokens = logits[at].float().softmax(-1).topk(self._top_k)
        counts = at.sum(1).tolist()
        real = [row[mask.bool()] for row, mask in zip(ids, batch["attention_mask"], strict=True)]
        return list(zip(real, values.split(counts), tokens.split(counts), strict=True))

    def postprocess(self, row: tuple[Array, Array, Array]) -> list[Any]:
        """Return the best tokens for a text's mask, or one list per mask if there are several."""
        ids, values, tokens = row
        places = np.flatnonzero(ids == self._mask).tolist()
        filled = []
        for place, scores, candidates in zip(places, values.tolist(), tokens.tolist(), strict=True):
            best_of_mask = []
            for score, token in zip(scores, candidates, strict=True):
                whole = ids.copy()
                whole[place] = token
                # With several masks the text must show the others, which are special tokens too.
                text = self._tokenizer.decode(whole, skip_special_tokens=len(places) == 1)
                word = self._tokenizer.decode([token])
                best_of_mask.append({"score": score, "token": token, "token_str": word, "sequence": text})
            filled.append(best_of_mask)
        return filled[0] if len(filled) == 1 else filled

    def warmup_items(self) -> list[str]:
        """Return a sentence with a mask for warm-up."""
        return [f"{WARM_TEXT} {self._tokenizer.mask_token}."]


def scores_of(config: Any, logits: Tensor) -> Tensor:
    """Convert logits to scores of shape [rows, labels].

    Logits stay raw for a regression; independent labels get a sigmoid, exclusive labels a softmax.
    """
    logits = logits.float()
    if config.problem_type == "regression":
        return logits
    one_by_one = config.problem_type == "multi_label_classification" or config.num_labels == 1
    return logits.sigmoid() if one_by_one else logits.softmax(-1)


def best(scores: Array, config: Any, count: int) -> list[dict[str, Any]]:
    """Return the ``count`` labels with the highest scores, best first."""
    order = np.argsort(-scores, kind="stable")[:count].tolist()
    return [{"label": config.id2label[index], "score": float(scores[index])} for index in order]


def picture(data: bytes) -> Any:
    """Decode a JPEG or PNG to upright RGB; transparency is dropped.

    Raises:
        ItemError: the bytes are not a complete JPEG or PNG, or the picture exceeds MAX_PIXELS.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415

    # Replaced by the check below: Pillow only warns, up to twice its limit.
    Image.MAX_IMAGE_PIXELS = None
    try:
        image: Any = Image.open(BytesIO(data), formats=("JPEG", "PNG"))
        if (pixels := image.width * image.height) > MAX_PIXELS:
            raise ItemError(f"the picture has {pixels} pixels, more than {MAX_PIXELS}. Scale it down")
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            # Scale 16-bit grey to 8 bits, which Pillow would clip.
            image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
        return image.convert("RGB")
    except ItemError:
        raise
    except Exception as error:  # Pillow raises many types for corrupt bytes, all of them client errors
        raise ItemError(f"not a complete JPEG or PNG ({len(data)} bytes)") from error
