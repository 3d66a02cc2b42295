"""A stable replica and a candidate, and the plans that an operator would send."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import orjson

from shoal_schema.interfaces.rollout import PATH, RolloutPlan, RolloutReport
from tests import plain
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor
from tests.listening import listening

STABLE, CANDIDATE = "aaaa", "bbbb"
ADMIN = {"x-shoal-admin": "1"}


def at(running: RunningProxy) -> str:
    """Return where a replica listens."""
    return "{}:{}".format(*running.address)


def send_plan(running: RunningProxy, **plan: Any) -> RolloutReport:
    """Send a plan as the operator does; return the report in the response."""
    body = msgspec.json.encode(RolloutPlan(**plan))
    response = plain.put(running.admin_url + PATH, content=body, headers=ADMIN, timeout=20)
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=RolloutReport)


def report(running: RunningProxy) -> RolloutReport:
    """Return a replica's report."""
    return msgspec.json.decode(plain.get(running.admin_url + PATH).content, type=RolloutReport)


def until_report(
    running: RunningProxy, condition: Callable[[RolloutReport], bool], within_s: float = 10.0
) -> RolloutReport:
    """Wait until a replica's report fulfils a condition; return it."""
    rollout = running.proxy.rollout
    assert rollout is not None
    running.until(lambda: condition(rollout.report()), within_s)
    return report(running)


def until_usable(running: RunningProxy, pods: int = 1) -> None:
    """Wait until a stable replica would send rows to so many candidate pods."""
    rollout = running.proxy.rollout
    assert rollout is not None
    running.until(lambda: len(rollout._pods.usable) == pods)


@contextmanager
def stable(
    *candidates: str, make_runtime: Callable[[], FakeRuntime] = FakeRuntime, **settings: Any
) -> Iterator[RunningProxy]:
    """Run a stable replica that looks for candidates at these addresses."""
    given = {"max_batch_size": 8, "process__revision": STABLE, "process__candidates": candidates, **settings}
    with running_proxy(make_runtime, **given) as running:
        yield running


@contextmanager
def candidate(make_runtime: Callable[[], FakeRuntime] = FakeRuntime, **settings: Any) -> Iterator[RunningProxy]:
    """Run a pod of the candidate, which has a plan that names it."""
    given = {"max_batch_size": 8, "process__revision": CANDIDATE, "process__candidates": ("127.0.0.1:9",), **settings}
    with running_proxy(make_runtime, **given) as running:
        send_plan(running, candidate=CANDIDATE)
        yield running


@contextmanager
def both(
    make_candidate: Callable[[], FakeRuntime] = FakeRuntime, *, plan: dict[str, Any] | None = None, **settings: Any
) -> Iterator[tuple[RunningProxy, RunningProxy]]:
    """Run both with a plan; the candidate may get rows."""
    with candidate(make_candidate, **settings) as other, stable(at(other), **settings) as running:
        send_plan(running, candidate=CANDIDATE, **(plan or {}))
        until_usable(running)
        yield running, other


def settle(running: RunningProxy) -> None:
    """Wait until all comparisons of a replica have ended."""
    rollout = running.proxy.rollout
    assert rollout is not None
    begun_s = time.monotonic()
    running.until(lambda: not rollout._shadow._tasks)
    assert time.monotonic() - begun_s < 10


Act = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]
"""Responds to an infer request, of which the head is given, as it likes."""


class HostileCandidate:
    """A server that reports that it is a ready candidate, and then does as the test says."""

    def __init__(self, act: Act, outputs: list[dict[str, Any]] | None = None) -> None:
        self.act = act
        self.outputs = outputs or [tensor("y", "FP32", [-1, 4])]
        self.heads: list[bytes] = []
        """The infer requests that it got."""

    @property
    def lines(self) -> bytes:
        """Return the headers of each of its responses."""
        load = b"endpoint-load-metrics: TEXT named_metrics.expected_wait_seconds=0.001"
        return b"x-shoal-instance: hostile\r\nx-shoal-revision: %b\r\n%b\r\n" % (CANDIDATE.encode(), load)

    def page(self, head: bytes) -> bytes:
        """Return the response to a GET request."""
        document: dict[str, Any] = {"ready": True}
        if b"/ready " not in head:
            inputs = [tensor("x", "FP32", [-1, 4])]
            document = {"name": "double", "versions": ["1"], "inputs": inputs, "outputs": self.outputs}
        body = orjson.dumps(document)
        return b"HTTP/1.1 200 OK\r\n%bcontent-length: %d\r\n\r\n%b" % (self.lines, len(body), body)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if head.startswith(b"get"):
                    writer.write(self.page(head))
                else:
                    self.heads.append(head)
                    await self.act(reader, writer, head)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Return the body of a request."""
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


@contextmanager
def with_hostile(
    hostile: HostileCandidate, *, plan: dict[str, Any], usable: int = 1, **settings: Any
) -> Iterator[RunningProxy]:
    """Run a stable replica whose candidate is not what it says."""
    with listening(hostile.serve) as address, stable(address, **settings) as running:
        send_plan(running, candidate=CANDIDATE, **plan)
        if usable:
            until_usable(running, usable)
        yield running
