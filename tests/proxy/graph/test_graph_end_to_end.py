"""A graph as its clients meet it: real sockets, fake models."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pytest

from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.dispatch.runtime_connection import ResponseMemory
from shoal_proxy.graph.link import GraphLink
from shoal_proxy.graph.steps import StepClient
from shoal_schema.resource.graph import StepSpec
from tests import plain
from tests.calls import concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, double, tensor, write_answer
from tests.graphs import RunningGraph, running_graph

Array = np.ndarray[Any, Any]
PATH = "/v2/models/graph/infer"
CHAIN = {
    "steps": [{"name": "first", "inputs": {"x": "request.x"}}, {"name": "second", "inputs": {"x": "first.y"}}],
    "outputs": {"y": ["second.y"]},
}
SIDE_BY_SIDE = {
    "steps": [{"name": "left", "inputs": {"x": "request.x"}}, {"name": "right", "inputs": {"x": "request.x"}}],
    "outputs": {"y": ["left.y", "right.y"]},
    "combine": {"y": "Mean"},
}


def chain() -> dict[str, FakeRuntime]:
    """Return two models that double rows of four floats."""
    return {"first": FakeRuntime(), "second": FakeRuntime()}


def send(running: RunningGraph, values: list[float], **more: Any) -> Any:
    """Ask with V2's JSON."""
    return plain.post(running.url + PATH, json=v2_body([row(value) for value in values]), timeout=20, **more)


def refusing(status: int, message: str, **headers: str) -> FakeRuntime:
    """Return a model that answers so."""
    model = FakeRuntime()
    model.respond = lambda seen: (status, headers, orjson.dumps({"error": message}))
    return model


def test_a_chain_takes_each_row_from_model_to_model() -> None:
    with running_graph(chain(), CHAIN) as running:
        answer = send(running, [1, 5])
        assert answer.status_code == 200, answer.text
        (output,) = answer.json()["outputs"]
        assert (output["name"], output["shape"]) == ("y", [2, 4])
        assert output["data"] == [4 * value for start in (1, 5) for value in row(start)]
        described = plain.get(f"{running.url}/v2/models/graph").json()
        assert [each["name"] for each in described["inputs"]] == ["x"]
        assert described["platform"] == "shoal_graph"
        names = [part.partition(";")[0].strip() for part in answer.headers["server-timing"].split(",")]
        assert names == ["queue", "graph", "first", "second", "rows"]
        metrics = plain.get(f"{running.admin_url}/metrics").text
        assert 'shoal_proxy_step_seconds_count{step="first"} 1.0' in metrics


def test_every_protocol_reaches_a_graph() -> None:
    with running_graph(chain(), CHAIN) as running:
        v1 = plain.post(f"{running.url}/v1/models/graph:predict", json={"instances": [row(1), row(2)]})
        assert v1.json() == {"predictions": [[4 * value for value in row(1)], [4 * value for value in row(2)]]}
        torchserve = plain.post(f"{running.url}/predictions/graph", json=row(1))
        assert torchserve.json() == [4 * value for value in row(1)]


def test_binary_in_is_the_same_binary_out_and_between() -> None:
    odd = np.array([[0x7FC12345, 0xFFFFFFFF, 0x80000000, 1]], "<u4").view("<f4")
    models = {"first": FakeRuntime(model=lambda inputs: {"y": inputs["x"]}), "second": FakeRuntime(model=_same)}
    with running_graph(models, CHAIN) as running:
        head = orjson.dumps(
            {
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}],
                "parameters": {"binary_data_output": True},
            }
        )
        answer = plain.post(
            running.url + PATH,
            content=head + odd.tobytes(),
            headers={"inference-header-content-length": str(len(head))},
        )
        length = int(answer.headers["inference-header-content-length"])
        assert answer.content[length:] == odd.tobytes()
        assert models["second"].seen[0].inputs["x"].tobytes() == odd.tobytes()


