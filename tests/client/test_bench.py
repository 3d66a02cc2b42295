"""``shoal bench`` against ``shoal serve examples/adder``: both commands, as a user has them."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest

from shoal.__main__ import main
from tests.client.fake_server import Answer, Call, json_answer, metadata, running, tensor, v2

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60.0


@contextmanager
def serving(*settings: str) -> Iterator[tuple[str, str]]:
    """Serve the example with batches of 20 ms; give its address and its admin port's."""
    slow = [word for each in ("model.parameters.baseMicroseconds=20000", *settings) for word in ("--set", each)]
    command = [sys.executable, "-m", "shoal", "serve", "examples/adder", "--port", "0", "--admin-port", "0", *slow]
    environment = {
        **os.environ,
        "PYTHONPATH": "client:proxy:runtime:schema",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            output, ends_s = "", time.monotonic() + TIMEOUT_S
            while not (found := re.search(r"listening on (\S+), metrics on (\S+)/metrics", output)):
                assert select.select([process.stdout], [], [], ends_s - time.monotonic())[0], output
                read = os.read(process.stdout.fileno(), 4096)
                assert read, output
                output += read.decode()
            yield found[1], found[2]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@pytest.fixture(scope="module")
def adder() -> Iterator[tuple[str, str]]:
    """Serve batches of one row each: the knee is where it has to be, at 50/s."""
    with serving("batching.maxBatchSize=1") as addresses:
        yield addresses


@pytest.mark.integration
def test_where_a_served_example_bends_is_found_and_explained(
    adder: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, admin = adder
    render = tmp_path / "bench.svg"
    arguments = ["bench", url, "--admin", admin, "--seconds", "12", "--plot", str(render), "--json"]

    assert main(arguments) == 0

    report = orjson.loads(capsys.readouterr().out)
    assert report["alone_ms"] >= 20
    assert all(step["parts_ms"]["runtime"] >= 20 for step in report["steps"] if step["answered"])
    assert report["steps"] == sorted(report["steps"], key=lambda step: step["offered_per_s"])
    # A row takes 20 ms and nothing runs beside it.
    # On a busy machine every rate may be inconclusive; but no rate above the capacity may hold.
    assert report["bent_per_s"] is None or report["bent_per_s"] > 25
    assert all(step["offered_per_s"] < 75 for step in report["steps"] if step["verdict"] == "held")
    assert report["knee_per_s"] in (None, report["held_per_s"])
    assert report["limit_ms"] >= 100
    assert all(0 <= step["in_time"] <= step["answered"] <= step["sent"] for step in report["steps"])
    assert report["advice"]
    assert any("A request alone" in sentence for sentence in report["explain"])
    assert report["compiled"] is False
    # On a busy machine the host may take longer than the 20 ms; both must report it then.
    assert report["bound"] is not None
    assert (report["bound"] == "Host") == any(
        "The model is not the bound" in sentence for sentence in report["explain"]
    )
    assert render.read_text().startswith("<svg")


@pytest.mark.integration
def test_in_time_is_what_the_service_means_to_be_unless_the_user_says_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving("batching.latencyObjectiveMilliseconds=3000") as (url, admin):
        limits = []
        for given in ([], ["--objective-ms", "500"]):
            assert main(["bench", url, "--admin", admin, "--seconds", "2", "--json", *given]) == 0
            limits.append(orjson.loads(capsys.readouterr().out)["limit_ms"])

    assert limits == [3000, 500]


@pytest.mark.integration
def test_people_get_a_table_and_bars(adder: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", adder[0], "--seconds", "2", "--rows", "2"]) == 0

    output = capsys.readouterr().out
    assert output.splitlines()[0].endswith(" ms (median, measured by the client)"), "the server names another figure"
    assert "offered/s" in output
    assert "in time: response within" in output
    assert re.search(r"/s \|[q.bR]+ ", output)
    assert "/v1/explain" in output, "the admin port of a server on this machine is found"
    assert "--admin URL" not in output


def test_what_is_wrong_with_the_item_is_said_before_the_load(capsys: pytest.CaptureFixture[str]) -> None:
    healthy = v2()

    def refusing(call: Call) -> Answer | None:
        return json_answer({"error": "x takes 3 numbers"}, 400) if call.path.endswith("/infer") else healthy(call)

    with running(refusing) as server:
        assert main(["bench", server.url, "--data", "[1, 2, 3, 4]"]) == 1
        assert "shoal: x takes 3 numbers" in capsys.readouterr().err
        assert main(["bench", server.url, "--data", "{"]) == 2
        assert "--data is not JSON" in capsys.readouterr().err
        assert sum(call.path.endswith("/infer") for call in server.calls) == 1


def test_a_model_of_pictures_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    model = metadata([tensor("image", "BYTES", [-1], content_type="image/png")], [tensor("y", "FP32", [-1])])
    with running(v2(model)) as server:
        assert main(["bench", server.url]) == 2
    assert "--item FILE" in capsys.readouterr().err


def test_what_cannot_be_written_is_said_before_the_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("bench.pdf", ".svg or .png"), ("nowhere/bench.svg", "there is no directory")):
        assert main(["bench", "http://127.0.0.1:9", "--plot", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
