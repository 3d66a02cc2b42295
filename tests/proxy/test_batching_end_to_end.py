"""Batching as clients and the runtime see it."""

import httpx
import numpy as np
import pytest

from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, Seen, running_proxy, tensor


def doubled(value: float) -> list[float]:
    return [2 * x for x in row(value)]


def test_a_lone_request_goes_at_once_and_alone(running: RunningProxy, client: httpx.Client) -> None:
    assert answer_to(client.post(V2_PATH, json=v2_body([row(1)]))) == doubled(1)
    assert [seen.rows for seen in running.runtime.seen] == [1]


def test_what_piles_up_while_the_runtime_is_busy_leaves_as_one_batch(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        rest = [group.ask(number) for number in range(1, 21)]
        running.until_waiting(20)
        running.release()

        assert answer_to(first.result()) == doubled(0)
        assert [answer_to(answer.result()) for answer in rest] == [doubled(number) for number in range(1, 21)]
    assert [seen.rows for seen in running.runtime.seen] == [1, 20]


def test_all_protocols_share_one_batch(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        v2 = group.post(V2_PATH, json=v2_body([row(1), row(2)]))
        v1 = group.post(V1_PATH, json={"instances": [row(3)]})
        columns = group.post(V1_PATH, json={"inputs": {"x": [row(4)]}})
        torchserve = group.post(TORCHSERVE_PATH, json=row(5))
        running.until_waiting(4)
        running.release()

        assert answer_to(v2.result()) == doubled(1) + doubled(2)
        assert v1.result().json() == {"predictions": [doubled(3)]}
        assert columns.result().json() == {"outputs": [doubled(4)]}
        assert torchserve.result().json() == doubled(5)
        assert first.result().status_code == 200
    assert [seen.rows for seen in running.runtime.seen] == [1, 5]


def test_the_batch_limit_holds_and_a_larger_request_is_split_and_rejoined() -> None:
    with running_proxy(max_batch_size=8) as running, plain.Client(base_url=running.url) as client:
        rows = [row(number) for number in range(30)]

        answer = client.post(V2_PATH, json=v2_body(rows))

        assert answer_to(answer) == [2 * value for one in rows for value in one]
        assert answer.json()["outputs"][0]["shape"] == [30, 4]
        assert [seen.rows for seen in running.runtime.seen] == [8, 8, 8, 6]


def test_the_runtimes_own_limit_holds_too() -> None:
    runtime = lambda: FakeRuntime(parameters={"max_batch_size": 4})  # noqa: E731
    with running_proxy(runtime) as running, plain.Client(base_url=running.url) as client:
        answer_to(client.post(V2_PATH, json=v2_body([row(number) for number in range(6)])))
        assert [seen.rows for seen in running.runtime.seen] == [4, 2]


def test_a_full_batch_is_sent_ahead_but_a_partial_one_stays() -> None:
    with running_proxy(max_batch_size=4) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            rest = [group.ask(number) for number in range(1, 7)]
            running.until(lambda: len(running.runtime.seen) == 2 and running.proxy.scheduler.queue.requests == 2)
            assert running.runtime.most_running == 2
            running.release()
            for answer in [first, *rest]:
                assert answer.result().status_code == 200
        assert [seen.rows for seen in running.runtime.seen] == [1, 4, 2]


def test_a_delay_lets_a_batch_fill_while_the_runtime_is_idle() -> None:
    with (
        running_proxy(max_batch_size=4, max_delay_milliseconds=60_000.0) as running,
        concurrent_clients(running.url) as group,
    ):
        answers = [group.ask(number) for number in range(4)]
        assert [answer_to(answer.result()) for answer in answers] == [doubled(number) for number in range(4)]
        assert [seen.rows for seen in running.runtime.seen] == [4]


def test_a_delay_ends_by_itself() -> None:
    with running_proxy(max_delay_milliseconds=30.0) as running, plain.Client(base_url=running.url) as client:
        assert answer_to(client.post(V2_PATH, json=v2_body([row(1)]))) == doubled(1)


def test_several_batches_run_at_a_time_where_the_runtime_can() -> None:
    with running_proxy(in_flight=3) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            answers = []
            for number in range(3):
                answers.append(group.ask(number))
                running.until(lambda wanted=number + 1: running.runtime.running == wanted)  # type: ignore[misc]
            running.release()
            assert [answer_to(answer.result()) for answer in answers] == [doubled(number) for number in range(3)]


def free_width() -> FakeRuntime:
    return FakeRuntime(inputs=[tensor("x", "FP32", [-1, -1])], outputs=[tensor("y", "FP32", [-1, -1])])


def test_rows_of_different_shapes_never_share_a_batch() -> None:
    with running_proxy(free_width) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            answers = [group.post(V2_PATH, json=v2_body([[1.0] * width])) for width in (2, 3, 2, 3, 2)]
            running.until_waiting(5)
            running.release()
            widths = [len(answer_to(answer.result())) for answer in answers]
            first.result()
        assert widths == [2, 3, 2, 3, 2]
        assert sorted(seen.inputs["x"].shape for seen in running.runtime.seen[1:]) == [(2, 3), (3, 2)]


def test_requests_with_different_parameters_never_share_a_batch(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        answers = [
            group.post(V2_PATH, json=v2_body([row(1)], parameters={"temperature": heat})) for heat in (0.5, 0.9, 0.5)
        ]
        running.until_waiting(3)
        running.release()
        for answer in [first, *answers]:
            answer_to(answer.result())
    heats = {seen.document["parameters"]["temperature"]: seen.rows for seen in running.runtime.seen[1:]}
    assert heats == {0.5: 2, 0.9: 1}


def padded() -> FakeRuntime:
    """A model that adds up the real values of each row, and returns its input beside."""

    def model(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert (inputs["x"][inputs["mask"] == 0] == -1).all()
        return {"sum": (inputs["x"] * inputs["mask"]).sum(axis=1, keepdims=True), "same": inputs["x"]}

    return FakeRuntime(
        inputs=[
            tensor("x", "FP32", [-1, -1], pad_axis=1, pad_value=-1, pad_mask="mask", pad_buckets="4,8"),
            tensor("mask", "FP32", [-1, -1]),
        ],
        outputs=[tensor("sum", "FP32", [-1, 1]), tensor("same", "FP32", [-1, -1], unpad_axis=1, unpad_input="x")],
        model=model,  # type: ignore[arg-type]
    )


def test_rows_of_one_bucket_are_padded_together_and_cut_again() -> None:
    with running_proxy(padded) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.post(V2_PATH, json=v2_body([[7.0]]))
            running.until(lambda: len(running.runtime.seen) == 1)
            ragged = group.post(V1_PATH, json={"instances": [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]})
            other_bucket = group.post(V2_PATH, json=v2_body([[1.0] * 6]))
            same_bucket = group.post(V2_PATH, json=v2_body([[9.0] * 3]))
            running.until_waiting(3)
            running.release()
            expected = [([1.0, 2.0], 3.0), ([3.0], 3.0), ([4.0, 5.0, 6.0], 15.0)]
            assert ragged.result().json() == {
                "predictions": [{"sum": [total], "same": values} for values, total in expected]
            }
            assert other_bucket.result().json()["outputs"][1]["data"] == [1.0] * 6
            assert same_bucket.result().json()["outputs"][1]["data"] == [9.0] * 3
            assert first.result().status_code == 200
        shapes = [seen.inputs["x"].shape for seen in running.runtime.seen]
        assert sorted(shapes) == [(1, 4), (1, 8), (4, 4)]


def test_a_row_longer_than_the_last_bucket_is_rejected() -> None:
    with running_proxy(padded) as running, plain.Client(base_url=running.url) as client:
        answer = client.post(V2_PATH, json=v2_body([[1.0] * 9]))
        assert answer.status_code == 400
        assert "longest allowed is 8" in answer.json()["error"]


def some_rows_fail(seen: Seen) -> dict[str, str]:
    failed = [number for number, value in enumerate(seen.inputs["x"][:, 0]) if value < 0]
    entries = ",".join(f'{{"row":{number},"status":422,"message":"negative"}}' for number in failed)
    return {"errors": f"[{entries}]"} if failed else {}


def only_good_rows(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    good = inputs["x"][:, 0] >= 0
    return {"y": inputs["x"][good] * 2} if good.any() else {}


def picky() -> FakeRuntime:
    return FakeRuntime(model=only_good_rows, answer_parameters=some_rows_fail)  # type: ignore[arg-type]


def test_a_row_that_fails_leaves_the_rest_of_the_batch_alone() -> None:
    with running_proxy(picky) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            values = [1, -2, 3, -4, 5]
            answers = [group.ask(value) for value in values]
            running.until_waiting(5)
            running.release()
            for value, answer in zip(values, answers, strict=True):
                if value < 0:
                    assert answer.result().status_code == 422
                    assert answer.result().json()["errors"] == [{"row": 0, "status": 422, "message": "negative"}]
                else:
                    assert answer_to(answer.result()) == doubled(value)
            first.result()
        assert [seen.rows for seen in running.runtime.seen] == [1, 5]


def test_a_request_with_failed_rows_names_them() -> None:
    with running_proxy(picky, max_batch_size=2) as running, plain.Client(base_url=running.url) as client:
        answer = client.post(V2_PATH, json=v2_body([row(1), row(2), row(3), row(-4), row(-5)]))
        assert answer.status_code == 422
        assert answer.json()["error"] == "row 3: negative"
        assert [error["row"] for error in answer.json()["errors"]] == [3, 4]


def test_headers_to_forward_split_batches_and_reach_the_runtime() -> None:
    with running_proxy(forward_headers=("authorization",)) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            answers = [group.ask(1, headers={"authorization": who}) for who in ("ann", "bob", "ann")]
            running.until_waiting(3)
            running.release()
            for answer in [first, *answers]:
                answer_to(answer.result())
        rows = {seen.headers.get("authorization"): seen.rows for seen in running.runtime.seen}
        assert rows == {None: 1, "ann": 2, "bob": 1}


def test_trace_headers_return_to_the_client_and_reach_the_runtime(running: RunningProxy) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = plain.post(
        running.url + V2_PATH, json=v2_body([row(1)]), headers={"x-request-id": "me", "traceparent": trace}
    )
    assert (answer.headers["x-request-id"], answer.headers["traceparent"]) == ("me", trace)
    seen = running.runtime.seen[0]
    assert (seen.headers["x-request-id"], seen.headers["traceparent"]) == ("me", trace)
    assert '"x-request-id":"me"' in seen.document["parameters"]["requests"]


def test_a_foreign_runtime_without_the_binary_extension_gets_json() -> None:
    with running_proxy(lambda: FakeRuntime(binary=False)) as running, plain.Client(base_url=running.url) as client:
        assert answer_to(client.post(V2_PATH, json=v2_body([row(1), row(2)]))) == doubled(1) + doubled(2)
        assert running.runtime.seen[0].document["inputs"][0]["data"] == row(1) + row(2)


def test_a_model_without_a_batch_dimension_gets_requests_one_by_one() -> None:
    runtime = lambda: FakeRuntime(  # noqa: E731
        inputs=[tensor("x", "FP32", [4])], outputs=[tensor("y", "FP32", [4])]
    )
    with running_proxy(runtime) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            bodies = [
                {"inputs": [{"name": "x", "datatype": "FP32", "shape": [4], "data": row(number)}]}
                for number in (1, 2, 3)
            ]
            answers = [group.post(V2_PATH, json=body) for body in bodies]
            running.until(lambda: len(running.runtime.seen) == 2 and running.proxy.scheduler.queue.requests == 1)
            running.release()
            assert sorted(answer_to(answer.result()) for answer in answers) == [doubled(number) for number in (1, 2, 3)]
        assert {seen.inputs["x"].shape for seen in running.runtime.seen} == {(4,)}
    with running_proxy(runtime) as running, plain.Client(base_url=running.url) as client:
        assert client.post(V1_PATH, json={"instances": [row(1)]}).json() == {"predictions": [doubled(1)]}
        assert "does not batch" in client.post(V1_PATH, json={"instances": [row(1), row(2)]}).json()["error"]


@pytest.mark.parametrize("batch_dim", [0, 1])
def test_the_batch_dimension_may_be_anywhere(batch_dim: int) -> None:
    shape = [-1, 4] if batch_dim == 0 else [4, -1]

    def make() -> FakeRuntime:
        return FakeRuntime(
            inputs=[tensor("x", "FP32", shape, batch_dim=batch_dim)],
            outputs=[tensor("y", "FP32", shape, batch_dim=batch_dim)],
        )

    with running_proxy(make, max_batch_size=2) as running, plain.Client(base_url=running.url) as client:
        rows = [row(1), row(2), row(3)]
        wire = np.array(rows) if batch_dim == 0 else np.array(rows).T
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(wire.shape), "data": wire.ravel().tolist()}]}
        answer = client.post(V2_PATH, json=body)
        assert answer_to(answer) == (2 * wire).ravel().tolist()
        assert answer.json()["outputs"][0]["shape"] == list(wire.shape)
        assert client.post(V1_PATH, json={"instances": rows}).json()["predictions"] == [doubled(n) for n in (1, 2, 3)]
