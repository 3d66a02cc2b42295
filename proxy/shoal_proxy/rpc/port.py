"""gRPC port: calls become requests in the proxy's queue."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from shoal_proxy.access.control import AccessControl
from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.bodies.body import LARGE_BYTES
from shoal_proxy.certificate import Certificate, CertificateFiles
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.dispatch.unread import UnreadResponses
from shoal_proxy.errors import InvalidRequest, ProxyError, RequestTimeout
from shoal_proxy.http.header_cache import InferRoute, RequestHead
from shoal_proxy.http.inference import Inference
from shoal_proxy.observe.access_log import AccessLogEntry
from shoal_proxy.observe.tracer import GONE
from shoal_proxy.routes.app import PublicRoutes
from shoal_proxy.rpc import inference_pb2 as messages
from shoal_proxy.rpc.health import Health
from shoal_proxy.rpc.incoming import IncomingMessages
from shoal_proxy.rpc.messages import GrpcV2, metadata_message
from shoal_proxy.rpc.slow_calls import SlowCall, peer_address
from shoal_proxy.rpc.stream import Streams
from shoal_proxy.settings import Settings
from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.interfaces.headers import REQUEST_ID, TIMEOUT_MS, TRACEPARENT
from shoal_schema.interfaces.protocols import GRPC, GRPC_SERVICE
from shoal_schema.resource.model import ExtraColumns
from shoal_schema.wire.framing import FramingError, check_repeated

logger = logging.getLogger(__name__)

CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC's code for an HTTP status; other client errors are INVALID_ARGUMENT, other server errors INTERNAL."""
_TIMEOUT, _ECHOED = TIMEOUT_MS.encode(), (REQUEST_ID.encode(), TRACEPARENT.encode())
_PATH, _STREAM_PATH = (path.encode() for path in GRPC.infer)
_MIN_TIMEOUT_MS = 0.001
_OPEN = frozenset(page.handler for page in GRPC.pages if page.is_open)


class GrpcCall:
    """State of one ModelInfer call, with its access log entry if sampled."""

    __slots__ = ("bytes_out", "entry", "head", "pending", "status")

    def __init__(self, head: RequestHead, entry: AccessLogEntry | None) -> None:
        self.head = head
        self.entry = entry
        self.pending: PendingRequest | None = None
        self.status = GONE
        """The response's status; `GONE` until there is a response."""
        self.bytes_out = 0


