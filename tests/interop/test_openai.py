"""OpenAI's client against the proxy: embeddings."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tests.fakes import Array, FakeRuntime, RunningProxy, running_proxy, tensor
from tests.interop.conftest import ForeignClient, ForeignError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def lengths(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return of each text its length, a tenth and its negative; and as many tokens as it has words."""
    texts = [bytes(text).decode() for text in inputs["text"].ravel()]
    vectors = np.array([[len(text), 0.1, -len(text)] for text in texts], "<f4")
    return {"embedding": vectors, "tokens": np.array([len(text.split()) for text in texts], "<i8")}


def embedding_runtime() -> FakeRuntime:
    """Return a runtime of one text input and one vector as output."""
    outputs = [tensor("embedding", "FP32", [-1, 3]), tensor("tokens", "INT64", [-1])]
    inputs = [tensor("text", "BYTES", [-1], content_type="text/plain")]
    return FakeRuntime(inputs=inputs, outputs=outputs, model=lengths, name="embed")


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(embedding_runtime, max_batch_size=8) as proxy:
        yield proxy


@pytest.mark.parametrize(
    "options", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 3}]
)
def test_texts_are_embedded_in_order(openai: ForeignClient, running: RunningProxy, options: dict[str, str]) -> None:
    answer = openai.call("embed", running.url, ["fish", "two words"], **options)
    assert (answer["model"], answer["indices"], answer["tokens"]) == ("embed", [0, 1], 3)
    if options.get("encoding_format") != "base64":
        np.testing.assert_allclose(answer["vectors"], [[4, 0.1, -4], [9, 0.1, -9]], rtol=1e-6)


def test_one_text_may_come_alone(openai: ForeignClient, running: RunningProxy) -> None:
    np.testing.assert_allclose(openai.call("embed", running.url, "fish")["vectors"], [[4, 0.1, -4]], rtol=1e-6)


def test_more_texts_than_a_batch_holds_come_back_whole(openai: ForeignClient, running: RunningProxy) -> None:
    vectors = openai.call("embed", running.url, ["a" * number for number in range(20)])["vectors"]
    assert [vector[0] for vector in vectors] == list(range(20))


def test_the_model_is_listed(openai: ForeignClient, running: RunningProxy) -> None:
    assert openai.call("models", running.url) == ["embed"]


@pytest.mark.parametrize(
    ("texts", "options", "kind", "words"),
    [
        (["a"], {"model": "text-embedding-3-small"}, "NotFoundError", "this server has 'embed'"),
        ([1, 2], {}, "BadRequestError", "token ids, but this model expects texts"),
        (["a"], {"dimensions": 256}, "BadRequestError", "dimensions must be 3 for this model"),
    ],
)
def test_our_words_reach_the_caller(
    openai: ForeignClient, running: RunningProxy, texts: list[str], options: dict[str, str], kind: str, words: str
) -> None:
    with pytest.raises(ForeignError) as raised:
        openai.call("embed", running.url, texts, **options)
    assert (raised.value.kind, words in str(raised.value)) == (kind, True), str(raised.value)
