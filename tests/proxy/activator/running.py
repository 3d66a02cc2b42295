"""An activator as a process, a fake operator, and servers that stand in for pods."""

import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from shoal_schema.interfaces.activator import ActivatorReport, ActivatorService, ActivatorTable, decode_report, encode
from tests import plain
from tests.ports import free_port

NAME = "default/double"
PATIENCE_S = 20.0


class Operator:
    """Serves a table, in a thread; a request that has seen it waits for the next one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._table = ActivatorTable("e:0", ())
        self._count = 0
        operator = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = operator._response(parse_qs(urlsplit(self.path).query).get("seen", [""])[0])
                with suppress(BrokenPipeError):  # the activator may have been killed meanwhile
                    self.send_response(200)
                    self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def publish(self, *services: ActivatorService) -> str:
        """Publish a new table; return its version."""
        with self._changed:
            self._count += 1
            self._table = ActivatorTable(f"e:{self._count}", services)
            self._changed.notify_all()
            return self._table.version

    def _response(self, seen: str) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._table.version != seen, timeout=5)
            return encode(self._table)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@dataclass
class RunningActivator:
    """An activator that holds requests of one service."""

    process: subprocess.Popen[bytes]
    operator: Operator
    port: int
    admin_url: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pods(self, *addresses: str, **more: object) -> None:
        """Publish the ready pods, and wait until they are in effect."""
        version = self.operator.publish(ActivatorService(NAME, self.port, addresses=addresses, **more))  # type: ignore[arg-type]
        self.until(lambda news: news.version == version)

    def news(self) -> ActivatorReport:
        return decode_report(plain.get(f"{self.admin_url}/v1/waiting", timeout=PATIENCE_S).content)

    def until(self, check: Callable[[ActivatorReport], bool]) -> None:
        """Wait until the activator's news satisfy ``check``."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not check(news := self.news()):
            assert time.monotonic() < deadline_s, news
            time.sleep(0.01)

    def until_waiting(self, count: int) -> None:
        self.until(lambda news: news.waiting.get(NAME, 0) == count)


@contextmanager
def running_activator(**variables: str) -> Iterator[RunningActivator]:
    """Run an activator; kill it at the end."""
    operator, port, admin = Operator(), free_port(), free_port()
    settings = {
        "SHOAL_ACTIVATOR_OPERATOR": operator.url,
        "SHOAL_ACTIVATOR_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "SHOAL_ACTIVATOR_DRAIN_DELAY_S": "0",
        **variables,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal_proxy.activator"], env={**os.environ, **settings}, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert b"event=listening" in line, line
        activator = RunningActivator(process, operator, port, f"http://127.0.0.1:{admin}")
        activator.pods()
        yield activator
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert b"Traceback" not in errors, errors.decode()
        operator.close()


def whole(connection: socket.socket) -> bytes:
    """Return one request, head and body."""
    data = connection.recv(65536)
    length = re.search(rb"content-length: (\d+)", data, re.IGNORECASE)
    end = data.index(b"\r\n\r\n") + 4 + (int(length[1]) if length else 0)
    while len(data) < end:
        data += connection.recv(65536)
    return data


@contextmanager
def responding(answer: bytes | None, *, times: int = 1) -> Iterator[tuple[str, list[bytes]]]:
    """Send these bytes after each request, or close the connection; yield the address and the requests."""
    seen: list[bytes] = []

    def serve() -> None:
        for _ in range(times):
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                seen.append(whole(connection))
                if answer is not None:
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", seen
