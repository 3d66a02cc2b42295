"""The gRPC port against one fake runtime: the same queue, the same errors as status codes, and its bounds."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from shoal_proxy.errors import ProxyError
from shoal_proxy.routes.app import EXTENSIONS
from shoal_proxy.rpc import inference_pb2 as messages
from shoal_proxy.rpc.port import CODES
from shoal_schema.interfaces.protocols import GRPC_SERVICE
from tests import plain
from tests.calls import V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor

DEADLINE_S = 20.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Stub:
    """The service as a generated stub has it."""

    def __init__(self, running: RunningProxy) -> None:
        assert running.proxy.grpc is not None
        self.channel = grpc.insecure_channel(str(running.proxy.grpc.address))

    def ask(self, method: str, request: Any, answer: Any, **options: Any) -> Any:
        call = self.channel.unary_unary(
            f"/{GRPC_SERVICE}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call.with_call(request, **{"timeout": DEADLINE_S, **options})[0]

    def infer(self, request: messages.ModelInferRequest, **options: Any) -> messages.ModelInferResponse:
        answer: messages.ModelInferResponse = self.ask("ModelInfer", request, messages.ModelInferResponse, **options)
        return answer

    def future(self, request: messages.ModelInferRequest, **options: Any) -> Any:
        call = self.channel.unary_unary(
            f"/{GRPC_SERVICE}/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        return call.future(request, **{"timeout": DEADLINE_S, **options})


def request(*rows: list[float], raw: bool = False, **more: Any) -> messages.ModelInferRequest:
    made = messages.ModelInferRequest(model_name="double", **more)
    given = made.inputs.add(name="x", datatype="FP32", shape=[len(rows), len(rows[0])])
    if raw:
        made.raw_input_contents.append(np.array(rows, "<f4").tobytes())
    else:
        given.contents.fp32_contents.extend(value for each in rows for value in each)
    return made


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(grpc_port=0) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stub(running: RunningProxy) -> Iterator[Stub]:
    made = Stub(running)
    yield made
    made.channel.close()


def failure(call: Any) -> Any:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value


def test_typed_contents_get_responses_typed(stub: Stub) -> None:
    answer = stub.infer(request(row(1), row(2), id="fish-7"))
    assert (answer.id, answer.model_name, answer.model_version) == ("fish-7", "double", "1")
    assert (answer.outputs[0].name, answer.outputs[0].datatype, list(answer.outputs[0].shape)) == ("y", "FP32", [2, 4])
    assert list(answer.outputs[0].contents.fp32_contents) == [2 * value for value in (*row(1), *row(2))]
    assert not answer.raw_output_contents


def test_raw_contents_get_responses_raw(stub: Stub) -> None:
    answer = stub.infer(request(row(1), raw=True))
    assert np.frombuffer(answer.raw_output_contents[0], "<f4").tolist() == [2 * value for value in row(1)]
    assert not answer.outputs[0].HasField("contents")


def test_a_grpc_client_shares_a_batch_with_one_of_http() -> None:
    with (
        running_proxy(grpc_port=0, max_batch_size=2, max_delay_milliseconds=10_000) as running,
        concurrent_clients(running.url) as group,
    ):
        stub = Stub(running)
        first, second = group.ask(1), stub.future(request(row(2)))
        assert answer_to(first.result()) == [2 * value for value in row(1)]
        assert list(second.result().outputs[0].contents.fp32_contents) == [2 * value for value in row(2)]
        assert [seen.rows for seen in running.runtime.seen] == [2]
        received = plain.get(f"{running.admin_url}/metrics").text
        assert 'shoal_proxy_requests_total{protocol="grpc",status="200"} 1.0' in received
        stub.channel.close()


def test_every_datatype_goes_both_ways_typed_and_raw() -> None:
    values: dict[str, tuple[str, list[Any]]] = {
        "BOOL": ("bool_contents", [True, False]),
        "UINT8": ("uint_contents", [0, 255]),
        "INT32": ("int_contents", [-(2**31), 2**31 - 1]),
        "INT64": ("int64_contents", [-(2**63), 2**63 - 1]),
        "FP32": ("fp32_contents", [0.5, float("-inf")]),
        "FP64": ("fp64_contents", [1e300, 0.1]),
        "BYTES": ("bytes_contents", [b"", b"\xff\x00"]),
    }
    tensors = [tensor(name.lower(), name, [-1]) for name in values]
    runtime = lambda: FakeRuntime(inputs=tensors, outputs=tensors, model=dict, name="echo")  # noqa: E731
    with running_proxy(runtime, grpc_port=0) as running:
        stub = Stub(running)
        typed = messages.ModelInferRequest(model_name="echo")
        for name, (field, given) in values.items():
            part = typed.inputs.add(name=name.lower(), datatype=name, shape=[2])
            getattr(part.contents, field).extend(given)
        answer = stub.infer(typed)
        received = {each.datatype: list(getattr(each.contents, values[each.datatype][0])) for each in answer.outputs}
        assert received == {name: given for name, (_, given) in values.items()}

        raw = messages.ModelInferRequest(model_name="echo")
        data = [_raw(name, given) for name, (_, given) in values.items()]
        for name in values:
            raw.inputs.add(name=name.lower(), datatype=name, shape=[2])
        raw.raw_input_contents.extend(data)
        assert list(stub.infer(raw).raw_output_contents) == data
        stub.channel.close()


def _raw(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in values)
    codes = {"BOOL": "?", "UINT8": "u1", "INT32": "<i4", "INT64": "<i8", "FP32": "<f4", "FP64": "<f8"}
    return np.array(values, codes[datatype]).tobytes()


def test_sixteen_bit_floats_travel_raw_alone() -> None:
    halves = [tensor("x", "FP16", [-1, 1])]
    outputs = [tensor("x", "FP32", [-1, 1]), tensor("n", "INT64", [-1])]

    def model(inputs: Any) -> dict[str, Any]:
        return {"x": inputs["x"].astype("<f4"), "n": np.ones(len(inputs["x"]), "<i8")}

    with running_proxy(lambda: FakeRuntime(inputs=halves, outputs=outputs, model=model), grpc_port=0) as running:
        stub = Stub(running)
        typed = messages.ModelInferRequest(model_name="double")
        typed.inputs.add(name="x", datatype="FP16", shape=[1, 1]).contents.fp32_contents.append(1)
        error = failure(lambda: stub.infer(typed))
        assert (error.code(), error.details()) == (
            grpc.StatusCode.INVALID_ARGUMENT, "input 'x' is FP16, which needs raw_input_contents",
        )  # fmt: skip
        typed.inputs[0].ClearField("contents")
        typed.raw_input_contents.append(np.array([1.5], "<f2").tobytes())
        assert np.frombuffer(stub.infer(typed).raw_output_contents[0], "<f4").tolist() == [1.5]
        stub.channel.close()


def test_outputs_are_chosen_and_parameters_reach_the_model(running: RunningProxy, stub: Stub) -> None:
    asked = request(row(1))
    asked.parameters["temperature"].double_param = 0.5
    asked.parameters["depth"].int64_param = 3
    asked.outputs.add(name="y").parameters["class"].int64_param = 2
    stub.infer(asked)
    seen = running.runtime.seen[-1].document
    assert (seen["parameters"]["temperature"], seen["parameters"]["depth"]) == (0.5, 3)
    assert seen["outputs"] == [{"name": "y", "parameters": {"class": 2}}]


def test_metadata_of_a_call_are_its_headers(running: RunningProxy, stub: Stub) -> None:
    call = stub.future(request(row(1)), metadata=[("x-request-id", "fish"), ("x-shoal-priority", "3")])
    call.result()
    received = dict(call.trailing_metadata())
    assert received["x-request-id"] == "fish"
    assert received["server-timing"].startswith("queue;dur=")
    assert "fish" in running.runtime.seen[-1].document["parameters"]["requests"]
    error = failure(lambda: stub.infer(request(row(1)), metadata=[("x-shoal-priority", "high")]))
    assert (error.code(), "must be a digit" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_pages_get_responses(running: RunningProxy, stub: Stub) -> None:
    assert stub.ask("ServerLive", messages.ServerLiveRequest(), messages.ServerLiveResponse).live
    assert stub.ask("ServerReady", messages.ServerReadyRequest(), messages.ServerReadyResponse).ready
    assert stub.ask("ModelReady", messages.ModelReadyRequest(name="double"), messages.ModelReadyResponse).ready
    about = stub.ask("ServerMetadata", messages.ServerMetadataRequest(), messages.ServerMetadataResponse)
    assert (about.name, list(about.extensions)) == ("shoal", list(EXTENSIONS))
    asked = messages.ModelMetadataRequest(name="double", version="1")
    received = stub.ask("ModelMetadata", asked, messages.ModelMetadataResponse)
    shapes = [(each.name, each.datatype, list(each.shape)) for each in (*received.inputs, *received.outputs)]
    assert (received.name, list(received.versions), shapes) == (
        "double", ["1"], [("x", "FP32", [-1, 4]), ("y", "FP32", [-1, 4])],
    )  # fmt: skip
    error = failure(lambda: stub.ask("ModelReady", messages.ModelReadyRequest(name="x"), messages.ModelReadyResponse))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    error = failure(lambda: stub.ask("ModelConfig", asked, messages.ModelMetadataResponse))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def _changed(**fields: Any) -> messages.ModelInferRequest:
    made = request(row(1))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _stray(**contents: Any) -> messages.ModelInferRequest:
    made = request(row(1))
    made.inputs[0].contents.MergeFrom(messages.InferTensorContents(**contents))
    return made


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        (_changed(model_name="cat"), "NOT_FOUND", "unknown model 'cat'"),
        (_changed(model_version="9"), "NOT_FOUND", "unknown version '9'"),
        (messages.ModelInferRequest(model_name="double"), "INVALID_ARGUMENT", "input 'x' is missing"),
        (request([1, 2]), "INVALID_ARGUMENT", "'x' has shape [1, 2]"),
        (
            request(row(1), raw_input_contents=[b"", b""]),
            "INVALID_ARGUMENT",
            "raw_input_contents must have",
        ),
        (request(row(1), raw_input_contents=[b"1"]), "INVALID_ARGUMENT", "both contents and raw_input_contents"),
        (_stray(int64_contents=[1]), "INVALID_ARGUMENT", "only fp32_contents, not int64_contents"),
        (
            request(row(1), parameters={"timeout": messages.InferParameter(int64_param=-1)}),
            "INVALID_ARGUMENT",
            "timeout",
        ),
        (
            request(row(1), parameters={"timeout": messages.InferParameter(double_param=float("nan"))}),
            "INVALID_ARGUMENT",
            "must be a finite number, not nan",
        ),
        (
            messages.ModelInferRequest(model_name="double", inputs=[{"name": "x"}, {"name": "z"}]),
            "INVALID_ARGUMENT",
            "unknown input 'z'",
        ),
    ],
)
def test_what_is_wrong_is_reported_as_over_http(
    stub: Stub, made: messages.ModelInferRequest, code: str, words: str
) -> None:
    error = failure(lambda: stub.infer(made))
    assert (error.code().name, words in error.details()) == (code, True), error.details()
    assert dict(error.trailing_metadata())["x-shoal-executed"] == "no"


def test_a_message_that_is_none_is_rejected(stub: Stub) -> None:
    call = stub.channel.unary_unary(f"/{GRPC_SERVICE}/ModelInfer")
    error = failure(lambda: call(b"\xff\xff\xff", timeout=DEADLINE_S))
    assert (error.code(), "malformed message" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_every_status_has_a_code() -> None:
    def kinds(base: type[ProxyError]) -> Iterator[type[ProxyError]]:
        yield base
        for each in base.__subclasses__():
            yield from kinds(each)

    # gRPC has no asynchronous requests, and so no conflicts of their ids (409).
    assert {kind.status for kind in kinds(ProxyError)} - CODES.keys() <= {409, 431, 500, 505}


def held_by_two(running: RunningProxy, stub: Stub) -> list[Any]:
    """Return two calls whose rows are at the runtime, which waits: the next one stays in the queue."""
    running.hold()
    calls = []
    for number in range(2):
        calls.append(stub.future(request(row(number))))
        running.until(lambda: len(running.proxy.scheduler.running) == len(calls))
    return calls


def test_a_deadline_is_kept_and_the_request_leaves_the_queue() -> None:
    with running_proxy(grpc_port=0, max_batch_size=1) as running:
        stub = Stub(running)
        calls = held_by_two(running, stub)
        error = failure(lambda: stub.infer(request(row(2)), timeout=0.3))
        assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        running.until_waiting(0)
        running.release()
        assert [len(call.result().outputs) for call in calls] == [1, 1]
        assert len(running.runtime.seen) == 2
        stub.channel.close()


def test_a_client_that_cancels_leaves_the_queue() -> None:
    with running_proxy(grpc_port=0, max_batch_size=1) as running:
        stub = Stub(running)
        calls = held_by_two(running, stub)
        third = stub.future(request(row(3)))
        running.until_waiting(1)
        third.cancel()
        running.until_waiting(0)
        running.release()
        assert [len(call.result().outputs) for call in calls] == [1, 1]
        assert len(running.runtime.seen) == 2
        stub.channel.close()


def test_a_message_over_the_limit_is_rejected_compressed_or_not() -> None:
    with running_proxy(grpc_port=0, max_body_bytes=4096) as running:
        stub = Stub(running)
        large = request(*[[0.0] * 4] * 2000, raw=True)
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            error = failure(lambda how=compression: stub.infer(large, compression=how))
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        small = request(*[[0.0] * 4] * 100, raw=True)
        assert len(stub.infer(small, compression=grpc.Compression.Gzip).raw_output_contents[0]) == 1600
        stub.channel.close()


def test_a_request_that_never_comes_is_not_waited_for_forever() -> None:
    with running_proxy(grpc_port=0, body_timeout_s=0.2) as running:
        stub = Stub(running)
        held = _NeverSends()
        call = stub.channel.stream_unary(f"/{GRPC_SERVICE}/ModelInfer")
        error = failure(lambda: call(held, timeout=DEADLINE_S))
        assert (error.code().name, error.details()) == (
            "DEADLINE_EXCEEDED", "the request was not complete in time",
        )  # fmt: skip
        held.end()
        stub.channel.close()


class _NeverSends:
    """Messages that do not come, until stopped."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def __iter__(self) -> "_NeverSends":
        return self

    def __next__(self) -> bytes:
        self._ended.wait(DEADLINE_S)
        raise StopIteration

    def end(self) -> None:
        self._ended.set()


