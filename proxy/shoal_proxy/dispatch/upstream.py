"""Client of a runtime, or of any other V2 server.

Only this module turns network errors and invalid responses into errors of `shoal_proxy.errors`.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import orjson

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.certificate import Certificate
from shoal_proxy.codecs.upstream import decode_failure
from shoal_proxy.dispatch.runtime_connection import ANY_BYTES, ResponseMemory, RuntimeConnection, RuntimeResponse
from shoal_proxy.errors import NotExecuted, RuntimeUnavailable, UnknownHost
from shoal_proxy.model.overrides import NO_BUCKETS, PadBuckets, with_pad_buckets
from shoal_proxy.model.signature import ModelSignature, SignatureError, parse_metadata
from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.metrics import DEVICE_MEMORY, PEAK_MEMORY

_BINARY: Final = (
    b"Content-Length: %d\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
)
_JSON: Final = b"Content-Length: %d\r\nContent-Type: application/json\r\n"
MAX_DOCUMENT_BYTES: Final = 1 << 22
"""The largest metadata that are parsed: parsing them blocks the event loop."""
IDLE_LIMIT_S: Final = 4.0
"""Idle connections are closed before the server does (after 5 s or more), so that no batch meets a closing one."""


class RuntimeMemory(NamedTuple):
    """Memory of runtimes' processes; 0 where it is not reported."""

    process_bytes: int = 0
    """Largest so far."""
    device_bytes: int = 0
    """At present."""


