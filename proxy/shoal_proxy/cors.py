"""Answers that pages of other origins may read in a browser (CORS, of the Fetch standard).

Preflight requests, and pages that are no infer routes, are Starlette's middleware's. Infer routes pass it by, so their
answers get the same lines here.
"""

from collections.abc import Collection
from typing import Final

from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from shoal_schema.headers import EXECUTED, REQUEST_ID, TRACEPARENT

_EXPOSED: Final = (EXECUTED, REQUEST_ID, TRACEPARENT, "retry-after", "server-timing", "inference-header-content-length")
_METHODS: Final = ("GET", "POST", "PUT")
_PREFLIGHT_AGE_S: Final = 600


class Cors:
    """Adds to answers what browsers ask for.

    Args:
        origins: that may read them; ``*`` is every origin.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = tuple(origins)
        self._known = frozenset(each.encode() for each in origins)
        self._exposed = f"access-control-expose-headers: {', '.join(_EXPOSED)}\r\n".encode()

    def lines(self, origin: bytes | None) -> bytes:
        """Return the header lines of an answer to a request from this origin; None: it names none."""
        if b"*" in self._known:
            return b"access-control-allow-origin: *\r\n" + self._exposed if origin is not None else b""
        if origin is None or origin not in self._known:
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin + self._exposed

    def middleware(self) -> Middleware:
        """Return what does the same for all other paths, and answers preflight requests."""
        return Middleware(
            CORSMiddleware,
            allow_origins=self._origins,
            allow_methods=_METHODS,
            allow_headers=["*"],
            expose_headers=_EXPOSED,
            max_age=_PREFLIGHT_AGE_S,
        )
