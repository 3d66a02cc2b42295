"""Stays of stopping pods: by reconciliations, and over real connections."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.rollout.staying import StaySender
from shoal_operator.rollout.stays import StayRequest
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.interfaces.stay import DEFAULT_S
from tests.operator.fakes import FakeCluster, SentStays, reconciler_of
from tests.operator.rollout.test_stays import EVICTED, stopping
from tests.operator.samples import MINIMAL, service, with_fields
from tests.operator.worlds import pod

CAT = Key("default", "cat")
POD = Replica("uid-1", "127.0.0.1", "cat-1")


async def reported(act: Callable[[StaySender], Awaitable[None]], answers: list[bytes], count: int) -> list[str]:
    """Return the heads of the requests that a pod gets, which gives these answers in turn."""
    heads: asyncio.Queue[str] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.put_nowait((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answers.pop(0) if answers else b"HTTP/1.1 200 OK\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    stays = StaySender(Records(), server.sockets[0].getsockname()[1])
    try:
        await act(stays)
        async with asyncio.timeout(20):
            return [await heads.get() for _ in range(count)]
    finally:
        await stays.close()
        server.close()


def lines(heads: list[str]) -> list[str]:
    return [head.splitlines()[0] for head in heads]


def test_a_pod_is_reported_once_to_stay_and_once_to_leave() -> None:
    async def act(stays: StaySender) -> None:
        for seconds in (10, 9, 300, 299, 298, 0, 0):
            stays.send(CAT, [StayRequest(POD, seconds)])
            await asyncio.sleep(0.05)

    heads = asyncio.run(reported(act, [], 3))
    assert lines(heads) == [f"POST /stay?seconds={seconds} HTTP/1.1" for seconds in (10, 300, 0)]
    assert "x-shoal-instance: uid-1" in heads[0]
    assert "x-shoal-admin" in heads[0]


def test_a_pod_of_a_service_that_is_gone_is_reported_to_leave() -> None:
    async def act(stays: StaySender) -> None:
        stays.send(CAT, [StayRequest(POD, 300)])
        await asyncio.sleep(0.05)
        stays.records.drop(CAT)

    assert lines(asyncio.run(reported(act, [], 2)))[1] == "POST /stay?seconds=0 HTTP/1.1"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 503 busy\r\n\r\n", b"x" * 200_000, b"\r\n"])
def test_a_pod_that_did_not_take_it_is_reported_again(answer: bytes) -> None:
    async def act(stays: StaySender) -> None:
        stays.send(CAT, [StayRequest(POD, 300)])

    assert len(asyncio.run(reported(act, [answer], 2))) == 2


def test_a_pod_that_cannot_be_reached_ends_nothing() -> None:
    async def main() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        stays = StaySender(Records(), server.sockets[0].getsockname()[1])
        server.close()
        await server.wait_closed()
        stays.send(CAT, [StayRequest(POD, 300)])
        await asyncio.sleep(0.05)
        await stays.close()

    asyncio.run(main())


def test_reconciliation_requests_the_last_ready_pod_to_stay() -> None:
    cluster, stays = FakeCluster(), SentStays()
    cluster.services[CAT] = service(MINIMAL)
    reconciler = reconciler_of(cluster, stays=stays)
    old = stopping(EVICTED)

    asyncio.run(reconciler.reconcile(CAT))
    assert stays.sent[CAT] == {}
    cluster.pods[CAT] = [old, pod(ready=False, uid="new")]
    asyncio.run(reconciler.reconcile(CAT))
    assert stays.sent[CAT] == {"old": DEFAULT_S}
    cluster.pods[CAT] = [old, pod(uid="new")]
    asyncio.run(reconciler.reconcile(CAT))
    assert stays.sent[CAT] == {"old": 0}


def test_pods_of_a_service_that_is_to_have_none_leave() -> None:
    cluster, stays = FakeCluster(), SentStays()
    cluster.services[CAT] = service(MINIMAL)
    reconciler = reconciler_of(cluster, stays=stays)
    asyncio.run(reconciler.reconcile(CAT))
    cluster.pods[CAT] = [stopping(EVICTED)]
    asyncio.run(reconciler.reconcile(CAT))
    cluster.services[CAT] |= service(with_fields(MINIMAL, replicas=0))
    asyncio.run(reconciler.reconcile(CAT))
    assert stays.sent[CAT] == {"old": 0}
