"""Client of a step's model: encodes calls, and interprets responses."""

import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from shoal_proxy.codecs.tensors import tensor_entry
from shoal_proxy.codecs.upstream import check_json, decode_failure, decode_result, decode_rows_failed
from shoal_proxy.dispatch.runtime_connection import ResponseMemory, RuntimeResponse
from shoal_proxy.dispatch.upstream import Upstream
from shoal_proxy.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    NotExecuted,
    Overloaded,
    ProxyError,
    RowsFailed,
    RuntimeUnavailable,
    StepFailed,
)
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.fields.addresses import parse_origin
from shoal_schema.interfaces.headers import EXECUTED, HEADER_LENGTH, TIMEOUT_MS
from shoal_schema.resource.graph import StepSpec
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.row_errors import RowError

_TIMEOUT_MS, _EXECUTED, _HEADER_LENGTH = TIMEOUT_MS.encode(), EXECUTED.encode(), HEADER_LENGTH.encode()
_LATE_S = 1.0
"""Wait for a response after the deadline: the model's own proxy reports the late request by then."""
_EARLY_S = 0.01
"""Least time by which the model's deadline is before the client's."""
_MODELS = "/v2/models/"


class CallContext:
    """Deadline, headers and response memory that a request's steps share."""

    __slots__ = ("_ended", "_held_bytes", "_room", "deadline_s", "headers", "parameters")

    def __init__(
        self, deadline_s: float, headers: Sequence[tuple[bytes, bytes]], parameters: bytes, room: ResponseMemory
    ) -> None:
        self.deadline_s = deadline_s
        """The client's deadline, in monotonic seconds."""
        self.headers = headers
        self.parameters = parameters
        """Parameters of the request, as JSON; empty for none."""
        self._room = room
        self._held_bytes = 0
        self._ended = False

    def hold(self, size_bytes: int) -> None:
        """Reserve memory for a response until the request ends.

        Raises:
            Overloaded: there is not enough memory.
            DeadlineExceeded: the request has ended already, and would not release the memory.
        """
        if self._ended:
            raise DeadlineExceeded("the request has ended")
        self._held_bytes += size_bytes
        self._room.used_bytes += size_bytes
        if self._room.used_bytes > self._room.most_bytes:
            raise self._room.rejection(self._held_bytes)

    def end(self) -> None:
        """Release all memory that `hold` has reserved."""
        self._ended = True
        self._room.used_bytes -= self._held_bytes
        self._held_bytes = 0


class StepClient:
    """The client that calls one step's model."""

    def __init__(self, spec: StepSpec, used: Sequence[str], room: ResponseMemory) -> None:
        assert spec.url is not None
        base, _, model = spec.url.rpartition(_MODELS)
        origin = parse_origin(base)
        self.name = spec.name
        self.url = spec.url
        self.upstream = Upstream(
            origin.address,
            model,
            on_lost=lambda: None,  # each request gets the error of its own connection
            tls=ssl.create_default_context() if origin.secure else None,
            room=room,
        )
        self.signature: ModelSignature | None = None
        self.binary = True
        self.used = tuple(used)
        """The outputs that the graph uses; no others are requested."""

    async def call(self, inputs: Mapping[str, Array], rows: int, context: CallContext) -> Mapping[str, Array]:
        """Return the model's outputs for ``rows`` rows.

        Args:
            inputs: arrays by name, with rows in the first dimension.
            rows: number of rows of each array.
            context: deadline, headers and memory limit of the request.

        Raises:
            RowsFailed: single rows failed.
            StepFailed: the model failed, or rejected the call.
            DeadlineExceeded: the deadline passed before the call or during the call.
        """
        assert self.signature is not None
        try:
            header, tail = self._encoded(inputs, self.signature, context.parameters)
            response: RuntimeResponse | None
            try:
                response = await self._sent(header, tail, context)
            except NotExecuted:  # nothing was sent: another connection may lead to another replica
                response = None
            if response is None:  # compiled code must not await in `except`
                response = await self._sent(header, tail, context)
            context.hold(len(response.body))
        except TimeoutError:
            late = DeadlineExceeded(f"step {self.name}: the model did not respond before the deadline")
            late.may_have_run = True
            raise late from None
        except (InvalidRequest, ModelFailed, Overloaded, RuntimeUnavailable) as error:
            raise StepFailed(self.name, error) from None
        if response.status != 200:
            raise self._failure(response, rows)
        return self._decoded(response, rows, self.signature)

    async def _sent(self, header: bytes, tail: list[bytes | memoryview], context: CallContext) -> RuntimeResponse:
        left_s = context.deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(f"step {self.name}: the deadline passed before the call")
        # Before the client's deadline, so that the model's own error arrives in time.
        timeout = (_TIMEOUT_MS, b"%d" % max(1, int(1000 * max(0.9 * left_s, left_s - _EARLY_S))))
        return await self.upstream.infer(header, tail, [*context.headers, timeout], context.deadline_s + _LATE_S)

    def _encoded(
        self, inputs: Mapping[str, Array], signature: ModelSignature, parameters: bytes
    ) -> tuple[bytes, list[bytes | memoryview]]:
        """Return the request body: a JSON header, followed by the binary tensors."""
        if not self.binary:
            check_json(inputs, signature)
        tail: list[bytes | memoryview] = []
        into = tail if self.binary else None
        asked = {"parameters": {"binary_data": True}} if self.binary else {}
        document: dict[str, Any] = {
            "inputs": [
                tensor_entry(signature.inputs[name], array, into, words=bytes.decode) for name, array in inputs.items()
            ],
            "outputs": [{"name": name, **asked} for name in self.used],
        }
        if parameters:
            document["parameters"] = orjson.loads(parameters)
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY), tail

    def _decoded(self, response: RuntimeResponse, rows: int, signature: ModelSignature) -> Mapping[str, Array]:
        """Return the outputs in a successful response."""
        try:
            result = decode_result(response.body, response.headers.get(_HEADER_LENGTH), signature)
        except ProxyError as error:
            raise StepFailed(self.name, error) from None
        for name in self.used:
            array, spec, wrong = result.outputs.get(name), signature.outputs[name], ""
            if array is None:
                wrong = "no"
            elif array.dtype != DTYPES[spec.datatype]:
                wrong = f"{array.dtype} as"
            else:
                sizes = zip((rows, *spec.shape[1:]), array.shape, strict=False)
                if array.ndim != len(spec.shape) or any(want not in (-1, size) for want, size in sizes):
                    wrong = f"the shape {array.shape} as"
            if wrong:
                # The model may have changed: the link requests its metadata again.
                unfit = StepFailed(self.name, ModelFailed(f"the model returned {wrong} {name!r} for {rows} rows"))
                unfit.unfit = True
                raise unfit
        return {name: result.outputs[name] for name in self.used}

    def _failure(self, response: RuntimeResponse, rows: int) -> ProxyError:
        """Convert an unsuccessful response to an error."""
        error = decode_failure(response.status, response.body, response.headers.get(_EXECUTED))
        failed = decode_rows_failed(response.body)
        if failed is not None and all(each.row < rows for each in failed.errors):
            return failed
        # The only row of a call is to blame for it.
        if isinstance(error, InvalidRequest) and rows == 1:
            return RowsFailed([RowError(0, error.status, error.message)])
        after_s = response.headers.get(b"retry-after", b"")
        retry_after_s = min(int(after_s), 3600) if after_s.isdigit() else None
        return StepFailed(self.name, error, response.status, retry_after_s)
