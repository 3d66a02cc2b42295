"""An archive of TorchServe's own archiver, through ``shoal serve``, as TorchServe's clients ask it."""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from examples.server import Server, serving
from tests import plain
from tests.archives import WORDS, archived

pytestmark = pytest.mark.integration

TEXT = {"content-type": "text/plain"}
CALLERS = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    files = {**WORDS, "model-config.yaml": "batchSize: 8\nmaxBatchDelay: 100\n"}
    path = archived(tmp_path_factory.mktemp("mar"), "words", files, "words.py", config_file="model-config.yaml")
    with serving(path) as running:
        yield running


def curl(server: Server, *arguments: str | Path, path: str = "/predictions/words") -> str:
    command = ["curl", "-s", "--max-time", "30", *map(str, arguments), server.url + path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_curl_asks_as_torchserves_pages_do(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "note.txt"
    file.write_text("hello")

    assert curl(server, "-T", file) == '{\n  "kind": "bytearray",\n  "keys": [\n    "body"\n  ]\n}'
    assert '"data"' in curl(server, "-F", f"data=@{file};type=application/octet-stream")
    assert curl(server, "-F", f"data=@{file}") == "HELLO"
    assert curl(server, "-H", "Content-Type: text/plain", "--data-binary", f"@{file}") == "HELLO"
    assert curl(server, path="/ping") == '{"status":"Healthy"}'
    assert '"batchSize":8' in curl(server, path="/models/words")


def test_status_and_content_type_are_those_that_the_handler_sets(server: Server) -> None:
    with plain.Client(base_url=server.url) as client:
        teapot = client.post("/predictions/words", content="teapot", headers=TEXT)
        page = client.put("/predictions/words", content="hi", headers={**TEXT, "x-as": "html"})

    assert (teapot.status_code, teapot.text) == (418, "TEAPOT")
    assert (page.headers["content-type"], page.text) == ("text/html", "HI")


def test_one_bad_request_of_a_batch_fails_alone(server: Server) -> None:
    texts = ["boom" if number % 5 == 1 else f"text {number}" for number in range(CALLERS)]
    with plain.Client(base_url=server.url) as client, ThreadPoolExecutor(CALLERS) as callers:

        def ask(text: str) -> httpx.Response:
            return client.post("/predictions/words", content=text, headers=TEXT)

        answers = list(callers.map(ask, texts))

    assert [answer.status_code for answer in answers] == [500 if text == "boom" else 200 for text in texts]
    assert [answer.text for answer in answers if answer.status_code == 200] == [
        text.upper() for text in texts if text != "boom"
    ]
    assert answers[1].json()["message"] == "forward raised ValueError: boom in the batch"


def test_fewer_answers_than_requests_cost_nobody_an_answer(server: Server) -> None:
    texts = ["short" if number == 3 else f"text {number}" for number in range(CALLERS)]
    with plain.Client(base_url=server.url) as client, ThreadPoolExecutor(CALLERS) as callers:

        def ask(text: str) -> httpx.Response:
            return client.post("/predictions/words", content=text, headers=TEXT)

        answers = list(callers.map(ask, texts))

    assert [(answer.status_code, answer.text) for answer in answers] == [(200, text.upper()) for text in texts]


def test_other_protocols_reach_the_same_handler(server: Server) -> None:
    with plain.Client(base_url=server.url) as client:
        answer = client.post("/v1/models/words:predict", json={"instances": ["hello"]})

    [row] = answer.json()["predictions"]
    assert row["head"]["status"] == 200
    assert '"bytearray"' in row["body"]
