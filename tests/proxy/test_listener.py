"""Shutdown of a listener: connected clients get their responses."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from shoal_proxy.activator.listeners import make_listener
from shoal_proxy.listening import bind
from shoal_schema.fields.addresses import Address
from tests.ports import free_port

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_requests_received_before_the_end_get_responses(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    port = free_port()
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        answers = runner.run(asked_while_the_loop_is_busy(port))
    assert [answer.startswith(b"HTTP/1.1 204") for answer in answers] == [True] * 4


async def asked_while_the_loop_is_busy(port: int) -> list[bytes]:
    """Send requests on new connections and on one that is kept, and end the server in the same step."""
    listener = make_listener(no_content, HttpToolsProtocol)
    sock = bind(Address("127.0.0.1", port))
    listener.servers = [await asyncio.get_running_loop().create_server(listener.make_protocol, sock=sock)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    await reader.readuntil(b"\r\n\r\n")

    clients = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(3)]
    for client in clients:
        client.sendall(REQUEST)
    writer.write(REQUEST)
    await listener.shutdown([sock])

    kept = await reader.read()
    writer.close()
    return [kept, *(read_and_close(client) for client in clients)]


def read_and_close(client: socket.socket) -> bytes:
    with client:
        return client.recv(4096)


async def no_content(scope: object, receive: object, send: Callable[..., Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