class GrpcPort:
    """Server of V2's gRPC service; create it inside a running event loop.

    Args:
        inference: queues inference calls.
        pages: handles the other calls.
        settings: the proxy's settings.
        certificate: the server certificate; None disables TLS.
        unread: counts unread responses.

    Raises:
        OSError: the port is in use.
    """

    def __init__(
        self,
        inference: Inference,
        pages: PublicRoutes,
        settings: Settings,
        certificate: Certificate | None = None,
        unread: UnreadResponses | None = None,
    ) -> None:
        self._unsent = unread or UnreadResponses()
        self._inference = inference
        self._pages = pages
        self._settings = settings
        self._certificate = certificate
        self._codec = GrpcV2(
            settings.name, settings.version, ignore_extra=settings.model.extra_columns is ExtraColumns.IGNORE
        )
        self._route = InferRoute(GRPC.label, self._codec)
        # Twice as many as can wait or run, so that the queue rejects requests, and not gRPC's limit.
        batching = settings.batching
        calls = 2 * (settings.queue_rows + (batching.in_flight + 1) * batching.max_batch_size)
        self._server = grpc.aio.server(options=_options(settings), maximum_concurrent_rpcs=calls)
        self._incoming = IncomingMessages(inference, settings.queue.max_body_bytes)
        self._streams = Streams(self._respond_in_stream, self._count, self._incoming.read)
        self._health = Health(pages.reason, (GRPC_SERVICE, settings.name), self._read_whole)
        self._server.add_generic_rpc_handlers((self._handlers(), self._health.handler()))
        add_ServerReflectionServicer_to_server(
            _Reflection((GRPC_SERVICE, HEALTH, REFLECTION), self._incoming), self._server
        )
        address = settings.grpc_address
        assert address is not None  # the port is created only if it is set
        try:
            if certificate is None:
                number = self._server.add_insecure_port(str(address))
            else:
                number = self._server.add_secure_port(str(address), _credentials(certificate))
        except RuntimeError:
            raise OSError(None, f"cannot listen on {address}: gRPC's port is in use") from None
        self.address = TcpAddress(address.host, number)
        self._incoming.port = number

    async def start(self) -> None:
        """Start accepting calls."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Stop accepting calls; finish open ones, aborting them after ``grace_s``."""
        self._health.end()
        self._streams.end()
        await self._server.stop(grace_s)

    def _handlers(self) -> Any:
        pages: dict[str, tuple[Callable[[Any], Any], Any]] = {
            "ServerLive": (lambda _: messages.ServerLiveResponse(live=True), messages.ServerLiveRequest),
            "ServerReady": (
                lambda _: messages.ServerReadyResponse(ready=not self._pages.reason()),
                messages.ServerReadyRequest,
            ),
            "ModelReady": (self._model_ready, messages.ModelReadyRequest),
            "ServerMetadata": (
                lambda _: messages.ServerMetadataResponse(**self._pages.server_metadata()),
                messages.ServerMetadataRequest,
            ),
            "ModelMetadata": (self._model_metadata, messages.ModelMetadataRequest),
            "ModelStatistics": (self._model_statistics, messages.ModelStatisticsRequest),
            "RepositoryIndex": (
                lambda request: messages.RepositoryIndexResponse(models=self._pages.triton_index(ready=request.ready)),
                messages.RepositoryIndexRequest,
            ),
            "RepositoryModelLoad": (self._load_nothing, messages.RepositoryModelLoadRequest),
            "RepositoryModelUnload": (self._load_nothing, messages.RepositoryModelUnloadRequest),
        }
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(
                self._page(answer, request.FromString, None if name in _OPEN else self._inference.access_control),
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (answer, request) in pages.items()
        }
        # A stream, so that the proxy reads the message itself, as bytes and with a timeout.
        handlers["ModelInfer"] = grpc.stream_unary_rpc_method_handler(self._infer)
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.method_handlers_generic_handler(GRPC_SERVICE, handlers)

    async def _infer(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        call = self._call(context, _PATH)
        head, headers = call.head, call.head.headers
        try:
            if (rejection := self._refusal(head, context)) is not None:
                response = self._inference.reject(self._route, rejection)
            else:
                try:
                    body = await self._read_whole(requests, context)
                except grpc.aio.AbortError:
                    call.status = RequestTimeout.status
                    raise
                response = await self._respond(call, body)
            call.status, call.bytes_out = response.status, response.size_bytes
            # The response's header lines become trailing metadata.
            trailers = [(name.decode(), value.decode("latin-1")) for name, value in response.headers()]
            trailers += [(name.decode(), headers[name].decode("latin-1")) for name in _ECHOED if name in headers]
            answer = b"".join(map(bytes, response.body))
            if response.status != 200:
                await context.abort(_code(response.status), answer.decode(errors="replace"), tuple(trailers))
            context.set_trailing_metadata(tuple(trailers))
            if len(answer) > LARGE_BYTES:
                release = self._count(context, len(answer))
                context.add_done_callback(lambda _: release())
            return answer
        finally:
            self._log(call)

    async def _read_whole(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Return the only message of a call; abort the call on a timeout."""
        message: bytes | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.process.body_timeout_s):
                message = await self._incoming.read(requests, context)
        if message is None:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request was not complete in time")
        return message or b""

    def _page(
        self, answer: Callable[[Any], Any], decode: Callable[[bytes], Any], access_control: AccessControl | None
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(requests: AsyncIterator[bytes], context: Any) -> Any:
            try:
                if access_control is not None:
                    access_control.reject_repeated_credentials(_metadata(context))
                    access_control.identify(_headers(context))
                message = await self._read_whole(requests, context)
                try:
                    request = decode(message)
                except DecodeError:
                    raise InvalidRequest("malformed message") from None
                return answer(request)
            except ProxyError as error:
                await context.abort(_code(error.status), error.message)

        return handle

    def _call(self, context: Any, path: bytes) -> GrpcCall:
        headers, log = _headers(context), self._inference.access_log
        client, _ = peer_address(context.peer())
        entry = None if log is None else log.begin(b"POST", path, GRPC.label, headers, client)
        return GrpcCall(RequestHead(self._route, headers, keep_alive=True), entry)

    def _log(self, call: GrpcCall) -> None:
        if call.entry is not None and self._inference.access_log is not None:
            self._inference.access_log.end(call.entry, call.status, call.bytes_out, call.pending, call.head.client)

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        head = RequestHead(self._route, _headers(context), keep_alive=True)
        if (rejection := self._refusal(head, context)) is not None:
            response = self._inference.reject(self._route, rejection)
            await context.abort(_code(response.status), rejection.message)
        await self._streams.serve(requests, context)

    async def _respond_in_stream(self, body: bytes, context: Any) -> HttpResponse:
        call = self._call(context, _STREAM_PATH)
        try:
            response = await self._respond(call, body)
            call.status, call.bytes_out = response.status, response.size_bytes
            return response
        finally:
            self._log(call)

    def _count(self, context: Any, size_bytes: int) -> Callable[[], None]:
        """Count a large response as unread.

        Returns: A function that ends the count.
        """
        if size_bytes <= LARGE_BYTES:
            return lambda: None
        slow = SlowCall(context.peer(), self.address.port, size_bytes)
        self._unsent.set_held_bytes(slow, size_bytes)
        return lambda: self._unsent.set_held_bytes(slow, 0)

    def _refusal(self, head: RequestHead, context: Any) -> ProxyError | None:
        """Check a call's metadata for repeated headers and for credentials.

        Returns: The error for the client; None if the call is accepted.
        """
        metadata = _metadata(context)
        if len(dict(metadata)) < len(metadata):
            try:
                check_repeated(metadata)
            except FramingError as error:
                return InvalidRequest(error.message)
        if self._inference.access_control is None:
            return None
        try:
            self._inference.access_control.reject_repeated_credentials(metadata)
        except ProxyError as error:
            return error
        return self._inference.authenticate(head)

    async def _respond(self, call: "GrpcCall", body: bytes) -> HttpResponse:
        """Queue a request and return its response.

        If the call is cancelled, its request is cancelled too.
        """
        answered: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()

        def deliver(given: HttpResponse) -> None:
            if not answered.done():
                answered.set_result(given)

        if call.entry is not None:
            call.entry.bytes_in = len(body)
        pending = call.pending = self._inference.start(call.head, body, deliver)
        try:
            return await answered
        except asyncio.CancelledError:
            if pending is not None:
                # The client disconnected, or gRPC's deadline passed.
                self._inference.cancel(pending)
            raise

    def _model_ready(self, request: messages.ModelReadyRequest) -> messages.ModelReadyResponse:
        self._codec.check_model(request.name, request.version)
        return messages.ModelReadyResponse(ready=not self._pages.reason())

    def _model_metadata(self, request: messages.ModelMetadataRequest) -> messages.ModelMetadataResponse:
        self._codec.check_model(request.name, request.version)
        return metadata_message(self._pages.model_metadata())

    def _model_statistics(self, request: messages.ModelStatisticsRequest) -> messages.ModelStatisticsResponse:
        if request.name:
            self._codec.check_model(request.name, request.version)
        return messages.ModelStatisticsResponse(**self._pages.triton_statistics())

    def _load_nothing(self, request: object) -> None:
        raise self._pages.loading_error()


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # grpcio-reflection has no types
    """gRPC's server reflection service."""

    def __init__(self, services: Sequence[str], incoming: IncomingMessages) -> None:
        super().__init__(services)
        self._incoming = incoming

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Yield descriptions of the served services (gRPC)."""
        async for response in super().ServerReflectionInfo(self._incoming.messages(requests, context), context):
            yield response


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return credentials that use the newest certificate for each handshake."""
    used: CertificateFiles | None = None

    def newest() -> Any:
        nonlocal used
        if used is certificate.pem:
            return None
        used = certificate.pem
        pair = [(used.key, used.certificate)]
        return grpc.ssl_server_certificate_configuration(pair, used.client_ca or None)

    return grpc.dynamic_ssl_server_credentials(newest(), newest, certificate.mutual)


def _options(settings: Settings) -> list[tuple[str, int]]:
    age_ms = int(settings.process.connection_age_s * 1000)
    return [
        # Otherwise two servers could share one port unnoticed.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", settings.queue.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", settings.process.max_head_bytes),
        ("grpc.server_handshake_timeout_ms", int(settings.process.head_timeout_s * 1000)),
        ("grpc.max_connection_idle_ms", int(settings.process.idle_timeout_s * 1000)),
        # A channel would stay at its first replica through scaling and rollouts. gRPC adds jitter, and finishes calls
        # in progress.
        *([("grpc.max_connection_age_ms", age_ms)] if age_ms else []),
    ]


def _code(status: int) -> grpc.StatusCode:
    return CODES.get(status, grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL)


def _metadata(context: Any) -> list[tuple[bytes, bytes]]:
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in context.invocation_metadata() or ()
    ]


def _headers(context: Any) -> dict[bytes, bytes]:
    """Return metadata as HTTP headers, with gRPC's deadline as the timeout."""
    headers = dict(_metadata(context))
    left_s = context.time_remaining()
    if left_s is not None and _TIMEOUT not in headers:
        headers[_TIMEOUT] = b"%.3f" % max(left_s * 1000, _MIN_TIMEOUT_MS)
    return headers
