"""Reading proxies: totals, and what is not known."""

import asyncio
from collections.abc import Sequence

from shoal_operator.autoscaler.law import Load
from shoal_operator.scraper import Scraper
from tests.operator.servers import Answer, serving

TEXT = "shoal_proxy_queue_rows 3\nshoal_proxy_in_flight_rows 4\n"


def load(answer: Answer, addresses: Sequence[str]) -> Load | None:
    async def main() -> Load | None:
        async with serving(answer) as (port, _):
            scraper = Scraper(port)
            try:
                return await scraper.read_load(addresses)
            finally:
                await scraper.close()

    return asyncio.run(main())


def test_rows_of_all_pods_are_added() -> None:
    assert load(lambda _: (200, TEXT), ["127.0.0.1", "127.0.0.1"]) == Load(14, complete=True)


def test_a_pod_that_cannot_be_reached_makes_the_load_incomplete() -> None:
    assert load(lambda _: (200, TEXT), ["127.0.0.1", "127.0.0.9"]) == Load(7, complete=False)


def test_without_a_readable_pod_there_is_no_load() -> None:
    assert load(lambda _: (200, TEXT), []) is None
    assert load(lambda _: (503, TEXT), ["127.0.0.1"]) is None
    assert load(lambda _: (200, "<html>"), ["127.0.0.1"]) is None
