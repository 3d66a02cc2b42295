"""The conversation with one server, without its I/O.

Each method is a generator: it yields a :class:`Request` to send or a :class:`Pause` to sleep through, takes a
:class:`Turn` (the :class:`Response` or the error instead, and the time that is left), and returns the result. A client
of either kind (blocking, asyncio) only drives it.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self, TypeVar

from shoal.errors import NotFound, ServerFailed, ShoalError
from shoal.wire.answers import error_of, json_answer, many_answers, one_answer
from shoal.wire.frames import Rows, unframed, unframed_item
from shoal.wire.items import Items, check_countable, one_item
from shoal.wire.messages import Request, Response, infer_request, model_path
from shoal.wire.portions import Portion, Portions, Times
from shoal.wire.retrying import may_retry, pause_s
from shoal.wire.signature import Signature, parse_signature
from shoal_schema.headers import REQUEST_ID, TIMEOUT_MS

Result = TypeVar("Result")

ANSWER_MARGIN_S = 0.25
SAY_WHICH = "say which with model=... (`--model` on the command line)"


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait this long before the conversation goes on."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """The outcome of a step, None of a pause, and how much of the call's time is left (s)."""

    outcome: Response | ShoalError | None
    left_s: float


Conversation = Generator[Request | Pause, Turn | None, Result]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What one call may choose: see :meth:`shoal.Client.predict`."""

    timeout_s: float
    request_id: str | None = None
    retries: int = 0
    retry_executed: bool = False

    def but(self, **chosen: Any) -> Self:
        """Return these options with what a call has ``chosen``, None being no choice."""
        given = {name: value for name, value in chosen.items() if value is not None}
        return replace(self, **given) if given else self

    def headers(self) -> dict[str, str]:
        """Return the options that the server wants to know, as headers; what is left of the time comes on top."""
        return {REQUEST_ID: self.request_id} if self.request_id else {}


class Call:
    """One call under way: its options, and how much of its time is left (s)."""

    def __init__(self, options: CallOptions) -> None:
        self.options = options
        self.left_s = options.timeout_s

    def step(self, step: Request | Pause) -> Conversation[Response | ShoalError | None]:
        """Take a step and return what came of it."""
        turn = yield step
        if turn is None:
            raise TypeError("a step must be answered with a Turn")
        self.left_s = turn.left_s
        return turn.outcome


class Session:
    """What is known about a server: the model's name and signature, asked for once and kept.

    Args:
        model: its name, if the caller knows it.
        jitter: 0 to 1, at random.
        plain: replaces files in an item by what they hold; the core itself reads none.
    """

    def __init__(
        self,
        model: str | None,
        jitter: Callable[[], float] = lambda: 0.0,
        plain: Callable[[Any], Any] = lambda item: item,
    ) -> None:
        self._plain = plain
        self._model = model
        self._jitter = jitter
        self._signature: Signature | None = None

    def predict(self, item: Any, options: CallOptions) -> Conversation[Any]:
        """Ask for one item."""
        call = Call(options)
        signature = self._signature or (yield from self._ask_signature(call))
        tensors = one_item(self._plain(unframed_item(item, signature)), signature)
        request = infer_request(signature.name, signature, tensors, options.headers())
        response = yield from self._persistent(request, call)
        return one_answer(response, signature)

    def portions(self, items: Items, times: Times, options: CallOptions) -> Conversation[Portions]:
        """Say in which portions several items go out."""
        signature = self._signature or (yield from self._ask_signature(Call(options)))
        unfolded = unframed(items, signature)
        check_countable(unfolded, signature)
        return Portions(Rows(unfolded, self._plain), signature, times, self._jitter())

    def predict_portion(self, portion: Portion, signature: Signature, options: CallOptions) -> Conversation[Any]:
        """Ask for the rows of one portion."""
        request = infer_request(signature.name, signature, portion.tensors, options.headers())
        response = yield from self._persistent(request, Call(options))
        return many_answers(response, signature, portion.rows)

    def signature(self, options: CallOptions) -> Conversation[Signature]:
        """Ask for the model's signature, known or not."""
        return (yield from self._ask_signature(Call(options)))

    def ready(self, options: CallOptions) -> Conversation[bool]:
        """Ask whether the server can answer predictions."""
        outcome = yield from Call(options).step(Request("GET", "/v2/health/ready"))
        return _response(outcome).status == 200

    def _ask_signature(self, call: Call) -> Conversation[Signature]:
        model = self._model or (yield from self._only_model(call))
        answer = json_answer((yield from self._persistent(Request("GET", model_path(model)), call)))
        try:
            # The name that was asked for is the one that the other routes know.
            signature = replace(parse_signature(answer), name=model)
        except ValueError as error:
            raise ServerFailed(str(error), status=200) from error
        self._model, self._signature = model, signature
        return signature

    def _only_model(self, call: Call) -> Conversation[str]:
        response = yield from self._persistent(Request("GET", "/v1/models"), call)
        if response.status == 404:
            raise NotFound(
                "/v1/models: not found. Is this the admin port (9090), or is something after the host in the URL? Of a"
                f" server that does not list its models, {SAY_WHICH}",
                status=404,
            )
        answer = json_answer(response)
        models = answer.get("models") if isinstance(answer, Mapping) else None
        if not isinstance(models, list) or not models:
            raise ServerFailed(f"the server lists no model: {SAY_WHICH}", status=200)
        if len(models) > 1:
            names = ", ".join(map(str, models))
            raise NotFound(f"the server has several models: {SAY_WHICH} ({names})")
        return str(models[0])

    def _persistent(self, request: Request, call: Call) -> Conversation[Response]:
        """Send a request, and again as long as it may be and the call's patience lasts.

        No pause is begun that would outlast ``timeout_s``.
        """
        options = call.options
        repeatable = options.retry_executed or request.method == "GET"
        for attempt in count():
            outcome = yield from call.step(_timed(request, call.left_s))
            error = error_of(outcome) if isinstance(outcome, Response) else outcome
            if error is None or attempt >= options.retries or not may_retry(error, repeatable=repeatable):
                break
            wait_s = pause_s(error, attempt, self._jitter())
            if wait_s >= call.left_s:
                break
            yield from call.step(Pause(wait_s))
        return _response(outcome)


def _timed(request: Request, left_s: float) -> Request:
    """Tell the server how long it has, a little less than we wait, so that its own sentence is heard."""
    if request.method == "GET":
        return request
    timeout_ms = max(1, round(1000 * (left_s - min(ANSWER_MARGIN_S, left_s / 10))))
    return replace(request, headers={**request.headers, TIMEOUT_MS: str(timeout_ms)})


def _response(outcome: Response | ShoalError | None) -> Response:
    if isinstance(outcome, Response):
        return outcome
    raise outcome or TypeError("a Request must be answered with a Response")
