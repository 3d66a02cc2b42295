"""What the tests do with KServe's ``InferenceRESTClient``, unmodified."""

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferOutput, InferRequest
from kserve.inference_client import RESTConfig
from kserve.protocol.infer_type import RequestedOutput

MODEL = "double"


def _with_client(protocol: str, call: Callable[[Any], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with InferenceRESTClient(RESTConfig(protocol=protocol)) as client:
            return await call(client)

    return asyncio.run(run())


def client_version() -> str:
    return version("kserve")


def health(url: str, protocol: str, model: str = MODEL) -> dict[str, Any]:
    async def ask(client: Any) -> dict[str, Any]:
        found = {"live": await client.is_server_live(url), "model": await client.is_model_ready(url, model)}
        return found if protocol == "v1" else {**found, "ready": await client.is_server_ready(url)}

    answer: dict[str, Any] = _with_client(protocol, ask)
    return answer


def model_ready(url: str, protocol: str, model: str) -> Any:
    return _with_client(protocol, lambda client: client.is_model_ready(url, model))


def predict(url: str, data: dict[str, Any], model: str = MODEL) -> Any:
    return _with_client("v1", lambda client: client.infer(url, data, model_name=model))


def infer(url: str, rows: Any, *, binary: bool, id_: str | None = None) -> dict[str, Any]:
    array = np.array(rows, dtype=np.float32)
    tensor = InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=binary)
    wanted = [RequestedOutput("y", {"binary_data": binary})]
    request = InferRequest(MODEL, [tensor], request_id=id_, request_outputs=wanted)
    answer = _with_client("v2", lambda client: client.infer(url, request, model_name=MODEL))
    output: InferOutput = answer.outputs[0]
    return {"id": answer.id, "model": answer.model_name, "name": output.name, "y": output.as_numpy().tolist()}


def infer_document(url: str, document: dict[str, Any]) -> Any:
    answer = _with_client("v2", lambda client: client.infer(url, document, model_name=MODEL))
    return answer.outputs[0].as_numpy().tolist()
