"""Honest callers: each checks every answer, in turn over the three protocols."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import orjson

MODEL = "total"
CALLERS = 8
TIMEOUT_S = 30.0

Row = list[int]


@dataclass(slots=True)
class Tally:
    """What became of the honest clients' requests.

    Args:
        right: answers that were the client's own.
        wrong: answers that were not.
        refused: 503 with ``Retry-After``.
        failed: everything else, by status or exception.
        latencies_s: of the right ones.
    """

    right: int = 0
    wrong: int = 0
    refused: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)


def v1(row: Row) -> tuple[str, dict[str, str], bytes]:
    """Return path, headers and body of a KServe V1 request."""
    return f"/v1/models/{MODEL}:predict", {}, orjson.dumps({"instances": [row]})


def v2(row: Row) -> tuple[str, dict[str, str], bytes]:
    """Return path, headers and body of a V2 request."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(row)], "data": row}
    return f"/v2/models/{MODEL}/infer", {}, orjson.dumps({"inputs": [tensor]})


def torchserve(row: Row) -> tuple[str, dict[str, str], bytes]:
    """Return path, headers and body of a TorchServe request."""
    return f"/predictions/{MODEL}", {"content-type": "application/json"}, orjson.dumps(row)


def v1_total(answer: Any) -> Any:
    """Return the number in a V1 answer."""
    return answer["predictions"][0]


def v2_total(answer: Any) -> Any:
    """Return the number in a V2 answer."""
    return answer["outputs"][0]["data"][0]


def torchserve_total(answer: Any) -> Any:
    """Return the number in a TorchServe answer."""
    return answer


Protocol = tuple[Callable[[Row], tuple[str, dict[str, str], bytes]], Callable[[Any], Any]]
PROTOCOLS: Sequence[Protocol] = ((v1, v1_total), (v2, v2_total), (torchserve, torchserve_total))


def honest_row(random: Random) -> Row:
    """Return a row that is not like another, of 4 to 16 numbers whose sum a float holds exactly."""
    return [random.randrange(100_000) for _ in range(random.randint(4, 16))]


async def call(client: httpx.AsyncClient, protocol: Protocol, row: Row, tally: Tally) -> None:
    """Send one row and count what became of it."""
    request, total = protocol
    path, headers, body = request(row)
    started_s = time.monotonic()
    try:
        answer = await client.post(path, headers=headers, content=body)
    except httpx.TransportError as error:
        tally.failed[type(error).__name__] += 1
        return
    if answer.status_code == 503 and "retry-after" in answer.headers:
        tally.refused += 1
    elif answer.status_code != 200:
        tally.failed[str(answer.status_code)] += 1
    elif total(answer.json()) == sum(row):
        tally.right += 1
        tally.latencies_s.append(time.monotonic() - started_s)
    else:
        tally.wrong += 1


async def keep_calling(url: str, random: Random, until_s: float, tally: Tally) -> None:
    """Call one after the other until the monotonic clock shows ``until_s``."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
        while time.monotonic() < until_s:
            await call(client, random.choice(PROTOCOLS), honest_row(random), tally)


async def neighbours(url: str, seed: int, duration_s: float) -> Tally:
    """Let all honest clients call for so long, and return what became of it."""
    tally = Tally()
    until_s = time.monotonic() + duration_s
    async with asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(keep_calling(url, Random(seed * CALLERS + number), until_s, tally))
    return tally
