"""The front between sockets: real connections, and servers that write down what they are sent."""

import asyncio
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shoal import shared_port as fronting
from shoal.ports import find_port
from shoal.shared_port import SharedPort

TIMEOUT_S = 20.0
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request(model: str, body: bytes = b"") -> bytes:
    return b"POST /predictions/%b HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (model.encode(), len(body), body)


def answer(text: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)


class Model:
    """A server that answers each request with its name and the length of the body."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connections = 0
        self.gone = asyncio.Event()
        self.held: asyncio.Event | None = None

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or b"0")
                body = await reader.readexactly(length)
                if self.held is not None:
                    await self.held.wait()
                writer.write(answer(b"%b %d" % (self.name.encode(), len(body))))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            writer.close()


@asynccontextmanager
async def fronted(
    folder: Path, *models: Model, default: str = "", most: int = 100
) -> AsyncIterator[Callable[[], Awaitable[Streams]]]:
    """Run a front before these models, the last of which answers what names none; yield how to connect."""
    sockets = {model.name: str(folder / model.name) for model in models}
    servers = [await asyncio.start_unix_server(model, sockets[model.name]) for model in models]
    shared_port = SharedPort(
        {name: path for name, path in sockets.items() if name != "pages"}, str(folder / "pages"), default
    )
    shared_port.most_clients = most
    port = find_port("127.0.0.1", 0, option="--port")
    await shared_port.listen("127.0.0.1", port)
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    async with asyncio.timeout(TIMEOUT_S):
        try:
            yield connect
        finally:
            for writer in writers:
                writer.close()
            shared_port.stop_accepting()
            shared_port.close()
            for server in servers:
                server.close()
            # Connections end in callbacks, which run before the readers.
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
            while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 (tasks of the streams, which have no handle)
                await asyncio.sleep(0)


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


def test_one_connection_requests_several_models_in_turn(tmp_path: Path) -> None:
    async def main() -> None:
        a, b, pages = Model("a"), Model("b"), Model("pages")
        async with fronted(tmp_path, a, b, pages) as connect:
            reader, writer = await connect()
            for model, expected in (("a", b"a 3"), ("a", b"a 3"), ("b", b"b 3"), ("a", b"a 3"), ("c", b"pages 3")):
                writer.write(request(model, b"xyz"))
                assert await read_answer(reader) == expected
            # Requests to one model share a connection.
            assert (a.connections, b.connections, pages.connections) == (2, 1, 1)

    asyncio.run(main())


def test_requests_sent_ahead_are_answered_in_their_order(tmp_path: Path) -> None:
    async def main() -> None:
        a, b, pages = Model("a"), Model("b"), Model("pages")
        a.held = asyncio.Event()
        async with fronted(tmp_path, a, b, pages) as connect:
            reader, writer = await connect()
            writer.write(request("a") + request("b", b"1") + request("b", b"22") + request("a", b"333"))
            await writer.drain()
            a.held.set()
            assert [await read_answer(reader) for _ in range(4)] == [b"a 0", b"b 1", b"b 2", b"a 3"]

    asyncio.run(main())


def test_half_closed_client_gets_its_response(tmp_path: Path) -> None:
    async def main() -> None:
        async with fronted(tmp_path, Model("a"), Model("pages")) as connect:
            reader, writer = await connect()
            writer.write(request("a"))
            writer.write_eof()
            assert await read_answer(reader) == b"a 0"
            assert await reader.read() == b""

    asyncio.run(main())


def test_disconnect_of_a_client_reaches_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        a = Model("a")
        async with fronted(tmp_path, a, Model("pages")) as connect:
            _, writer = await connect()
            writer.write(b"POST /predictions/a HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
            while not a.connections:  # noqa: ASYNC110 (the model notices by being asked)
                await asyncio.sleep(0)
            writer.transport.abort()
            await a.gone.wait()

    asyncio.run(main())


@pytest.mark.parametrize("gone", [True, False])
def test_closed_connection_is_distinguished_from_a_half_closed_one(tmp_path: Path, gone: bool) -> None:
    class Patient(Model):
        async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.read() == b""
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            ends = select.poll()
            ends.register(writer.get_extra_info("socket").fileno(), 0)
            while gone and not ends.poll(0):  # noqa: ASYNC110 (the kernel alone knows it)
                await asyncio.sleep(0.01)
            self.gone.set()
            if not gone:
                writer.write(answer(b"late"))
            writer.close()

    async def main() -> None:
        a = Patient("a")
        async with fronted(tmp_path, a, Model("pages")) as connect:
            reader, writer = await connect()
            writer.write(request("a"))
            writer.close() if gone else writer.write_eof()
            await a.gone.wait()
            if not gone:
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                assert await read_answer(reader) == b"late"

    asyncio.run(main())


def test_a_large_body_flows_as_fast_as_the_model_reads_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with fronted(tmp_path, Model("a"), Model("pages")) as connect:
            reader, writer = await connect()
            size = 16 << 20
            writer.write(b"POST /predictions/a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(16):
                writer.write(bytes(1 << 20))
                await writer.drain()
            assert await read_answer(reader) == b"a %d" % size

    asyncio.run(main())


def test_unavailable_model_is_reported(tmp_path: Path) -> None:
    async def main() -> None:
        async with fronted(tmp_path, Model("a"), Model("pages")) as connect:
            (tmp_path / "a").unlink()
            reader, writer = await connect()
            writer.write(request("a"))
            response = await reader.read()
            assert response.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\nx-shoal-executed: no" in response

    asyncio.run(main())


def test_what_is_for_one_model_and_names_none_is_for_the_main_one(tmp_path: Path) -> None:
    async def main(default: str, expected: bytes) -> None:
        async with fronted(tmp_path, Model("a"), Model("b"), Model("pages"), default=default) as connect:
            reader, writer = await connect()
            writer.write(b"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nxyz")
            assert await read_answer(reader) == expected
            writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await read_answer(reader) == b"pages 0"

    asyncio.run(main("b", b"b 3"))
    asyncio.run(main("", b"pages 3"))


def test_connection_over_the_limit_is_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        async with fronted(tmp_path, Model("a"), Model("pages"), most=2) as connect:
            first, second = await connect(), await connect()
            for reader, writer in (first, second):
                writer.write(request("a", b"xyz"))
                assert await read_answer(reader) == b"a 3"
            reader, _ = await connect()
            response = await reader.read()
            assert response.startswith(b"HTTP/1.1 503 ")
            assert b"too many connections" in response
            first[1].close()
            await first[1].wait_closed()
            second[1].write(request("a", b"x"))
            assert await read_answer(second[0]) == b"a 1"
            while True:  # once the first is gone for the server too
                reader, writer = await connect()
                writer.write(request("a", b"xy"))
                if b"too many" not in (said := await read_answer(reader)):
                    assert said == b"a 2"
                    return

    asyncio.run(main())


@pytest.mark.parametrize("begun", [b"", b"POST /predictions/a HTT"])
def test_a_head_that_does_not_come_ends_the_connection(
    begun: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fronting, "HEAD_TIMEOUT_S", 0.05)

    async def main() -> None:
        async with fronted(tmp_path, Model("a"), Model("pages")) as connect:
            reader, writer = await connect()
            writer.write(begun)
            assert await reader.read() == b""

    asyncio.run(main())
