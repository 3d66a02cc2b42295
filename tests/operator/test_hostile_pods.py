"""Pods that say what no proxy says: each costs its own service its data, and nobody anything else."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_operator.load.exposition import Reading, read_metrics
from shoal_operator.load.fleet import Fleet, Replica
from shoal_operator.metrics import Metrics, serving
from shoal_operator.planning.observation import Key
from shoal_operator.scaling import Autoscaler
from shoal_operator.scraper import MAX_BODY_BYTES, Scraper
from shoal_schema.addresses import Address
from shoal_schema.environment import SettingsError
from tests.operator.fakes import FakeCluster, NoRooms, clock, run
from tests.operator.samples import MINIMAL, service, with_fields
from tests.operator.worlds import pod

CAT, DOG = Key("default", "cat"), Key("default", "dog")
SCALING = with_fields(MINIMAL, scaling={"maxReplicas": 8, "targetQueueDepth": 10})
HERE = Replica("a", "127.0.0.1")
COUNTS = {"read": 1, "refused": 2, "unreachable": 3}
SAID = b"shoal_proxy_queue_rows 3\nshoal_proxy_in_flight_rows 4\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"


def rows(value: str) -> bytes:
    return f"shoal_proxy_queue_rows {value}\nshoal_proxy_in_flight_rows {value}\n".encode()


def answer(body: bytes, head: bytes = HEAD) -> bytes:
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def saying(words: bytes, *, piece: int = 0, forever: bool = False) -> AsyncIterator[int]:
    """Serve bytes as they are, to every connection; yield the port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for start in range(0, len(words), piece or len(words)):
                writer.write(words[start : start + (piece or len(words))])
                await writer.drain()
                await asyncio.sleep(0)
            while forever:
                writer.write(b"a" * 65536)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def read(words: bytes, *, piece: int = 0, forever: bool = False) -> Reading:
    async def main() -> Reading:
        async with saying(words, piece=piece, forever=forever) as port:
            scraper = Scraper(port)
            try:
                return (await scraper.read([HERE]))[0]
            finally:
                await scraper.close()

    return asyncio.run(main())


def redirect(place: bytes) -> bytes:
    return b"HTTP/1.1 302 Found\r\nlocation: " + place + b"\r\ncontent-length: 0\r\n\r\n"


HOSTILE = {
    "huge": answer(rows("1e308")),
    "huger": answer(rows("9" * 400)),
    "longest": answer(rows("9" * 5000)),
    "nan": answer(rows("NaN")),
    "infinite": answer(rows("+Inf")),
    "negative": answer(rows("-5")),
    "a fraction": answer(rows("0.5")),
    "another script": answer(rows("٣")),
    "underscores": answer(rows("1_0")),
    "labels": answer(SAID.replace(b"_rows ", b'_rows{a="\\') * 100),
    "redirect": redirect(b"http://[::1/metrics"),
    "redirect to a bad port": redirect(b"http://a:99999999/"),
    "redirect to no address": redirect(b"\xff\xfe://"),
    "redirect to another scheme": redirect(b"file:///etc/passwd"),
    "redirect to itself": redirect(b"/metrics"),
    "a page": answer(SAID, b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n"),
    "a strange type": answer(SAID, b"HTTP/1.1 200 OK\r\ncontent-type: ;;;=\xff\r\n"),
    "no type": answer(SAID, b"HTTP/1.1 200 OK\r\n"),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "bad gzip": answer(SAID, HEAD + b"content-encoding: gzip\r\n"),
    "good gzip": answer(gzip.compress(SAID), HEAD + b"content-encoding: gzip\r\n"),
    "a bomb": answer(zlib.compress(bytes(10**8)), HEAD + b"content-encoding: deflate\r\n"),
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "a broken head": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "a huge head": HEAD + b"a: b\r\n" * 100_000,
    "cut off": HEAD + b"content-length: 1000\r\n\r\n" + SAID,
    "bad chunks": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n" + SAID,
    "too long": answer(SAID + b"#" * MAX_BODY_BYTES),
    "nothing": b"",
}


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE)
def test_a_pod_that_says_something_else_has_no_data(words: bytes) -> None:
    assert read(words).rows is None


def test_a_body_is_read_whole_though_it_comes_in_pieces() -> None:
    padded = b"# a comment\n" * 500 + SAID

    assert read(answer(padded), piece=700) == Reading(rows=7)


