"""Attacks by whole requests: what they hold, how large they are, what they ask of the model."""

import asyncio
import os
import signal
from contextlib import suppress

import httpx
import orjson

from benchmarks.soak.fuzzing import fuzzed
from benchmarks.soak.model import orders
from benchmarks.soak.neighbours import MODEL, honest_row, v1, v2
from benchmarks.soak.target import Target, at_once, post

V1_PATH, V2_PATH = f"/v1/models/{MODEL}:predict", f"/v2/models/{MODEL}/infer"


async def ask(target: Target, client: httpx.AsyncClient, path: str, body: bytes, **headers: str) -> None:
    """Send one request and count its status."""
    try:
        answer = await client.post(path, content=body, headers=headers)
    except httpx.TransportError as error:
        target.count[type(error).__name__] += 1
        return
    target.count[str(answer.status_code)] += 1
    if answer.status_code == 503:
        await asyncio.sleep(0.01)


def client(target: Target) -> httpx.AsyncClient:
    """Return a client of the server."""
    return httpx.AsyncClient(base_url=target.url, timeout=30, trust_env=False)


async def fuzzing(target: Target) -> None:
    """Send mutated bodies and heads in all protocols."""

    async def one() -> None:
        while not target.over:
            await target.say(fuzzed(target.random))

    await at_once(6, one)


async def commands(target: Target) -> None:
    """Send rows that make the model raise, exit, run out of memory or overflow."""
    given = (orders.RAISE, orders.OUT_OF_MEMORY, orders.EXIT, orders.INTERRUPT, orders.OVERFLOW)

    async def one() -> None:
        async with client(target) as session:
            while not target.over:
                await ask(target, session, *command(target, target.random.choice(given)))
                await asyncio.sleep(0.02)

    await at_once(2, one)


def command(target: Target, order: int) -> tuple[str, bytes]:
    """Return path and body of a row that begins with an order, different each time."""
    return V1_PATH, v1([order, *honest_row(target.random)])[2]


async def deadlines(target: Target) -> None:
    """Send time-outs beyond every bound, and far too small ones."""
    limits = (0, 1, 50, 10**6, 2**31, 2**63 - 1)

    async def one() -> None:
        async with client(target) as session:
            while not target.over:
                body = orjson.loads(v2(honest_row(target.random))[2])
                body["parameters"] = {"timeout": target.random.choice(limits)}
                await ask(target, session, V2_PATH, orjson.dumps(body))

    await at_once(4, one)


async def padding(target: Target) -> None:
    """Send rows that would pad their whole batch, and bodies whose rows would pad one another."""
    ragged = orjson.dumps({"instances": [[1]] * 5000 + [[1] * 50_000]})
    long = v2([1] * 100_000)[2]

    async def one() -> None:
        async with client(target) as session:
            while not target.over:
                await ask(target, session, *target.random.choice(((V1_PATH, ragged), (V2_PATH, long))))

    await at_once(2, one)


async def many_rows(target: Target) -> None:
    """Send requests of a hundred thousand rows."""
    body = orjson.dumps({"instances": [[1, 2, 3, 4]] * 100_000})

    async def one() -> None:
        async with client(target) as session:
            while not target.over:
                await ask(target, session, V1_PATH, body)

    await at_once(2, one)


async def many_keys(target: Target) -> None:
    """Send requests of which no two can share a batch."""

    async def one() -> None:
        async with client(target) as session:
            while not target.over:
                body = orjson.loads(v2(honest_row(target.random))[2])
                body["parameters"] = {"key": target.random.randrange(1000)}
                await ask(target, session, V2_PATH, orjson.dumps(body))

    await at_once(32, one)


async def leaving(target: Target) -> None:
    """Ask and hang up before the answer."""

    async def one() -> None:
        while not target.over:
            await target.say(post(V2_PATH, v2(honest_row(target.random))[2]), listen_s=target.random.random() * 0.005)

    await at_once(8, one)


async def killing(target: Target) -> None:
    """Kill the runtime, from outside and by a row of its own."""
    async with client(target) as session:
        while not target.over:
            if target.random.random() < 0.5:
                with suppress(LookupError, ProcessLookupError):
                    os.kill(target.runtime_pid(), signal.SIGKILL)
                    target.count["killed"] += 1
            else:
                await ask(target, session, *command(target, orders.DIE))
            await asyncio.sleep(min(10.0, target.left_s))
