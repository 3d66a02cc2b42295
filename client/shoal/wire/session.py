"""The conversation with one server, without its I/O.

Each method is a generator: it yields a :class:`Request` to send and takes its :class:`Response`,
or yields a :class:`Pause` to sleep through, and returns the result. A client of either kind
(blocking, asyncio) only drives it.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from shoal.errors import NotFound, Overloaded, ServerFailed
from shoal.wire.answers import json_answer, many_answers, one_answer, raise_for_status
from shoal.wire.items import Items, many_items, one_item
from shoal.wire.messages import Request, Response
from shoal.wire.requests import infer_request, model_path
from shoal.wire.signature import Signature, parse_signature

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long before the conversation goes on."""

    seconds: float


Conversation = Generator[Request | Pause, Response | None, Result]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What one call may choose: see :meth:`shoal.Client.predict`."""

    timeout_s: float
    request_id: str | None = None
    retries: int = 0

    def headers(self) -> dict[str, str]:
        """Return the options that the server wants to know, as headers."""
        headers = {"x-request-timeout-ms": str(max(1, round(self.timeout_s * 1000)))}
        return headers | ({"x-request-id": self.request_id} if self.request_id else {})


class Session:
    """What is known about a server: the model's name and signature, asked for once and kept."""

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._signature: Signature | None = None

    def predict(self, item: Any, options: CallOptions) -> Conversation[Any]:
        """Ask for one item."""
        signature = self._signature or (yield from self.signature(options))
        request = infer_request(signature.name, signature, one_item(item, signature), options.headers())
        response = yield from _persistent(request, options)
        return one_answer(response, signature)

    def predict_batch(self, items: Items, options: CallOptions) -> Conversation[Any]:
        """Ask for several items in one call."""
        signature = self._signature or (yield from self.signature(options))
        request = infer_request(signature.name, signature, many_items(items, signature), options.headers())
        response = yield from _persistent(request, options)
        return many_answers(response, signature, len(items))

    def signature(self, options: CallOptions) -> Conversation[Signature]:
        """Ask for the model's signature, known or not."""
        model = self._model or (yield from _only_model(options))
        answer = json_answer((yield from _persistent(Request("GET", model_path(model)), options)))
        try:
            # The name that was asked for is the one that the other routes know.
            signature = replace(parse_signature(answer), name=model)
        except ValueError as error:
            raise ServerFailed(str(error), status=200) from error
        self._model, self._signature = model, signature
        return signature

    def ready(self) -> Conversation[bool]:
        """Ask whether the server can answer predictions."""
        response = yield from _exchange(Request("GET", "/v2/health/ready"))
        return response.status == 200


def _only_model(options: CallOptions) -> Conversation[str]:
    response = yield from _persistent(Request("GET", "/v1/models"), options)
    if response.status == 404:
        raise NotFound("the server does not list its models: say which with model=...", status=404)
    answer = json_answer(response)
    models = answer.get("models") if isinstance(answer, Mapping) else None
    if not isinstance(models, list) or not models:
        raise ServerFailed("the server lists no model: say which with model=...", status=200)
    if len(models) > 1:
        names = ", ".join(map(str, models))
        raise NotFound(f"the server has several models: say which with model=... ({names})")
    return str(models[0])


def _persistent(request: Request, options: CallOptions) -> Conversation[Response]:
    """Send a request; send it again while the server is overloaded, within the caller's patience.

    The pauses are the server's own ``Retry-After``; none is begun that would outlast ``timeout_s``.
    """
    paused_s = 0.0
    for _ in range(options.retries):
        response = yield from _exchange(request)
        try:
            raise_for_status(response)
        except Overloaded as error:
            paused_s += error.retry_after_s
            if paused_s > options.timeout_s:
                raise
            yield Pause(error.retry_after_s)
        else:
            return response
    return (yield from _exchange(request))


def _exchange(request: Request) -> Conversation[Response]:
    response = yield request
    if response is None:
        raise TypeError("a Request must be answered with a Response")
    return response