def _same(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return {"y": inputs["x"]}


def test_each_step_is_explained_what_is_left_of_the_time_and_the_request() -> None:
    given = {
        "x-request-timeout-ms": "5000",
        "x-request-id": "me",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "x-shoal-priority": "3",
        "x-tenant": "blue",
        "authorization": "Bearer key",
    }
    with running_graph(chain(), CHAIN, forward_headers=("authorization",), fair_share_header="x-tenant") as running:
        assert send(running, [1], headers=given).status_code == 200
        for name, model in running.models.items():
            (seen,) = model.seen
            for header in ("x-request-id", "traceparent", "x-shoal-priority", "x-tenant", "authorization"):
                assert seen.headers[header] == given[header], (name, header)
            assert 0 < int(seen.headers["x-request-timeout-ms"]) < 5000
        first, second = (int(model.seen[0].headers["x-request-timeout-ms"]) for model in running.models.values())
        assert second <= first


def test_every_step_is_explained_the_requests_parameters() -> None:
    with running_graph(chain(), CHAIN) as running:
        answer = plain.post(running.url + PATH, json=v2_body([row(1)], parameters={"temperature": 0.5}))
        assert answer.status_code == 200
        for model in running.models.values():
            assert model.seen[0].document["parameters"]["temperature"] == 0.5


def test_a_model_that_accepts_json_alone_gets_json() -> None:
    models = {"first": FakeRuntime(binary=False), "second": FakeRuntime(binary=False)}
    with running_graph(models, CHAIN) as running:
        assert send(running, [1, 2]).json()["outputs"][0]["data"] == [4 * value for v in (1, 2) for value in row(v)]
        assert "inference-header-content-length" not in models["first"].seen[0].headers
        body = v2_body([row(1)])
        binary = {"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
        head = orjson.dumps({**body, "inputs": [binary]})
        answer = plain.post(
            running.url + PATH,
            content=head + np.array([1, np.nan, 3, 4], "<f4").tobytes(),
            headers={"inference-header-content-length": str(len(head))},
        )
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("step first: input 'x' has NaN")


def test_a_model_whose_rows_are_not_its_first_dimension_is_called_in_its_own_way() -> None:
    sideways = FakeRuntime(
        inputs=[tensor("x", "FP32", [4, -1], batch_dim=1)], outputs=[tensor("y", "FP32", [4, -1], batch_dim=1)]
    )
    with running_graph({"first": sideways, "second": FakeRuntime()}, CHAIN) as running:
        answer = send(running, [1, 2, 3])
        assert answer.json()["outputs"][0]["data"] == [4 * value for v in (1, 2, 3) for value in row(v)]
        assert sideways.seen[0].inputs["x"].shape == (4, 3)


def test_the_graphs_deadline_holds_for_any_longer_timeout_of_a_client() -> None:
    with running_graph(chain(), {**CHAIN, "deadlineMilliseconds": 200}) as running:
        running.call(running.models["first"].gate.clear)
        answer = send(running, [1], headers={"x-request-timeout-ms": "60000"})
        assert answer.status_code == 504
        running.call(running.models["first"].gate.set)
        assert not running.models["second"].seen  # no client waits for it any more


@pytest.mark.parametrize(
    ("status", "expected"), [(503, 503), (500, 500), (400, 400), (413, 413), (404, 503), (302, 500), (429, 429)]
)
def test_a_steps_failure_is_the_graphs_by_the_steps_name(status: int, expected: int) -> None:
    models = {"first": FakeRuntime(), "second": refusing(status, "not now", **{"retry-after": "7"})}
    with running_graph(models, CHAIN) as running:
        answer = send(running, [1, 2])
        assert answer.status_code == expected
        assert "step second: not now" in answer.json()["error"]
        assert answer.headers["x-shoal-executed"] == "maybe"  # the first one has run
        assert answer.headers["retry-after"] == "7"
        assert 'shoal_proxy_step_failures_total{step="second"} 1.0' in plain.get(f"{running.admin_url}/metrics").text


def test_a_model_that_disconnects_is_explained_by_its_name() -> None:
    models = chain()
    models["second"].respond = lambda seen: None
    with running_graph(models, CHAIN) as running:
        answer = send(running, [1])
        assert answer.status_code == 503
        assert "step second: the connection" in answer.json()["error"]


@pytest.mark.parametrize(
    "outputs",
    [
        {"z": np.zeros((2, 4), np.float32)},
        {"y": np.zeros((3, 4), np.float32)},
        {"y": np.zeros((2, 4), np.float64)},
        {"y": np.zeros((), np.float32)},
        {"y": np.zeros((2, 5), np.float32)},
        {"y": np.zeros((2, 4, 1), np.float32)},
    ],
)
def test_a_response_that_is_none_of_the_models_is_the_row_of_no_request(outputs: Mapping[str, Array]) -> None:
    models = chain()
    models["first"].respond = lambda seen: (200, *write_answer(outputs, {}, binary=True))
    with running_graph(models, CHAIN) as running:
        answer = send(running, [1, 2])
        assert answer.status_code == 500
        assert "step first" in answer.json()["error"]


@pytest.mark.parametrize("announced", [True, False])
def test_a_response_larger_than_all_that_may_wait_is_not_accepted(announced: bool) -> None:
    models = chain()
    head = {} if announced else {"transfer-encoding": "chunked"}
    piece = b"8000\r\n" + bytes(0x8000) + b"\r\n"
    models["first"].respond = lambda seen: (200, head, bytes(1 << 21) if announced else piece * 64)
    with running_graph(models, CHAIN, queue__max_bytes=1 << 20) as running:
        answer = send(running, [1])
        assert answer.status_code == 500
        assert f"limit of {1 << 20} bytes" in answer.json()["error"]
        models["first"].respond = None
        assert send(running, [1]).status_code == 200


def test_a_failed_step_ends_those_beside_it() -> None:
    models = {"left": FakeRuntime(), "right": refusing(500, "broken")}
    with running_graph(models, SIDE_BY_SIDE) as running:
        running.call(models["left"].gate.clear)
        answer = send(running, [1])
        assert (answer.status_code, models["left"].running) == (500, 1)
        running.until(lambda: models["left"].connections == 0)


def test_steps_that_do_not_depend_on_one_another_run_at_the_same_time() -> None:
    models = {"left": FakeRuntime(), "right": FakeRuntime(model=lambda inputs: {"y": inputs["x"] * 4})}
    with running_graph(models, SIDE_BY_SIDE) as running, concurrent_clients(running.url) as group:
        running.call(models["left"].gate.clear)
        running.call(models["right"].gate.clear)
        asked = group.post(PATH, json=v2_body([row(1)]))
        running.until(lambda: models["left"].running == models["right"].running == 1)
        running.call(models["left"].gate.set)
        running.call(models["right"].gate.set)
        assert asked.result().json()["outputs"][0]["data"] == [3 * value for value in row(1)]


def test_a_client_that_disconnects_ends_its_steps() -> None:
    models = chain()
    with running_graph(models, CHAIN) as running:
        running.call(models["first"].gate.clear)
        with plain.Client() as client, pytest.raises(Exception, match="timed out"):
            client.post(running.url + PATH, json=v2_body([row(1)]), timeout=0.2)
        running.until(lambda: models["first"].connections == 0)
        running.call(models["first"].gate.set)
        assert not models["second"].seen
        running.until(lambda: running.proxy.dispatcher.settled)


def test_a_model_that_describes_itself_oddly_is_explained_and_mended() -> None:
    models = chain()
    models["second"].inputs[0]["name"] = 5
    with running_graph(models, CHAIN, ready=False) as running:
        running.until(lambda: "second: its metadata is unusable: TypeError: 5 is no" in state(running))
        models["second"].inputs[0]["name"] = "x"
        running.until(lambda: running.proxy.link.ready)
        assert send(running, [1]).status_code == 200


def test_a_name_that_no_server_can_have_is_explained() -> None:
    spec = {**CHAIN, "steps": [{"name": "first", "url": "http://..../v2/models/a", "inputs": {"x": "request.x"}}]}
    with running_graph(chain(), {**spec, "outputs": {"y": ["first.y"]}}, ready=False) as running:
        running.until(lambda: "invalid host name ....: " in state(running))


def state(running: RunningGraph) -> str:
    """Return why the graph is not ready."""
    return running.proxy.link.reason


def test_a_client_that_disconnects_between_being_sent_and_the_first_step_leaves_no_slot_behind() -> None:
    models = chain()
    with running_graph(models, CHAIN) as running:
        dispatcher = running.proxy.dispatcher

        async def come_and_go() -> None:
            now_s = time.monotonic()
            inputs = {"x": np.ones((1, 4), np.float32)}
            pending = PendingRequest(
                inputs=inputs, rows=1, size_bytes=16, arrived_s=now_s, deadline_s=now_s + 3600, deliver=lambda _: None
            )
            dispatcher.submit(pending)
            while not pending.dequeued_rows:  # noqa: ASYNC110 (it is the very turn of the loop that counts)
                await asyncio.sleep(0)
            dispatcher.cancel(pending)

        running.call(models["first"].gate.clear)
        running.call(come_and_go)
        running.until(lambda: dispatcher.settled)
        assert not models["first"].seen


def test_a_graph_is_explained_as_one() -> None:
    with running_graph(chain(), CHAIN) as running:
        assert "Graph graph: 0 of at most" in plain.get(f"{running.admin_url}/v1/explain").text
        send(running, [1])
        explained = plain.get(f"{running.admin_url}/v1/explain").text
        assert "A request of 1 row takes" in explained
        assert "batching." not in explained
        assert "each step forms batches" in explained


def test_a_request_that_has_been_here_is_rejected() -> None:
    with running_graph(chain(), CHAIN) as running:
        answer = send(running, [1], headers={"x-shoal-graphs": "outer,graph"})
        assert answer.status_code == 400
        assert "calls itself: outer,graph,graph" in answer.json()["error"]
        assert send(running, [1], headers={"x-shoal-graphs": "outer"}).status_code == 200
        assert running.models["first"].seen[0].headers["x-shoal-graphs"] == "outer,graph"


def test_a_graph_may_be_a_step_and_no_graph_comes_to_itself_through_another() -> None:
    with running_graph(chain(), CHAIN) as inner:
        steps = [{"name": "inner", "url": f"{inner.url}/v2/models/graph", "inputs": {"x": "request.x"}}]
        spec = {"steps": steps, "outputs": {"y": ["inner.y"]}}
        with running_graph({"inner": FakeRuntime()}, spec, metadata__name="outer") as outer:
            answer = plain.post(f"{outer.url}/v2/models/outer/infer", json=v2_body([row(1)]))
            assert answer.json()["outputs"][0]["data"] == [4 * value for value in row(1)]
            described = plain.get(f"{outer.url}/v2/models/outer").json()
            assert described["parameters"]["graphs"] == "graph,outer"
        with running_graph({"inner": FakeRuntime()}, spec, ready=False) as same:  # it is called as the inner one is
            same.until(lambda: same.proxy.link.reason.startswith("steps"))
            load = plain.get(f"{same.admin_url}/v1/load").json()["graph"]
            assert load["reason"] == "Cycle"
            assert "the graph of inner calls graph, which calls it" in load["message"]
        with running_graph({"inner": FakeRuntime()}, spec, namespace="shop") as elsewhere:  # it is not the inner one
            answer = plain.post(f"{elsewhere.url}/v2/models/graph/infer", json=v2_body([row(1)]))
            assert answer.json()["outputs"][0]["data"] == [4 * value for value in row(1)]
            described = plain.get(f"{elsewhere.url}/v2/models/graph").json()
            assert described["parameters"]["graphs"] == "graph,graph.shop"


def test_a_graph_is_not_ready_before_its_models_are_and_stays_when_one_goes() -> None:
    models = chain()
    models["second"].outputs = [tensor("y", "FP32", [-1, 4])]
    with running_graph(models, CHAIN) as running:
        load = plain.get(f"{running.admin_url}/v1/load").json()
        assert load["graph"]["reason"] == "GraphValid"
        running.call(models["second"].stop)
        answer = send(running, [1])
        assert answer.status_code == 503
        assert "step second" in answer.json()["error"]
        assert plain.get(f"{running.admin_url}/readyz").status_code == 200


@pytest.mark.parametrize(
    ("change", "reason", "said"),
    [
        ({"inputs": [tensor("x", "FP32", [-1, 5])]}, "SignatureMismatch", "steps[1].inputs.x: second needs FP32[5]"),
        ({"inputs": [tensor("z", "FP32", [-1, 4])]}, "SignatureMismatch", "its inputs are z"),
        ({"outputs": [tensor("z", "FP32", [-1, 4])]}, "SignatureMismatch", "outputs.y: second has no output 'y'"),
        ({"inputs": [tensor("x", "FP32", [4])]}, "SignatureMismatch", "no batch dimension"),
        ({"name": "another"}, "GraphValid", ""),
    ],
)
def test_models_that_do_not_fit_are_reported_before_any_traffic(change: Any, reason: str, said: str) -> None:
    models = {"first": FakeRuntime(), "second": FakeRuntime(**change)}
    with running_graph(models, CHAIN, ready=False) as running:
        running.until(lambda: running.proxy.link.reason != "metadata of the graph's models has not been requested yet")
        load = plain.get(f"{running.admin_url}/v1/load").json()
        assert load["graph"]["reason"] == reason
        assert said in load["graph"]["message"]
        ready = plain.get(f"{running.admin_url}/readyz")
        assert (ready.status_code == 200) == (reason == "GraphValid")


@pytest.mark.parametrize(
    ("url", "reason", "said"),
    [
        ("http://127.0.0.1:1/v2/models/double", "StepNotReady", "no runtime listens at 127.0.0.1:1"),
        ("http://nowhere.invalid:80/v2/models/double", "StepMissing", "host name nowhere.invalid"),
        ("http://{}/v2/models/another", "StepMissing", "404 for /v2/models/another"),
    ],
)
def test_a_model_that_is_not_there_is_explained_from_one_that_is_not_there_yet(
    url: str, reason: str, said: str
) -> None:
    with running_graph(chain(), CHAIN, ready=False) as running:
        address = "{}:{}".format(*running.models["first"].address)
        link = running.proxy.link
        assert isinstance(link, GraphLink)
        document, sentence, fault = running.call(link._request_metadata, running.call(stranger, url.format(address)))
        assert (document, fault or "StepNotReady") == ({}, reason)
        assert said in sentence


def stranger(url: str) -> StepClient:
    """Return the client of a step that is no model's."""
    return StepClient(StepSpec(name="stranger", inputs={"x": "request.x"}, url=url), [], ResponseMemory(1 << 20))


def test_a_model_that_becomes_another_is_noticed_when_it_rejects() -> None:
    models = chain()
    with running_graph(models, CHAIN) as running:
        models["second"].inputs = [tensor("x", "FP32", [-1, 5])]
        models["second"].respond = lambda seen: (400, {}, b'{"error": "input x has shape [1, 4]"}')
        assert send(running, [1]).status_code == 400
        running.until(lambda: not running.proxy.link.ready)
        assert "second needs FP32[5]" in running.proxy.link.reason


def test_rows_fail_alone_by_number_and_step() -> None:
    def respond(seen: Any) -> tuple[int, dict[str, str], bytes]:
        bad = [index for index, each in enumerate(seen.inputs["x"]) if each[0] == 4]
        if not bad:
            return 200, *write_answer(double(seen.inputs), {}, binary=True)
        errors = [{"row": index, "status": 422, "message": "four is odd"} for index in bad]
        return 422, {}, orjson.dumps({"error": "row", "errors": errors})

    models = chain()
    models["second"].respond = respond
    with running_graph(models, CHAIN) as running:
        answer = send(running, [1, 2, 3, 2])
        assert answer.status_code == 422
        said = [(each["row"], each["message"]) for each in answer.json()["errors"]]
        assert said == [(1, "step second: four is odd"), (3, "step second: four is odd")]
        assert send(running, [1, 3]).status_code == 200


def detector(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Cut each text at its spaces; as many items in each row as in the longest."""
    words = [text.split() for text in inputs["text"].tolist()]
    width = max([len(each) for each in words] + [1])
    crops = np.array([each + [b""] * (width - len(each)) for each in words], object)
    scores = np.array([[len(word) / 10 for word in each] for each in crops.tolist()], np.float32)
    return {"crops": crops, "scores": scores}


def classifier(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return a word's first letter, and its probability."""
    words = inputs["crop"].tolist()
    return {
        "label": np.array([word[:1] for word in words], object),
        "probability": np.array([0.9 if len(word) > 3 else 0.5 for word in words], np.float32),
    }


DETECT: dict[str, Any] = {
    "steps": [
        {"name": "detect", "inputs": {"text": "request.text"}},
        {"name": "fast", "inputs": {"crop": "detect.crops"}, "each": "detect.crops"},
        {
            "name": "precise",
            "inputs": {"crop": "detect.crops"},
            "each": "detect.crops, detect.scores",
            "when": "fast.probability < 0.8 and detect.scores > 0.15",
            "onError": "Omit",
        },
    ],
    "outputs": {"label": ["precise.label", "fast.label"], "crops": ["detect.crops"]},
}


def pictures() -> dict[str, FakeRuntime]:
    """Return a detector and two classifiers."""
    labels = [tensor("label", "BYTES", [-1]), tensor("probability", "FP32", [-1])]
    crop = [tensor("crop", "BYTES", [-1])]
    return {
        "detect": FakeRuntime(
            inputs=[tensor("text", "BYTES", [-1])],
            outputs=[tensor("crops", "BYTES", [-1, -1]), tensor("scores", "FP32", [-1, -1])],
            model=detector,
        ),
        "fast": FakeRuntime(inputs=crop, outputs=labels, model=classifier),
        "precise": FakeRuntime(
            inputs=crop,
            outputs=labels,
            model=lambda inputs: {
                "label": np.array([word.upper() for word in inputs["crop"].tolist()], object),
                "probability": np.ones(len(inputs["crop"]), np.float32),
            },
        ),
    }


def labels_of(running: RunningGraph, texts: list[str]) -> list[list[str]]:
    """Ask what is in each text."""
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}]}
    answer = plain.post(running.url + PATH, json=body)
    assert answer.status_code == 200, answer.text
    output = next(each for each in answer.json()["outputs"] if each["name"] == "label")
    width = output["shape"][1]
    return [output["data"][index * width : (index + 1) * width] for index in range(len(texts))]


