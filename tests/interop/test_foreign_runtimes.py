"""The proxy in front of runtimes that are not ours: they say less, and speak HTTP in ways of their own."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import orjson
import pytest

from tests import plain
from tests.calls import V1_PATH, V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import Array, FakeRuntime, RunningProxy, running_proxy, tensor
from tests.interop.foreign import ForeignRuntime, Rewrite, announcing_close, as_http_1_0, in_chunks


def ask(running: RunningProxy, value: float) -> list[float]:
    """Return the answer to one row."""
    return answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(value)]), timeout=20))


def doubled(value: float) -> list[float]:
    """Return what the model makes of ``row(value)``."""
    return [2 * number for number in row(value)]


def assert_four_meet(running: RunningProxy) -> None:
    """Ask four times at once and expect one batch, for a proxy that waits for four rows."""
    with concurrent_clients(running.url) as group:
        answers = [group.ask(number) for number in range(4)]
        assert [answer_to(answer.result()) for answer in answers] == [doubled(number) for number in range(4)]
    assert [seen.rows for seen in running.runtime.seen] == [4]


def binary_request(name: str, datatype: str, shape: list[int], data: bytes) -> dict[str, Any]:
    """Return httpx options of a V2 request that is binary both ways."""
    item = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = orjson.dumps({"inputs": [item], "parameters": {"binary_data_output": True}})
    return {"content": head + data, "headers": {"inference-header-content-length": str(len(head))}}


def echo(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the texts as they came; a JSON-only runtime has them as strings."""
    texts = np.empty(inputs["text"].shape, dtype=object)
    for index, element in np.ndenumerate(inputs["text"]):
        texts[index] = str(element).encode() if isinstance(element, str) else element
    return {"echo": texts}


def json_only_text_runtime() -> FakeRuntime:
    """Return a runtime of texts without the binary extension."""
    inputs, outputs = [tensor("text", "BYTES", [-1, 1])], [tensor("echo", "BYTES", [-1, 1])]
    return FakeRuntime(inputs=inputs, outputs=outputs, model=echo, binary=False)


def triton_like() -> FakeRuntime:
    """Return a runtime that answers as Triton does: binary, with scalars of its own beside the outputs."""
    scalars = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
    return FakeRuntime(answer_parameters=lambda seen: scalars)


def test_a_runtime_like_triton_gets_binary_batches() -> None:
    with running_proxy(triton_like, max_batch_size=4, max_delay_milliseconds=10_000) as running:
        assert_four_meet(running)
        seen = running.runtime.seen[0]
        assert seen.document["inputs"][0]["parameters"] == {"binary_data_size": 64}
        assert seen.document["parameters"] == {"binary_data_output": True}


def test_a_runtime_like_mlserver_gets_json_batches() -> None:
    make_runtime = partial(FakeRuntime, binary=False, answer_parameters=lambda seen: {"content_type": "np"})
    with running_proxy(make_runtime, max_batch_size=4, max_delay_milliseconds=10_000) as running:
        assert_four_meet(running)
        seen = running.runtime.seen[0]
        assert "inference-header-content-length" not in seen.headers
        assert seen.headers["content-type"] == "application/json"
        assert "parameters" not in seen.document


def test_a_binary_caller_may_use_a_runtime_of_json() -> None:
    data = np.array(row(3), "<f4").tobytes()
    with running_proxy(partial(FakeRuntime, binary=False)) as running:
        answer = plain.post(running.url + V2_PATH, **binary_request("x", "FP32", [1, 4], data))
        assert answer.status_code == 200
        values = np.frombuffer(answer.content[int(answer.headers["inference-header-content-length"]) :], "<f4")
        assert values.tolist() == doubled(3)


def test_texts_pass_through_a_runtime_of_json() -> None:
    with running_proxy(json_only_text_runtime) as running:
        answer = plain.post(running.url + V1_PATH, json={"instances": [["große"], ["魚"]]})
        assert answer.json() == {"predictions": [["große"], ["魚"]]}


