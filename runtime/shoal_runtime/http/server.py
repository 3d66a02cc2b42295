"""HTTP server of the wire protocol, as a bare ASGI application.

No framework is used: a batch takes a few hundred microseconds, so the time for routing and response classes would
matter.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from shoal_runtime.codecs.metadata import SERVER_METADATA, model_metadata
from shoal_runtime.codecs.request import InferRequest, decode_request
from shoal_runtime.codecs.response import encode_error, encode_response
from shoal_runtime.errors import (
    BadRequest,
    BatchError,
    BodyTooLarge,
    DeviceLost,
    NotFound,
    NotReady,
    Stopping,
    WrongMethod,
)
from shoal_runtime.http.body import BODY
from shoal_runtime.item_log import ItemLog
from shoal_runtime.readiness import Readiness, RuntimePhase
from shoal_runtime.signature.tensors import Signature
from shoal_schema.interfaces import headers as names
from shoal_schema.interfaces.instances import FORWARD_TIMEOUT, MODEL_DIGEST, PRECISION
from shoal_schema.interfaces.metrics import DEVICE_MEMORY, PEAK_MEMORY
from shoal_schema.wire.body import ALIGNMENT_BYTES
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import encode_row_errors

if TYPE_CHECKING:
    from shoal_runtime.execution.pipeline import BatchResult
    from shoal_schema.wire.body import Body


Headers = tuple[tuple[bytes, bytes], ...]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_DIGITS: Final = 15
HEADER_LENGTH: Final = names.HEADER_LENGTH.encode()
EXECUTED: Final = names.EXECUTED.encode()
"""Header of every error: `no` if forward certainly did not begin with the batch's rows, else `maybe`."""
TIMEOUT_MS: Final = names.TIMEOUT_MS.encode()
BINARY: Final = (b"content-type", b"application/octet-stream")

logger = logging.getLogger(__name__)


class BatchRunner(Protocol):
    """Interface of `Pipeline` for the server; `Pipeline` itself is imported later, with torch."""

    signature: Signature

    async def run(self, inputs: Mapping[str, Array], rows: int, *, deadline_s: float | None = None) -> "BatchResult":
        """Run one batch by `deadline_s`, in monotonic seconds."""


class ServedModel:
    """Model that the server serves.

    ``measured`` holds rows and seconds of warm-up forwards. ``memory`` returns used, total and own bytes of the device;
    ``peak_memory`` the largest memory of the process (bytes). ``precision`` was chosen by measurement, or is empty.
    ``digest`` is that of the model's files if several instances serve it, or empty. ``forward_timeout_s`` is the limit
    that the model declares, or None.
    """

    __slots__ = (
        "digest",
        "forward_timeout_s",
        "measured",
        "memory",
        "name",
        "peak_memory",
        "pipeline",
        "platform",
        "precision",
        "version",
    )

    def __init__(  # noqa: PLR0913 (the last have defaults)
        self,
        name: str,
        version: str,
        platform: str,
        pipeline: BatchRunner,
        measured: Sequence[tuple[int, float]] = (),
        memory: Callable[[], tuple[int, int, int] | None] = lambda: None,
        *,
        peak_memory: Callable[[], int] = lambda: 0,
        precision: str = "",
        digest: str = "",
        forward_timeout_s: float | None = None,
    ) -> None:
        self.forward_timeout_s = forward_timeout_s
        self.digest = digest
        self.name = name
        self.version = version
        self.platform = platform
        self.pipeline = pipeline
        self.measured = measured
        self.memory = memory
        self.peak_memory = peak_memory
        self.precision = precision