def test_what_is_made_of_items_is_not_there_where_they_are_not() -> None:
    counts = [tensor("words", "BYTES", [-1, -1])], [tensor("most", "FP32", [-1])]
    models = pictures()
    models["joined"] = FakeRuntime(
        inputs=counts[0],
        outputs=counts[1],
        model=lambda inputs: {"most": np.array([len(b"".join(row)) for row in inputs["words"].tolist()], np.float32)},
    )
    detect = {"name": "detect", "inputs": {"text": "request.text"}, "when": "request.text != 'none'"}
    fast = {"name": "fast", "inputs": {"crop": "detect.crops"}, "each": "detect.crops"}
    joined = {"name": "joined", "inputs": {"words": "fast.label"}}
    graph = {"steps": [detect, fast, joined], "outputs": {"label": ["fast.label"], "most": ["joined.most"]}}
    with running_graph(models, graph) as running:
        body = {"instances": ["a house", "none", ""]}
        answer = plain.post(f"{running.url}/v1/models/graph:predict", json=body)
        assert answer.json() == {
            "predictions": [
                {"label": ["a", "h"], "most": 2.0},
                {"label": ["", ""], "most": None},  # nothing was found: the model is not asked
                {"label": ["", ""], "most": 0.0},  # an empty list was
            ]
        }


