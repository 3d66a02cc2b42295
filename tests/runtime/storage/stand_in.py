"""A server that stands in for a registry: what it answers is its own `answer`'s to say."""

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class StandIn(ThreadingHTTPServer):
    """Notes the path and the credentials of each request that it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), _Answer)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str) -> tuple[int, bytes, Mapping[str, str]]:
        """Return status, body and headers."""
        raise NotImplementedError


class _Answer(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("authorization")))
        status, body, headers = self.server.answer(self.path)
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[None]:
    """Serve in a thread of its own until the block ends."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def secured(server: StandIn, own: tuple[Path, Path]) -> None:
    """Have a server speak TLS, with a certificate and its key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*own)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.url = server.url.replace("http://", "https://")
