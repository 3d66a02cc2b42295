"""Routes of the page to try the model and of its OpenAPI document.

The page is one file that sends requests to its own server only. `shoal_schema.process.pages` defines its content
policy.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.routes.openapi import openapi
from shoal_schema.interfaces.protocols import DOCS
from shoal_schema.process.pages import page_headers

PAGE: Final = Path(__file__).with_name("docs.html").read_text(encoding="utf-8")
HEADERS: Final = page_headers(PAGE)


def docs_routes(signature: Callable[[], ModelSignature], *, name: str, version: str) -> Sequence[Route]:
    """Return the routes of the documentation page and the OpenAPI document.

    They exist at the root and below the model's path: with several models on one port, only the routes below the
    model's path are reachable. ``signature`` raises a `ProxyError` while the signature is unknown.
    """

    async def page(request: Request) -> Response:
        return Response(PAGE, headers=HEADERS, media_type="text/html")

    def document(root: str) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return JSONResponse(openapi(signature(), name=name, version=version, root=root))

        return answer

    return [
        Route(place + path, endpoint)
        # `root` leads from the document's path back to the root.
        for place, root in (("", "."), (f"/v2/models/{name}", "../../.."))
        for path, endpoint in zip(DOCS, (page, document(root)), strict=True)
    ]
