"""Reading proxies: what they say, and what is not known."""

import asyncio
from collections.abc import Sequence

import msgspec

from shoal_operator.scaling.reading import Reading, no_load_reason
from shoal_operator.scaling.report import NoLoad
from shoal_operator.scaling.scraper import ScrapeOutcome, Scraper
from shoal_operator.scaling.service_cache import Replica
from tests.operator.loads import holding
from tests.operator.servers import Answer, Asked, serving

SAID = holding(7)
JSON = {"Content-Type": "application/json"}
OK = (200, msgspec.to_builtins(SAID), JSON)


def read(answer: Answer, addresses: Sequence[str]) -> list[Reading]:
    async def main() -> list[Reading]:
        async with serving(answer) as (port, _):
            scraper = Scraper(port)
            try:
                return await scraper.read([Replica(f"{at}", address) for at, address in enumerate(addresses)])
            finally:
                await scraper.close()

    return asyncio.run(main())


def test_every_pod_is_read() -> None:
    assert read(lambda _: OK, ["127.0.0.1", "127.0.0.1"]) == [Reading(SAID), Reading(SAID)]


def test_unreachable_pod_has_no_load() -> None:
    assert read(lambda _: OK, ["127.0.0.9", "127.0.0.1"]) == [Reading(), Reading(SAID)]


def test_invalid_response_is_distinguished_from_no_response() -> None:
    def why(answer: Answer, *addresses: str) -> NoLoad | None:
        return no_load_reason(read(answer, addresses))

    assert why(lambda _: OK, "127.0.0.9") is NoLoad.UNREACHABLE
    assert why(lambda _: (503, *OK[1:]), "127.0.0.1") is NoLoad.REFUSED
    assert why(lambda _: (200, "<html>", JSON), "127.0.0.1", "127.0.0.9") is NoLoad.REFUSED
    assert why(lambda _: (200, {"some": 1}, JSON), "127.0.0.1") is NoLoad.REFUSED
    assert why(lambda _: (404, *OK[1:]), "127.0.0.1") is NoLoad.REFUSED
    assert why(lambda _: OK, "127.0.0.1", "127.0.0.9") is None
    assert why(lambda _: OK) is NoLoad.NO_READY_POD


def test_one_connection_serves_every_tick_and_a_closed_one_is_opened_again() -> None:
    async def main() -> tuple[int, list[Asked], list[Reading]]:
        lines: list[asyncio.StreamWriter] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            lines.append(writer)
            body = msgspec.json.encode(SAID)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            while await reader.readline():
                while (await reader.readline()).strip():
                    pass
                writer.write(head + body)

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        scraper = Scraper(server.sockets[0].getsockname()[1])
        readings = [(await scraper.read([Replica("a", "127.0.0.1")]))[0] for _ in range(3)]
        once = len(lines)
        lines[0].close()
        await lines[0].wait_closed()
        readings += [(await scraper.read([Replica("a", "127.0.0.1")]))[0] for _ in range(2)]
        await scraper.close()
        for line in lines:
            line.close()
        server.close()
        return once, [], readings

    once, _, readings = asyncio.run(main())

    assert once == 1
    assert readings[:3] == [Reading(SAID)] * 3
    assert readings[-1] == Reading(SAID)


def test_pod_that_never_responds_is_unreachable_and_not_invalid() -> None:
    async def main() -> list[ScrapeOutcome]:
        never, seen = asyncio.Event(), list[ScrapeOutcome]()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()
            never.set()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        scraper = Scraper(server.sockets[0].getsockname()[1], seen.append)
        await scraper.read([Replica("a", "127.0.0.1")])
        await scraper.close()
        await never.wait()
        server.close()
        return seen

    assert asyncio.run(main()) == [ScrapeOutcome.UNREACHABLE]
