"""Lines of a watch: one event each, whatever its strings contain."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from shoal_local.api_client import lines

EVENTS = ['{"a": "x\u2028y\u2029z\x85"}', '{"b": "\U0001f680"}', '{"c": 1}']


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_line_ends_at_a_newline_and_nowhere_else(size: int) -> None:
    body = "".join(event + "\n" for event in EVENTS).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def main() -> list[bytes]:
        return [line async for line in lines(pieces())]

    assert asyncio.run(main()) == [event.encode() for event in EVENTS]
