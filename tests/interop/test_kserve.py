"""KServe's ``InferenceRESTClient`` against the proxy."""

import pytest

from tests.calls import row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy
from tests.interop.conftest import ForeignClient, ForeignError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROWS = [row(1), row(2)]
DOUBLED = [[2 * value for value in one] for one in ROWS]


def test_health_in_both_protocols(kserve: ForeignClient, running: RunningProxy) -> None:
    assert kserve.call("health", running.url, "v1") == {"live": True, "model": True}
    assert kserve.call("health", running.url, "v2") == {"live": True, "model": True, "ready": True}


def test_a_runtime_that_warms_up_is_live_and_not_ready(kserve: ForeignClient) -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False) as running:
        assert kserve.call("health", running.url, "v1") == {"live": True, "model": False}
        assert kserve.call("model_ready", running.url, "v2", "double") is False
        with pytest.raises(ForeignError, match="503 Service Unavailable"):
            kserve.call("health", running.url, "v2")


def test_v1_rows_are_predicted(kserve: ForeignClient, running: RunningProxy) -> None:
    assert kserve.call("predict", running.url, {"instances": ROWS}) == {"predictions": DOUBLED}
    assert kserve.call("predict", running.url, {"inputs": ROWS}) == {"outputs": DOUBLED}


@pytest.mark.parametrize("binary", [True, False])
def test_v2_requests_travel_as_json_and_as_binary(kserve: ForeignClient, running: RunningProxy, binary: bool) -> None:
    answer = kserve.call("infer", running.url, ROWS, binary=binary, id_="fish-7")
    assert answer == {"id": "fish-7", "model": "double", "name": "y", "y": DOUBLED}


def test_a_v2_request_without_an_id_is_answered(kserve: ForeignClient, running: RunningProxy) -> None:
    answer = kserve.call("infer", running.url, ROWS, binary=True)
    assert answer["y"] == DOUBLED


def test_a_plain_v2_document_is_answered(kserve: ForeignClient, running: RunningProxy) -> None:
    assert kserve.call("infer_document", running.url, v2_body(ROWS)) == DOUBLED


def test_our_words_reach_the_caller(kserve: ForeignClient, running: RunningProxy) -> None:
    with pytest.raises(ForeignError, match=r"ragged rows.*400 Bad Request") as raised:
        kserve.call("predict", running.url, {"instances": [[1, 2, 3, 4], [1, 2]]})
    assert raised.value.kind == "HTTPStatusError"
    with pytest.raises(ForeignError, match=r"unknown model 'missing'.*404"):
        kserve.call("predict", running.url, {"instances": ROWS}, "missing")
