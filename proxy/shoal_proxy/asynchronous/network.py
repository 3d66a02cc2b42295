"""Connections of webhooks: to checked addresses only, and with limited responses."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

import httpcore

from shoal_proxy.asynchronous.callbacks import ListedHosts, refusal

MAX_ADDRESSES: Final = 4
"""Addresses of a host that one try connects to."""
MAX_RESPONSE_BYTES: Final = 16_384
"""Most bytes that are read of a response: its head, with interim responses before it."""
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(Exception):
    """All addresses of a host are of kinds that receive no webhooks."""


class LimitedStream(httpcore.AsyncNetworkStream):
    """A stream that fails once the receiver has sent too many bytes.

    The parser limits a single head, but not the number of interim responses (status 1xx), which it skips in a loop.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left_bytes = MAX_RESPONSE_BYTES

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 (httpcore's interface)
        """Read up to ``max_bytes``.

        Raises:
            httpcore.RemoteProtocolError: the receiver has sent `MAX_RESPONSE_BYTES` before.
        """
        if self._left_bytes <= 0:
            raise httpcore.RemoteProtocolError(f"the head of the response is over {MAX_RESPONSE_BYTES} bytes")
        found = await self._stream.read(min(max_bytes, self._left_bytes), timeout)
        self._left_bytes -= len(found)
        return found

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 (as above)
        """Write all bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (as above)
    ) -> httpcore.AsyncNetworkStream:
        """Return the stream inside TLS, with a limit of its own."""
        return LimitedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return details of the connection."""
        return self._stream.get_extra_info(info)


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """A network that connects only to allowed addresses, which it resolves itself.

    A host name that changes its address between a check and the connection gains nothing: the connection goes to the
    checked address.
    """

    def __init__(self, hosts: ListedHosts, resolve: Resolve) -> None:
        self._hosts = hosts
        self._resolve = resolve
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (httpcore's interface)
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first allowed address of a host that accepts.

        Raises:
            AddressRefused: the host has no allowed address.
            httpcore.ConnectError: the host has no address, or no allowed one accepts.
            httpcore.ConnectTimeout: no allowed address accepts in time.
        """
        exact = self._hosts.is_exact(host, port)
        addresses = await self._resolve(host, port)
        refusals = [refusal(address, exact=exact) for address in addresses]
        allowed = [address for address, why in zip(addresses, refusals, strict=True) if not why]
        if addresses and not allowed:
            raise AddressRefused(refusals[0])
        fault: httpcore.ConnectError | httpcore.ConnectTimeout = httpcore.ConnectError("the host has no address")
        for address in allowed[:MAX_ADDRESSES]:
            try:
                stream = await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
                return LimitedStream(stream)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                fault = error
        raise fault

    async def sleep(self, seconds: float) -> None:
        """Wait (httpcore)."""
        await asyncio.sleep(seconds)


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the IP addresses of a host, in the order of preference."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return [str(address[0]) for *_, address in found]
