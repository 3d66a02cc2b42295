from typing import Any

import numpy as np
import orjson
import pytest

from shoal import errors
from shoal.wire.messages import Request, Response
from shoal.wire.portions import Times
from shoal.wire.session import CallOptions, Conversation, JobOptions, Pause, Session, StepResult

OPTIONS = CallOptions(timeout_s=10)
NOT_RUN = {"x-shoal-executed": "no"}
PERHAPS_RUN = {"x-shoal-executed": "maybe"}
METADATA = {
    "name": "adder",
    "versions": ["1"],
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
}


class Drive:
    """Answers a conversation from a table of paths and keeps its steps; only its pauses take time."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"/v1/models": {"models": ["adder"]}, "/v2/models/adder": METADATA} | answers
        self.steps: list[Request | Pause] = []
        self.starting = self.overloads = 0
        self.failure: Response | None = None
        self.failures: list[Response | errors.ShoalError] = []
        self.failing = "/v2/models/adder/infer"

    def __call__(self, conversation: Conversation[Any], left_s: float = 10.0) -> Any:
        turn: StepResult | None = None
        try:
            while True:
                step = conversation.send(turn)
                self.steps.append(step)
                left_s -= step.seconds if isinstance(step, Pause) else 0
                turn = StepResult(None if isinstance(step, Pause) else self.answer(step), left_s)
        except StopIteration as end:
            return end.value

    def answer(self, request: Request) -> Response | errors.ShoalError:
        if self.failures and request.path == self.failing:
            return self.failures.pop(0)
        if request.path.endswith("/infer"):
            return self.infer()
        if self.starting:
            self.starting -= 1
            return Response(503, {"retry-after": "1", **NOT_RUN}, b'{"error": "the model is not ready"}')
        value = self.answers.get(request.path)
        return Response(404 if value is None else 200, {}, orjson.dumps(value))

    def infer(self) -> Response:
        if self.failure:
            return self.failure
        if self.overloads:
            self.overloads -= 1
            return Response(503, {"retry-after": "3", **NOT_RUN}, b'{"error": "queue is full"}')
        outputs = [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [2.0]}]
        return Response(200, {}, orjson.dumps({"outputs": outputs}))

    @property
    def trace(self) -> list[str]:
        return [
            f"pause {each.seconds:g}" if isinstance(each, Pause) else f"{each.method} {each.path}"
            for each in self.steps
        ]


def test_name_and_signature_are_requested_once() -> None:
    drive, session = Drive(), Session(None)

    assert drive(session.predict([1], OPTIONS)).tolist() == [2]
    plan = drive(session.portions(np.ones((1, 1)), Times(10.0, 10.0), OPTIONS))
    assert drive(session.predict_portion(plan.take(0.0), plan.signature, OPTIONS)).tolist() == [[2]]
    assert drive.trace == [
        "GET /v1/models",
        "GET /v2/models/adder",
        "POST /v2/models/adder/infer",
        "POST /v2/models/adder/infer",
    ]


def test_a_named_model_is_not_looked_for_and_its_name_is_quoted() -> None:
    drive = Drive(**{"/v2/models/a%20%2Fb": METADATA})

    drive(Session("a /b").predict([1], OPTIONS))

    assert drive.trace[0] == "GET /v2/models/a%20%2Fb"
    assert drive.trace[1] == "POST /v2/models/a%20%2Fb/infer"


def test_asking_for_the_signature_asks_the_server_each_time() -> None:
    drive, session = Drive(), Session("adder")

    drive(session.signature(OPTIONS))
    drive(session.signature(OPTIONS))

    assert drive.trace == ["GET /v2/models/adder"] * 2


def test_what_the_call_chooses_travels_as_headers() -> None:
    drive = Drive()

    drive(Session("adder").predict([1], CallOptions(timeout_s=1.5, request_id="r-1")), left_s=1.5)

    request = drive.steps[-1]
    assert isinstance(request, Request)
    assert request.headers["x-request-timeout-ms"] == "1350", "what is left, but for the way of the answer"
    assert request.headers["x-request-id"] == "r-1"


def test_overloaded_server_is_retried_after_its_retry_after() -> None:
    drive = Drive()
    drive.overloads = 2

    answer = drive(Session("adder").predict([1], CallOptions(timeout_s=10, retries=2)))

    assert answer.tolist() == [2]
    infer = "POST /v2/models/adder/infer"
    assert drive.trace[1:] == [infer, "pause 3", infer, "pause 3", infer]


def test_the_signature_too_is_asked_for_again() -> None:
    drive = Drive()
    drive.starting = 1

    drive(Session("adder").predict([1], CallOptions(timeout_s=10, retries=1)))

    assert drive.trace[:3] == ["GET /v2/models/adder", "pause 1", "GET /v2/models/adder"]


@pytest.mark.parametrize(
    ("options", "attempts"),
    [
        pytest.param(CallOptions(timeout_s=10), 1, id="no retries by default"),
        pytest.param(CallOptions(timeout_s=10, retries=1), 2, id="no more than asked"),
        pytest.param(CallOptions(timeout_s=5, retries=9), 2, id="no pause beyond the time-out"),
    ],
)
def test_retries_end(options: CallOptions, attempts: int) -> None:
    drive = Drive()
    drive.overloads = 99

    with pytest.raises(errors.Overloaded, match="queue is full"):
        drive(Session("adder").predict([1], options), left_s=options.timeout_s)

    assert sum(step.endswith("/infer") for step in drive.trace) == attempts


UNREACHABLE = errors.ConnectionFailed("cannot reach it")
BROKEN = errors.ConnectionFailed("the connection broke", may_have_run=True)


@pytest.mark.parametrize(
    ("failure", "retry_executed", "again"),
    [
        pytest.param(UNREACHABLE, False, True, id="no connection was made"),
        pytest.param(BROKEN, False, False, id="the connection broke"),
        pytest.param(BROKEN, True, True, id="the connection broke, which does no harm"),
        pytest.param(Response(503, {"retry-after": "1", **NOT_RUN}, b""), False, True, id="refused"),
        pytest.param(Response(503, {"retry-after": "1", **PERHAPS_RUN}, b""), False, False, id="lost"),
        pytest.param(Response(503, {"retry-after": "1", **PERHAPS_RUN}, b""), True, True, id="lost, harmless"),
        pytest.param(Response(503, {"retry-after": "1"}, b""), False, False, id="does not say"),
        pytest.param(Response(429, {}, b""), False, False, id="busy, does not say"),
        pytest.param(Response(503, NOT_RUN, b""), False, True, id="no server"),
        pytest.param(Response(502, {}, b""), True, True, id="a gateway"),
        pytest.param(Response(504, NOT_RUN, b""), True, False, id="the time is over"),
        pytest.param(Response(500, NOT_RUN, b""), True, False, id="the model failed"),
        pytest.param(Response(400, NOT_RUN, b""), True, False, id="wrong forever"),
    ],
)
def test_only_what_certainly_did_not_run_is_sent_again_unless_it_may_run_twice(
    failure: Response | errors.ShoalError, retry_executed: bool, again: bool
) -> None:
    drive = Drive()
    drive.failures = [failure]
    call = Session("adder").predict([1], CallOptions(10, retries=1, retry_executed=retry_executed))

    if again:
        assert drive(call).tolist() == [2]
    else:
        with pytest.raises(errors.ShoalError) as caught:
            drive(call)
        said = failure.headers.get("x-shoal-executed") if isinstance(failure, Response) else ""
        assert caught.value.may_have_run == (said != "no")
    assert sum(step.endswith("/infer") for step in drive.trace) == 1 + again


def test_reads_are_retried_after_any_error() -> None:
    drive = Drive()
    drive.failures = [Response(503, {"retry-after": "1"}, b""), BROKEN]
    drive.failing = "/v2/models/adder"

    assert drive(Session("adder").signature(CallOptions(10, retries=2))).name == "adder"

    assert drive.trace == ["GET /v2/models/adder", "pause 1", "GET /v2/models/adder", "pause 0", "GET /v2/models/adder"]


def test_each_attempt_sends_the_remaining_time() -> None:
    drive = Drive()
    drive.overloads = 2

    drive(Session("adder").predict([1], CallOptions(timeout_s=10, retries=2)), left_s=6.5)

    infers = [step for step in drive.steps if isinstance(step, Request) and step.path.endswith("/infer")]
    assert [each.headers["x-request-timeout-ms"] for each in infers] == ["6250", "3250", "450"]


def test_pauses_grow_at_random_within_bounds() -> None:
    drive = Drive()
    drive.failures = [UNREACHABLE] * 9

    drive(Session("adder", lambda: 1.0).predict([1], CallOptions(timeout_s=99, retries=9)), left_s=99)

    pauses = [step.seconds for step in drive.steps if isinstance(step, Pause)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 5])


def test_other_errors_are_not_retried() -> None:
    drive = Drive()
    drive.failure = Response(500, {}, b'{"error": "boom"}')

    with pytest.raises(errors.ServerFailed, match="boom"):
        drive(Session("adder").predict([1], CallOptions(timeout_s=10, retries=5)))

    assert len(drive.steps) == 2


@pytest.mark.parametrize(
    ("models", "kind", "message"),
    [
        pytest.param(None, errors.NotFound, r"admin port.*does not list its models.*`--model`", id="a foreign server"),
        pytest.param({"models": ["a", "b"]}, errors.NotFound, r"several models.*a, b", id="several"),
        pytest.param({"models": []}, errors.ServerFailed, "lists no model", id="none"),
        pytest.param({"models": "a"}, errors.ServerFailed, "lists no model", id="no list"),
        pytest.param(["a"], errors.ServerFailed, "lists no model", id="no object"),
    ],
)
def test_without_exactly_one_model_the_caller_must_name_it(models: Any, kind: type[Exception], message: str) -> None:
    drive = Drive(**{"/v1/models": models})

    with pytest.raises(kind, match=message):
        drive(Session(None).predict([1], OPTIONS))


def test_metadata_that_break_the_protocol_are_the_servers_failure() -> None:
    with pytest.raises(errors.ServerFailed, match="violates the V2 protocol"):
        Drive(**{"/v2/models/adder": {"name": "adder"}})(Session("adder").signature(OPTIONS))


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, False)])
def test_ready_is_whether_the_server_says_so(status: int, ready: bool) -> None:
    conversation = Session(None).ready(OPTIONS)

    assert next(conversation) == Request("GET", "/v2/health/ready")
    with pytest.raises(StopIteration) as end:
        conversation.send(StepResult(Response(status, {}, b""), 1))
    assert end.value.value is ready


class JobDrive(Drive):
    """Answers asynchronous requests, whose result is there after ``polls`` requests for it."""

    def __init__(self, accepted: Response, polls: int = 0) -> None:
        super().__init__()
        self.accepted = accepted
        self.polls = polls

    def answer(self, request: Request) -> Response | errors.ShoalError:
        if request.path.endswith("?async=true"):
            return self.accepted
        if "/results/" in request.path:
            if request.method == "DELETE":
                return Response(204 if request.path.endswith("/abc") else 404, {}, b'{"error": "no such request"}')
            self.polls -= 1
            return self.infer() if self.polls < 0 else Response(202, {"retry-after": "2"}, b"{}")
        return super().answer(request)


ACCEPTED = Response(202, {"location": "/v2/models/adder/results/abc"}, b"{}")


def test_an_asynchronous_request_has_an_id_and_its_result_later() -> None:
    drive, session = JobDrive(ACCEPTED, polls=2), Session("adder")

    assert drive(session.submit([1], OPTIONS, JobOptions(within_s=60, callback="https://example.com/"))) == "abc"
    sent = drive.steps[-1]
    assert isinstance(sent, Request)
    assert (sent.headers["x-request-timeout-ms"], sent.headers["x-shoal-callback"]) == ("60000", "https://example.com/")
    assert drive(session.result("abc", OPTIONS)).tolist() == [2]
    assert drive.trace[-4:] == ["pause 2", "GET /v2/models/adder/results/abc"] * 2


def test_a_result_that_is_not_there_in_time_is_an_error_and_the_request_continues() -> None:
    with pytest.raises(errors.DeadlineExceeded, match="continues") as caught:
        JobDrive(ACCEPTED, polls=9)(Session("adder").result("abc", CallOptions(timeout_s=3)), left_s=3.0)

    assert caught.value.may_have_run


def test_an_asynchronous_request_is_cancelled_by_its_id() -> None:
    drive = JobDrive(ACCEPTED)

    drive(Session(None).cancel("abc", OPTIONS))
    assert drive.trace == ["GET /v1/models", "DELETE /v2/models/adder/results/abc"]
    with pytest.raises(errors.ShoalError, match="no such request"):
        drive(Session("adder").cancel("other", OPTIONS))


@pytest.mark.parametrize(
    ("response", "kind", "message"),
    [
        (Response(200, {}, b"{}"), errors.ServerFailed, "no asynchronous requests"),
        (Response(202, {}, b"{}"), errors.ServerFailed, "location"),
        (Response(400, {}, b'{"error": "asynchronous is not set"}'), errors.ShoalError, "is not set"),
    ],
)
def test_a_server_that_accepts_no_asynchronous_request_is_an_error(
    response: Response, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        JobDrive(response)(Session("adder").submit([1], OPTIONS, JobOptions()))