class HttpResponse:
    """HTTP response; `head_of` adds ``content-length`` and the content type of JSON."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers


class App:
    """ASGI application of the runtime; ``readiness`` determines the health responses.

    A connection that has read the body of a batch calls `infer` directly, without ASGI.
    """

    def __init__(self, readiness: Readiness, *, max_body_bytes: int) -> None:
        self._readiness = readiness
        self.max_body_bytes = max_body_bytes
        self._model: ServedModel | None = None
        self._infer_paths: frozenset[str] = frozenset()
        self.infer_targets: frozenset[bytes] = frozenset()
        """Request targets of `infer`, as bytes of a request line."""
        self._item_log = ItemLog()

    def serve(self, model: ServedModel) -> None:
        """Set the model to serve."""
        base = f"/v2/models/{model.name}"
        self._model = model
        self._infer_paths = frozenset((f"{base}/infer", f"{base}/versions/{model.version}/infer"))
        self.infer_targets = frozenset([path.encode() for path in self._infer_paths])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request through ASGI."""
        if scope["type"] != "http":
            return
        try:
            if scope["path"] in self._infer_paths and scope["method"] == "POST":
                response = await self._read_and_run(scope, receive)
            else:
                response = self._route(scope)
        except Exception as error:
            response = _failure(error, scope["path"])
        await send({"type": "http.response.start", "status": response.status, "headers": head_of(response)})
        await send({"type": "http.response.body", "body": response.body})

    async def infer(
        self, headers: Mapping[bytes, bytes], body: bytes | memoryview, arrived_s: float, target: str
    ) -> HttpResponse:
        """Serve an infer request whose body is complete.

        In a body of type memoryview, the tensors are aligned, so that they can be used in place.
        """
        try:
            return await self._run(headers, body, arrived_s)
        except Exception as error:
            return _failure(error, target)

    async def _read_and_run(self, scope: Scope, receive: Receive) -> HttpResponse:
        arrived_s = time.monotonic()
        self._require_model()
        headers = dict(scope["headers"])
        large: Body | None = scope.get(BODY)
        if large is None:
            limit_bytes = self.max_body_bytes
            too_large = f"the body exceeds {limit_bytes} bytes"
            if (_whole_number(headers, b"content-length") or 0) > limit_bytes:
                raise BodyTooLarge(too_large)
            chunks: list[bytes] = []
            size_bytes = 0
            more = True
            while more:
                message = await _received(receive)
                chunk = message.get("body", b"")
                chunks.append(chunk)
                size_bytes += len(chunk)
                if size_bytes > limit_bytes:
                    raise BodyTooLarge(too_large)
                more = message.get("more_body", False)
            body: bytes | memoryview = b"".join(chunks)
        else:
            while not large.complete:  # the connection fills it
                await _received(receive)
            body = large.view
        return await self._run(headers, body, arrived_s)

    async def _run(self, headers: Mapping[bytes, bytes], body: bytes | memoryview, arrived_s: float) -> HttpResponse:
        model = self._require_model()
        json_bytes = _whole_number(headers, HEADER_LENGTH)
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise BadRequest("compressed bodies are not supported")
        if isinstance(body, memoryview):
            view = body
        else:
            # Copied to writable memory, with the bytes after the JSON aligned, so that tensors are used in place.
            lead = -(json_bytes or 0) % ALIGNMENT_BYTES
            buffer = bytearray(lead)
            buffer += body
            view = memoryview(buffer)[lead:]
        signature = model.pipeline.signature
        request = decode_request(view, len(view) if json_bytes is None else json_bytes, signature)
        timeout_ms = _whole_number(headers, TIMEOUT_MS, clamp=True)
        deadline_s = None if timeout_ms is None else arrived_s + timeout_ms / 1000
        executed = False
        try:
            result = await model.pipeline.run(request.inputs, request.rows, deadline_s=deadline_s)
            executed = True
            if result.errors:
                self._item_log.add(result.errors, request.parameters, time.monotonic())
            return _encoded(request, model, result)
        except BatchError as error:
            # Encoding may fail after the forward has run.
            error.executed = executed or error.executed
            self._item_log.add_batch(error, request, time.monotonic())
            raise

    def _require_model(self) -> ServedModel:
        phase = self._readiness.phase
        # Checked for each request, since the state changes in other threads.
        if phase is RuntimePhase.LOST:
            raise DeviceLost(self._readiness.reason, executed=False)
        if phase is RuntimePhase.STOPPING:
            raise Stopping("the runtime is stopping")
        if self._model is None or phase is not RuntimePhase.READY:
            raise NotReady(self._readiness.reason)
        return self._model

    def _route(self, scope: Scope) -> HttpResponse:
        path, method = scope["path"], scope["method"]
        parts = [part for part in path.split("/") if part]
        if parts[:1] != ["v2"]:
            raise NotFound(f"the path {path} does not exist; paths start with /v2")
        # Infer paths of the served model were handled before; these have a wrong method or model.
        if parts[-1] == "infer":
            self._require_model()
            self._check_model(parts[:-1])
            raise WrongMethod("infer accepts only POST")
        if method not in ("GET", "HEAD"):
            raise WrongMethod(f"{path} accepts only GET")
        if parts == ["v2"]:
            return _json(SERVER_METADATA)
        if parts == ["v2", "health", "live"]:
            lost = self._readiness.phase is RuntimePhase.LOST
            return _json({"live": False, "reason": self._readiness.reason}, 503) if lost else _json({"live": True})
        if parts == ["v2", "health", "ready"]:
            return self._ready()
        if parts[-1] == "ready":
            self._check_model(parts[:-1])
            return self._ready()
        self._check_model(parts)
        model = self._require_model()
        signature = model.pipeline.signature
        return _json(
            model_metadata(
                model.name, model.version, model.platform, signature, model.measured, precision=model.precision
            )
        )

    def _check_model(self, parts: list[str]) -> None:
        """Reject a path v2/models/NAME[/versions/VERSION] that does not name the loaded model."""
        if parts[:2] != ["v2", "models"] or not (len(parts) == 3 or (len(parts) == 5 and parts[3] == "versions")):
            raise NotFound(f"the path /{'/'.join(parts)} does not exist")
        name, version, model = parts[2], parts[4] if len(parts) == 5 else None, self._model
        if model is None:
            return
        if name != model.name:
            raise NotFound(f"the model {name} does not exist; this runtime serves {model.name}")
        if version not in (None, model.version):
            raise NotFound(f"model {name} has no version {version}; it has {model.version}")

    def _ready(self) -> HttpResponse:
        if self._readiness.phase is not RuntimePhase.READY:
            return _json({"ready": False, "reason": self._readiness.reason}, 503)
        found: dict[str, Any] = {"ready": True}
        if (model := self._model) is not None:
            if (memory := model.memory()) is not None:
                found[DEVICE_MEMORY] = memory
            if peak_bytes := model.peak_memory():
                found[PEAK_MEMORY] = peak_bytes
            if model.precision:
                found[PRECISION] = model.precision
            if model.digest:
                found[MODEL_DIGEST] = model.digest
            if model.forward_timeout_s is not None:
                found[FORWARD_TIMEOUT] = model.forward_timeout_s
        return _json(found)


