"""Several models at one port, and models registered as TorchServe's tutorial does it: real processes throughout."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx
import pytest

from examples.server import POLL_INTERVAL_S, start, stop, tail
from tests import plain
from tests.archives import WORDS, archived
from tests.ports import free_port

pytestmark = pytest.mark.integration

ADDER = Path(__file__).parents[2] / "examples" / "adder"
PATIENCE_S = 90.0
ROW = list(range(16))


@dataclass(frozen=True)
class Served:
    process: "subprocess.Popen[bytes]"
    log: BinaryIO
    url: str
    management: str
    admin_port: int
    archive: Path


def wait_until_healthy(served: Served) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    with plain.Client(timeout=5) as client:
        while True:
            assert served.process.poll() is None, tail(served.log)
            assert time.monotonic() < ends_s, tail(served.log)
            with suppress(httpx.TransportError):
                if client.get(f"{served.url}/ping").status_code == 200:
                    return
            time.sleep(POLL_INTERVAL_S)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    files = {**WORDS, "model-config.yaml": "batchSize: 4\n"}
    archive = archived(tmp_path_factory.mktemp("several"), "words", files, "words.py", config_file="model-config.yaml")
    # Models that are registered get the ports after `admin_port`.
    port, management, admin_port, *_ = [free_port() for _ in range(20)]
    models = [f"words={archive}", f"plus={ADDER}"]
    options = [f"--port={port}", f"--admin-port={admin_port}", "--management", f"--management-port={management}"]
    with tempfile.TemporaryFile() as log:
        process = start([sys.executable, "-m", "shoal", "serve", *models, *options], log)
        urls = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{management}"
        running = Served(process, log, *urls, admin_port, archive)
        try:
            wait_until_healthy(running)
            yield running
        finally:
            stop(process)


def test_each_request_reaches_the_model_that_it_names(served: Served) -> None:
    with plain.Client(base_url=served.url, timeout=30) as client, ThreadPoolExecutor(8) as callers:

        def ask(number: int) -> tuple[str, list[list[float]]]:
            text = client.post("/predictions/words", content=f"t{number}", headers={"content-type": "text/plain"}).text
            return text, client.post("/v1/models/plus:predict", json={"instances": [ROW]}).json()["predictions"]

        answers = list(callers.map(ask, range(24)))

    assert answers == [(f"T{number}", [[value + 1 for value in ROW]]) for number in range(24)]


def test_the_port_tells_who_is_there(served: Served) -> None:
    with plain.Client(base_url=served.url, timeout=30) as client:
        assert client.get("/v1/models").json() == {"models": ["words", "plus"]}
        assert [model["modelName"] for model in client.get("/models").json()["models"]] == ["words", "plus"]
        assert client.get("/v2/health/ready").json() == {"ready": True}
        assert client.get("/v2/models/plus").json()["name"] == "plus"
        assert client.get("/models/words").json()[0]["batchSize"] == 4
        missing = client.post("/predictions/missing", content="x")
        assert (missing.status_code, missing.json()["type"]) == (404, "ModelNotFoundException")
        assert "words, plus" in missing.json()["message"]
        assert client.post("/models", params={"url": "x.mar"}).status_code == 405
        assert "/docs here: /v2/models/NAME/docs has it" in client.get("/docs").json()["error"]
        assert client.get("/v2/models/plus/docs").status_code == 200
        assert client.get("/").json() == {"status": "alive"}
        assert 'href="v2/models/plus/docs"' in client.get("/", headers={"accept": "text/html"}).text
        nameless = client.post("/invocations", content="{}")
        assert nameless.status_code == 404
        assert "on its own port" in nameless.json()["error"]


def test_each_model_has_metrics_of_its_own_and_keeps_to_deadlines(served: Served) -> None:
    with plain.Client(timeout=30) as client:
        late = client.post(f"{served.url}/predictions/words", content="x", headers={"x-request-timeout-ms": "0.0001"})
        metrics = client.get(f"http://127.0.0.1:{served.admin_port}/metrics").text

    assert late.status_code == 504
    assert 'shoal_proxy_requests_total{protocol="torchserve",status="504"} 1.0' in metrics
    assert 'protocol="v1"' not in metrics


def test_models_come_and_go_as_torchserves_tutorial_has_it(served: Served) -> None:
    with plain.Client(base_url=served.management, timeout=PATIENCE_S) as client:
        asked = {"url": str(served.archive), "model_name": "more", "batch_size": "8", "initial_workers": "1"}
        made = client.post("/models", params={**asked, "synchronous": "true"})
        assert (made.status_code, made.json()) == (
            200, {"status": 'Model "more" Version: 1.0 registered with 1 initial workers'},
        )  # fmt: skip
        assert client.get("/models/more").json()[0]["batchSize"] == 8
        listed = {each["modelName"]: each["modelUrl"] for each in client.get("/models").json()["models"]}
        assert listed["more"] == client.get("/models/more").json()[0]["modelUrl"] == str(served.archive)
        assert client.post("/models", params=asked).status_code == 409
        assert os.pread(served.log.fileno(), 1 << 20, 0).count(b"serving more from") == 1
        assert client.put("/models/more", params={"min_worker": "3"}).status_code == 200
        with plain.Client(base_url=served.url, timeout=30) as caller:
            answer = caller.post("/predictions/more", content="new", headers={"content-type": "text/plain"})
            assert answer.text == "NEW"
            assert client.delete("/models/more").json() == {"status": 'Model "more" unregistered'}
            assert caller.post("/predictions/more", content="new").status_code == 404
        assert client.delete("/models/more").status_code == 404
        assert client.delete("/models/words").status_code == 403


def test_a_model_that_is_only_being_registered_leaves_the_port_ready(served: Served) -> None:
    """Its archive never comes: who sends it only listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/never.mar"
        with plain.Client(timeout=PATIENCE_S) as client:
            made = client.post(f"{served.management}/models", params={"url": url, "model_name": "never"})
            assert made.status_code == 202
            listener.settimeout(PATIENCE_S)
            asked, _ = listener.accept()
            with asked:
                assert client.get(f"{served.url}/v1/models").json() == {"models": ["words", "plus", "never"]}
                assert client.get(f"{served.url}/v2/health/ready").json() == {"ready": True}
                assert client.get(f"{served.url}/ping").status_code == 200
                assert client.delete(f"{served.management}/models/never").status_code == 200


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "POST /models?url="),
        ({"url": "nowhere.mar"}, "no file or directory nowhere.mar"),
        ({"url": "x.mar", "batch_size": "many"}, "nowhere"),
        ({"url": "a" * 5000}, "File name too long"),
        ({"url": "file://elsewhere/etc"}, "names a file of another machine: write file:///PATH"),
    ],
)
def test_what_cannot_be_registered_is_said_in_a_sentence(asked: dict[str, str], said: str, served: Served) -> None:
    if said == "nowhere":
        asked, said = {**asked, "url": str(served.archive), "model_name": "b"}, "batching.maxBatchSize must be"
    with plain.Client(base_url=served.management, timeout=30) as client:
        answer = client.post("/models", params=asked)

    assert (answer.status_code, answer.json()["type"]) == (400, "BadRequestException")
    assert said in answer.json()["message"]


@pytest.mark.parametrize(
    "headers", [{"origin": "http://a.example"}, {"sec-fetch-site": "cross-site"}, {"host": "a.example"}]
)
def test_a_page_in_a_browser_registers_nothing(headers: dict[str, str], served: Served) -> None:
    with plain.Client(base_url=served.management, timeout=30) as client:
        answer = client.post("/models", params={"url": str(served.archive), "model_name": "evil"}, headers=headers)

    assert (answer.status_code, answer.json()["type"]) == (403, "ForbiddenException")


def test_all_of_it_ends_in_order(served: Served) -> None:
    served.process.send_signal(signal.SIGTERM)

    assert served.process.wait(PATIENCE_S) == 0
    assert "stopped" in tail(served.log)
