"""Requests in each protocol, and clients that run beside a test."""

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from tests import plain

V2_PATH = "/v2/models/double/infer"
V1_PATH = "/v1/models/double:predict"
TORCHSERVE_PATH = "/predictions/double"

Rows = Sequence[Sequence[float]]


def v2_body(rows: Rows, **more: Any) -> dict[str, Any]:
    """Return a V2 JSON request for ``x``."""
    flat = [value for row in rows for value in row]
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [len(rows), len(rows[0])], "data": flat}], **more}


def row(value: float) -> list[float]:
    """Return a row of four numbers that identifies its request."""
    return [value, value + 0.25, value + 0.5, value + 0.75]


class ConcurrentClients:
    """Requests under way, each in a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = ThreadPoolExecutor(64)

    def post(self, path: str, **options: Any) -> Future[httpx.Response]:
        """Start a POST."""
        return self._pool.submit(plain.post, self._url + path, timeout=20, **options)

    def ask(self, value: float, **options: Any) -> Future[httpx.Response]:
        """Start a V2 request of one row."""
        return self.post(V2_PATH, json=v2_body([row(value)]), **options)

    def close(self) -> None:
        """Wait for all of them."""
        self._pool.shutdown()


@contextmanager
def concurrent_clients(url: str) -> Iterator[ConcurrentClients]:
    """Call ``url`` beside the test."""
    group = ConcurrentClients(url)
    try:
        yield group
    finally:
        group.close()


def answer_to(response: httpx.Response) -> list[float]:
    """Return the data of the one output of a V2 JSON answer."""
    assert response.status_code == 200, response.text
    data: list[float] = response.json()["outputs"][0]["data"]
    return data


class RawConnection:
    """A socket, for clients that break the rules."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=20)

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, *pieces: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(b"".join(pieces))

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response with a Content-Length."""
        head = self.until(b"\r\n\r\n").decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        return int(head[0].split()[1]), headers, self.exactly(int(headers.get("content-length", 0)))

    def until(self, mark: bytes) -> bytes:
        """Read up to and including ``mark``."""
        data = b""
        while not data.endswith(mark):
            data += self._receive(1)
        return data

    def exactly(self, count: int) -> bytes:
        """Read ``count`` bytes."""
        data = b""
        while len(data) < count:
            data += self._receive(count - len(data))
        return data

    def closed(self) -> bool:
        """Wait for the peer to close; return whether it did so without sending more."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _receive(self, count: int) -> bytes:
        data = self.socket.recv(count)
        if not data:
            raise ConnectionError("closed")
        return data
