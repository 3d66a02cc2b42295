"""What the tests do with KServe's ``InferenceGRPCClient``, unmodified."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest

MODEL = "double"


def _with_client(target: str, call: Callable[[Any], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with InferenceGRPCClient(target, **options) as client:
            return await call(client)

    return asyncio.run(run())


def health(target: str, model: str = MODEL) -> dict[str, Any]:
    async def ask(client: Any) -> dict[str, Any]:
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model": await client.is_model_ready(model),
        }

    answer: dict[str, Any] = _with_client(target, ask)
    return answer


def infer(target: str, rows: Any, *, raw: bool, model: str = MODEL, timeout_s: float | None = None) -> dict[str, Any]:
    array = np.array(rows, dtype=np.float32)
    tensor = InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array, binary_data=raw)
    request = InferRequest(model, [tensor], request_id="fish-7")

    async def ask(client: Any) -> Any:
        return await client.infer(request, timeout=timeout_s) if timeout_s else await client.infer(request)

    answer = _with_client(target, ask, retries=0)
    return {"id": answer.id, "model": answer.model_name, "y": answer.outputs[0].as_numpy().tolist()}
