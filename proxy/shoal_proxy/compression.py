"""Responses in gzip or deflate, for clients that accept it, where the service asks for it."""

from collections.abc import Callable, Mapping
from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from shoal_proxy.codecs.base import Reply
from shoal_proxy.edge.packing import Packing, coding_for
from shoal_proxy.rotation import TURN_COST, Rotation

VARY: Final = b"vary: accept-encoding\r\n"
_STEP_COST: Final = TURN_COST
"""Of one step of `Packing`."""
_ACCEPT_ENCODING: Final = b"accept-encoding"


class Compression:
    """Decides which responses are compressed, and compresses them beside other work.

    Args:
        min_bytes: of the least body that is.
        rotation: whose steps it shares.
    """

    def __init__(self, min_bytes: int, rotation: Rotation) -> None:
        self._min_bytes = min_bytes
        self._rotation = rotation

    def coding_for(self, headers: Mapping[bytes, bytes], reply: Reply) -> bytes | None:
        """Return the coding of a response; None where it is sent as it is."""
        accepted = headers.get(_ACCEPT_ENCODING)
        return None if accepted is None or reply.size_bytes < self._min_bytes else coding_for(accepted)

    def start(self, reply: Reply, coding: bytes, write: Callable[[Reply], None]) -> None:
        """Compress ``reply`` and pass it to ``write``, later."""
        self._rotation.schedule(_Job(reply, coding, write, self._rotation))

    def middleware(self) -> Middleware:
        """Return what does the same for pages."""
        return Middleware(_PagesDoor, min_bytes=self._min_bytes)


class _Job:
    """One response."""

    __slots__ = ("_coding", "_packing", "_reply", "_rotation", "_write", "scheduled")

    def __init__(self, reply: Reply, coding: bytes, write: Callable[[Reply], None], rotation: Rotation) -> None:
        self._reply = reply
        self._coding = coding
        self._write = write
        self._rotation = rotation
        self._packing = Packing(coding, reply.body)
        self.scheduled = False

    def step(self) -> int:
        """Compress a part of it."""
        if self._packing.step():
            self._rotation.schedule(self)
        else:
            self._finish()
        return _STEP_COST

    def _finish(self) -> None:
        reply = self._reply
        if not self._packing.given_up:
            lines = b"%bcontent-encoding: %b\r\n" % (reply.lines, self._coding)
            reply = Reply(reply.status, self._packing.body, reply.content_type, lines)
        self._write(reply)


class _PagesDoor:
    """Compresses pages in gzip alone, and for clients that accept it: Starlette's middleware reads no weights."""

    def __init__(self, app: ASGIApp, min_bytes: int) -> None:
        self._app = GZipMiddleware(app, minimum_size=min_bytes, compresslevel=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        packs = coding_for(headers.get(_ACCEPT_ENCODING, b"")) == b"gzip"
        headers[_ACCEPT_ENCODING] = b"gzip" if packs else b"identity"
        await self._app({**scope, "headers": list(headers.items())}, receive, send)