@pytest.mark.parametrize(("said", "rows"), [("a", 7), ("b", None), ("", None)])
def test_a_pod_that_got_the_address_of_another_is_not_taken_for_it(said: str, rows: int | None) -> None:
    assert read(answer(SAID, HEAD + f"x-shoal-instance: {said}\r\n".encode())).rows == rows


def test_an_endless_body_ends_at_its_bound() -> None:
    assert read(HEAD + b"\r\n" + SAID, forever=True) == Reading()


def test_a_value_that_is_none_spoils_the_whole_reading_of_rows_and_not_the_objective() -> None:
    text = "shoal_proxy_queue_rows 1e308\nshoal_proxy_in_flight_rows 4\nshoal_proxy_objective_attainable 1\n"

    assert read_metrics(text) == Reading(rows=None, attainable=True)


@given(st.lists(st.tuples(st.sampled_from(["shoal_proxy_queue_rows", "shoal_proxy_in_flight_rows"]), st.text())))
@settings(max_examples=200)
def test_whatever_a_pod_says_its_rows_are_a_count_or_unknown(lines: list[tuple[str, str]]) -> None:
    found = read_metrics("".join(f"{name} {value}\n" for name, value in lines)).rows

    assert found is None or 0 <= found <= 2**31


def test_a_service_whose_pods_all_hang_delays_no_other() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> list[Reading]:
        async with saying(answer(SAID)) as port:
            hanging = await asyncio.start_server(hang, "127.0.0.2", port)
            scraper = Scraper(port)
            one = asyncio.ensure_future(scraper.read([Replica("b", "127.0.0.2")] * 1000))
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(1):
                    return await scraper.read([HERE])
            finally:
                one.cancel()
                await scraper.close()
                hanging.close()

    assert asyncio.run(main()) == [Reading(rows=7)]


def test_what_pods_answer_is_counted_and_shown() -> None:
    async def main() -> str:
        metrics, texts = Metrics(), [answer(SAID), answer(rows("NaN")), redirect(b"http://[::1/")]
        for words in texts:
            async with saying(words) as port:
                scraper = Scraper(port, metrics.count_scrape)
                await scraper.read([HERE, Replica("c", "127.0.0.9")])
                await scraper.close()
        async with saying(b"") as free:
            pass
        async with serving(metrics, Address("127.0.0.1", free), nothing_to_tell), aiohttp.ClientSession() as session:
            return await (await session.get(f"http://127.0.0.1:{free}/metrics")).text()

    shown = asyncio.run(main())
    counts = [f'shoal_operator_scrapes_total{{outcome="{name}"}} {n}.0' for name, n in COUNTS.items()]

    assert [line for line in counts if line not in shown.splitlines()] == []


async def nothing_to_tell(seen: str) -> bytes | None:
    return None


def test_a_metrics_port_that_cannot_be_bound_is_named() -> None:
    async def main() -> None:
        async with serving(Metrics(), Address("192.0.2.1", 0), nothing_to_tell):
            pass

    with pytest.raises(SettingsError, match="SHOAL_OPERATOR_METRICS_LISTEN"):
        asyncio.run(main())


class Broken:
    """Proxies of which one service's raise, or never answer."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    async def read(self, replicas: Sequence[Replica]) -> list[Reading]:
        if any(replica.address == "10.0.0.66" for replica in replicas):
            if self.error is None:
                await asyncio.Event().wait()
            raise self.error or AssertionError
        return [Reading(rows=35) for _ in replicas]


@pytest.mark.parametrize("error", [OverflowError("1e308"), ValueError("a redirect"), RecursionError(), None])
def test_a_service_that_cannot_be_read_stops_no_other(error: Exception | None) -> None:
    async def main() -> None:
        cluster, fleet = FakeCluster(), Fleet()
        for key, address in ((CAT, "10.0.0.66"), (DOG, "10.0.0.1")):
            fleet.see(key, service(SCALING, name=key.name), [pod(podIP=address)])
        autoscaler = Autoscaler(fleet, Broken(error), lambda key: None, clock, window_s=300, waiting=NoRooms())
        task = asyncio.ensure_future(autoscaler.run(cluster, 2.0))
        await asyncio.sleep(5)
        assert not task.done()
        assert cluster.scales == [(DOG, 4)]
        task.cancel()

    run(main())