def _whole_number(headers: Mapping[bytes, bytes], name: bytes, *, clamp: bool = False) -> int | None:
    """Return the integer in a header, or None without this header.

    With ``clamp``, a number that is too large becomes the maximum, so that one client's timeout does not fail a batch.
    """
    text = headers.get(name)
    if text is None:
        return None
    if not text.isdigit() or (len(text) > MAX_DIGITS and not clamp):
        raise BadRequest(f"{name.decode()} must be an integer, not {text[:40].decode('latin-1')!r}")
    return int(text) if len(text) <= MAX_DIGITS else 10**MAX_DIGITS - 1


async def _received(receive: Receive) -> MutableMapping[str, Any]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise BadRequest("the client disconnected before the body was complete")
    return message


def _encoded(request: InferRequest, model: ServedModel, result: "BatchResult") -> HttpResponse:
    timings = result.timings
    parameters: dict[str, Any] = {
        "queue_us": timings.queue_us,
        "preprocess_us": timings.preprocess_us,
        "forward_us": timings.forward_us,
        "postprocess_us": timings.postprocess_us,
        "padded_rows": result.padded_rows,
    }
    if result.errors:
        parameters["errors"] = orjson.dumps(encode_row_errors([failed.row_error for failed in result.errors])).decode()
    names = {"model_name": model.name, "model_version": model.version}
    json_bytes, body = encode_response(request, names, result.outputs, parameters)
    if json_bytes is None:
        return HttpResponse(200, body)
    return HttpResponse(200, body, (BINARY, (HEADER_LENGTH, b"%d" % json_bytes)))


def _failure(error: Exception, target: str) -> HttpResponse:
    """Return the error response for an exception."""
    if not isinstance(error, BatchError):
        logger.error("event=request_failed_inside_the_runtime path=%s", target, exc_info=error)
        failed = encode_error("the runtime failed; its log has the reason", "FORWARD_FAILED")
        return HttpResponse(500, failed, ((EXECUTED, b"maybe"),))
    executed = (EXECUTED, b"maybe" if error.executed else b"no")
    # Unread bytes of a body that is too large would be parsed as the next request.
    headers = (executed, (b"connection", b"close")) if isinstance(error, BodyTooLarge) else (executed,)
    return HttpResponse(error.status, encode_error(str(error), error.code), headers)


def _json(document: Mapping[str, Any], status: int = 200) -> HttpResponse:
    return HttpResponse(status, orjson.dumps(document))


def head_of(response: HttpResponse) -> list[tuple[bytes, bytes]]:
    """Return all headers of a response, including content length and type."""
    headers = [(b"content-length", b"%d" % len(response.body)), *response.headers]
    if BINARY not in response.headers:
        headers.append((b"content-type", b"application/json"))
    return headers
