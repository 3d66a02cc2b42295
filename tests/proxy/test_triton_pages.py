"""What Triton's clients ask of a server beside its model: the repository's index, statistics, versions in paths."""

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from shoal_proxy.rpc import inference_pb2 as messages
from tests import plain
from tests.calls import V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy
from tests.proxy.test_grpc import Stub, failure

STATS = ["/v2/models/stats", "/v2/models/double/stats", "/v2/models/double/versions/1/stats"]
READY = [{"name": "double", "version": "1", "state": "READY", "reason": ""}]


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with running_proxy(grpc_port=0) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stub(running: RunningProxy) -> Iterator[Stub]:
    made = Stub(running)
    yield made
    made.channel.close()


def statistics(running: RunningProxy, path: str = STATS[1]) -> Any:
    [described] = plain.get(running.url + path).json()["model_stats"]
    return described


@pytest.mark.parametrize("asked", [None, {}, {"ready": True}, {"ready": False}])
def test_the_index_lists_the_model(running: RunningProxy, asked: Any) -> None:
    options = {} if asked is None else {"json": asked}
    assert plain.post(f"{running.url}/v2/repository/index", **options).json() == READY
    assert plain.get(f"{running.url}/v2/repository/index").json() == READY


def test_the_index_states_the_reason_the_model_is_not_ready() -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False, grpc_port=0) as running:
        url = f"{running.url}/v2/repository/index"
        [described] = plain.post(url).json()
        assert (described["name"], described["state"], bool(described["reason"])) == ("double", "UNAVAILABLE", True)
        assert plain.post(url, json={"ready": True}).json() == []
        stub = Stub(running)
        asked = messages.RepositoryIndexRequest(ready=True)
        assert not stub.ask("RepositoryIndex", asked, messages.RepositoryIndexResponse).models
        stub.channel.close()


@pytest.mark.parametrize(("body", "status"), [(b"[]", 400), (b'{"ready": 1}', 400), (b"{", 400), (b" " * 9000, 413)])
def test_an_index_is_not_requested_under_another_name(running: RunningProxy, body: bytes, status: int) -> None:
    answer = plain.post(f"{running.url}/v2/repository/index", content=body)
    assert (answer.status_code, "error" in answer.json()) == (status, True)


def test_the_index_over_grpc(stub: Stub) -> None:
    described = stub.ask("RepositoryIndex", messages.RepositoryIndexRequest(), messages.RepositoryIndexResponse)
    assert [(each.name, each.version, each.state) for each in described.models] == [("double", "1", "READY")]


@pytest.mark.parametrize("what", ["load", "unload"])
def test_models_are_not_loaded_on_request(running: RunningProxy, stub: Stub, what: str) -> None:
    answer = plain.post(f"{running.url}/v2/repository/models/cat/{what}", json={})
    assert (answer.status_code, "InferenceService" in answer.json()["error"]) == (501, True)
    asked = messages.RepositoryModelLoadRequest(model_name="cat")
    error = failure(lambda: stub.ask(f"RepositoryModel{what.title()}", asked, messages.RepositoryModelLoadResponse))
    assert (error.code(), "InferenceService" in error.details()) == (grpc.StatusCode.UNIMPLEMENTED, True)


def test_statistics_count_requests_batches_and_their_time() -> None:
    with (
        running_proxy(max_batch_size=4, max_delay_milliseconds=10_000) as running,
        concurrent_clients(running.url) as group,
    ):
        assert statistics(running)["inference_stats"]["success"] == {"count": 0, "ns": 0}
        assert statistics(running)["last_inference"] == 0
        for future in [group.ask(number) for number in range(4)]:
            answer_to(future.result())
        assert plain.post(running.url + V2_PATH, json=v2_body([row(1)] * 4)).status_code == 200
        assert plain.post(running.url + V2_PATH, json={}).status_code == 400

        described = statistics(running)
        assert (described["name"], described["version"]) == ("double", "1")
        assert (described["inference_count"], described["execution_count"]) == (8, 2)
        assert abs(described["last_inference"] / 1000 - time.time()) < 60  # noqa: TID251 (a date is described)
        of_requests = described["inference_stats"]
        for what in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
            assert (of_requests[what]["count"], of_requests[what]["ns"] > 0) == (5, True), what
        assert of_requests["fail"]["count"] == 1
        assert of_requests["success"]["ns"] > of_requests["compute_infer"]["ns"]
        [batch] = described["batch_stats"]
        assert (batch["batch_size"], batch["compute_infer"]["count"]) == (4, 2)


def test_statistics_count_failed_requests_with_their_time() -> None:
    def fails(_: Any) -> Any:
        raise ValueError("no fish today")

    with running_proxy(lambda: FakeRuntime(model=fails)) as running:
        assert plain.post(running.url + V2_PATH, json=v2_body([row(1)])).status_code == 500
        described = statistics(running)
        assert (described["inference_count"], described["inference_stats"]["fail"]["count"]) == (0, 1)
        assert described["inference_stats"]["fail"]["ns"] > 0


@pytest.mark.parametrize("path", STATS)
def test_statistics_are_found_with_and_without_a_version(running: RunningProxy, path: str) -> None:
    assert statistics(running, path)["name"] == "double"


@pytest.mark.parametrize("path", ["/v2/models/cat/stats", "/v2/models/double/versions/2/stats"])
def test_statistics_of_other_models_are_not_found(running: RunningProxy, path: str) -> None:
    assert plain.get(running.url + path).status_code == 404


def test_a_model_named_stats_keeps_its_page() -> None:
    with running_proxy(lambda: FakeRuntime(name="stats")) as running:
        assert plain.get(f"{running.url}/v2/models/stats").json()["name"] == "stats"
        assert statistics(running, "/v2/models/stats/stats")["name"] == "stats"


def test_statistics_over_grpc_are_the_same(running: RunningProxy, stub: Stub) -> None:
    answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(1)])))
    described = statistics(running)
    for asked in (messages.ModelStatisticsRequest(), messages.ModelStatisticsRequest(name="double", version="1")):
        [over_grpc] = stub.ask("ModelStatistics", asked, messages.ModelStatisticsResponse).model_stats
        assert over_grpc.inference_count == described["inference_count"]
        assert over_grpc.inference_stats.success.ns == described["inference_stats"]["success"]["ns"]
        assert over_grpc.batch_stats[0].compute_infer.count == described["batch_stats"][0]["compute_infer"]["count"]
    wrong = messages.ModelStatisticsRequest(name="cat")
    error = failure(lambda: stub.ask("ModelStatistics", wrong, messages.ModelStatisticsResponse))
    assert error.code() is grpc.StatusCode.NOT_FOUND


def test_v1_paths_may_name_the_version(running: RunningProxy) -> None:
    path = "/v1/models/double/versions/1"
    answer = plain.post(f"{running.url}{path}:predict", json={"instances": [row(1)]})
    assert answer.json() == {"predictions": [[2 * value for value in row(1)]]}
    assert plain.get(running.url + path).json() == {"name": "double", "ready": True}
    for other in ("/v1/models/double/versions/2", "/v1/models/cat/versions/1"):
        assert plain.post(f"{running.url}{other}:predict", json={"instances": [row(1)]}).status_code == 404
        assert plain.get(running.url + other).status_code == 404
    assert plain.get(f"{running.url}{path}:predict").status_code == 405
