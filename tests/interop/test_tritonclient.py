"""``tritonclient.http`` against the proxy."""

from collections.abc import Mapping

import numpy as np
import pytest

from tests.calls import row
from tests.fakes import Array, FakeRuntime, RunningProxy, running_proxy, tensor
from tests.interop.conftest import ForeignClient, ForeignError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROWS = [row(1), row(2)]
DOUBLED = [[2 * value for value in one] for one in ROWS]


def shout(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return texts in upper case."""
    texts = inputs["text"]
    upper = np.empty(texts.shape, dtype=object)
    for index, element in np.ndenumerate(texts):
        upper[index] = bytes(element).decode().upper().encode()
    return {"shout": upper}


def shouting_runtime() -> FakeRuntime:
    """Return a runtime of one text input and one text output."""
    inputs, outputs = [tensor("text", "BYTES", [-1, 1])], [tensor("shout", "BYTES", [-1, 1])]
    return FakeRuntime(inputs=inputs, outputs=outputs, model=shout, name="shout")


def test_health_and_metadata(triton: ForeignClient, running: RunningProxy) -> None:
    pages = triton.call("pages", running.url)
    assert pages["live"] is pages["ready"] is pages["model_ready"] is pages["version_ready"] is True
    assert "binary_tensor_data" in pages["server"]["extensions"]
    assert pages["model"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert pages["model"]["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}]
    assert triton.call("model_ready", running.url, "missing") is False


@pytest.mark.parametrize("sent", ["binary", "json"])
@pytest.mark.parametrize("got", ["default", "binary", "json"])
def test_tensors_travel_as_json_and_as_binary(
    triton: ForeignClient, running: RunningProxy, sent: str, got: str
) -> None:
    answer = triton.call("infer", running.url, ROWS, sent=sent, got=got)
    assert answer["y"] == DOUBLED
    assert answer["dtype"] == "float32"
    assert ("data" in answer["head"]["outputs"][0]) == (got == "json")


@pytest.mark.parametrize("sent", ["binary", "json"])
@pytest.mark.parametrize("got", ["binary", "json"])
def test_texts_travel_as_json_and_as_binary(triton: ForeignClient, sent: str, got: str) -> None:
    with running_proxy(shouting_runtime) as running:
        texts = ["fish", "", "große Fische", "魚" * 1000]
        assert triton.call("infer_texts", running.url, texts, sent=sent, got=got) == [text.upper() for text in texts]


def test_a_request_id_comes_back(triton: ForeignClient, running: RunningProxy) -> None:
    head = triton.call("infer", running.url, ROWS, request_id="fish-7")["head"]
    assert (head["id"], head["model_name"], head["model_version"]) == ("fish-7", "double", "1")


def test_a_version_may_be_named(triton: ForeignClient, running: RunningProxy) -> None:
    assert triton.call("infer", running.url, ROWS, model_version="1")["y"] == DOUBLED
    with pytest.raises(ForeignError, match="unknown version '9'"):
        triton.call("infer", running.url, ROWS, model_version="9")


def test_parameters_reach_the_runtime(triton: ForeignClient, running: RunningProxy) -> None:
    triton.call("infer", running.url, ROWS, parameters={"temperature": 0.5}, priority=1)
    seen = running.runtime.seen[-1].document["parameters"]
    assert (seen["temperature"], seen["priority"]) == (0.5, 1)


def test_a_connection_is_kept(triton: ForeignClient, running: RunningProxy) -> None:
    assert triton.call("infer_twice", running.url, ROWS) == [DOUBLED, DOUBLED]


def test_a_time_out_in_microseconds_is_the_deadline(triton: ForeignClient, running: RunningProxy) -> None:
    running.hold()
    with pytest.raises(ForeignError, match="the deadline passed") as raised:
        triton.call("infer", running.url, ROWS, timeout=50_000)
    assert raised.value.kind == "InferenceServerException"
    assert "[504]" in str(raised.value)
    running.release()


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("sent", ["binary", "json"])
def test_bodies_may_be_compressed(triton: ForeignClient, running: RunningProxy, algorithm: str, sent: str) -> None:
    answer = triton.call("infer", running.url, ROWS, sent=sent, request_compression_algorithm=algorithm)
    assert answer["y"] == DOUBLED


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_an_answer_may_be_sent_uncompressed(triton: ForeignClient, running: RunningProxy, algorithm: str) -> None:
    assert triton.call("infer", running.url, ROWS, response_compression_algorithm=algorithm)["y"] == DOUBLED


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("got", ["binary", "json"])
def test_large_answers_may_be_compressed(triton: ForeignClient, algorithm: str, got: str) -> None:
    rows = [row(number % 7) for number in range(500)]
    with running_proxy(compression_min_bytes=256) as running:
        answer = triton.call("infer", running.url, rows, got=got, response_compression_algorithm=algorithm)
        assert answer["y"] == [[2 * value for value in one] for one in rows]


def test_requests_of_one_asynchronous_client_meet_in_batches(triton: ForeignClient) -> None:
    with running_proxy(max_batch_size=8, max_delay_milliseconds=10_000) as running:
        answers = triton.call("infer_together", running.url, 16)
        assert answers == [[[2 * number] * 4] for number in range(16)]
        assert [seen.rows for seen in running.runtime.seen] == [8, 8]


def test_our_words_reach_the_caller_of_a_refused_request(triton: ForeignClient, running: RunningProxy) -> None:
    with pytest.raises(ForeignError, match=r"'x' has shape \[1, 3\]; the model expects \[-1, 4\]") as raised:
        triton.call("infer", running.url, [[1, 2, 3]])
    assert raised.value.kind == "InferenceServerException"
    assert "[400]" in str(raised.value)


def test_an_unknown_model_is_named(triton: ForeignClient, running: RunningProxy) -> None:
    with pytest.raises(ForeignError, match="unknown model 'missing'") as raised:
        triton.call("infer", running.url, ROWS, model="missing")
    assert "[404]" in str(raised.value)


def test_the_index_and_statistics_are_read(triton: ForeignClient, running: RunningProxy) -> None:
    triton.call("infer", running.url, ROWS)
    found = triton.call("repository", running.url)
    assert found["index"] == [{"name": "double", "version": "1", "state": "READY", "reason": ""}]
    for which in ("all", "model", "version"):
        [of_model] = found[which]["model_stats"]
        assert of_model["inference_count"] >= 2
        assert of_model["inference_stats"]["queue"]["count"] >= 1
    with pytest.raises(ForeignError, match=r"\[501\].* InferenceService"):
        triton.call("load_model", running.url)


@pytest.mark.parametrize("binary", [True, False])
def test_classes_are_answered(triton: ForeignClient, running: RunningProxy, binary: bool) -> None:
    assert triton.call("classify", running.url, ROWS, 2, binary=binary) == [["3.5:3", "3.0:2"], ["5.5:3", "5.0:2"]]


def test_a_page_that_only_triton_has_is_a_clear_404(triton: ForeignClient, running: RunningProxy) -> None:
    with pytest.raises(ForeignError, match="no such path: /v2/models/double/config"):
        triton.call("model_config", running.url)
