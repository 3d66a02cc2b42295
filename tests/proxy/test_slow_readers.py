"""Clients that do not read their responses: what is kept for them all is bounded, and the others are answered."""

import socket
import ssl
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from shoal_proxy.rpc import inference_pb2 as messages
from shoal_proxy.rpc.slow_calls import connection_of
from shoal_schema.interfaces.protocols import GRPC_SERVICE
from tests.calls import RawConnection
from tests.certificates import Authority, Mounted
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.test_connection_limits import WIDTH, ask_for_much, connections, echo

MIB = 1 << 20
ANSWER_BYTES = 4 * WIDTH
LIMIT_BYTES = 10 * MIB


def unsent_bytes(running: RunningProxy) -> int:
    return running.proxy.unread.size_bytes


def answered(running: RunningProxy) -> int:
    return running.proxy.metrics.requests["v2", 200]


def deaf(running: RunningProxy) -> socket.socket:
    """Return a connection of which the kernel keeps little that the client does not read, on either side."""
    running.proxy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)  # of those accepted from now on
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    connection.settimeout(20)
    connection.connect(running.address)
    return connection


def taken(connection: socket.socket, size_bytes: int, pause_s: float = 0.0) -> int:
    """Read so many bytes, or until the end; return how many there were."""
    count = 0
    while count < size_bytes and (more := connection.recv(min(200_000, size_bytes - count))):
        count += len(more)
        time.sleep(pause_s)
    return count


def test_clients_that_read_nothing_are_held_to_the_limit_and_make_room_for_those_that_read() -> None:
    most = 0
    with running_proxy(echo, max_unsent_bytes=LIMIT_BYTES, max_batch_size=2) as running, ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(deaf(running)).sendall(ask_for_much())

        def all_answered() -> bool:
            nonlocal most
            most = max(most, unsent_bytes(running))
            return answered(running) == 12

        running.until(all_answered)
        assert most <= LIMIT_BYTES + ANSWER_BYTES
        assert {seen.rows for seen in running.runtime.seen} == {1}  # two would be more than a quarter of the limit
        with RawConnection(running.address) as reader:
            reader.send(ask_for_much())
            assert reader.response()[0] == 200
        running.until(lambda: connections(running) <= 1 + LIMIT_BYTES // (ANSWER_BYTES // 2))


def test_clients_that_read_slowly_have_their_responses_whole_while_others_wait_for_room() -> None:
    with running_proxy(echo, max_unsent_bytes=2 * MIB, max_batch_size=4) as running, ExitStack() as stack:
        readers = [stack.enter_context(deaf(running)) for _ in range(4)]
        for reader in readers:
            reader.sendall(ask_for_much())
        with ThreadPoolExecutor(4) as pool:  # longer than a window each
            counts = pool.map(lambda reader: taken(reader, ANSWER_BYTES, pause_s=0.07), readers)
            assert list(counts) == [ANSWER_BYTES] * 4
        assert connections(running) == 4
        running.until(lambda: answered(running) == 4)


def test_requests_ahead_are_not_run_for_a_client_that_does_not_read() -> None:
    with running_proxy(echo) as running, deaf(running) as client:
        client.sendall(ask_for_much() * 5)
        running.until(lambda: answered(running) == 1)
        running.until(lambda: running.proxy.dispatcher.settled)
        assert (answered(running), len(running.runtime.seen)) == (1, 1)
        assert taken(client, 5 * ANSWER_BYTES) == 5 * ANSWER_BYTES
        running.until(lambda: answered(running) == 5)
        running.until(lambda: unsent_bytes(running) == 0)


@pytest.mark.parametrize("half_closed", [False, True])
def test_the_last_response_on_a_connection_is_read_slowly_and_whole(half_closed: bool) -> None:
    with running_proxy(echo) as running, deaf(running) as client:
        client.sendall(ask_for_much().replace(b"Host: x", b"Host: x" if half_closed else b"Connection: close"))
        running.until(lambda: answered(running) == 1)
        if half_closed:
            client.shutdown(socket.SHUT_WR)
        assert taken(client, 2 * ANSWER_BYTES, pause_s=0.002) > ANSWER_BYTES
        running.until(lambda: connections(running) == 0)


def test_a_response_that_is_being_read_outlives_the_drain() -> None:
    with running_proxy(echo, drain_delay_seconds=0.0) as running, deaf(running) as client:
        client.sendall(ask_for_much())
        running.until(lambda: answered(running) == 1)
        running.call(running.proxy.stop)
        assert taken(client, 2 * ANSWER_BYTES) > ANSWER_BYTES


def test_unread_responses_over_tls_are_counted_and_dropped(tmp_path: Path) -> None:
    trust = Authority()
    mounted = Mounted(tmp_path / "secret", trust.issue())
    files: dict[str, Any] = {"tls_certificate": str(mounted.certificate), "tls_key": str(mounted.key)}
    with (
        running_proxy(echo, write_timeout_s=0.5, **files) as running,
        trust.trusted().wrap_socket(deaf(running), server_hostname="127.0.0.1") as client,
    ):
        client.sendall(ask_for_much())
        running.until(lambda: unsent_bytes(running) > MIB)
        assert taken(client, MIB) == MIB  # what comes after that is still counted
        assert unsent_bytes(running) > MIB
        running.until(lambda: connections(running) == 0)
        assert unsent_bytes(running) == 0


def test_over_tls_a_large_response_comes_whole(tmp_path: Path) -> None:
    trust = Authority()
    mounted = Mounted(tmp_path / "secret", trust.issue())
    files: dict[str, Any] = {"tls_certificate": str(mounted.certificate), "tls_key": str(mounted.key)}
    with (
        running_proxy(echo, **files) as running,
        trust.trusted().wrap_socket(deaf(running), server_hostname="127.0.0.1") as client,
    ):
        for _ in range(2):
            client.sendall(ask_for_much())
        assert taken(client, 2 * ANSWER_BYTES, pause_s=0.001) == 2 * ANSWER_BYTES
        client.sendall(ask_for_much().replace(b"Host: x", b"Connection: close"))
        with suppress(ssl.SSLError):
            assert taken(client, 2 * ANSWER_BYTES, pause_s=0.001) > ANSWER_BYTES


def http2_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def grpc_start(path: str) -> bytes:
    """Return the start of a connection, and of its first call."""
    headers = {
        b":method": b"POST", b":scheme": b"http", b":path": path.encode(), b":authority": b"x",
        b"content-type": b"application/grpc", b"te": b"trailers",
    }  # fmt: skip
    packed = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in headers.items()
    )
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(4, 0, 0, b"") + http2_frame(1, 4, 1, packed)


