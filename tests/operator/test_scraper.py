"""Reading proxies: what they say, and what is not known."""

import asyncio
from collections.abc import Sequence

from shoal_operator.load.exposition import Reading, unread
from shoal_operator.load.fleet import Replica
from shoal_operator.planning.evidence import Unread
from shoal_operator.scraper import Scraper
from tests.operator.servers import Answer, serving

TEXT = "shoal_proxy_queue_rows 3\nshoal_proxy_in_flight_rows 4\nshoal_proxy_objective_attainable 1\n"
SAID = Reading(rows=7, attainable=True)


def read(answer: Answer, addresses: Sequence[str]) -> list[Reading]:
    async def main() -> list[Reading]:
        async with serving(answer) as (port, _):
            scraper = Scraper(port)
            try:
                return await scraper.read([Replica("a", address) for address in addresses])
            finally:
                await scraper.close()

    return asyncio.run(main())


def test_every_pod_is_read() -> None:
    assert read(lambda _: (200, TEXT), ["127.0.0.1", "127.0.0.1"]) == [SAID, SAID]


def test_a_pod_that_cannot_be_reached_says_nothing() -> None:
    assert read(lambda _: (200, TEXT), ["127.0.0.9", "127.0.0.1"]) == [Reading(), SAID]


def test_what_answers_and_is_no_proxy_is_told_from_what_does_not_answer() -> None:
    def why(answer: Answer, *addresses: str) -> Unread | None:
        return unread(read(answer, addresses))

    assert why(lambda _: (200, TEXT), "127.0.0.9") is Unread.UNREACHABLE
    assert why(lambda _: (503, TEXT), "127.0.0.1") is Unread.REFUSED
    assert why(lambda _: (200, "<html>"), "127.0.0.1", "127.0.0.9") is Unread.REFUSED
    assert why(lambda _: (200, "some_total 1\n"), "127.0.0.1") is Unread.REFUSED
    assert why(lambda _: (200, TEXT), "127.0.0.1", "127.0.0.9") is None
    assert why(lambda _: (200, TEXT)) is Unread.NO_READY_POD


def test_a_pod_whose_answer_cannot_be_read_says_nothing() -> None:
    assert read(lambda _: (503, TEXT), ["127.0.0.1"]) == [Reading()]
    assert read(lambda _: (200, "<html>"), ["127.0.0.1"]) == [Reading()]
