"""``tritonclient.grpc`` and KServe's ``InferenceGRPCClient`` against the proxy's gRPC port."""

from collections.abc import Iterator

import pytest

from tests.calls import row
from tests.fakes import RunningProxy, running_proxy
from tests.interop.conftest import ForeignClient, ForeignError
from tests.interop.test_tritonclient import shouting_runtime

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROWS = [row(1), row(2)]
DOUBLED = [[2 * value for value in one] for one in ROWS]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(grpc_port=0) as proxy:
        yield proxy


def target(running: RunningProxy) -> str:
    assert running.proxy.grpc is not None
    return str(running.proxy.grpc.address)


def test_triton_health_and_metadata(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    pages = triton_grpc.call("pages", target(running))
    assert pages["live"] is pages["ready"] is pages["model_ready"] is pages["version_ready"] is True
    assert pages["server"]["name"] == "shoal"
    assert {"binary_tensor_data", "statistics"} <= set(pages["server"]["extensions"])
    assert pages["model"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "4"]}]


def test_triton_tensors_are_answered(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    answer = triton_grpc.call("infer", target(running), ROWS, request_id="fish-7", model_version="1")
    assert answer == {"y": DOUBLED, "id": "fish-7", "model": "double"}


def test_triton_texts_are_answered(triton_grpc: ForeignClient) -> None:
    with running_proxy(shouting_runtime, grpc_port=0) as running:
        texts = ["fish", "", "große Fische"]
        assert triton_grpc.call("infer_texts", target(running), texts) == [text.upper() for text in texts]


def test_triton_requests_meet_in_batches(triton_grpc: ForeignClient) -> None:
    with running_proxy(grpc_port=0, max_batch_size=8, max_delay_milliseconds=10_000) as running:
        answers = triton_grpc.call("infer_together", target(running), 16)
        assert answers == [[[2 * number] * 4] for number in range(16)]
        assert [seen.rows for seen in running.runtime.seen] == [8, 8]


def test_triton_may_compress(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    assert triton_grpc.call("infer", target(running), ROWS, compression_algorithm="gzip")["y"] == DOUBLED


def test_triton_parameters_and_headers_reach_the_runtime(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    options = {"parameters": {"temperature": 0.5}, "headers": {"x-request-id": "fish"}}
    triton_grpc.call("infer", target(running), ROWS, **options)
    seen = running.runtime.seen[-1].document["parameters"]
    assert (seen["temperature"], "fish" in seen["requests"]) == (0.5, True)


@pytest.mark.parametrize("options", [{"timeout": 50_000}, {"client_timeout": 0.2}])
def test_triton_deadlines_are_kept(
    triton_grpc: ForeignClient, running: RunningProxy, options: dict[str, float]
) -> None:
    running.hold()
    with pytest.raises(ForeignError, match="DEADLINE_EXCEEDED") as raised:
        triton_grpc.call("infer", target(running), ROWS, **options)
    assert raised.value.kind == "InferenceServerException"
    running.release()


def test_triton_may_cancel(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    running.hold()
    assert "CANCELLED" in triton_grpc.call("cancelled", target(running)).upper()
    running.release()


def test_our_words_reach_triton(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    with pytest.raises(ForeignError, match=r"INVALID_ARGUMENT.* 'x' has shape \[1, 3\]; the model expects \[-1, 4\]"):
        triton_grpc.call("infer", target(running), [[1, 2, 3]])
    with pytest.raises(ForeignError, match=r"NOT_FOUND.* unknown model 'missing'"):
        triton_grpc.call("infer", target(running), ROWS, model="missing")
    with pytest.raises(ForeignError, match=r"UNIMPLEMENTED.* InferenceService"):
        triton_grpc.call("load_model", target(running))


def test_triton_reads_the_index_and_statistics(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    triton_grpc.call("infer", target(running), ROWS)
    found = triton_grpc.call("repository", target(running))
    assert found["index"]["models"] == [{"name": "double", "version": "1", "state": "READY"}]
    [of_model] = found["model"]["model_stats"]
    assert found["all"]["model_stats"][0]["name"] == of_model["name"] == "double"
    assert int(of_model["inference_count"]) >= 2
    assert int(of_model["inference_stats"]["success"]["ns"]) > 0
    assert int(of_model["batch_stats"][0]["compute_infer"]["count"]) >= 1


def test_triton_classes_are_answered(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    assert triton_grpc.call("classify", target(running), ROWS, 2) == [["3.5:3", "3.0:2"], ["5.5:3", "5.0:2"]]


def test_triton_streams(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    requests = [[row(number)] for number in range(50)]
    requests[7] = [[1.0, 2.0]]
    answers = triton_grpc.call("stream", target(running), requests)
    assert len(answers) == 50
    assert "'x' has shape [1, 2]" in answers[7][1]
    for number in {*range(50)} - {7}:
        assert answers[number] == [f"fish-{number}", [[2 * value for value in row(number)]]]


def test_the_health_probe_of_grpc(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    for service in ("", "inference.GRPCInferenceService", "double"):
        assert triton_grpc.call("probe", target(running), service) == "SERVING"
    with pytest.raises(ForeignError, match="NOT_FOUND"):
        triton_grpc.call("probe", target(running), "cat")


def test_reflection_describes_the_services(triton_grpc: ForeignClient, running: RunningProxy) -> None:
    services = triton_grpc.call("described", target(running))
    assert {"ModelInfer", "ModelStreamInfer"} <= set(services["inference.GRPCInferenceService"])
    assert {"Check", "Watch"} <= set(services["grpc.health.v1.Health"])


def test_kserve_health(kserve_grpc: ForeignClient, running: RunningProxy) -> None:
    assert kserve_grpc.call("health", target(running)) == {"live": True, "ready": True, "model": True}


@pytest.mark.parametrize("raw", [True, False])
def test_kserve_tensors_travel_raw_and_typed(kserve_grpc: ForeignClient, running: RunningProxy, raw: bool) -> None:
    answer = kserve_grpc.call("infer", target(running), ROWS, raw=raw)
    assert answer == {"id": "fish-7", "model": "double", "y": DOUBLED}


def test_our_words_reach_kserve(kserve_grpc: ForeignClient, running: RunningProxy) -> None:
    with pytest.raises(ForeignError, match="unknown model 'missing'"):
        kserve_grpc.call("infer", target(running), ROWS, raw=True, model="missing")
