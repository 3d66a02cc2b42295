"""What the tests do with Cohere's client, unmodified, of either version of its interface."""

from importlib.metadata import version
from typing import Any

import cohere


def client_version() -> str:
    return version("cohere")


def rerank(url: str, number: int, query: str, documents: list[str], **options: Any) -> list[list[Any]]:
    """Return each result's index, score and text."""
    made = {1: cohere.Client, 2: cohere.ClientV2}[number]
    client = made(api_key="none", base_url=url)
    answer = client.rerank(**{"model": "rerank", "query": query, "documents": documents, **options})
    texts = [getattr(each, "document", None) for each in answer.results]
    return [
        [each.index, each.relevance_score, text.text if text else None]
        for each, text in zip(answer.results, texts, strict=True)
    ]