def test_a_full_queue_is_unavailable_and_has_a_retry_after() -> None:
    with running_proxy(grpc_port=0, max_batch_size=1, max_rows=1) as running:
        stub = Stub(running)
        calls = [*held_by_two(running, stub), stub.future(request(row(3)))]
        running.until_waiting(1)
        error = failure(lambda: stub.infer(request(row(9))))
        received = dict(error.trailing_metadata())
        assert (error.code(), received["x-shoal-executed"]) == (grpc.StatusCode.UNAVAILABLE, "no")
        assert int(received["retry-after"]) >= 1
        running.release()
        for call in calls:
            call.result()
        stub.channel.close()


def test_a_drain_completes_what_was_accepted_and_accepts_no_more() -> None:
    with running_proxy(grpc_port=0) as running:
        stub = Stub(running)
        running.hold()
        accepted = stub.future(request(row(1)))
        running.until(lambda: running.runtime.running == 1)
        running.call(running.proxy.stop)
        running.until(lambda: running.proxy.dispatcher.phase == "draining")
        error = failure(lambda: stub.infer(request(row(2)), timeout=5))
        # The one from a connection that was closed, or that is refused; the other in the moment before.
        assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        running.release()
        assert list(accepted.result().outputs[0].contents.fp32_contents) == [2 * value for value in row(1)]
        stub.channel.close()


