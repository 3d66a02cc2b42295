"""A stable proxy and a candidate as processes of their own: under load, killed and stopped."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from shoal_schema.fields.addresses import Address
from shoal_schema.interfaces.rollout import PATH, RolloutPlan, RolloutReport
from tests import plain
from tests.calls import V2_PATH, answer_to, row, v2_body
from tests.fakes import FakeRuntime
from tests.proxy.rollout.replicas import ADMIN, CANDIDATE, STABLE

pytestmark = pytest.mark.integration
CLIENTS, REQUESTS = 16, 60


class ProxyProcess:
    """A proxy in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        pattern = re.compile(r"event=listening address=(\S+) .* admin=(\S+)")
        self.until(lambda: pattern.search(log.read_text()) is not None)
        found = pattern.search(log.read_text())
        assert found
        self.address, self._admin = found.groups()
        self.before = RolloutReport("", "")
        """The report before the test's own requests."""

    @property
    def url(self) -> str:
        """Return where clients send requests."""
        return f"http://{self.address}"

    def plan(self, **plan: object) -> RolloutReport:
        """Send a plan, and return the report."""
        body = msgspec.json.encode(RolloutPlan(**plan))  # type: ignore[arg-type]
        response = plain.put(f"http://{self._admin}{PATH}", content=body, headers=ADMIN)
        return msgspec.json.decode(response.content, type=RolloutReport)

    def report(self) -> RolloutReport:
        """Return the report."""
        return msgspec.json.decode(plain.get(f"http://{self._admin}{PATH}").content, type=RolloutReport)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, while the process runs."""
        end_s = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end_s
            assert self.process.poll() is None

    def until_ready(self) -> None:
        """Wait until it serves."""
        self.until(lambda: plain.get(f"http://{self._admin}/readyz?wait_ms=5000").status_code == 200)


@contextmanager
def proxy(folder: Path, revision: str, candidates: str) -> Iterator[ProxyProcess]:
    """Run a proxy in front of the runtime in ``folder``."""
    variables = {
        "SHOAL_MODEL_NAME": "double",
        "SHOAL_PROXY_LISTEN": "127.0.0.1:0",
        "SHOAL_PROXY_ADMIN_LISTEN": "127.0.0.1:0",
        "SHOAL_PROXY_RUNTIME": f"unix:{folder}/runtime.sock",
        "SHOAL_PROXY_REVISION": revision,
        "SHOAL_PROXY_CANDIDATES": candidates,
        "SHOAL_BATCHING_ROW_CHECKS": "Off",
    }
    command = [sys.executable, "-m", "shoal_proxy"]
    path = folder / "log"
    with path.open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=log)
    try:
        yield ProxyProcess(process, path)
    finally:
        process.kill()
        process.wait(20)


@contextmanager
def runtime(folder: Path) -> Iterator[FakeRuntime]:
    """Run a model on a loop of its own, at the socket in ``folder``."""
    started: Future[tuple[FakeRuntime, Callable[[], object]]] = Future()

    async def serve() -> None:
        fake, stop, loop = FakeRuntime(), asyncio.Event(), asyncio.get_running_loop()
        await fake.start(Address(path=f"{folder}/runtime.sock"))
        started.set_result((fake, lambda: loop.call_soon_threadsafe(stop.set)))
        await stop.wait()
        await fake.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    fake, stop = started.result(20)
    try:
        yield fake
    finally:
        stop()
        thread.join(20)


@contextmanager
def pair(tmp_path: Path, **plan: object) -> Iterator[tuple[ProxyProcess, ProxyProcess, list[FakeRuntime]]]:
    """Run a stable proxy and a candidate, each with its model."""
    folders = [tmp_path / "stable", tmp_path / "candidate"]
    for each in folders:
        each.mkdir()
    with (
        runtime(folders[0]) as first,
        runtime(folders[1]) as second,
        proxy(folders[1], CANDIDATE, "127.0.0.1:9") as other,
        proxy(folders[0], STABLE, other.address) as running,
    ):
        other.until_ready()
        running.until_ready()
        other.plan(candidate=CANDIDATE)
        # A client's request shows that the candidate has been found, and its signature read.
        running.plan(candidate=CANDIDATE, weight=1.0)
        body = v2_body([row(-1)])
        running.until(lambda: plain.post(running.url + V2_PATH, json=body).headers["x-shoal-revision"] == CANDIDATE)
        for model in (first, second):
            model.seen.clear()
        running.before = running.plan(candidate=CANDIDATE, **plan)
        yield running, other, [first, second]


def load(url: str, at_half: Callable[[], object] = lambda: None) -> list[httpx.Response]:
    """Send requests on kept connections, and check the rows of each response."""
    sent = threading.Semaphore(0)

    def run(client: int) -> list[httpx.Response]:
        responses = []
        with plain.Client(base_url=url, timeout=40) as session:
            for number in range(REQUESTS):
                value = 1000 * client + number
                headers = {"x-request-timeout-ms": "3000"}
                responses.append(session.post(V2_PATH, json=v2_body([row(value)]), headers=headers))
                if responses[-1].status_code == 200:
                    assert answer_to(responses[-1]) == [2 * each for each in row(value)]
                sent.release()
        return responses

    with ThreadPoolExecutor(CLIENTS) as pool:
        futures = [pool.submit(run, client) for client in range(CLIENTS)]
        for _ in range(CLIENTS * REQUESTS // 2):
            assert sent.acquire(timeout=40)
        at_half()
        return [response for each in futures for response in each.result()]


def test_a_quarter_of_the_requests_is_served_by_the_candidate_and_none_fails(tmp_path: Path) -> None:
    with pair(tmp_path, weight=0.25, shadow=0.5) as (running, _, runtimes):
        responses = load(running.url)
        assert {each.status_code for each in responses} == {200}
        revisions = [each.headers["x-shoal-revision"] for each in responses]
        report = running.report()
        assert revisions.count(CANDIDATE) == report.candidate_requests - running.before.candidate_requests
        assert revisions.count(CANDIDATE) == pytest.approx(len(responses) / 4, abs=0.01 * len(responses))
        stable_rows = [float(first) for seen in runtimes[0].seen for first in seen.inputs["x"][:, 0]]
        assert len(stable_rows) == len(set(stable_rows)) == revisions.count(STABLE)
        assert report.shadowed_batches >= 1
        assert report.outputs["y"].disagreements == 0


def test_requests_go_on_when_the_candidate_is_killed(tmp_path: Path) -> None:
    with pair(tmp_path, weight=0.5) as (running, other, _):
        responses = load(running.url, other.process.kill)
        lost = [each for each in responses if each.status_code != 200]
        assert len(lost) <= CLIENTS  # what was at the candidate at that moment
        assert {each.headers["x-shoal-executed"] for each in lost} <= {"maybe"}
        assert responses[-1].headers["x-shoal-revision"] == STABLE


def test_requests_go_on_when_the_candidate_hangs(tmp_path: Path) -> None:
    with pair(tmp_path, weight=0.25, shadow=0.25) as (running, other, _):
        responses = load(running.url, lambda: other.process.send_signal(signal.SIGSTOP))
        lost = [each for each in responses if each.status_code != 200]
        assert len(lost) <= CLIENTS
        assert {each.headers["x-shoal-executed"] for each in lost} <= {"maybe"}
        assert len(responses) == CLIENTS * REQUESTS