def test_each_item_takes_its_own_branch_and_comes_back_to_its_row() -> None:
    with running_graph(pictures(), DETECT) as running:
        assert labels_of(running, ["a house by", "fish", "at no sea"]) == [
            ["a", "h", "BY"],
            ["f", "", ""],
            ["AT", "NO", "SEA"],
        ]
        (asked,) = running.models["precise"].seen
        assert asked.inputs["crop"].tolist() == [b"by", b"at", b"no", b"sea"]


def test_no_items_and_no_rows_for_a_step_call_no_model() -> None:
    with running_graph(pictures(), DETECT) as running:
        assert labels_of(running, ["", " "]) == [[], []]
        assert labels_of(running, ["house", "mouse"]) == [["h"], ["m"]]
        assert not running.models["precise"].seen
        assert len(running.models["fast"].seen) == 1


def test_what_a_step_would_have_given_is_left_out_where_it_fails() -> None:
    models = pictures()
    models["precise"].respond = lambda seen: (500, {}, b'{"error": "broken"}')
    with running_graph(models, DETECT) as running:
        assert labels_of(running, ["no sea"]) == [["n", "s"]]


def test_the_items_that_do_not_fail_keep_what_the_step_gave() -> None:
    models = pictures()
    whole = models["precise"].model

    def respond(seen: Any) -> tuple[int, dict[str, str], bytes]:
        bad = [index for index, word in enumerate(seen.inputs["crop"].tolist()) if word == b"no"]
        if bad:
            errors = [{"row": index, "status": 500, "message": "no!"} for index in bad]
            return 500, {}, orjson.dumps({"error": "no!", "errors": errors})
        return 200, *write_answer(whole(seen.inputs), {}, binary=True)

    models["precise"].respond = respond
    with running_graph(models, DETECT) as running:
        assert labels_of(running, ["at no sea", "by no"]) == [["AT", "n", "SEA"], ["BY", "n", ""]]


