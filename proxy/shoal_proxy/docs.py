"""Routes of the page to try the model and of its OpenAPI document.

The page, ``/docs``, sends requests to its own server only; `shoal_schema.pages` defines its content policy.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.openapi import openapi
from shoal_schema.pages import page_headers

PAGE: Final = Path(__file__).with_name("docs.html").read_text(encoding="utf-8")
HEADERS: Final = page_headers(PAGE)


def docs_routes(signature: Callable[[], ModelSignature], *, name: str, version: str) -> Sequence[Route]:
    """Return the routes of ``/docs`` and ``/openapi.json``.

    ``signature`` raises a `ProxyError` while the signature is unknown. The routes exist at the root and below the
    model's path: with several models on one port, only the latter are reachable.
    """

    async def page(request: Request) -> Response:
        return Response(PAGE, headers=HEADERS, media_type="text/html")

    def document(root: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return JSONResponse(openapi(signature(), name=name, version=version, root=root))

        return answer

    return [
        Route(f"{place}/{what}", endpoint)
        # `root` leads from the document's path back to the root.
        for place, root in (("", "."), (f"/v2/models/{name}", "../../.."))
        for what, endpoint in (("docs", page), ("openapi.json", document(root)))
    ]
