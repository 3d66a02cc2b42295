"""Asking the model of one step: what is sent, and what its answers mean to the graph's caller."""

import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from shoal_proxy.codecs.tensors import tensor_entry
from shoal_proxy.codecs.upstream import check_json, decode_answer, decode_failure, decode_rows_failed
from shoal_proxy.connection import Response, Room
from shoal_proxy.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelFailed,
    NotExecuted,
    Overloaded,
    ProxyError,
    RowsFailed,
    RuntimeAway,
    StepFailed,
)
from shoal_proxy.model.signature import ModelSignature, OutputSpec
from shoal_proxy.upstream import Upstream
from shoal_schema.addresses import parse_origin
from shoal_schema.headers import EXECUTED, HEADER_LENGTH, TIMEOUT_MS
from shoal_schema.resource.graph import StepSpec
from shoal_schema.wire.datatypes import DTYPES, Array
from shoal_schema.wire.row_errors import RowError

_TIMEOUT_MS, _EXECUTED, _HEADER_LENGTH = TIMEOUT_MS.encode(), EXECUTED.encode(), HEADER_LENGTH.encode()
_LATE_S = 1.0
"""How long after the deadline an answer is still waited for: the model's own proxy says so by then."""
_EARLY_S = 0.01
_MODELS = "/v2/models/"


class Asked:
    """What a caller asks for beside its rows, which every step is told; and the room that their answers take."""

    __slots__ = ("_ended", "_held_bytes", "_room", "deadline_s", "headers", "parameters")

    def __init__(
        self, deadline_s: float, headers: Sequence[tuple[bytes, bytes]], parameters: bytes, room: Room
    ) -> None:
        self.deadline_s = deadline_s
        """When the caller stops waiting, in monotonic seconds."""
        self.headers = headers
        self.parameters = parameters
        """Of the request, as JSON; empty: none."""
        self._room = room
        self._held_bytes = 0
        self._ended = False

    def hold(self, size_bytes: int) -> None:
        """Take room for an answer until the request ends.

        Raises:
            Overloaded: there is none.
            DeadlineExceeded: the request has ended, and nobody would give it back.
        """
        if self._ended:
            raise DeadlineExceeded("the request has ended")
        self._held_bytes += size_bytes
        self._room.taken_bytes += size_bytes
        if self._room.taken_bytes > self._room.most_bytes:
            raise self._room.refusal(self._held_bytes)

    def end(self) -> None:
        """Give back the room."""
        self._ended = True
        self._room.taken_bytes -= self._held_bytes
        self._held_bytes = 0


class StepClient:
    """The model of one step, wherever it is served."""

    def __init__(self, spec: StepSpec, used: Sequence[str], room: Room) -> None:
        assert spec.url is not None
        base, _, model = spec.url.rpartition(_MODELS)
        origin = parse_origin(base)
        self.name = spec.name
        self.url = spec.url
        self.upstream = Upstream(
            origin.address,
            model,
            on_lost=_nothing,
            tls=ssl.create_default_context() if origin.secure else None,
            room=room,
        )
        self.signature: ModelSignature | None = None
        self.binary = True
        self.used = tuple(used)
        """The outputs that the graph makes something of: no others are asked for."""

    async def ask(self, inputs: Mapping[str, Array], rows: int, terms: Asked) -> Mapping[str, Array]:
        """Return the answers to so many rows.

        Args:
            inputs: by name, canonical arrays.
            rows: how many there are.
            terms: what the caller asks for beside them.

        Raises:
            RowsFailed: some rows failed on their own.
            StepFailed: the model failed, or refused.
            DeadlineExceeded: there is no time left, or the answer did not come in time.
        """
        assert self.signature is not None
        try:
            header, tail = self._encoded(inputs, self.signature, terms.parameters)
            response = await self._sent_once(header, tail, terms)
            if response is None:  # another connection may lead to another replica
                response = await self._sent(header, tail, terms)
            terms.hold(len(response.body))
        except TimeoutError:
            late = DeadlineExceeded(f"step {self.name}: the model did not answer in time")
            late.may_have_run = True
            raise late from None
        except (InvalidRequest, ModelFailed, Overloaded, RuntimeAway) as error:
            raise StepFailed(self.name, error) from None
        if response.status != 200:
            raise self._failure(response, rows)
        return self._decoded(response, rows, self.signature)

    async def _sent_once(self, header: bytes, tail: list[bytes | memoryview], terms: Asked) -> Response | None:
        """Return the answer; None where nothing was sent."""
        try:
            return await self._sent(header, tail, terms)
        except NotExecuted:
            return None

    async def _sent(self, header: bytes, tail: list[bytes | memoryview], terms: Asked) -> Response:
        left_s = terms.deadline_s - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(f"step {self.name}: the deadline passed before it")
        # Earlier than our own end, so that its word on where the time went comes before that.
        timeout = (_TIMEOUT_MS, b"%d" % max(1, int(1000 * max(0.9 * left_s, left_s - _EARLY_S))))
        return await self.upstream.infer(header, tail, [*terms.headers, timeout], terms.deadline_s + _LATE_S)

    def _encoded(
        self, inputs: Mapping[str, Array], signature: ModelSignature, parameters: bytes
    ) -> tuple[bytes, list[bytes | memoryview]]:
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

    def _decoded(self, response: Response, rows: int, signature: ModelSignature) -> Mapping[str, Array]:
        try:
            result = decode_answer(response.body, response.headers.get(_HEADER_LENGTH), signature)
        except ProxyError as error:
            raise StepFailed(self.name, error) from None
        for name in self.used:
            wrong = _wrong(result.outputs.get(name), signature.outputs[name], rows)
            if wrong:
                what = ModelFailed(f"its answer holds {wrong} {name!r} for {rows} rows")
                unfit = StepFailed(self.name, what)
                unfit.unfit = True
                raise unfit
        return {name: result.outputs[name] for name in self.used}

    def _failure(self, response: Response, rows: int) -> ProxyError:
        error = decode_failure(response.status, response.body, response.headers.get(_EXECUTED))
        failed = decode_rows_failed(response.body)
        if failed is not None and all(each.row < rows for each in failed.errors):
            return failed
        if isinstance(error, InvalidRequest) and rows == 1:
            return RowsFailed([RowError(0, error.status, error.message)])
        return StepFailed(self.name, error, response.status, _retry_after_s(response))


def _wrong(array: Array | None, spec: OutputSpec, rows: int) -> str:
    """Return what an answer holds in the place of an output; empty where it is that output."""
    if array is None:
        return "no"
    if array.dtype != DTYPES[spec.datatype]:
        return f"{array.dtype} as"
    sizes = zip((rows, *spec.shape[1:]), array.shape, strict=False)
    fits = array.ndim == len(spec.shape) and all(want in (-1, size) for want, size in sizes)
    return "" if fits else f"the shape {array.shape} as"


def _retry_after_s(response: Response) -> int | None:
    given = response.headers.get(b"retry-after", b"")
    return min(int(given), 3600) if given.isdigit() else None


def _nothing() -> None:
    """A step's connections come and go; each request says what came of its own."""
