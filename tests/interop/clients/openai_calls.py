"""What the tests do with OpenAI's client, unmodified."""

from importlib.metadata import version
from typing import Any

from openai import OpenAI


def _client(url: str) -> Any:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def client_version() -> str:
    return version("openai")


def embed(url: str, texts: Any, **options: Any) -> dict[str, Any]:
    with _client(url) as client:
        answer = client.embeddings.create(input=texts, **{"model": "embed", **options})
    return {
        "model": answer.model,
        "vectors": [each.embedding for each in answer.data],
        "indices": [each.index for each in answer.data],
        "tokens": answer.usage.total_tokens,
    }


def models(url: str) -> list[str]:
    with _client(url) as client:
        return [each.id for each in client.models.list()]
