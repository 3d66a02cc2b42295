"""The proxy in front of a real foreign V2 server: MLServer, which has no binary extension."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import plain
from tests.calls import V1_PATH, V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.interop.environments import HERE, python_with
from tests.interop.foreign import proxy_process, until_ok
from tests.ports import free_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.version_info >= (3, 13), reason="MLServer 1.7 needs Python 3.12 or older"),
]


@contextmanager
def mlserver(python: Path, http_port: str, grpc_port: str, metrics_port: str) -> Iterator[str]:
    """Run MLServer with the doubling model; give its URL at once, ready or not."""
    settings = {"HOST": "127.0.0.1", "HTTP_PORT": http_port, "GRPC_PORT": grpc_port, "METRICS_PORT": metrics_port}
    environment = {f"MLSERVER_{name}": value for name, value in {**settings, "PARALLEL_WORKERS": "0"}.items()}
    command = [str(python), "-c", "from mlserver.cli import main; main()", "start", "."]
    with subprocess.Popen(
        command,
        cwd=HERE / "mlserver_model",
        env={"PATH": os.environ["PATH"], **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield f"http://127.0.0.1:{http_port}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, str]]:
    """Run MLServer and the proxy, in batches of four; give the proxy's URL and its admin URL."""
    python = python_with("mlserver")
    batching = {
        "SHOAL_BATCHING_POLICY": "Fixed",
        "SHOAL_BATCHING_MAX_BATCH_SIZE": "4",
        "SHOAL_BATCHING_MAX_DELAY_MS": "300",
    }
    with (
        mlserver(python, *[str(free_port()) for _ in range(3)]) as url,
        proxy_process(SHOAL_MODEL_NAME="double", SHOAL_PROXY_RUNTIME=url, **batching) as (address, admin),
    ):
        until_ok(f"http://{admin}/readyz")
        yield f"http://{address}", f"http://{admin}"


def batches(admin: str) -> tuple[float, float]:
    """Return how many batches have been sent, and their rows."""
    lines = plain.get(admin + "/metrics").text.splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return float(figures["shoal_proxy_batch_rows_count"]), float(figures["shoal_proxy_batch_rows_sum"])


def test_requests_of_many_callers_reach_it_as_batches(served: tuple[str, str]) -> None:
    url, admin = served
    count, rows = batches(admin)
    with concurrent_clients(url) as group:
        answers = [group.ask(number) for number in range(16)]
        for number, answer in enumerate(answers):
            assert answer_to(answer.result()) == [2 * value for value in row(number)]
    count_after, rows_after = batches(admin)
    assert rows_after - rows == 16
    assert count_after - count < 16


def test_it_serves_protocols_that_it_does_not_know(served: tuple[str, str]) -> None:
    url, _ = served
    assert plain.post(url + V1_PATH, json={"instances": [row(1)]}).json() == {"predictions": [[2, 2.5, 3, 3.5]]}
    assert plain.post(url + "/predictions/double", json=row(1)).json() == [2, 2.5, 3, 3.5]


def test_its_own_error_reaches_the_caller(served: tuple[str, str]) -> None:
    url, _ = served
    answer = plain.post(url + V2_PATH, json=v2_body([[-1, 0, 0, 0]]))
    assert answer.status_code >= 400
    assert "fish cannot be negative" in answer.json()["error"]


def test_its_metadata_is_shown(served: tuple[str, str]) -> None:
    url, _ = served
    document = plain.get(url + "/v2/models/double").json()
    assert document["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
