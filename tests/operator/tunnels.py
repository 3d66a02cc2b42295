"""An HTTP proxy that carries TLS, and that can be cut."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Tunnels(socketserver.ThreadingTCPServer):
    """Counts what it carries."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.opened = 0
        self.ends: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Return what a kubeconfig names as its ``proxy-url``."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def cut(self) -> None:
        """Break every connection, in the middle of whatever it carries."""
        ends, self.ends = self.ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class _Tunnel(socketserver.StreamRequestHandler):
    server: Tunnels

    def handle(self) -> None:
        method, target, _ = self.rfile.readline().decode().split(" ", 2)
        assert method == "CONNECT"
        while self.rfile.readline().strip():
            pass
        host, _, port = target.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port))) as far:
            self.server.opened += 1
            self.server.ends += [self.connection, far]
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
            back = threading.Thread(target=_pump, args=(far, self.connection), daemon=True)
            back.start()
            _pump(self.connection, far)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def tunnels() -> Iterator[Tunnels]:
    """Serve until the block ends."""
    with Tunnels() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.cut()
            server.shutdown()
            thread.join()
