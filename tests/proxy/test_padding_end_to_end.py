"""Rows of very different lengths: who pays for the padding."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests import plain
from tests.calls import V1_PATH, V2_PATH, ConcurrentClients, concurrent_clients
from tests.fakes import Array, FakeRuntime, Seen, running_proxy, tensor


def lengths_of(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"y": (inputs["x"] != 0).sum(axis=1, keepdims=True).astype(np.float32)}


def ragged_runtime() -> FakeRuntime:
    inputs: list[dict[str, Any]] = [tensor("x", "FP32", [-1, -1], pad_axis=1)]
    return FakeRuntime(inputs=inputs, outputs=[tensor("y", "FP32", [-1, 1])], model=lengths_of)


def body(length: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, length], "data": [1] * length}]}


def test_a_small_body_that_would_be_padded_to_gigabytes_is_rejected_with_a_sentence() -> None:
    with running_proxy(ragged_runtime) as running:
        attack = plain.post(running.url + V1_PATH, json={"instances": [[1]] * 5000 + [[1] * 500_000]})
        assert attack.status_code == 413
        assert "padding 5001 rows to the longest, 500000, would add" in attack.json()["error"]
        assert "rows of different lengths" in attack.json()["error"]
        assert plain.post(running.url + V1_PATH, json={"instances": [[1, 1]]}).json() == {"predictions": [[2.0]]}
        assert running.proxy.inference.reading_bytes == 0


def test_a_long_row_travels_apart_and_its_neighbours_are_not_padded_for_it() -> None:
    with running_proxy(ragged_runtime) as running, concurrent_clients(running.url) as group:
        answers = ask_behind_one(running, group, [10] * 15 + [200_000] + [20] * 15)

        assert [answer["outputs"][0]["data"][0] for answer in answers] == [10] * 15 + [200_000] + [20] * 15
        batches = sorted(seen.inputs["x"].shape for seen in running.runtime.seen[1:])
        assert batches == [(1, 200_000), (30, 20)], "one batch for all neighbours, none of them longer than 20"
        assert padded(running.runtime.seen) == 15 * 10


def padded(seen: list[Seen]) -> int:
    return int(sum((batch.inputs["x"] == 0).sum() for batch in seen))


def ask_behind_one(running: Any, group: ConcurrentClients, rows: list[int]) -> list[Any]:
    """Ask while the runtime is held, so that all wait together."""
    running.hold()
    first = group.post(V2_PATH, json=body(1))
    running.until(lambda: len(running.runtime.seen) == 1)
    asked = [group.post(V2_PATH, json=body(length)) for length in rows]
    scheduler = running.proxy.scheduler
    running.until(lambda: scheduler.queue.rows + scheduler.in_flight_rows == 1 + len(rows))
    running.release()
    assert first.result().status_code == 200
    return [answer.result().json() for answer in asked]
