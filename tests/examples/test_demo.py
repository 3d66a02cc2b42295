import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

from examples.demo import (
    DemoError,
    classify,
    picture_files,
    report,
    require_cats,
    together,
)
from examples.report import Answer


def answer(picture: str, label: str) -> Answer:
    return Answer(picture, label, 0.5, latency_s=0.01)


def test_pictures_are_small_jpegs_with_the_cat_among_them() -> None:
    files = list(picture_files(8))

    assert files[0][0] == "cat"
    assert files[0][1] != files[6][1]  # the same cat, cut in another way
    assert all(max(Image.open(BytesIO(file)).size) <= 480 for _, file in files)


def test_the_same_pictures_are_sent_every_time() -> None:
    assert list(picture_files(8)) == list(picture_files(8))


def test_a_cat_that_is_no_cat_is_an_error() -> None:
    require_cats([answer("cat", "tabby"), answer("chelsea", "Egyptian cat")])

    with pytest.raises(DemoError, match="the picture cat shows a cat, but the answer was teapot"):
        require_cats([answer("cat", "teapot"), answer("chelsea", "Egyptian cat")])


def test_the_report_tells_the_rate_and_the_latencies() -> None:
    text = "\n".join(report([answer("cat", "tabby")] * 4, elapsed_s=2.0, metrics=""))

    assert "4 pictures from 32 callers in 2.0 s: 2 requests/s, p50 10 ms, p99 10 ms" in text


def test_an_error_answer_is_told_with_its_sentence() -> None:
    def refuse(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(503, json={"error": "the queue is full"})

    async def ask() -> None:
        transport = httpx.MockTransport(refuse)
        async with httpx.AsyncClient(base_url="http://server", transport=transport) as client:
            await classify(client, "cat", b"")

    with pytest.raises(DemoError, match=r"cat was answered with 503: .*the queue is full"):
        asyncio.run(ask())


def test_one_failing_caller_stops_the_others() -> None:
    async def fail() -> None:
        raise DemoError("first")

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DemoError, match="first"):
        asyncio.run(together([wait_for_ever(), fail(), wait_for_ever()]))


@contextmanager
def demo(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "examples.demo"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def processes_of(folder: Path) -> set[int]:
    """Return the processes that name the folder in their command, or have mounts from it, as pods have."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            told = (path / "cmdline").read_bytes() + (path / "mountinfo").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in told:
            found.add(int(path.name))
    return found


@pytest.mark.integration
def test_the_demo_names_the_cat_and_counts_the_batches(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        output, errors = process.communicate(timeout=110)

    assert process.returncode == 0, errors
    assert re.search(r"cat +34 +(tabby|tiger cat|Egyptian cat)", output)
    assert "200 pictures from 32 callers" in output
    assert re.search(r"rows  #+", output)
    assert re.search(r"inferenceservice.serving.shoal.dev/cat +True +Ready +1", output)
    assert not processes_of(tmp_path)


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("Ready"):
            assert line, process.communicate()
        started = processes_of(tmp_path)
        process.send_signal(number)
        process.communicate(timeout=60)

    assert len(started) >= 6  # the cluster's four parts, the operator, a proxy, a runtime
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    deadline_s = time.monotonic() + 60
    while processes_of(tmp_path):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