def test_bytes_that_are_no_text_are_refused_alone_by_a_runtime_of_json() -> None:
    with (
        running_proxy(json_only_text_runtime, max_batch_size=2, max_delay_milliseconds=10_000) as running,
        concurrent_clients(running.url) as group,
    ):
        good = binary_request("text", "BYTES", [1, 1], b"\x02\x00\x00\x00ok")
        first = group.post(V2_PATH, **good)
        running.until_waiting(1)
        bad = group.post(V2_PATH, **binary_request("text", "BYTES", [1, 1], b"\x02\x00\x00\x00\xff\xd8")).result()
        assert bad.status_code == 400
        assert "'text' has bytes that are not UTF-8" in bad.json()["error"]
        second = group.post(V2_PATH, **good)
        assert [answer.result().status_code for answer in (first, second)] == [200, 200]


def test_numbers_that_json_has_no_words_for_are_refused_alone_by_a_runtime_of_json() -> None:
    data = np.array([1, 2, np.nan, 4], "<f4").tobytes()
    with running_proxy(partial(FakeRuntime, binary=False)) as running:
        bad = plain.post(running.url + V2_PATH, **binary_request("x", "FP32", [1, 4], data))
        assert bad.status_code == 400
        assert "'x' has NaN or an infinity" in bad.json()["error"]


def test_requests_travel_alone_to_a_model_without_a_batch_dimension() -> None:
    make_runtime = partial(FakeRuntime, inputs=[tensor("x", "FP32", [4])], outputs=[tensor("y", "FP32", [4])])
    with running_proxy(make_runtime) as running:
        flat = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": row(1)}]}
        running.hold()
        with concurrent_clients(running.url) as group:
            answers = [group.post(V2_PATH, json=flat) for _ in range(3)]
            running.until(lambda: len(running.runtime.seen) + running.proxy.scheduler.queue.requests == 3)
            running.release()
            assert [answer_to(answer.result()) for answer in answers] == [doubled(1)] * 3
        assert [seen.document["inputs"][0]["shape"] for seen in running.runtime.seen] == [[4]] * 3
        assert plain.post(running.url + V1_PATH, json={"instances": [row(1)]}).json() == {"predictions": [doubled(1)]}
        two = plain.post(running.url + V1_PATH, json={"instances": [row(1), row(2)]})
        assert (two.status_code, "does not batch" in two.json()["error"]) == (400, True)


@pytest.mark.parametrize("rewrite", [announcing_close, as_http_1_0])
def test_a_runtime_that_closes_its_connection_after_each_answer_stays_ready(rewrite: Rewrite) -> None:
    with running_proxy(partial(ForeignRuntime, rewrite=rewrite, closes=True)) as running:
        for number in range(8):
            assert ask(running, number) == doubled(number)
        assert plain.get(running.admin_url + "/readyz").status_code == 200


def test_a_runtime_that_announces_a_close_and_leaves_it_to_us_is_served() -> None:
    with running_proxy(partial(ForeignRuntime, rewrite=announcing_close)) as running:
        for number in range(8):
            assert ask(running, number) == doubled(number)
        running.until(lambda: running.runtime.connections == 0)


def test_answers_in_chunks_are_understood() -> None:
    with running_proxy(
        partial(ForeignRuntime, rewrite=in_chunks), max_batch_size=4, max_delay_milliseconds=10_000
    ) as running:
        assert_four_meet(running)


@pytest.mark.parametrize("status", [400, 500, 503])
@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"the fish is raw", "the fish is raw"),
        (b'{"error": "the fish is raw"}', "the fish is raw"),
        (b'{"detail": "the fish is raw"}', '{"detail": "the fish is raw"}'),
        (b"", "the runtime returned STATUS without a reason"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_a_runtimes_own_error_reaches_the_caller(running: RunningProxy, status: int, body: bytes, shown: str) -> None:
    running.runtime.respond = lambda seen: (status, {"content-type": "text/plain"}, body)
    answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)]))
    perhaps = "; the request may have been executed" if status == 503 else ""
    assert (answer.status_code, answer.json()["error"]) == (status, shown.replace("STATUS", str(status)) + perhaps)
    assert answer.headers["x-shoal-executed"] == "maybe"
    assert ("retry-after" in answer.headers) == (status == 503)
    assert plain.get(running.admin_url + "/readyz").status_code == 200
