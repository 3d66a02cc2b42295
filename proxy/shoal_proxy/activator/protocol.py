"""The protocol of client connections to the activator."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal_proxy.errors import ProxyError
from shoal_proxy.http.framed_protocol import FramedProtocol

REFUSED: Final = "shoal.refused"
"""Key in a request's scope: the error that ends the reading of its body."""


class HeldProtocol(FramedProtocol):
    """The proxy's HTTP protocol for requests that the ASGI application holds."""

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body to the application (httptools)."""
        super().on_body(body)
        HttpToolsProtocol.on_body(self, body)

    def fail_open(self, cycle: Any, error: ProxyError) -> bool:
        """Reject an incomplete request, and pass ``error`` to the application.

        Returns whether ``error`` is handled.
        """
        cycle.scope[REFUSED] = error
        return super().fail_open(cycle, error)

    def drop_open(self) -> None:
        """Mark an incomplete request as disconnected."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
