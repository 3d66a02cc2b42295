"""CORS headers, which let web pages of other origins read responses.

Starlette's middleware handles preflight requests and all routes but the infer ones. Infer requests bypass it, so their
responses get the same headers here.
"""

from collections.abc import Collection
from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from shoal_schema.interfaces.headers import EXECUTED, PREFERENCE_APPLIED, REQUEST_ID, TRACEPARENT

_EXPOSED: Final = (
    EXECUTED, REQUEST_ID, TRACEPARENT, PREFERENCE_APPLIED, "location", "retry-after", "server-timing",
    "inference-header-content-length",
)  # fmt: skip
_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_PREFLIGHT_AGE_S: Final = 600


class Cors:
    """CORS headers for a set of allowed origins.

    Args:
        origins: the allowed origins; ``*`` allows all.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = tuple(origins)
        self._known = frozenset(each.encode() for each in origins)
        self._exposed = f"access-control-expose-headers: {', '.join(_EXPOSED)}\r\n".encode()

    def lines(self, origin: bytes | None) -> bytes:
        """Return the CORS header lines for a request's Origin header, if any."""
        if b"*" in self._known:
            return b"access-control-allow-origin: *\r\n" + self._exposed if origin is not None else b""
        if origin is None or origin not in self._known:
            # Responses differ by origin, so a cache must not serve this one to an allowed origin.
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin + self._exposed

    def middleware(self) -> Middleware:
        """Return Starlette's CORS middleware, which infer requests bypass."""
        return Middleware(
            CORSMiddleware,
            allow_origins=self._origins,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            max_age=_PREFLIGHT_AGE_S,
        )
