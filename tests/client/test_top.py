"""``shoal top`` and ``shoal dashboard`` beside a real proxy."""

import hashlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import numpy as np
import pytest
import uvicorn
from msgspec.structs import replace
from rich.console import Console

import shoal.dashboard
from shoal.dashboard import PAGE, Dashboard
from shoal.top import render
from shoal.watching.samples import Histories, RolloutSample, ServiceSample, cluster_sample
from tests.browser import CHROMIUM, browsing
from tests.fakes import RunningProxy, running_proxy
from tests.operator.loads import NOTHING

ROOT = Path(__file__).parents[2]
SHOAL = (sys.executable, "-m", "shoal")
HOSTILE = "<img src=x onerror=alert(1)>"
PODS = ["double-a", "double-b"]
LEGENDS = (
    "[...document.querySelectorAll('figure')].map((each) => "
    "[...each.querySelectorAll('.u-label')].map((label) => label.textContent))"
)
UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}
"""SHA-256 of the library's files, as in its package. `make uplot` refreshes them."""


def top(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SHOAL, "top", *words], check=False, capture_output=True, text=True, timeout=60)


@contextmanager
def dashboard(*words: str) -> Iterator[str]:
    """Run the command; yields the page's URL."""
    with subprocess.Popen([*SHOAL, "dashboard", "--port", "0", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[0]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130


def ask(running: RunningProxy, times: int) -> None:
    for _ in range(times):
        body = {"instances": np.ones((1, 4)).tolist()}
        assert httpx.post(f"{running.url}/v1/models/double:predict", json=body).status_code == 200


def test_one_table_is_of_one_interval() -> None:
    with running_proxy() as running:
        ended = top(running.admin_url, "--once", "--interval", "0.2")

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[:3] == ["service", "replicas", "state"]
    assert "double" in ended.stdout
    assert "Ready" in ended.stdout


def test_a_pipe_gets_each_table_at_once() -> None:
    command = [*SHOAL, "top", "--interval", "0.2"]
    with (
        running_proxy() as running,
        subprocess.Popen([*command, running.admin_url], stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        headers = (line for line in process.stdout if line.startswith("service"))
        try:
            assert [next(headers).split()[1] for _ in range(2)] == ["replicas", "replicas"]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_programs_get_the_figures() -> None:
    with running_proxy() as running:
        ask(running, 3)
        ended = top(running.admin_url, "--once", "--json", "--interval", "0.2")

    [service] = json.loads(ended.stdout)["services"]
    assert (service["name"], service["state"], service["well"]) == ("double", "Ready", True)
    assert service["looks"][0]["asked_per_s"] == 0
    assert service["looks"][0]["pods"] == 1


def test_where_no_proxy_answers_it_says_what_to_give() -> None:
    ended = top("127.0.0.1:1", "--once")

    assert ended.returncode == 1
    assert "no proxy responds at http://127.0.0.1:1" in ended.stderr


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """Answer every question with the same; yields the address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


@pytest.mark.parametrize("body", [b"[]", b"null", b'{"report": 5}', b'{"report": {"model": 5}}', b"<html>"])
def test_an_address_of_something_else_is_named_and_disturbs_no_other(body: bytes) -> None:
    with answering(body) as strange, running_proxy() as running:
        alone = top(strange, "--once")
        beside = top(strange, running.admin_url, "--once", "--json", "--interval", "0.2")

    assert (alone.returncode, alone.stderr.count("\n")) == (1, 1)
    assert strange in alone.stderr
    states = {each["name"]: each["state"] for each in json.loads(beside.stdout)["services"]}
    assert states == {strange: "Unreachable", "double": "Ready"}


def test_an_address_of_something_else_is_explained_by_why_it_cannot_be() -> None:
    with answering(b"[]") as strange, running_proxy() as running, dashboard(running.admin_url, strange) as url:
        said: list[str] = []
        while not said:  # before its first sample the page has no services
            said = httpx.get(f"{url}/explain", params={"service": strange}, timeout=30).json()["sentences"]

    assert said[0].startswith("no explanation available: ")


def test_no_control_sequences_reach_a_terminal() -> None:
    words = "EVIL\x1b[2J\x1b]0;title\x07\u202e"
    said = {"type": "Ready", "status": "False", "reason": "RuntimeCrashed", "message": words}
    seen = cluster_sample({"spec": {}, "status": {"conditions": [said]}}, {})

    assert seen.says == r"EVIL\x1b[2J\x1b]0;title\x07\u202e"


@pytest.mark.parametrize("name", ["a", "a-namespace-of-a-team/a-service-with-a-long-name"])
@pytest.mark.parametrize("width", [72, 80, 120, 200])
def test_no_header_is_cut_and_the_history_moves_below_the_table(width: int, name: str) -> None:
    watched = Histories()
    for step in range(3):
        load = replace(NOTHING, time_s=NOTHING.time_s + step, queued_rows=step)
        watched.add({name: ServiceSample({"pod": load}, wanted=1, state="RevisionUnavailable")}, time_s=step)
    console = Console(width=width, record=True, file=io.StringIO())

    console.print(render(watched, width=width, said=True))

    text = console.export_text()
    assert "…" not in text
    assert all(header in text.splitlines()[0] for header in ("service", "queued", "rejected/s", "latency mean"))
    assert set(text.splitlines()[1].strip()) == {"─"}, "no header wraps"
    assert "▄█" in text
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--namespace", "x"), "it needs --cluster or --context"),
        (("--interval", "0"), "--interval"),
        (("http://",), "is not the address of a server"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str) -> None:
    ended = top(*words)

    assert ended.returncode == 2
    assert said in ended.stderr


def test_without_kubectl_a_cluster_is_not_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = top("--cluster")

    assert ended.returncode == 1
    assert "kubectl, which is not installed" in ended.stderr


@contextmanager
def serving(board: Dashboard) -> Iterator[str]:
    """Serve the page of prepared samples; yields its URL."""
    server = uvicorn.Server(uvicorn.Config(board.app(), log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_a_browser_shows_figures_curves_and_words(tmp_path: Path) -> None:
    own = ("--interval", "0.2")
    with running_proxy() as running, dashboard(running.admin_url, *own) as url, browsing(tmp_path) as browser:
        browser.open(url)
        browser.until("document.querySelector('#services td button').textContent === 'double'")
        ask(running, 5)
        browser.until("data.intervals.some((each) => each.service.answered_per_s > 0)")
        browser.until("document.querySelectorAll('#charts canvas').length === 9")
        browser.until("document.getElementById('words').textContent.startsWith('Model double.')")

        assert browser.complaints() == []
        assert {each.partition(url)[0] for each in browser.requested() if not each.startswith("data:")} == {""}


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_a_page_says_when_nothing_is_seen_any_more_and_goes_on(tmp_path: Path) -> None:
    with browsing(tmp_path) as browser, running_proxy() as running:
        with dashboard(running.admin_url, "--interval", "0.2") as url:
            browser.open(url)
            browser.until("document.querySelector('#services .well').textContent === 'Ready'")
        browser.until("document.getElementById('trouble').textContent.includes('Has it ended?')")


def test_other_names_than_this_machines_are_refused() -> None:
    with running_proxy() as running, dashboard(running.admin_url) as url:
        assert httpx.get(f"{url}/data", headers={"host": "evil.example"}).status_code == 400
        answer = httpx.get(url)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_what_a_service_is_called_and_says_stays_text(tmp_path: Path) -> None:
    board = Dashboard()
    board.watched.add({HOSTILE: ServiceSample({HOSTILE: None}, state=HOSTILE, says=HOSTILE)}, time_s=0.0)
    with serving(board) as url, browsing(tmp_path) as browser:
        browser.open(url)
        browser.until(f"document.querySelector('#services td button').textContent === {json.dumps(HOSTILE)}")
        browser.until(f"({LEGENDS})[3][1] === {json.dumps(HOSTILE)}")
        assert browser.evaluate("document.images.length") == 0
        assert browser.complaints() == []


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_charts_have_time_units_a_legend_entry_for_each_pod_and_values_at_the_cursor(tmp_path: Path) -> None:
    board = Dashboard()
    for step in range(3):
        loads = {pod: replace(NOTHING, time_s=NOTHING.time_s + step, answered_rows=10 * step * step) for pod in PODS}
        board.watched.add({"double": ServiceSample(loads)}, time_s=time.monotonic() - 100 + 30 * step)
    with serving(board) as url, browsing(tmp_path) as browser:
        browser.open(url)
        browser.until("plots.length === 9")

        assert browser.evaluate("plots.map((each) => each.axes[1].label)") == [
            "rows/s", "ms", "pods", "rows/s", "ms", "%", "rows", "rows", "rows",
        ]  # fmt: skip
        [ticks] = browser.evaluate("plots.slice(0, 1).map((each) => each.axes[0].values(each, [each.data[0][0]]))")
        assert re.fullmatch(r"\d\d:\d\d:\d\d", ticks[0])
        assert browser.evaluate("Math.abs(Date.now() / 1000 - plots[0].data[0].at(-1) - 40) < 20")
        labels = browser.evaluate(LEGENDS)
        assert labels[0] == ["time", "requested", "answered", "rejected"]
        assert labels[1] == ["time", "p50", "p99", "mean", "queued, mean", "expected now, p95"]
        assert labels[3:] == [["time", *PODS]] * 6
        last = "[...plots[3].root.querySelectorAll('.u-value')].slice(1).map((each) => each.textContent)"
        assert browser.evaluate(last) == ["30 rows/s"] * 2
        browser.evaluate("plots[3].setCursor({left: plots[3].valToPos(plots[3].data[0][1], 'x'), top: 10})")
        browser.until(f"{last}.every((each) => each === '10 rows/s')")

        # Each figure has its own colour, and no pod has it.
        colours = browser.evaluate(
            "plots.flatMap((each) => each.series.slice(1).map((one) => `${one.label} ${one.stroke()}`))"
        )
        assert len({each.rpartition(" hsl")[2] for each in colours}) == len(set(colours)) == 10 + len(PODS)

        # A phone: nothing is wider than the page, and nothing scrolls sideways.
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        browser.until("plots[0].width < 370")
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        assert browser.evaluate("byId('fleet').scrollWidth <= byId('fleet').clientWidth")
        assert browser.complaints() == []


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium")
def test_a_rollout_shows_both_revisions_side_by_side(tmp_path: Path) -> None:
    board = Dashboard()
    for step in range(3):
        load = replace(
            NOTHING, time_s=NOTHING.time_s + step, answered_rows=10 * step, latency_counts=(0, step, *[0] * 14)
        )
        rollout = RolloutSample("aaaaaaaaaa", "bbbbbbbbbb", HOSTILE, {"candidate": load}, errors=0.0, disagreement=0.25)
        board.watched.add(
            {"double": ServiceSample({"stable": load}, rollout=rollout)}, time_s=time.monotonic() - 4 + step
        )
    with serving(board) as url, browsing(tmp_path) as browser:
        browser.open(url)
        browser.call("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
        browser.until("plots.length === 12")

        both = ["aaaaaaaaaa (stable)", "bbbbbbbbbb (candidate)"]
        assert browser.evaluate(LEGENDS)[3:6] == [
            ["time", *both],
            ["time", *(f"{name} {revision}" for name in ("p50", "p99") for revision in both)],
            ["time", "failed rows", "disagreeing rows"],
        ]
        last = "plots.slice(3, 6).map((each) => each.data.slice(1).map((line) => +line.at(-1).toFixed(3)))"
        assert browser.evaluate(last) == [[10, 10], [0.75, 0.75, 0.995, 0.995], [0, 25]]
        assert browser.evaluate("plots.slice(3, 6).map((each) => each.axes[1].label)") == ["rows/s", "ms", "%"]
        assert browser.evaluate("byId('rollout').textContent") == HOSTILE
        assert browser.evaluate("document.images.length") == 0
        assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert browser.complaints() == []


def test_the_page_includes_the_charts_library_unchanged() -> None:
    vendored = Path(shoal.dashboard.__file__).parent / "uplot"

    assert {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in vendored.iterdir()} == UPLOT
    version = re.search(r"^UPLOT := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert version is not None
    assert f"(v{version[1]})" in (vendored / "uPlot.iife.min.js").read_text()
    assert all((vendored / name).read_text() in PAGE for name in UPLOT if name != "LICENSE")