def test_an_item_that_fails_is_explained_by_its_row_and_its_place() -> None:
    models = pictures()
    models["fast"].respond = lambda seen: (
        400,
        {},
        orjson.dumps({"error": "x", "errors": [{"row": 3, "status": 400, "message": "not a picture"}]}),
    )
    with running_graph(models, DETECT) as running:
        body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a b", "c d e"]}]}
        answer = plain.post(running.url + PATH, json=body)
        assert answer.status_code == 400
        assert answer.json()["errors"] == [
            {"row": 1, "status": 400, "message": "step fast, item 1 of detect.crops: not a picture"}
        ]


OMITTING = {
    "steps": [{"name": "first", "inputs": {"x": "request.x"}, "onError": "Omit"}],
    "outputs": {"y": ["first.y", "request.x"]},
}


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_a_model_that_fails_as_a_whole_costs_only_the_rows_that_it_fails_for(status: int) -> None:
    def respond(seen: Any) -> tuple[int, dict[str, str], bytes]:
        if any(each[0] in (3, 6) for each in seen.inputs["x"]):
            return status, {}, b'{"error": "forward raised"}'
        return 200, *write_answer(double(seen.inputs), {}, binary=True)

    model = FakeRuntime(respond=respond)
    with running_graph({"first": model}, OMITTING) as running:
        answer = send(running, [1, 2, 3, 4, 5, 6, 7])
        firsts = answer.json()["outputs"][0]["data"][::4]
        assert 'first;desc="2 omitted"' in answer.headers["server-timing"]
        assert firsts == [2, 4, 3, 8, 10, 6, 14]  # what it does not answer goes on as it came
        model.seen.clear()
        assert send(running, [3.0] * 400).json()["outputs"][0]["data"][::4] == [3.0] * 400
        assert len(model.seen) == 32  # and no more, however many fail


