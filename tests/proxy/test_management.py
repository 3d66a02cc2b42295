"""TorchServe's management API over a proxy: its reads, and its error for registrations."""

import httpx
import pytest
import yaml

from shoal_proxy.routes.management import describe_model, registration_advice
from shoal_schema.resource import API_VERSION, KIND


def resource(**asked: str) -> dict[str, object]:
    """Return the resource that the sentence shows."""
    return dict(yaml.safe_load(registration_advice(asked).partition("\n")[2]))


def test_the_model_is_listed_and_described_as_torchserve_does(client: httpx.Client) -> None:
    listed = client.get("/models").json()
    [described] = client.get("/models/double").json()

    assert listed == {"models": [{"modelName": "double", "modelUrl": "double"}]}
    assert (described["modelName"], described["workers"]) == ("double", [{"id": "1", "status": "READY"}])
    assert described["jobQueueStatus"]["pendingRequests"] == 0
    for version in ("1", "all"):
        assert client.get(f"/models/double/{version}").json() == [described]


def test_a_model_that_is_not_here_is_named_in_the_format_of_torchserve(client: httpx.Client) -> None:
    answer = client.get("/models/unknown")

    assert (answer.status_code, answer.json()["type"]) == (404, "ModelNotFoundException")
    assert "unknown" in answer.json()["message"]


def test_registering_gets_a_response_with_the_resource_to_apply(client: httpx.Client) -> None:
    answer = client.post("/models", params={"url": "https://models.example.com/squeeze_net.mar", "batch_size": "8"})

    assert (answer.status_code, answer.json()["type"]) == (405, "MethodNotAllowedException")
    assert answer.headers["allow"] == "GET"
    assert "maxBatchSize: 8" in answer.json()["message"]
    for method in ("PUT", "DELETE"):
        assert client.request(method, "/models/double").status_code == 405


def test_the_resource_is_one_that_kubectl_takes() -> None:
    assert resource(url="https://h/a b/Cat_1.mar", batch_size="8") == {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "cat-1"},
        "spec": {"model": {"uri": "https://h/a b/Cat_1.mar"}, "batching": {"maxBatchSize": 8}},
    }
    assert resource(url="cat.mar", model_name="My Cat", batch_size="many")["spec"] == {
        "model": {"uri": "file:///models/cat.mar"}
    }


@pytest.mark.parametrize("url", ['"}\n---\nkind: Secret', "#", "\ud800"])
def test_whatever_is_requested_stays_one_text_of_the_resource(url: str) -> None:
    assert set(resource(url=url)) == {"apiVersion", "kind", "metadata", "spec"}


def test_a_fuller_queue_than_there_is_room_leaves_no_room() -> None:
    described = describe_model("m", "1", batch_size=4, ready=False, waiting=9, capacity=8)

    assert described["jobQueueStatus"] == {"remainingCapacity": 0, "pendingRequests": 9}
    assert described["workers"][0]["status"] == "UNLOADED"
