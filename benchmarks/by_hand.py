"""A chain of two models by hand, as one writes it in an afternoon: Starlette and httpx, JSON in and out.

``python -m benchmarks.by_hand PORT URL URL``, where each URL is a model's ``/v2/models/NAME/infer`` that takes ``x``.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

FIRST, SECOND = sys.argv[2:] or ("", "")


def body(tensor: dict[str, Any]) -> dict[str, Any]:
    """Return a request with this tensor as ``x``."""
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": tensor["shape"], "data": tensor["data"]}]}


async def infer(request: Request) -> JSONResponse:
    """Ask one model, then the other."""
    client: httpx.AsyncClient = request.app.state.client
    first = await client.post(FIRST, json=body((await request.json())["inputs"][0]))
    second = await client.post(SECOND, json=body(first.raise_for_status().json()["outputs"][0]))
    return JSONResponse({"outputs": second.raise_for_status().json()["outputs"]})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Keep connections to the models."""
    async with httpx.AsyncClient(
        limits=httpx.Limits(max_connections=256, max_keepalive_connections=256), trust_env=False
    ) as app.state.client:
        yield


if __name__ == "__main__":
    app = Starlette(routes=[Route("/infer", infer, methods=["POST"])], lifespan=lifespan)
    options = {"loop": "uvloop", "http": "httptools", "access_log": False, "log_level": "warning"}
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), **options)  # type: ignore[arg-type]
