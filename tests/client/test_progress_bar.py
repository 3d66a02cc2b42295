"""The progress of a start on a terminal."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from shoal.outlet import Outlet
from shoal.pair import StartLog

SIZE_BYTES = 1000


class Slow(ThreadingHTTPServer):
    """Sends half a file, and the rest on request."""

    def __init__(self) -> None:
        self.go = threading.Event()
        super().__init__(("127.0.0.1", 0), Half)


class Half(BaseHTTPRequestHandler):
    server: Slow

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(SIZE_BYTES))
        self.end_headers()
        self.wfile.write(bytes(SIZE_BYTES // 2))
        self.server.go.wait(100)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def slow() -> Iterator[Slow]:
    with Slow() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.go.set()
        server.shutdown()
        thread.join()


@pytest.mark.integration
def test_a_download_is_a_bar_on_a_terminal(slow: Slow, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    uri = f"http://127.0.0.1:{slow.server_address[1]}/cat.pt2"
    command = [sys.executable, "-m", "shoal", "serve", uri, "--port", "0", "--admin-port", "0"]
    environment = {**os.environ, "SHOAL_MODEL_CACHE_DIR": str(tmp_path), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        seen = b""
        while b"50 %" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGTERM)
        slow.go.set()
    os.close(ours)

    bar = f"cat: downloading [{15 * '#'}{15 * '-'}] 50 %"
    assert f"\r\x1b[K{bar}\r" in seen.decode()


@pytest.mark.integration
def test_a_start_on_a_terminal_is_a_line_instead_of_a_log() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "shoal", "serve", "examples/adder", "--port", "0", "--admin-port", "0"]
    unset = ("SHOAL_LOG_LEVEL", "SHOAL_LOG_FORMAT", "NO_COLOR")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}) as process:
        os.close(theirs)
        seen = b""
        while b"Ctrl-C stops" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGTERM)
    os.close(ours)

    assert b"\r\x1b[Kadder: starting, 0 s\r" in seen
    assert b" INFO " not in seen


def test_warnings_and_what_a_model_prints_stay() -> None:
    read, write = os.pipe()
    log = Outlet(write)
    start = StartLog(log)
    head = b"2026-11-21T03:44:01.703Z"

    start.write(head + b" INFO shoal_runtime event=loading\nprinted\n" + head + b" WARNING shoal_runtime event=slow\n")
    start.is_ready = True
    start.write(head + b" INFO shoal_proxy event=request\n")
    log.close(10)
    os.close(write)

    with open(read, "rb") as file:
        lines = file.read().split(b"\n")[:-1]
    assert [line.removeprefix(b"\r\x1b[K").removeprefix(head).strip() for line in lines] == [
        b"printed", b"WARNING shoal_runtime event=slow", b"INFO shoal_proxy event=request",
    ]  # fmt: skip
