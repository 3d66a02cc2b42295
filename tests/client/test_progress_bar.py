"""The progress bar of a download on a terminal."""

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
