"""TorchServe's management API for a proxy with one model. Pure."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from shoal_schema.resource import API_VERSION, KIND


def describe_model(
    name: str, version: str, *, batch_size: int, ready: bool, waiting: int, capacity: int
) -> dict[str, Any]:
    """Return the response of ``GET /models/{name}``."""
    return {
        "modelName": name,
        "modelVersion": version,
        "modelUrl": name,
        "engine": "Torch",
        "runtime": "python",
        "minWorkers": 1,
        "maxWorkers": 1,
        "batchSize": batch_size,
        "maxBatchDelay": 0,
        # Shoal's runtime is one worker to TorchServe's clients.
        "workers": [{"id": "1", "status": "READY" if ready else "UNLOADED"}],
        "jobQueueStatus": {"remainingCapacity": max(0, capacity - waiting), "pendingRequests": waiting},
    }


def registration_advice(asked: Mapping[str, str]) -> str:
    """Return the error text for registering a model: a resource to apply."""
    url = asked.get("url", "https://models.example.com/NAME.mar")
    given = asked.get("model_name") or re.sub(r"\.(mar|tar\.gz|zip)\Z", "", re.split("[?#]", url)[0].rpartition("/")[2])
    # A valid Kubernetes object name (RFC 1123 label).
    name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:63] or "model"
    uri = url if "://" in url else f"file:///models/{url}"
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}", f"metadata: {{name: {name}}}", "spec:"]
    # JSON strings are valid YAML, whatever the client sent.
    lines.append(f"  model: {{uri: {orjson.dumps(uri.encode('utf-8', 'replace').decode()).decode()}}}")
    if re.fullmatch("[0-9]{1,5}", asked.get("batch_size", "")):
        lines.append(f"  batching: {{maxBatchSize: {int(asked['batch_size'])}}}")
    resource = "\n".join(lines)
    return (
        "this server does not register models. On one machine, send the request to `shoal serve --management`;"
        f" in a cluster, apply this with kubectl:\n{resource}\n"
    )
