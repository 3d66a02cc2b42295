from typing import Any

import numpy as np
import orjson
import pytest

from shoal import errors
from shoal.wire.messages import Request, Response
from shoal.wire.session import CallOptions, Conversation, Pause, Session

OPTIONS = CallOptions(timeout_s=10)
METADATA = {
    "name": "adder",
    "versions": ["1"],
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
}


class Drive:
    """Answers a conversation from a table of paths and keeps its steps."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"/v1/models": {"models": ["adder"]}, "/v2/models/adder": METADATA} | answers
        self.steps: list[Request | Pause] = []
        self.starting = self.overloads = 0
        self.failure: Response | None = None

    def __call__(self, conversation: Conversation[Any]) -> Any:
        answer: Response | None = None
        try:
            while True:
                step = conversation.send(answer)
                self.steps.append(step)
                answer = None if isinstance(step, Pause) else self.answer(step)
        except StopIteration as end:
            return end.value

    def answer(self, request: Request) -> Response:
        if request.path.endswith("/infer"):
            return self.infer()
        if self.starting:
            self.starting -= 1
            return Response(503, {"retry-after": "1"}, b'{"error": "the model is not ready"}')
        value = self.answers.get(request.path)
        return Response(404 if value is None else 200, {}, orjson.dumps(value))

    def infer(self) -> Response:
        if self.failure:
            return self.failure
        if self.overloads:
            self.overloads -= 1
            return Response(503, {"retry-after": "3"}, b'{"error": "queue is full"}')
        outputs = [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [2.0]}]
        return Response(200, {}, orjson.dumps({"outputs": outputs}))

    @property
    def trace(self) -> list[str]:
        return [
            f"pause {each.seconds:g}" if isinstance(each, Pause) else f"{each.method} {each.path}"
            for each in self.steps
        ]


def test_the_models_name_and_signature_are_asked_for_once() -> None:
    drive, session = Drive(), Session(None)

    assert drive(session.predict([1], OPTIONS)).tolist() == [2]
    assert drive(session.predict_batch(np.ones((1, 1)), OPTIONS)).tolist() == [[2]]
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

    drive(Session("adder").predict([1], CallOptions(timeout_s=1.5, request_id="r-1")))

    request = drive.steps[-1]
    assert isinstance(request, Request)
    assert request.headers["x-request-timeout-ms"] == "1500"
    assert request.headers["x-request-id"] == "r-1"


def test_an_overloaded_server_is_asked_again_after_the_time_it_names() -> None:
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
        drive(Session("adder").predict([1], options))

    assert sum(step.endswith("/infer") for step in drive.trace) == attempts


def test_other_errors_are_not_retried() -> None:
    drive = Drive()
    drive.failure = Response(500, {}, b'{"error": "boom"}')

    with pytest.raises(errors.ServerFailed, match="boom"):
        drive(Session("adder").predict([1], CallOptions(timeout_s=10, retries=5)))

    assert len(drive.steps) == 2


@pytest.mark.parametrize(
    ("models", "kind", "message"),
    [
        pytest.param(None, errors.NotFound, "does not list its models", id="a foreign server"),
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
    with pytest.raises(errors.ServerFailed, match="breaks the V2 protocol"):
        Drive(**{"/v2/models/adder": {"name": "adder"}})(Session("adder").signature(OPTIONS))


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, False)])
def test_ready_is_whether_the_server_says_so(status: int, ready: bool) -> None:
    conversation = Session(None).ready()

    assert next(conversation) == Request("GET", "/v2/health/ready")
    with pytest.raises(StopIteration) as end:
        conversation.send(Response(status, {}, b""))
    assert end.value.value is ready
