"""Compression of responses for clients that accept gzip or deflate."""

from collections.abc import Callable, Mapping
from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal_proxy.bodies.compressor import BodyCompressor, coding_for
from shoal_proxy.bodies.rotation import TURN_COST, Rotation
from shoal_proxy.codecs.base import HttpResponse

VARY: Final = b"vary: accept-encoding\r\n"
_STEP_COST: Final = TURN_COST
"""The cost of one step of `BodyCompressor`."""
_ACCEPT_ENCODING: Final = b"accept-encoding"


class Compression:
    """Compressor of responses, which works in steps on the event loop.

    Args:
        min_bytes: size of the smallest body to compress.
        rotation: schedules the steps.
    """

    def __init__(self, min_bytes: int, rotation: Rotation) -> None:
        self._min_bytes = min_bytes
        self._rotation = rotation

    def coding_for(self, headers: Mapping[bytes, bytes], response: HttpResponse) -> bytes | None:
        """Return the content coding of a response; None if it is not compressed."""
        accepted = headers.get(_ACCEPT_ENCODING)
        return None if accepted is None or response.size_bytes < self._min_bytes else coding_for(accepted)

    def start(self, response: HttpResponse, coding: bytes, write: Callable[[HttpResponse], None]) -> None:
        """Compress ``response`` in scheduled steps.

        After the last step ``write`` is called with the response.
        """
        self._rotation.schedule(_Job(response, coding, write, self._rotation))

    def middleware(self) -> Middleware:
        """Return ASGI middleware that compresses responses.

        Infer requests bypass the middleware; `start` compresses their responses.
        """
        return Middleware(_PageCompression, min_bytes=self._min_bytes)


class _Job:
    __slots__ = ("_coding", "_packing", "_response", "_rotation", "_write", "scheduled")

    def __init__(
        self, response: HttpResponse, coding: bytes, write: Callable[[HttpResponse], None], rotation: Rotation
    ) -> None:
        self._response = response
        self._coding = coding
        self._write = write
        self._rotation = rotation
        self._packing = BodyCompressor(coding, response.body)
        self.scheduled = False

    def step(self) -> int:
        """Compress a part of the response; write the response after the last part."""
        if self._packing.step():
            self._rotation.schedule(self)
            return _STEP_COST
        response = self._response
        if not self._packing.given_up:
            lines = b"%bcontent-encoding: %b\r\n" % (response.lines, self._coding)
            # A new response, as its size is computed from the body.
            response = HttpResponse(response.status, self._packing.body, response.content_type, lines)
        self._write(response)
        return _STEP_COST


class _PageCompression:
    """ASGI middleware that compresses responses with gzip.

    It evaluates Accept-Encoding itself, because Starlette's middleware ignores weights.
    """

    def __init__(self, app: ASGIApp, min_bytes: int) -> None:
        self._app = GZipMiddleware(app, minimum_size=min_bytes, compresslevel=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        # deflate is left to the infer routes.
        packs = coding_for(headers.get(_ACCEPT_ENCODING, b"")) == b"gzip"
        headers[_ACCEPT_ENCODING] = b"gzip" if packs else b"identity"
        await self._app({**scope, "headers": list(headers.items())}, receive, send)
