"""The client's protocol with one server, without I/O.

Each method is a generator: it yields a :class:`Request` to send or a :class:`Pause` to sleep, receives a
:class:`StepResult` (the :class:`Response` or the error, and the remaining time), and returns the result. The blocking
and the asyncio client drive the same generators.
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Self, TypeVar

from shoal.errors import DeadlineExceeded, NotFound, ServerFailed, ShoalError
from shoal.wire.frames import Rows, row_of_frame, rows_of_frame
from shoal.wire.items import Items, check_countable, encode_item
from shoal.wire.messages import Request, Response, infer_request, model_path, result_path
from shoal.wire.portions import Portion, Portions, Times
from shoal.wire.responses import (
    ACCEPTED,
    NO_CONTENT,
    accepted_id,
    batch_result,
    error_from,
    json_body,
    raise_for_status,
    retry_after_s,
    single_result,
)
from shoal.wire.retrying import may_retry, pause_s
from shoal.wire.signature import Signature, parse_signature
from shoal_schema.interfaces.headers import CALLBACK, REQUEST_ID, TIMEOUT_MS

Result = TypeVar("Result")

RESPONSE_MARGIN_S = 0.25
"""Time by which the server's timeout is shorter than the client's."""
NAME_MODEL_REMEDY = "Name the model with model=... (`--model` on the command line)"


@dataclass(frozen=True, slots=True)
class Pause:
    """Instruction to sleep before the next step."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcome of a step, from the driver."""

    outcome: Response | ShoalError | None
    """None after a pause."""
    left_s: float
    """Remaining time of the call (s)."""


Conversation = Generator[Request | Pause, StepResult | None, Result]


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of one call: see :meth:`shoal.Client.predict`."""

    timeout_s: float
    request_id: str | None = None
    retries: int = 0
    retry_executed: bool = False

    def override(self, **chosen: Any) -> Self:
        """Return these options with the ``chosen`` values that are not None."""
        given = {name: value for name, value in chosen.items() if value is not None}
        return replace(self, **given) if given else self

    def headers(self) -> dict[str, str]:
        """Return the options that are sent as headers, without the timeout.

        The timeout is added to each request.
        """
        return {REQUEST_ID: self.request_id} if self.request_id else {}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of an asynchronous request: see :meth:`shoal.Client.submit`."""

    within_s: float | None = None
    callback: str | None = None

    def headers(self) -> dict[str, str]:
        """Return the headers of these options."""
        within = {} if self.within_s is None else {TIMEOUT_MS: str(max(1, round(1000 * self.within_s)))}
        return within | ({CALLBACK: self.callback} if self.callback else {})


class Call:
    """One call in progress: its options and its remaining time (s)."""

    def __init__(self, options: CallOptions) -> None:
        self.options = options
        self.left_s = options.timeout_s

    def step(self, step: Request | Pause) -> Conversation[Response | ShoalError | None]:
        """Yield a step to the driver, and return its outcome."""
        result = yield step
        if result is None:
            raise TypeError("a step must be answered with a StepResult")
        self.left_s = result.left_s
        return result.outcome


