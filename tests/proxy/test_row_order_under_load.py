"""The promise that matters most: whatever arrives together, each client gets exactly f of its own rows, in order."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor

Array = np.ndarray[Any, Any]


def model(inputs: Any) -> dict[str, Array]:
    """Return a row-wise function that no other row's answer could be mistaken for."""
    x = inputs["x"]
    return {"y": x * 3 + 1, "total": x.sum(axis=1, keepdims=True)}


def make_runtime() -> FakeRuntime:
    return FakeRuntime(
        inputs=[tensor("x", "FP64", [-1, -1])],
        outputs=[tensor("y", "FP64", [-1, -1]), tensor("total", "FP64", [-1, 1])],
        model=model,
    )


@dataclass(frozen=True)
class Client:
    """One request: its protocol, its shape, and whether it goes away instead of waiting."""

    number: int
    protocol: str
    rows: int
    width: int
    leaves_after_turns: int | None

    @property
    def x(self) -> Array:
        rows = 1 if self.protocol == "torchserve" else self.rows
        return self.number * 1000 + np.arange(rows * self.width, dtype=float).reshape(rows, self.width)


CALLERS = st.lists(
    st.tuples(
        st.sampled_from(["v1-rows", "v1-columns", "v2-json", "v2-binary", "torchserve"]),
        st.integers(1, 12),
        st.integers(1, 3),
        st.none() | st.integers(0, 6),
    ),
    min_size=1,
    max_size=24,
).map(lambda drawn: [Client(number, *one) for number, one in enumerate(drawn)])


def request_of(caller: Client) -> dict[str, Any]:
    x = caller.x
    head = {"name": "x", "datatype": "FP64", "shape": list(x.shape)}
    match caller.protocol:
        case "v1-rows":
            return {"url": V1_PATH, "json": {"instances": x.tolist()}}
        case "v1-columns":
            return {"url": V1_PATH, "json": {"inputs": {"x": x.tolist()}}}
        case "v2-json":
            return {"url": V2_PATH, "json": {"inputs": [{**head, "data": x.ravel().tolist()}]}}
        case "v2-binary":
            size = {"binary_data_size": x.nbytes}
            document = orjson.dumps(
                {"inputs": [{**head, "parameters": size}], "parameters": {"binary_data_output": True}}
            )
            headers = {"inference-header-content-length": str(len(document))}
            return {"url": V2_PATH, "content": document + x.tobytes(), "headers": headers}
        case _:
            return {"url": TORCHSERVE_PATH, "json": x[0].tolist()}


def y_of(caller: Client, response: httpx.Response) -> Array:
    assert response.status_code == 200, response.text
    match caller.protocol:
        case "v1-rows":
            return np.array([row["y"] for row in response.json()["predictions"]])
        case "v1-columns":
            return np.array(response.json()["outputs"]["y"])
        case "v2-json":
            output = response.json()["outputs"][0]
            return np.array(output["data"]).reshape(output["shape"])
        case "v2-binary":
            length = int(response.headers["inference-header-content-length"])
            output = orjson.loads(response.content[:length])["outputs"][0]
            size = output["parameters"]["binary_data_size"]
            return np.frombuffer(response.content[length : length + size]).reshape(output["shape"])
        case _:
            return np.array([response.json()["y"]])


async def call(client: httpx.AsyncClient, caller: Client) -> None:
    task = asyncio.create_task(client.post(**request_of(caller)))
    if caller.leaves_after_turns is not None:
        for _ in range(caller.leaves_after_turns):
            await asyncio.sleep(0)
        task.cancel()
    try:
        response = await task
    except asyncio.CancelledError:
        return
    np.testing.assert_array_equal(y_of(caller, response), caller.x * 3 + 1)


async def call_all(url: str, group: list[Client]) -> None:
    async with plain.AsyncClient(base_url=url, timeout=20) as client:
        await asyncio.gather(*(call(client, caller) for caller in group))


@pytest.fixture(scope="module")
def busy() -> Iterator[RunningProxy]:
    with running_proxy(make_runtime, max_batch_size=8, in_flight=2, max_rows=10_000) as running:
        yield running


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], print_blob=True)
@given(group=CALLERS)
def test_each_client_gets_exactly_f_of_its_own_rows(busy: RunningProxy, group: list[Client]) -> None:
    asyncio.run(call_all(busy.url, group))
    busy.until(lambda: busy.proxy.scheduler.settled)
    assert max((seen.rows for seen in busy.runtime.seen), default=0) <= 8
    assert busy.proxy.inference.reading_bytes == 0
    assert busy.proxy.scheduler.queue.rows == 0
    assert busy.proxy.scheduler.queue.size_bytes == 0
