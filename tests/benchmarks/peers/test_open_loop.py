import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import islice

from benchmarks.peers.open_loop import PoissonLoad, Sent, posts, run
from benchmarks.peers.outcomes import BROKEN, TIMED_OUT

LOAD = PoissonLoad(port=0, path="/infer", bodies=('{"x": 1}', '{"x": 2}'), rate_per_s=400, duration_s=0.25, seed=1)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def send_to(talk: Talk, load: PoissonLoad = LOAD) -> Sent:
    """Run a load against a server that talks so on each connection."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def main() -> Sent:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        sent = await run(replace(load, port=server.sockets[0].getsockname()[1]))
        server.close()
        return sent

    return asyncio.run(main())


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(len(LOAD.bodies[0]))


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        assert (await read_request(reader)).startswith(b"POST /infer HTTP/1.1\r\n")
        writer.write(OK)


async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(OK)
    # It closes without a word in the answer, as a server does that reached its idle time limit.
    await writer.drain()


async def answer_never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)


async def answer_with_rubbish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(b"rubbish\r\n\r\n")
    await reader.read()


def statuses(sent: Sent) -> set[int]:
    return {outcome.status for outcome in sent.outcomes}


def test_every_request_is_sent_and_answered_over_connections_that_are_kept() -> None:
    sent = send_to(answer_all)

    assert len(sent.outcomes) == 100
    assert statuses(sent) == {200}
    assert all(0 <= outcome.lag_s <= outcome.latency_s for outcome in sent.outcomes)
    assert sent.connections < 100


def test_a_request_that_meets_a_closed_connection_is_sent_again() -> None:
    assert statuses(send_to(answer_once)) == {200}


def test_a_server_that_never_answers_is_waited_for_no_longer_than_patience() -> None:
    sent = send_to(answer_never, replace(LOAD, patience_s=0.3))

    assert statuses(sent) == {TIMED_OUT}
    assert len(sent.outcomes) == 100


def test_requests_beyond_the_connections_wait_with_their_clocks_running() -> None:
    sent = send_to(answer_never, replace(LOAD, patience_s=0.3, max_connections=2))

    assert statuses(sent) == {TIMED_OUT}
    assert all(outcome.latency_s >= 0.3 for outcome in sent.outcomes)


def test_connections_that_break_are_counted() -> None:
    assert statuses(send_to(hang_up)) == {BROKEN}
    assert statuses(send_to(answer_with_rubbish)) == {BROKEN}


def test_a_port_where_nobody_listens_ends_every_request() -> None:
    async def main() -> Sent:
        server = await asyncio.start_server(answer_never, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        return await run(replace(LOAD, port=port))

    assert statuses(asyncio.run(main())) == {BROKEN}


def test_each_request_has_an_id_a_trace_and_values_of_its_own() -> None:
    sent = list(islice(posts(LOAD), 4))
    heads = [re.search(rb"x-request-id: (\w{32})\r\ntraceparent: 00-(\w{32})-(\w{16})-01\r\n", each) for each in sent]

    assert [each.rpartition(b"\r\n\r\n")[2] for each in sent] == [b'{"x": 1}', b'{"x": 2}'] * 2
    assert len({part for head in heads if head for part in head.groups()}) == 12
