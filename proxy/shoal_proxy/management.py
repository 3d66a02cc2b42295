"""What TorchServe's management API says of one model, in its words; and what to do instead of registering another.

Pure.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from shoal_schema.resource import API_VERSION, KIND


def describe_model(
    name: str, version: str, *, batch_size: int, ready: bool, waiting: int, capacity: int
) -> dict[str, Any]:
    """Return what ``GET /models/{name}`` tells of the one version."""
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
        "workers": [{"id": "1", "status": "READY" if ready else "UNLOADED"}],
        "jobQueueStatus": {"remainingCapacity": max(0, capacity - waiting), "pendingRequests": waiting},
    }


def instead_of_registering(asked: Mapping[str, str]) -> str:
    """Return what to do where somebody registers a model, as TorchServe has it, with a server of one model."""
    url = asked.get("url", "https://models.example.com/NAME.mar")
    given = asked.get("model_name") or re.sub(r"\.(mar|tar\.gz|zip)\Z", "", re.split("[?#]", url)[0].rpartition("/")[2])
    # The name of an object in a cluster, which takes less than a path does.
    name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:63] or "model"
    uri = url if "://" in url else f"file:///models/{url}"
    lines = [f"apiVersion: {API_VERSION}", f"kind: {KIND}", f"metadata: {{name: {name}}}", "spec:"]
    lines.append(f"  model: {{uri: {_quoted(uri)}}}")
    if re.fullmatch("[0-9]{1,5}", asked.get("batch_size", "")):
        lines.append(f"  batching: {{maxBatchSize: {int(asked['batch_size'])}}}")
    resource = "\n".join(lines)
    return (
        "models are not registered with a server that runs: on one machine start `shoal serve --management` and ask"
        f" there; in a cluster apply this with kubectl:\n{resource}\n"
    )


def _quoted(text: str) -> str:
    """Return a text as YAML takes it from anybody: in JSON's quotes."""
    return orjson.dumps(text.encode("utf-8", "replace").decode()).decode()
