"""A caller's connection, whose bodies are read: by the application that holds them, through ASGI."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal_proxy.errors import ProxyError
from shoal_proxy.guarded import GuardedProtocol

REFUSED: Final = "shoal.refused"
"""In a request's scope: why no more of its body is heard."""


class HeldProtocol(GuardedProtocol):
    """The proxy's protocol, with its bounds on heads, pace and framing, for requests that are held whole."""

    def on_body(self, body: bytes) -> None:
        """Hand a piece of the body to the application (httptools)."""
        super().on_body(body)
        HttpToolsProtocol.on_body(self, body)

    def fail_open(self, cycle: Any, error: ProxyError) -> bool:
        """Tell the application that its request will not come whole."""
        cycle.scope[REFUSED] = error
        return super().fail_open(cycle, error)

    def drop_open(self) -> None:
        """Have a request that ends before its end count as one whose caller has gone."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