def test_without_the_setting_there_is_no_such_port_and_no_import() -> None:
    with running_proxy() as running:
        assert running.proxy.grpc is None
        assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(1)]))) == [2 * value for value in row(1)]


def health_of(stub: Stub, service: str = "") -> int:
    check = stub.channel.unary_unary(
        f"/{health.SERVICE_NAME}/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    status: int = check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE_S).status
    return status


def test_grpc_probes_report_readiness(stub: Stub) -> None:
    assert [health_of(stub, name) for name in ("", GRPC_SERVICE, "double", health.SERVICE_NAME)] == [SERVING] * 4
    assert failure(lambda: health_of(stub, "other")).code() is grpc.StatusCode.NOT_FOUND


def test_a_watch_receives_a_drain_and_does_not_hold_it_up() -> None:
    with running_proxy(grpc_port=0) as running:
        watching = Stub(running)
        watch = watching.channel.unary_stream(
            f"/{health.SERVICE_NAME}/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        received = watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        assert next(received).status == SERVING
        plain.post(f"{running.admin_url}/drain", headers={"x-shoal-admin": "1"})

        assert [each.status for each in received] == [NOT_SERVING]
    watching.channel.close()


def test_tools_read_the_services_by_reflection(stub: Stub) -> None:
    names = ProtoReflectionDescriptorDatabase(stub.channel)

    assert {GRPC_SERVICE, health.SERVICE_NAME} <= set(names.get_services())
    service = DescriptorPool(names).FindServiceByName(GRPC_SERVICE)
    assert "ModelInfer" in service.methods_by_name


def test_two_timeouts_in_the_metadata_are_rejected(stub: Stub) -> None:
    twice = [("x-request-timeout-ms", "2000"), ("x-request-timeout-ms", "3000")]
    error = failure(lambda: stub.infer(request(row(1)), metadata=twice))
    assert (error.code(), "different values" in error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert stub.infer(request(row(1)), metadata=twice[:1] * 2).outputs
