"""What an encoder answers, task by task, as the pipelines of the library that made it answer.

Texts become rows of tokens, which are padded to the longest of their batch and masked; pictures become rows of pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from shoal_runtime.errors import ItemError, LoadError
from shoal_runtime.formats.source import read_json
from shoal_runtime.handlers.spec import PaddingRule, TensorSpec
from shoal_schema.wire.datatypes import Array

MAX_TOKENS: Final = 512
"""Where neither tokenizer nor network says how many it takes."""
MAX_PIXELS: Final = 50_000_000
"""A phone takes 12 to 48 million; a file of 100 KB can unpack to a billion."""
LENGTH_STEP: Final = 16
"""Tokens by which the longest and the shortest row of one run may differ on a CPU."""
WARM_TEXT: Final = "The quick brown fox jumps over the lazy dog."

TEXT: Final = TensorSpec("text", "BYTES", [-1], content_type="text/plain")
PREDICTION: Final = TensorSpec("prediction", "BYTES", [-1], content_type="application/json")


@dataclass(frozen=True, slots=True)
class Parts:
    """What was loaded of a folder.

    Args:
        model: the network, on its device.
        processor: the tokenizer, or what makes pixels of pictures.
        directory: the folder.
        parameters: of model.toml and the InferenceService.
    """

    model: Any
    processor: Any
    directory: Path
    parameters: Mapping[str, Any]


class Tokens:
    """Texts to rows of token numbers.

    The tokenizer itself is asked, not the library's wrapper: the wrapper sets padding and truncation anew at each
    call, which two threads must not do at once.
    """

    def __init__(self, parts: Parts, *, cuts: bool) -> None:
        tokenizer = parts.processor
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is None:
            raise LoadError(f"{type(tokenizer).__name__} has no tokenizer.json: save it in its fast form")
        self.limit = token_limit(parts)
        self._backend.no_padding()
        if cuts:
            self._backend.enable_truncation(self.limit, direction=tokenizer.truncation_side)
        else:
            self._backend.no_truncation()
        self._typed = "token_type_ids" in tokenizer.model_input_names
        self.rules = _padding(tokenizer, self.limit)

    def row(self, *texts: str) -> tuple[dict[str, Array], Any]:
        """Return the network's inputs for one text or a pair, and what the tokenizer knows of them.

        Raises:
            ItemError: it holds no token, or more than the model takes.
        """
        encoding = self._backend.encode(*texts)
        count = len(encoding.ids)
        if not 0 < count <= self.limit:
            why = f"has {count} tokens, the model takes {self.limit}: send it in parts" if count else "is empty"
            raise ItemError(f"the text {why}")
        row = {"input_ids": np.array(encoding.ids, dtype=np.int64)}
        if self._typed:
            row["token_type_ids"] = np.array(encoding.type_ids, dtype=np.int64)
        return row, encoding


def _padding(tokenizer: Any, limit: int) -> list[PaddingRule]:
    if tokenizer.pad_token_id is None:
        raise LoadError(
            "the tokenizer has no token to pad with, so texts of different lengths make no batch:"
            " set pad_token in tokenizer_config.json and pad_token_id in config.json"
        )
    buckets = [*(size for size in (1 << power for power in range(4, 20)) if size < limit), limit]
    fillings = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    masks = {"input_ids": "attention_mask"}
    return [
        PaddingRule(name, pad_axis=1, pad_value=filling, pad_buckets=buckets, pad_mask=masks.get(name))
        for name, filling in fillings.items()
    ]


def token_limit(parts: Parts) -> int:
    """Return the most tokens of one row: as many as the tokenizer's files say and the network has positions for.

    `max_tokens` in `[parameters]` lowers it.
    """
    stated = read_json(parts.directory / "sentence_bert_config.json", {}).get("max_seq_length")
    limits = [stated or parts.processor.model_max_length, parts.parameters.get("max_tokens", MAX_TOKENS)]
    positions = getattr(parts.model.config, "max_position_embeddings", -1)
    if positions > 0:
        limits[1:] = [positions - _first_position(parts.model), parts.parameters.get("max_tokens", positions)]
    return int(min(limits))


def _first_position(model: Any) -> int:
    """Return how many positions are never used: RoBERTa and its kin count from behind the number that pads."""
    for module in model.modules():
        if isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding):
            filling = getattr(module, "padding_idx", None)
            return filling + 1 if isinstance(filling, int) else 0
    return 0


class Texts:
    """What all tasks on texts share."""

    inputs: Sequence[TensorSpec] = (TEXT,)
    outputs: Sequence[TensorSpec] = (PREDICTION,)
    cuts = True
    """Whether a text that is too long is cut, as the libraries do, or refused, since the answer is about all of it."""

    def __init__(self, parts: Parts) -> None:
        self.model, self.config = parts.model, parts.model.config
        self.tokens = Tokens(parts, cuts=self.cuts)
        self.preprocess_padding = self.tokens.rules

    def preprocess(self, text: str) -> dict[str, Any]:
        """Return the tokens of a text."""
        return dict(self.tokens.row(text)[0])

    def warmup_items(self) -> list[Any]:
        """Return a usual sentence."""
        return [WARM_TEXT]


def by_length(answer: Callable[[dict[str, Tensor]], Tensor], batch: dict[str, Tensor]) -> Tensor:
    """Return one result a row; on a CPU rows of about one length are run together, for padding costs what text costs.

    A GPU has room for the padding, and a compiled forward is compiled anew for each form.
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
    return torch.cat(made)[torch.cat(order).argsort()]