def test_a_model_that_becomes_another_is_seen_where_its_step_may_be_left_out_too() -> None:
    model = FakeRuntime()
    with running_graph({"first": model}, {**OMITTING, "outputs": {"y": ["first.y"]}}) as running:
        assert send(running, [1]).json()["outputs"][0]["data"] == [2 * value for value in row(1)]
        model.outputs = [tensor("y", "FP64", [-1, 4])]
        model.model = lambda inputs: {"y": inputs["x"].astype(np.float64) * 2}
        assert 'first;desc="1 omitted"' in send(running, [1]).headers["server-timing"]
        running.until(lambda: running.proxy.link.signature.outputs["y"].datatype == "FP64")  # type: ignore[union-attr]
        assert send(running, [1]).json()["outputs"][0]["datatype"] == "FP64"


def test_lists_without_an_item_in_any_row_are_given_to_models_that_take_none_without() -> None:
    def count(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"most": np.array([len([each for each in row if each]) for row in inputs["words"].tolist()], np.int64)}

    models = pictures()
    models["joined"] = FakeRuntime(
        inputs=[tensor("words", "BYTES", [-1, -1])], outputs=[tensor("most", "INT64", [-1])], model=count
    )
    joined = {"name": "joined", "inputs": {"words": "fast.label"}}
    detect, fast, *_ = DETECT["steps"]
    steps = [detect, fast, joined]
    with running_graph(models, {"steps": steps, "outputs": {"most": ["joined.most"]}}) as running:
        for instances, wanted in ([["a b", ""], [2, 0]], [["", ""], [0, 0]]):
            answer = plain.post(f"{running.url}/v1/models/graph:predict", json={"instances": instances})
            assert answer.json() == {"predictions": wanted}
        assert [seen.inputs["words"].shape for seen in models["joined"].seen] == [(2, 2), (2, 1)]


