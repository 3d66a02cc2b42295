"""ModelStreamInfer: order, errors inside the stream, what a stream may hold, and its end."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from shoal_proxy.rpc import inference_pb2 as messages
from shoal_proxy.rpc import stream as streams
from shoal_proxy.rpc.stream import MAX_IN_FLIGHT
from shoal_schema.interfaces.protocols import GRPC_SERVICE
from tests import plain
from tests.calls import row
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.access.test_access_end_to_end import ALICE, swap
from tests.proxy.test_grpc import DEADLINE_S, Stub, failure, request


class Stream:
    """One stream as a client has it."""

    def __init__(self, running: RunningProxy, **options: Any) -> None:
        self.stub = Stub(running)
        self._asked: SimpleQueue[messages.ModelInferRequest | None] = SimpleQueue()
        call = self.stub.channel.stream_stream(
            f"/{GRPC_SERVICE}/ModelStreamInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelStreamInferResponse.FromString,
        )
        self.call = call(iter(self._asked.get, None), **{"timeout": DEADLINE_S, **options})

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *exc: object) -> None:
        self.call.cancel()
        self._asked.put(None)
        self.stub.channel.close()

    def send(self, *requests: messages.ModelInferRequest) -> None:
        for each in requests:
            self._asked.put(each)

    def half_close(self) -> None:
        self._asked.put(None)

    def next(self) -> messages.ModelStreamInferResponse:
        response: messages.ModelStreamInferResponse = next(self.call)
        return response


def values(response: messages.ModelStreamInferResponse) -> list[float]:
    assert not response.error_message
    return list(response.infer_response.outputs[0].contents.fp32_contents)


def doubled(value: float) -> list[float]:
    return [2 * each for each in row(value)]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(grpc_port=0, max_batch_size=8) as proxy:
        yield proxy


def test_requests_get_responses_in_their_order_and_by_their_id(running: RunningProxy) -> None:
    with Stream(running) as stream:
        for _ in range(2):
            stream.send(*(request(row(number), id=f"fish-{number}") for number in range(100)))
            received = [stream.next() for _ in range(100)]
            assert [each.infer_response.id for each in received] == [f"fish-{number}" for number in range(100)]
            assert [values(each) for each in received] == [doubled(number) for number in range(100)]
        assert received[0].infer_response.parameters["triton_final_response"].bool_param
        stream.half_close()
        assert list(stream.call) == []
        assert stream.call.code() is grpc.StatusCode.OK


def test_requests_of_one_stream_meet_in_batches() -> None:
    with (
        running_proxy(grpc_port=0, max_batch_size=8, max_delay_milliseconds=10_000) as running,
        Stream(running) as stream,
    ):
        stream.send(*(request(row(number)) for number in range(16)))
        assert [values(stream.next()) for _ in range(16)] == [doubled(number) for number in range(16)]
        assert [seen.rows for seen in running.runtime.seen] == [8, 8]


@pytest.mark.parametrize(
    ("wrong", "status", "words"),
    [
        (request([1, 2], id="a"), 400, "'x' has shape [1, 2]"),
        (messages.ModelInferRequest(model_name="cat", id="a"), 404, "unknown model 'cat'"),
    ],
)
def test_an_error_is_that_of_its_request_and_the_stream_continues(
    running: RunningProxy, wrong: messages.ModelInferRequest, status: int, words: str
) -> None:
    with Stream(running) as stream:
        stream.send(request(row(1)), wrong, request(row(2)))
        assert values(stream.next()) == doubled(1)
        error = stream.next()
        assert words in error.error_message
        assert error.infer_response.id == "a"
        assert error.infer_response.parameters["status"].int64_param == status
        assert error.infer_response.parameters["x-shoal-executed"].string_param == "no"
        assert values(stream.next()) == doubled(2)


def test_a_message_that_is_none_is_an_error_in_the_stream(running: RunningProxy) -> None:
    stub = Stub(running)
    call = stub.channel.stream_stream(
        f"/{GRPC_SERVICE}/ModelStreamInfer", response_deserializer=messages.ModelStreamInferResponse.FromString
    )
    received = list(call(iter([b"\xff\xff\xff"]), timeout=DEADLINE_S))
    assert "malformed message" in received[0].error_message
    stub.channel.close()


def test_parameters_of_tritons_streams_are_not_the_models(running: RunningProxy) -> None:
    asked = request(row(1))
    asked.parameters["triton_enable_empty_final_response"].bool_param = True
    with Stream(running) as stream:
        stream.send(asked)
        assert values(stream.next()) == doubled(1)
    assert "triton_enable_empty_final_response" not in running.runtime.seen[-1].document.get("parameters", {})


def test_so_many_requests_are_under_way_and_the_others_wait_unread() -> None:
    with running_proxy(grpc_port=0, max_batch_size=1) as running, Stream(running) as stream:
        running.hold()
        stream.send(*(request(row(number)) for number in range(MAX_IN_FLIGHT + 20)))
        scheduler = running.proxy.scheduler
        running.until(lambda: scheduler.queue.requests + scheduler.in_flight_rows == MAX_IN_FLIGHT)
        with Stream(running) as other:
            other.send(request(row(99)))
            running.until(lambda: scheduler.queue.requests + scheduler.in_flight_rows == MAX_IN_FLIGHT + 1)
            running.release()
            assert values(other.next()) == doubled(99)
        assert [values(stream.next()) for _ in range(MAX_IN_FLIGHT + 20)] == [
            doubled(number) for number in range(MAX_IN_FLIGHT + 20)
        ]


def test_a_client_that_disconnects_takes_its_requests_along() -> None:
    with running_proxy(grpc_port=0, max_batch_size=1) as running, Stream(running) as stream:
        running.hold()
        stream.send(*(request(row(number)) for number in range(10)))
        running.until(lambda: running.proxy.scheduler.queue.requests == 8)
        stream.call.cancel()
        running.until_waiting(0)
        running.release()
        running.until(lambda: running.proxy.scheduler.settled)
        assert len(running.runtime.seen) == 2


def test_streams_are_bounded(running: RunningProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    with Stream(running) as first:
        first.send(request(row(1)))
        assert values(first.next()) == doubled(1)
        with Stream(running) as second:
            assert failure(second.next).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.send(request(row(2)))
        assert values(first.next()) == doubled(2)


def test_a_drain_completes_what_was_read_and_ends_the_stream() -> None:
    with running_proxy(grpc_port=0) as running, Stream(running) as stream, Stream(running) as idle:
        idle.send(request(row(1)))
        assert values(idle.next()) == doubled(1)
        running.hold()
        stream.send(request(row(7)))
        running.until(lambda: running.runtime.running == 1)
        drain = threading.Thread(
            target=plain.post, args=(f"{running.admin_url}/drain",),
            kwargs={"headers": {"x-shoal-admin": "1"}, "timeout": DEADLINE_S},
        )  # fmt: skip
        drain.start()
        assert failure(idle.next).code() is grpc.StatusCode.UNAVAILABLE
        running.release()
        assert values(stream.next()) == doubled(7)
        assert failure(stream.next).code() is grpc.StatusCode.UNAVAILABLE
        drain.join(DEADLINE_S)
        assert not drain.is_alive()


def test_a_message_over_the_limit_ends_its_stream() -> None:
    with running_proxy(grpc_port=0, max_body_bytes=4096) as running, Stream(running) as stream:
        stream.send(request(*[[0.0] * 4] * 2000, raw=True))
        assert failure(stream.next).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with Stream(running) as other:
            other.send(request(row(1)))
            assert values(other.next()) == doubled(1)


def test_a_deadline_of_the_stream_is_that_of_its_requests() -> None:
    with running_proxy(grpc_port=0, max_batch_size=1) as running, Stream(running, timeout=0.5) as stream:
        running.hold()
        stream.send(request(row(1)), request(row(2)), request(row(3)))
        received: list[messages.ModelStreamInferResponse] = []
        with pytest.raises(grpc.RpcError) as ended:
            received.extend(iter(stream.next, None))
        assert ended.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # The proxy's own clock may be the first.
        assert {each.infer_response.parameters["status"].int64_param for each in received} <= {504}
        running.until_waiting(0)
        running.release()


def test_a_stream_needs_a_key_where_calls_do(tmp_path: Any) -> None:
    swap(tmp_path, alice=ALICE)
    with running_proxy(grpc_port=0, process__api_keys=str(tmp_path)) as running:
        with Stream(running) as stream:
            stream.send(request(row(1)))
            assert failure(stream.next).code() is grpc.StatusCode.UNAUTHENTICATED
        with Stream(running, metadata=[("authorization", f"Bearer {ALICE}")]) as stream:
            stream.send(request(row(1)), request(row(2)))
            assert [values(stream.next()) for _ in range(2)] == [doubled(1), doubled(2)]
        stub = Stub(running)
        for method, asked, answer in (
            ("ModelStatistics", messages.ModelStatisticsRequest(), messages.ModelStatisticsResponse),
            ("RepositoryIndex", messages.RepositoryIndexRequest(), messages.RepositoryIndexResponse),
        ):
            error = failure(lambda m=method, q=asked, a=answer: stub.ask(m, q, a))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        stub.channel.close()
