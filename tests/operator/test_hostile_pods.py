"""Pods with invalid responses affect the data of their own service only."""

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.metrics import Metrics, serving
from shoal_operator.scaling.autoscaler import Autoscaler
from shoal_operator.scaling.reading import LoadError, Reading, read_load
from shoal_operator.scaling.scraper import MAX_BODY_BYTES, Scraper
from shoal_operator.scaling.service_cache import CachedService, Replica
from shoal_schema.fields.addresses import Address
from shoal_schema.process.environment import SettingsError
from tests.operator.fakes import FakeCluster, NoActivators, clock, run
from tests.operator.loads import holding
from tests.operator.samples import MINIMAL, service, with_fields
from tests.operator.worlds import pod

CAT, DOG = Key("default", "cat"), Key("default", "dog")
SCALING = with_fields(MINIMAL, scaling={"maxReplicas": 8, "targetQueueDepth": 10})
HERE = Replica("a", "127.0.0.1")
COUNTS = {"read": 1, "refused": 2, "unreachable": 3}
LOAD = holding(7)
SAID = msgspec.json.encode(LOAD)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def lie(value: str, name: str = "queued_rows") -> bytes:
    fields: dict[str, object] = msgspec.to_builtins(LOAD)
    return msgspec.json.encode({**fields, name: msgspec.Raw(value.encode())})


def answer(body: bytes, head: bytes = HEAD) -> bytes:
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def saying(words: bytes, *, piece: int = 0, forever: bool = False) -> AsyncIterator[int]:
    """Serve bytes as they are, to every connection; yield the port."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            for start in range(0, len(words), piece or len(words) or 1):
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
    "huge": answer(lie("1e308")),
    "huger": answer(lie("9" * 400)),
    "longest": answer(lie("9" * 5000)),
    "nan": answer(lie("NaN")),
    "infinite": answer(lie("Infinity")),
    "infinite time": answer(lie("1e400", "row_seconds")),
    "negative": answer(lie("-5")),
    "a fraction": answer(lie("0.5")),
    "a text": answer(lie('"7"')),
    "another script": answer(lie("٣")),
    "underscores": answer(lie("1_0")),
    "no capacity at all": answer(lie('{"rows_per_s": 0, "rows": 0}', "capacity")),
    "nested": answer(b"[" * 4000),
    "a list": answer(b"[]"),
    "empty": answer(b""),
    "not UTF-8": answer(b'{"\xff": 1}'),
    "an upgrade": b"HTTP/1.1 200 OK\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n" + SAID,
    "two lengths": HEAD + b"content-length: 5\r\ncontent-length: 900\r\n\r\n" + SAID,
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
    "longer than": answer(SAID + b" " * MAX_BODY_BYTES),
    "nothing": b"",
}


@pytest.mark.parametrize("words", HOSTILE.values(), ids=HOSTILE)
def test_a_pod_that_says_something_else_has_no_data(words: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert read(words).load is None
    assert caplog.records == []


def test_a_body_is_read_whole_though_it_comes_in_pieces() -> None:
    assert read(answer(SAID + b" " * 1000), piece=7) == Reading(LOAD)


def test_a_body_in_chunks_is_read() -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (SAID[:50], SAID[50:])) + b"0\r\n\r\n"

    assert read(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks) == Reading(LOAD)


@pytest.mark.parametrize(("said", "accepted"), [("a", True), ("b", False), ("", False)])
def test_a_pod_that_got_the_address_of_another_is_not_taken_for_it(said: str, *, accepted: bool) -> None:
    found = read(answer(SAID, HEAD + f"x-shoal-instance: {said}\r\n".encode()))

    assert (found.load == LOAD) is accepted


def test_an_endless_body_ends_at_its_bound() -> None:
    assert read(HEAD + b"\r\n" + SAID, forever=True) == Reading()


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_whatever_a_pod_says_it_is_a_load_or_an_error_of_its_own(body: bytes) -> None:
    for words in (body, SAID[: len(body)] + body, SAID + body):
        with contextlib.suppress(LoadError):
            assert read_load(words).queued_rows >= 0


def test_a_service_whose_pods_all_hang_delays_no_other() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talking.add(asyncio.current_task())
        await reader.read()
        writer.close()

    talking: set[asyncio.Task[None] | None] = set()

    async def main() -> list[Reading]:
        async with saying(answer(SAID)) as port:
            hanging = await asyncio.start_server(hang, "127.0.0.2", port)
            scraper = Scraper(port, timeout_s=60)
            one = asyncio.ensure_future(scraper.read([Replica(f"{at}", "127.0.0.2") for at in range(100)]))
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(30):
                    return await scraper.read([HERE])
            finally:
                one.cancel()
                await scraper.close()
                hanging.close()
                await asyncio.gather(one, *filter(None, talking), return_exceptions=True)

    assert asyncio.run(main()) == [Reading(LOAD)]


def test_what_pods_answer_is_counted_and_shown() -> None:
    async def main() -> str:
        metrics, texts = Metrics(), [answer(SAID), answer(lie("NaN")), redirect(b"http://[::1/")]
        for words in texts:
            async with saying(words) as port:
                scraper = Scraper(port, metrics.count_scrape)
                await scraper.read([HERE, Replica("c", "127.0.0.9")])
                await scraper.close()
        async with saying(b"") as free:
            pass
        async with (
            serving(metrics, Address("127.0.0.1", free), nothing_to_tell, no_fleet, lambda: None),
            aiohttp.ClientSession() as session,
        ):
            return await (await session.get(f"http://127.0.0.1:{free}/metrics")).text()

    shown = asyncio.run(main())
    counts = [f'shoal_operator_scrapes_total{{outcome="{name}"}} {n}.0' for name, n in COUNTS.items()]

    assert [line for line in counts if line not in shown.splitlines()] == []


def no_fleet() -> None:
    return None


async def nothing_to_tell(seen: str) -> bytes | None:
    return None


def test_a_metrics_port_that_cannot_be_bound_is_named() -> None:
    async def main() -> None:
        async with serving(Metrics(), Address("192.0.2.1", 0), nothing_to_tell, no_fleet, lambda: None):
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
        return [Reading(holding(35)) for _ in replicas]


@pytest.mark.parametrize("error", [OverflowError("1e308"), ValueError("a redirect"), RecursionError(), None])
def test_a_service_that_cannot_be_read_stops_no_other(error: Exception | None) -> None:
    async def main() -> None:
        cluster, records = FakeCluster(), Records()
        for key, address in ((CAT, "10.0.0.66"), (DOG, "10.0.0.1")):
            records.get(key, CachedService).observe(service(SCALING, name=key.name), [pod(podIP=address)])
        autoscaler = Autoscaler(
            records, Broken(error), lambda key: None, clock, window_s=300, scale_to_zero=NoActivators()
        )
        task = asyncio.ensure_future(autoscaler.run(cluster, 2.0))
        await asyncio.sleep(5)
        assert not task.done()
        assert cluster.scales == [(DOG, 4)]
        task.cancel()

    run(main())