class Upstream:
    """Connections to one runtime, peer or V2 server.

    Args:
        address: address of the server.
        model_name: name of the model in the server's paths.
        on_lost: called when the last connection is lost without an announcement.
        certificate: certificate that a peer must show, which is also this replica's own.
        tls: TLS context for an HTTPS server.
        room: memory limit of responses; None trusts the server.
        connect_s: time limit (s) of a connection attempt, besides the deadline of its request.
    """

    def __init__(  # noqa: PLR0913 (each with its name)
        self,
        address: Address,
        model_name: str,
        *,
        on_lost: Callable[[], None],
        certificate: Certificate | None = None,
        tls: ssl.SSLContext | None = None,
        room: ResponseMemory | None = None,
        connect_s: float = NEVER_S,
    ) -> None:
        self._address = address
        self._certificate = certificate
        self._tls = tls
        self._room = room
        self._connect_s = connect_s
        self._on_lost = on_lost
        self._connections: set[RuntimeConnection] = set()
        self._idle: list[RuntimeConnection] = []
        self._closed = False
        self.device_memory: tuple[int, int] | None = None
        """The device's used and total bytes at the last health check; None where they are not reported."""
        self.memory = RuntimeMemory()
        """Of the runtime's process at the last health check."""
        # HTTP/1.1 needs a Host header, also on a Unix socket.
        host = "localhost" if address.path else str(address)
        self._host = host.encode("ascii")
        self._model_path = f"/v2/models/{quote(model_name, safe='')}".encode("ascii")
        # Formatted once, as every batch has the same head.
        self._infer_head = b"POST %b/infer HTTP/1.1\r\nHost: %b\r\n" % (self._model_path, self._host)

    async def infer(
        self,
        header: bytes,
        tensors: Sequence[bytes | memoryview],
        extra: Sequence[tuple[bytes, bytes]],
        deadline_s: float,
        most_bytes: int = ANY_BYTES,
    ) -> RuntimeResponse:
        """Send one batch, a JSON ``header`` and binary ``tensors``; return the undecoded response.

        With a memory limit of responses, a body of more than ``most_bytes`` is rejected before it has arrived.

        Raises:
            TimeoutError: there was no response by ``deadline_s`` (monotonic seconds).
        """
        size_bytes = len(header)
        for tensor in tensors:
            size_bytes += len(tensor)
        lines = [self._infer_head, (_BINARY % (size_bytes, len(header))) if tensors else _JSON % size_bytes]
        for name, value in extra:
            lines.append(b"%b: %b\r\n" % (name, value))
        lines.append(b"\r\n")
        return await self._exchange(b"".join(lines), [header, *tensors], deadline_s, most_bytes)

    async def ready_reason(self) -> str:
        """Return why the model is not ready; empty if the model is ready."""
        response = await self._get(b"/v2/health/ready")
        if response.status == 200:
            self.device_memory, self.memory = _memory_of(response.body)
            return ""
        try:
            return str(orjson.loads(response.body)["reason"])
        except (ValueError, KeyError, TypeError):
            return f"the runtime returned {response.status} for /v2/health/ready"

    async def signature(self, pad_buckets: PadBuckets = NO_BUCKETS) -> ModelSignature:
        """Return the model's signature.

        ``pad_buckets``, the sizes to which inputs are padded, replace those of the model.

        Raises:
            SignatureError: the runtime has no such model, or its metadata is invalid.
        """
        return parse_metadata(with_pad_buckets(await self.metadata(), pad_buckets))

    async def metadata(self, extra: Sequence[tuple[bytes, bytes]] = ()) -> dict[str, Any]:
        """Return the model's V2 metadata.

        ``extra`` are further headers of the request.

        Raises:
            SignatureError: the runtime has no such model.
            RuntimeUnavailable: the model is not ready.
        """
        response = await self._get(self._model_path, extra)
        if response.status == RuntimeUnavailable.status:
            raise RuntimeUnavailable(decode_failure(response.status, response.body).message)
        if response.status != 200:
            raise SignatureError(f"the runtime returned {response.status} for {self._model_path.decode()}")
        return _document(response, self._model_path.decode())

    async def server(self) -> tuple[str, bool]:
        """Return the server's name, and whether it supports V2's binary tensor extension."""
        document = _document(await self._get(b"/v2"), "/v2")
        binary = any("binary_tensor_data" in str(extension) for extension in document.get("extensions") or ())
        return str(document.get("name")), binary

    async def model_ready(self, extra: Sequence[tuple[bytes, bytes]], deadline_s: float) -> RuntimeResponse:
        """Send a readiness request, and return the undecoded response.

        Raises:
            TimeoutError: there was no response by ``deadline_s`` (monotonic seconds).
        """
        lines = b"".join([b"%b: %b\r\n" % header for header in extra])
        head = b"GET %b/ready HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (self._model_path, self._host, lines)
        return await self._exchange(head, [], deadline_s)

    async def result(
        self, method: bytes, job_id: str, extra: Sequence[tuple[bytes, bytes]], deadline_s: float
    ) -> RuntimeResponse:
        """Send a request for the result of an asynchronous request, and return the response.

        Raises:
            TimeoutError: there was no response by ``deadline_s`` (monotonic seconds).
        """
        lines = b"".join([b"%b: %b\r\n" % header for header in extra])
        path = b"%b/results/%b" % (self._model_path, quote(job_id, safe="").encode("ascii"))
        head = b"%b %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (method, path, self._host, lines)
        return await self._exchange(head, [], deadline_s)

    def close_idle(self) -> None:
        """Close idle connections, and the others as soon as they are idle.

        No further connection is opened.
        """
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop().close()

    def close(self) -> None:
        """Close every connection, which lets Shoal's runtime exit."""
        self._closed = True
        for connection in list(self._connections):
            connection.close()

    async def _get(self, path: bytes, extra: Sequence[tuple[bytes, bytes]] = ()) -> RuntimeResponse:
        lines = b"".join([b"%b: %b\r\n" % header for header in extra])
        return await self._exchange(b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (path, self._host, lines), [], NEVER_S)

    async def _exchange(
        self, head: bytes, parts: Sequence[bytes | memoryview], deadline_s: float, most_bytes: int = ANY_BYTES
    ) -> RuntimeResponse:
        # The connection used last is taken first, so that superfluous ones age and are closed.
        now_s = time.monotonic()
        while self._idle and now_s - self._idle[0].idle_since_s > IDLE_LIMIT_S:
            self._idle.pop(0).close()
        connection: RuntimeConnection | None = None
        while connection is None and self._idle:
            last = self._idle.pop()
            connection = last if last.usable else None
        if connection is None:
            left_s = NEVER_S if deadline_s == NEVER_S else max(0.0, deadline_s - time.monotonic())
            allowed_s = min(left_s, self._connect_s)
            try:
                async with asyncio.timeout(None if allowed_s == NEVER_S else allowed_s):
                    connection = await self._connect()
            except TimeoutError:
                if left_s <= self._connect_s:
                    raise
                raise NotExecuted(f"no connection to {self._address} within {self._connect_s:g} s") from None
        response = await connection.exchange(head, parts, deadline_s, most_bytes)
        if connection.usable and not self._closed:
            connection.idle_since_s = time.monotonic()
            self._idle.append(connection)
        elif self._closed:
            connection.close()
        return response

    async def _connect(self) -> RuntimeConnection:
        loop, address, certificate = asyncio.get_running_loop(), self._address, self._certificate

        def make() -> RuntimeConnection:
            return RuntimeConnection(self._lost, self._room)

        try:
            if address.path:
                _, connection = await loop.create_unix_connection(make, address.path)
            else:
                transport, connection = await loop.create_connection(
                    make, address.host, address.port, ssl=self._tls if certificate is None else certificate.among
                )
                if certificate is not None:
                    shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
                    if not certificate.is_peer(shown):
                        transport.abort()
                        raise NotExecuted(f"the server at {address} has a different certificate from this replica's")
        # The socket's file is missing or stale, or the port is closed.
        except (FileNotFoundError, ConnectionRefusedError):
            raise NotExecuted(f"no runtime listens at {self._address}") from None
        except socket.gaierror as unknown:
            raise UnknownHost(f"cannot resolve the host name {self._address.host}: {unknown.strerror}") from None
        except UnicodeError as odd:  # the name cannot be encoded for DNS
            raise UnknownHost(f"invalid host name {self._address.host[:80]}: {odd}") from None
        except OSError as error:
            raise NotExecuted(f"cannot reach the runtime at {self._address}: {error.strerror or error}") from None
        self._connections.add(connection)
        return connection

    def _lost(self, connection: RuntimeConnection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        elif not (connection.announced or connection.aborted):
            # A process that ends closes its connections one after the other: none of them gets another batch.
            self.drop_idle()
        # An expected close, or one connection of several, does not mean that the runtime is lost.
        if not (self._closed or self._connections or connection.announced):
            self._on_lost()


def _document(response: RuntimeResponse, path: str) -> dict[str, Any]:
    if len(response.body) > MAX_DOCUMENT_BYTES:
        raise SignatureError(f"the response for {path} is over the limit of {MAX_DOCUMENT_BYTES} bytes")
    try:
        document = orjson.loads(response.body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise SignatureError(f"the runtime returned {response.status} without a JSON object for {path}")
    return document


def _memory_of(body: bytes | memoryview) -> tuple[tuple[int, int] | None, RuntimeMemory]:
    """Return `Upstream.device_memory` and `Upstream.memory` of a readiness response."""
    try:
        found = orjson.loads(body)
    except ValueError:
        return None, RuntimeMemory()
    # Other V2 servers report something else, or nothing.
    if not isinstance(found, dict):
        return None, RuntimeMemory()
    peak, device = found.get(PEAK_MEMORY), found.get(DEVICE_MEMORY)
    process_bytes = peak if type(peak) is int and peak > 0 else 0
    if not isinstance(device, list) or len(device) < 2 or any(type(each) is not int for each in device):
        return None, RuntimeMemory(process_bytes)
    own_bytes = max(0, device[2]) if len(device) > 2 else 0
    return (device[0], device[1]), RuntimeMemory(process_bytes, own_bytes)