def test_the_responses_of_all_steps_share_one_memory_limit_and_release_it() -> None:
    large = bytes(300_000)

    def respond(seen: Any) -> tuple[int, dict[str, str], bytes]:
        return 500, {}, b'{"error": "%b"}' % large.replace(b"\0", b"x")

    models = {"left": FakeRuntime(respond=respond), "right": FakeRuntime(respond=respond)}
    with running_graph(models, SIDE_BY_SIDE, queue__max_bytes=200_000) as running:
        answer = send(running, [1])
        assert (answer.status_code, "limit of 200000 bytes" in answer.text) == (500, True)
        for model in models.values():
            model.respond = None
        link = running.proxy.link
        assert isinstance(link, GraphLink)
        running.until(lambda: link._room.used_bytes == 0)
        assert send(running, [1]).status_code == 200
        running.until(lambda: link._room.used_bytes == 0)
        link._room.used_bytes = 200_000  # as if others' answers took it
        busy = send(running, [1])
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        assert "limit of 200000 bytes" in busy.text
        link._room.used_bytes -= 200_000
        assert send(running, [1]).status_code == 200


def test_a_steps_long_message_is_cut() -> None:
    models = {"first": refusing(503, "m" * 10_000), "second": FakeRuntime()}
    with running_graph(models, CHAIN) as running:
        assert 4000 < len(send(running, [1]).json()["error"]) < 4200


