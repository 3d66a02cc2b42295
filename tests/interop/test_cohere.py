"""Cohere's client against the proxy: reranking."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from tests.fakes import Array, FakeRuntime, RunningProxy, running_proxy, tensor
from tests.interop.conftest import ForeignClient, ForeignError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DOCUMENTS = ["no match", "fish and chips", "fish"]


def overlap(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return which part of a document's words stand in the query."""
    pairs = zip(inputs["query"].ravel(), inputs["document"].ravel(), strict=True)
    words = [(bytes(query).split(), bytes(document).split()) for query, document in pairs]
    return {
        "score": np.array(
            [len([word for word in found if word in asked]) / len(found) for asked, found in words], "<f4"
        )
    }


def reranking_runtime() -> FakeRuntime:
    """Return a runtime that scores pairs of texts."""
    inputs = [tensor(name, "BYTES", [-1], content_type="text/plain") for name in ("query", "document")]
    return FakeRuntime(inputs=inputs, outputs=[tensor("score", "FP32", [-1])], model=overlap, name="rerank")


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(reranking_runtime) as proxy:
        yield proxy


@pytest.mark.parametrize("version", [1, 2])
def test_documents_come_by_falling_score(cohere: ForeignClient, running: RunningProxy, version: int) -> None:
    found = cohere.call("rerank", running.url, version, "fish", DOCUMENTS)
    assert [(index, round(score, 3)) for index, score, _ in found] == [(2, 1.0), (1, 0.333), (0, 0.0)]


def test_the_best_come_with_their_texts(cohere: ForeignClient, running: RunningProxy) -> None:
    found = cohere.call("rerank", running.url, 1, "fish", DOCUMENTS, top_n=2, return_documents=True)
    assert [(index, text) for index, _, text in found] == [(2, "fish"), (1, "fish and chips")]


@pytest.mark.parametrize(
    ("documents", "options", "kind", "words"),
    [
        (DOCUMENTS, {"model": "rerank-v3.5"}, "NotFoundError", "this server has 'rerank'"),
        ([], {}, "BadRequestError", "must be a list of texts"),
    ],
)
def test_our_words_reach_the_caller(
    cohere: ForeignClient, running: RunningProxy, documents: list[str], options: dict[str, str], kind: str, words: str
) -> None:
    with pytest.raises(ForeignError) as raised:
        cohere.call("rerank", running.url, 2, "fish", documents, **options)
    assert (raised.value.kind, words in str(raised.value)) == (kind, True), str(raised.value)