def ask_by_grpc_and_read_nothing(client: socket.socket) -> None:
    """Send a call in frames by hand: no client of gRPC's own can be kept from reading."""
    given = messages.ModelInferRequest(model_name="double")
    given.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([0.0] * 4)
    message = given.SerializeToString()
    framed = http2_frame(0, 1, 1, b"\0" + struct.pack(">I", len(message)) + message)
    client.sendall(grpc_start(f"/{GRPC_SERVICE}/ModelInfer") + framed)


def test_calls_of_grpc_whose_clients_read_nothing_make_room_too() -> None:
    with (
        running_proxy(echo, max_unsent_bytes=LIMIT_BYTES, max_batch_size=2, grpc_port=0) as running,
        ExitStack() as stack,
    ):
        assert running.proxy.grpc is not None
        port = running.proxy.grpc.address.port
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20)) for _ in range(8)]
        for client in clients:
            ask_by_grpc_and_read_nothing(client)
        running.until(lambda: running.proxy.metrics.requests["grpc", 200] == 8)
        running.until(lambda: 0 < unsent_bytes(running) <= LIMIT_BYTES)
        assert connection_of(f"ipv4:127.0.0.1:{clients[0].getsockname()[1]}", port + 1) is None
        channel = stack.enter_context(
            grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)])
        )
        call = channel.unary_unary(
            f"/{GRPC_SERVICE}/ModelInfer", response_deserializer=messages.ModelInferResponse.FromString
        )
        given = messages.ModelInferRequest(model_name="double")
        given.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([0.0] * 4)
        for _ in range(3):
            assert len(call(given.SerializeToString(), timeout=20).outputs) == 1
        running.until(lambda: 0 < unsent_bytes(running) <= LIMIT_BYTES)


class HalfMessage:
    """A call by hand that sends a part of its message, as the server's windows allow."""

    def __init__(self, port: int, path: str, size_bytes: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.windows = {0: 65535, 1: 65535}
        self._initial_bytes = 65535
        self.socket.sendall(grpc_start(path))
        data = b"\0" + struct.pack(">I", 2 * size_bytes) + b"x" * size_bytes
        self.closed = False
        try:
            while data:
                sent_bytes = min(16384, len(data), *self.windows.values())
                if not sent_bytes:
                    self._read_frame()
                    continue
                self.socket.sendall(http2_frame(0, 0, 1, data[:sent_bytes]))
                data = data[sent_bytes:]
                for stream in self.windows:
                    self.windows[stream] -= sent_bytes
        except OSError:
            self.closed = True

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            if not (more := self.socket.recv(count - len(data))):
                raise ConnectionResetError
            data += more
        return data

    def _read_frame(self) -> None:
        head = self._exactly(9)
        payload = self._exactly(int.from_bytes(head[:3], "big"))
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
        if kind == 8:
            self.windows[stream] += struct.unpack(">I", payload)[0]
        elif kind == 4 and not flags & 1:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == 4:
                    self.windows[1] += value - self._initial_bytes
                    self._initial_bytes = value
            self.socket.sendall(http2_frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:
            self.socket.sendall(http2_frame(6, 1, 0, payload))

    def ended(self) -> bool:
        """Return whether the server has closed the connection."""
        self.socket.settimeout(0)
        with suppress(BlockingIOError):
            try:
                while self.socket.recv(65536):
                    pass
                self.closed = True
            except ConnectionResetError:
                self.closed = True
        return self.closed


@pytest.mark.parametrize(
    "path", [f"/{GRPC_SERVICE}/ModelInfer", f"/{GRPC_SERVICE}/ModelStreamInfer", f"/{GRPC_SERVICE}/ServerLive",
             "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
             "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
)  # fmt: skip
def test_unfinished_messages_of_grpc_are_held_to_the_limit_of_bodies(path: str) -> None:
    with running_proxy(echo, queue__max_bytes=10 * MIB, grpc_port=0) as running, ExitStack() as stack:
        assert running.proxy.grpc is not None
        port = running.proxy.grpc.address.port
        senders = [HalfMessage(port, path, 4 * MIB) for _ in range(5)]
        for sender in senders:
            stack.enter_context(sender.socket)
        running.until(lambda: sum(sender.ended() for sender in senders) == 3)
        running.until(lambda: running.proxy.inference.reading_bytes >= 2 * 4 * MIB)
        assert running.proxy.inference.reading_bytes <= 10 * MIB
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(
                f"/{GRPC_SERVICE}/ServerLive", response_deserializer=messages.ServerLiveResponse.FromString
            )
            assert call(b"", timeout=20).live
        for sender in senders:
            sender.socket.close()
        running.until(lambda: running.proxy.inference.reading_bytes == 0)
