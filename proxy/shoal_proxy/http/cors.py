"""CORS headers (Fetch standard), with which pages of other origins may read responses.

Starlette's middleware handles preflight requests and all routes but the infer ones. Infer requests bypass it, so their
responses get the same headers here.
"""

from collections.abc import Collection
from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from shoal_schema.interfaces.headers import EXECUTED, REQUEST_ID, TRACEPARENT

_EXPOSED: Final = (EXECUTED, REQUEST_ID, TRACEPARENT, "retry-after", "server-timing", "inference-header-content-length")
_METHODS: Final = ("GET", "POST", "PUT")
_PREFLIGHT_AGE_S: Final = 600


class Cors:
    """The CORS headers of responses.

    Args:
        origins: the allowed origins; ``*`` allows every one.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = tuple(origins)
        self._known = frozenset(each.encode() for each in origins)
        self._exposed = f"access-control-expose-headers: {', '.join(_EXPOSED)}\r\n".encode()

    def lines(self, origin: bytes | None) -> bytes:
        """Return the header lines of the response to a request from this origin; None: without one."""
        if b"*" in self._known:
            return b"access-control-allow-origin: *\r\n" + self._exposed if origin is not None else b""
        if origin is None or origin not in self._known:
            # Responses differ by origin, so a cache must not serve this one to an allowed origin.
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin + self._exposed

    def middleware(self) -> Middleware:
        """Return the middleware for all other routes and preflight requests."""
        return Middleware(
            CORSMiddleware,
            allow_origins=self._origins,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            max_age=_PREFLIGHT_AGE_S,
        )