class Session:
    """Protocol state for one model of a server; its name and signature are requested once and cached.

    Args:
        model: the model's name; None to discover it.
        jitter: returns a random number, 0 to 1.
        plain: replaces files in an item by their content, since this module does no I/O.
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
        """Send one item, and return the model's result."""
        call = Call(options)
        signature = self._signature or (yield from self._request_signature(call))
        tensors = encode_item(self._plain(row_of_frame(item, signature)), signature)
        request = infer_request(signature.name, signature, tensors, options.headers())
        response = yield from self._persistent(request, call)
        return single_result(response, signature)

    def submit(self, item: Any, options: CallOptions, job: JobOptions) -> Conversation[str]:
        """Send one item as an asynchronous request, and return the id of its result."""
        call = Call(options)
        signature = self._signature or (yield from self._request_signature(call))
        tensors = encode_item(self._plain(row_of_frame(item, signature)), signature)
        headers = {**options.headers(), **job.headers()}
        request = infer_request(signature.name, signature, tensors, headers, later=True)
        return accepted_id((yield from self._persistent(request, call, timed=False)))

    def result(self, job_id: str, options: CallOptions) -> Conversation[Any]:
        """Request the result of an asynchronous request until it is there, and return it."""
        call = Call(options)
        signature = self._signature or (yield from self._request_signature(call))
        request = Request("GET", result_path(signature.name, job_id))
        while (response := (yield from self._persistent(request, call))).status == ACCEPTED:
            wait_s = retry_after_s(response)
            if wait_s >= call.left_s:
                message = f"no result of {job_id} within {options.timeout_s:g} s; the request continues"
                raise DeadlineExceeded(message, status=response.status, may_have_run=True)
            yield from call.step(Pause(wait_s))
        return single_result(response, signature)

    def cancel(self, job_id: str, options: CallOptions) -> Conversation[None]:
        """Cancel an asynchronous request, or delete its result."""
        call = Call(options)
        model = self._model or (yield from self._only_model(call))
        response = yield from self._persistent(Request("DELETE", result_path(model, job_id)), call, timed=False)
        if response.status != NO_CONTENT:
            raise_for_status(response)

    def portions(self, items: Items, times: Times, options: CallOptions) -> Conversation[Portions]:
        """Check the items of a batch, and return the state with which to send them in portions."""
        signature = self._signature or (yield from self._request_signature(Call(options)))
        unfolded = rows_of_frame(items, signature)
        check_countable(unfolded, signature)
        return Portions(Rows(unfolded, self._plain), signature, times, self._jitter())

    def predict_portion(self, portion: Portion, signature: Signature, options: CallOptions) -> Conversation[Any]:
        """Send one portion, and return the results of its rows."""
        request = infer_request(signature.name, signature, portion.tensors, options.headers())
        response = yield from self._persistent(request, Call(options))
        return batch_result(response, signature, portion.rows)

    def signature(self, options: CallOptions) -> Conversation[Signature]:
        """Request the model's signature again, even if one is cached."""
        return (yield from self._request_signature(Call(options)))

    def ready(self, options: CallOptions) -> Conversation[bool]:
        """Request whether the server is ready."""
        outcome = yield from Call(options).step(Request("GET", "/v2/health/ready"))
        return _response(outcome).status == 200

    def _request_signature(self, call: Call) -> Conversation[Signature]:
        model = self._model or (yield from self._only_model(call))
        answer = json_body((yield from self._persistent(Request("GET", model_path(model)), call)))
        try:
            # The requested name is the one that the routes use.
            signature = replace(parse_signature(answer), name=model)
        except ValueError as error:
            raise ServerFailed(str(error), status=200) from error
        self._model, self._signature = model, signature
        return signature

    def _only_model(self, call: Call) -> Conversation[str]:
        response = yield from self._persistent(Request("GET", "/v1/models"), call)
        if response.status == 404:
            raise NotFound(
                "/v1/models: not found. Is this the admin port, or does the URL have a path? If the server does"
                f" not list its models: {NAME_MODEL_REMEDY}",
                status=404,
            )
        # V1's list of models, which Shoal and KServe serve.
        answer = json_body(response)
        models = answer.get("models") if isinstance(answer, Mapping) else None
        if not isinstance(models, list) or not models:
            raise ServerFailed(f"the server lists no model. {NAME_MODEL_REMEDY}", status=200)
        if len(models) > 1:
            names = ", ".join(map(str, models))
            raise NotFound(f"the server has several models ({names}). {NAME_MODEL_REMEDY}")
        return str(models[0])

    def _persistent(self, request: Request, call: Call, *, timed: bool = True) -> Conversation[Response]:
        """Send a request, with retries within the call's time.

        ``timed`` states whether the server must respond with the result within this time.
        """
        options = call.options
        # GET has no effect on the server.
        repeatable = options.retry_executed or request.method == "GET"
        for attempt in count():
            sent = request
            if timed and request.method != "GET":
                # Slightly less time than the client waits, so that the server's own error arrives first.
                timeout_ms = max(1, round(1000 * (call.left_s - min(RESPONSE_MARGIN_S, call.left_s / 10))))
                sent = replace(request, headers={**request.headers, TIMEOUT_MS: str(timeout_ms)})
            outcome = yield from call.step(sent)
            error = error_from(outcome) if isinstance(outcome, Response) else outcome
            if error is None or attempt >= options.retries or not may_retry(error, repeatable=repeatable):
                break
            wait_s = pause_s(error, attempt, self._jitter())
            # No pause that would outlast the timeout.
            if wait_s >= call.left_s:
                break
            yield from call.step(Pause(wait_s))
        return _response(outcome)


def _response(outcome: Response | ShoalError | None) -> Response:
    if isinstance(outcome, Response):
        return outcome
    raise outcome or TypeError("a Request must be answered with a Response")