def test_a_model_that_gives_another_datatype_is_retried() -> None:
    models = chain()
    with running_graph(models, CHAIN) as running:
        second = models["second"]
        before = second.outputs
        second.outputs = [tensor("y", "FP64", [-1, 4])]
        doubled = {"y": np.array([[2.0, 4.0, 6.0, 8.0]])}
        second.respond = lambda seen: (200, *write_answer(doubled, {}, binary=True))
        wrong = send(running, [1])
        assert (wrong.status_code, wrong.headers["x-shoal-executed"]) == (500, "maybe")
        assert "float64 as 'y'" in wrong.json()["error"]
        running.until(lambda: running.proxy.link.signature.outputs["y"].datatype == "FP64")  # type: ignore[union-attr]
        assert send(running, [1]).json()["outputs"][0]["datatype"] == "FP64"
        # And when it is rolled back, although no request is rejected any more.
        second.outputs, second.respond = before, None
        link = running.proxy.link
        assert isinstance(link, GraphLink)
        assert link._again_s == 10.0
        link._again_s = 0.1
        running._loop.call_soon_threadsafe(link._wake.set)
        running.until(lambda: running.proxy.link.signature.outputs["y"].datatype == "FP32")  # type: ignore[union-attr]
        assert send(running, [1]).json()["outputs"][0]["datatype"] == "FP32"