class ClassifyText(Texts):
    """The label of a text, or the best `top_k`."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._top_k = parts.parameters.get("top_k")

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return scores [n, labels]."""
        return by_length(lambda rows: scores_of(self.config, self.model(**rows).logits), batch)

    def postprocess(self, scores: Array) -> Any:
        """Return the best label, or a list of several."""
        return best(scores, self.config, self._top_k) if self._top_k else best(scores, self.config, 1)[0]


class ClassifyImage:
    """The best `top_k` labels of a picture; 5 by default."""

    inputs = (TensorSpec("image", "BYTES", [-1], content_type="image/jpeg,image/png"),)
    outputs = (PREDICTION,)

    def __init__(self, parts: Parts) -> None:
        self._model, self._config = parts.model, parts.model.config
        self._processor = parts.processor
        self._top_k = parts.parameters.get("top_k", 5)

    def preprocess(self, image: bytes) -> dict[str, Array]:
        """Return the picture as the network takes it."""
        made = self._processor(images=picture(image), return_tensors="np")
        return {name: np.asarray(value[0]) for name, value in made.items()}

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return scores [n, labels]."""
        dtype = self._model.dtype
        inputs = {name: each.to(dtype) if each.is_floating_point() else each for name, each in batch.items()}
        return scores_of(self._config, self._model(**inputs).logits)

    def postprocess(self, scores: Array) -> list[dict[str, Any]]:
        """Return the best labels."""
        return best(scores, self._config, self._top_k)

    def warmup_items(self) -> list[bytes]:
        """Return a small black picture."""
        from PIL import Image  # noqa: PLC0415

        file = BytesIO()
        Image.new("RGB", (64, 48)).save(file, "PNG")
        return [file.getvalue()]


class ClassifyTokens(Texts):
    """The words of a text that are something: names, places... `aggregation_strategy` joins them."""

    cuts = False

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        from transformers import TokenClassificationPipeline  # noqa: PLC0415 (a second long)

        known = ("aggregation_strategy", "ignore_labels")
        wanted = {name: parts.parameters[name] for name in known if name in parts.parameters}
        # Joining tokens to words differs by tokenizer: 200 lines of theirs.
        pipeline: Any = TokenClassificationPipeline(  # type: ignore[no-untyped-call]
            model=parts.model, tokenizer=parts.processor, device=parts.model.device, **wanted
        )
        self._finish = pipeline.postprocess
        self._wanted = pipeline._postprocess_params

    def preprocess(self, text: str) -> dict[str, Any]:
        """Return the tokens of a text, and beside them where they stand in it."""
        row, encoding = self.tokens.row(text)
        return {**row, "text": (text, encoding)}

    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return logits [n, tokens, labels]."""
        tokens = {name: each for name, each in batch.items() if name != "text"}
        return {"logits": self.model(**tokens).logits.float(), "text": batch["text"]}

    def postprocess(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what was found, in the order of the text."""
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
    """The best `top_k` tokens, 5 by default, for each mask in a text."""

    cuts = False

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._tokenizer = parts.processor
        self._mask = parts.processor.mask_token_id
        if self._mask is None:
            raise LoadError("the tokenizer has no mask token, which fill-mask needs")
        self.inputs = (replace(TEXT, example=f"a small {self._tokenizer.mask_token} among many"),)
        self._top_k = parts.parameters.get("top_k", 5)

    def preprocess(self, text: str) -> dict[str, Any]:
        """Return the tokens of a text.

        Raises:
            ItemError: none of them is the mask.
        """
        row = super().preprocess(text)
        if self._mask not in row["input_ids"]:
            raise ItemError(f"the text holds no {self._tokenizer.mask_token}: put one where a word is wanted")
        return row

    def forward(self, batch: dict[str, Tensor]) -> list[Any]:
        """Return for each row its tokens, and the best tokens and their probabilities at each mask."""
        logits, ids = self.model(**batch).logits, batch["input_ids"]
        # Of the masked places alone: a row of all the vocabulary is a megabyte.
        at = ids == self._mask
        values, tokens = logits[at].float().softmax(-1).topk(self._top_k)
        counts = at.sum(1).tolist()
        real = [row[mask.bool()] for row, mask in zip(ids, batch["attention_mask"], strict=True)]
        return list(zip(real, values.split(counts), tokens.split(counts), strict=True))

    def postprocess(self, row: tuple[Array, Array, Array]) -> list[Any]:
        """Return the fillings of the one mask, or a list of them for each."""
        ids, values, tokens = row
        places = np.flatnonzero(ids == self._mask).tolist()
        filled = [
            [self._filling(ids, place, token, value, alone=len(places) == 1) for value, token in zip(*at, strict=True)]
            for place, *at in zip(places, values.tolist(), tokens.tolist(), strict=True)
        ]
        return filled[0] if len(filled) == 1 else filled

    def _filling(self, ids: Array, place: int, token: int, score: float, *, alone: bool) -> dict[str, Any]:
        whole = ids.copy()
        whole[place] = token
        # Beside other masks all special tokens are shown, or those would be missing.
        text = self._tokenizer.decode(whole, skip_special_tokens=alone)
        return {"score": score, "token": token, "token_str": self._tokenizer.decode([token]), "sequence": text}

    def warmup_items(self) -> list[str]:
        """Return a sentence with a mask."""
        return [f"{WARM_TEXT} {self._tokenizer.mask_token}."]


def scores_of(config: Any, logits: Tensor) -> Tensor:
    """Return scores [n, labels]: numbers of a regression as they are, probabilities of labels alone or in a choice."""
    logits = logits.float()
    if config.problem_type == "regression":
        return logits
    one_by_one = config.problem_type == "multi_label_classification" or config.num_labels == 1
    return logits.sigmoid() if one_by_one else logits.softmax(-1)


def best(scores: Array, config: Any, count: int) -> list[dict[str, Any]]:
    """Return the labels with the highest scores, best first."""
    order = np.argsort(-scores, kind="stable")[:count].tolist()
    return [{"label": config.id2label[index], "score": float(scores[index])} for index in order]


def picture(data: bytes) -> Any:
    """Return the picture upright and in RGB; transparency is dropped, as transformers' own `load_image` does.

    Raises:
        ItemError: the bytes are no whole JPEG or PNG, or hold more than MAX_PIXELS.
    """
    from PIL import Image, ImageOps  # noqa: PLC0415

    # Our own limit stands in its place: Pillow only warns, up to twice the number it is given.
    Image.MAX_IMAGE_PIXELS = None
    try:
        image = Image.open(BytesIO(data), formats=("JPEG", "PNG"))
        if (pixels := image.width * image.height) > MAX_PIXELS:
            raise ItemError(f"the picture has {pixels} pixels, more than {MAX_PIXELS}: scale it down")
        return _of_8_bits(ImageOps.exif_transpose(image)).convert("RGB")
    except ItemError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds for broken bytes; all are the caller's
        raise ItemError(f"not a whole JPEG or PNG ({len(data)} bytes)") from error


def _of_8_bits(image: Any) -> Any:
    """Return grey of 16 bits scaled to 8, where Pillow would clip it; other pictures as they are."""
    from PIL import Image  # noqa: PLC0415

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8))
