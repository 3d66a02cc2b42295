"""Real proxies as peers: a request that would be late at one is served by another, once."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

from shoal_proxy.balance.peers import Peer
from shoal_proxy.batching.pending import PLAIN_KEY, BatchKey
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_schema.fields.addresses import parse_tcp_address
from tests import plain
from tests.calls import (
    TORCHSERVE_PATH,
    V1_PATH,
    V2_PATH,
    ConcurrentClients,
    RawConnection,
    answer_to,
    concurrent_clients,
    row,
    v2_body,
)
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor
from tests.listening import listening

TIME_MS = 800
IN_TIME = {"x-request-timeout-ms": str(TIME_MS)}
BUSY_S = 1.0
"""The time of a batch at a busy replica: while one runs, an urgent request would be late."""
MAX_ROWS = 4


@contextmanager
def replica(
    *peers: str, make_runtime: Callable[[], FakeRuntime] = FakeRuntime, **settings: Any
) -> Iterator[RunningProxy]:
    """Run a replica that knows these others."""
    given = {"max_batch_size": MAX_ROWS, **settings}
    with running_proxy(make_runtime, process__peers=peers, **given) as running:
        yield running


def at(running: RunningProxy) -> str:
    """Return where a replica listens."""
    return "{}:{}".format(*running.address)


def known(running: RunningProxy) -> list[Peer]:
    """Return what a replica knows of the others."""
    forwarder = running.proxy.forwarder
    assert forwarder is not None
    return list(forwarder.replicas.link_of)


def forwarded(running: RunningProxy) -> dict[str, int]:
    """Return what came of the requests that a replica gave away."""
    return dict(running.proxy.metrics.forwarded)


def believe(running: RunningProxy, seconds: float) -> None:
    """Let a replica believe that a batch of any size and shape takes so long."""
    tables = running.proxy.scheduler.batcher.tables

    def learn() -> None:
        for key in (PLAIN_KEY, BatchKey((("x", (4,)),)), *map(BatchKey, tables.all())):
            for rows in tables[key].sizes * 50:
                tables[key].observe(rows, seconds)

    running.call(learn)


@contextmanager
def made_busy(running: RunningProxy, group: ConcurrentClients, promises: int = 1) -> Iterator[None]:
    """Hold a batch at the runtime, which takes so long that further requests would be late; its peers are known."""
    running.until(lambda: sum(each.wait_s < 0.5 for each in known(running)) >= promises if promises else True)
    believe(running, BUSY_S)
    running.hold()
    first = group.ask(0)
    running.until(lambda: running.runtime.running == 1)
    try:
        yield
    finally:
        running.release()
        first.result()


Act = Callable[[asyncio.StreamWriter], Awaitable[None]]


class FakePeer:
    """A server that promises, and then does as the test says: ``act`` writes what it likes, or nothing."""

    def __init__(self, act: Act, promise: bytes = b"0.001") -> None:
        self.act = act
        self.promise = promise
        self.asked = 0
        self.gone = threading.Event()

    @property
    def lines(self) -> bytes:
        """Return the headers that each of its answers has."""
        load = b"endpoint-load-metrics: TEXT named_metrics.expected_wait_seconds=" + self.promise
        return b"x-shoal-instance: other\r\n" + load + b"\r\n"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length or 0))
                if head.startswith(b"get"):
                    writer.write(b"HTTP/1.1 200 OK\r\n%bcontent-length: 0\r\n\r\n" % self.lines)
                else:
                    self.asked += 1
                    await self.act(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            writer.close()


@contextmanager
def with_peer(act: Act, promise: bytes = b"0.001") -> Iterator[tuple[RunningProxy, FakePeer]]:
    """Run a replica whose peer is not what it says."""
    peer = FakePeer(act, promise)
    with listening(peer.serve) as address, replica(address) as running:
        yield running, peer


def hurried(group: ConcurrentClients, value: float) -> Future[httpx.Response]:
    """Start a request of one row that does not wait for long."""
    return group.ask(value, headers=IN_TIME)


def late(answer: Future[httpx.Response], executed: str) -> None:
    """Check that a request was refused as late."""
    response = answer.result()
    assert response.status_code == 503, response.text
    assert "late" in response.text
    assert response.headers["x-shoal-executed"] == executed
    assert int(response.headers["retry-after"]) >= 1


def test_a_request_that_would_be_late_is_served_by_the_peer() -> None:
    with replica() as idle, replica(at(idle)) as busy, concurrent_clients(busy.url) as group, made_busy(busy, group):
        answers = [hurried(group, value) for value in (2, 3)]
        for value, answer in zip((2, 3), answers, strict=True):
            assert answer_to(answer.result()) == [2 * each for each in row(value)]
            assert "peer;dur=" in answer.result().headers["server-timing"]
        assert forwarded(busy) == {"answered": 2}
        assert sum(seen.rows for seen in idle.runtime.seen) == 2
        assert b'forwarded_total{outcome="answered"} 2' in plain.get(busy.admin_url + "/metrics").content


def test_every_protocol_gets_its_own_response_from_the_peer() -> None:
    with replica() as idle, replica(at(idle)) as busy, concurrent_clients(busy.url) as group, made_busy(busy, group):
        v1 = plain.post(busy.url + V1_PATH, json={"instances": [row(1), row(2)]}, headers=IN_TIME)
        assert v1.json() == {"predictions": [[2 * each for each in row(value)] for value in (1, 2)]}
        torchserve = plain.post(busy.url + TORCHSERVE_PATH, json=row(3), headers=IN_TIME)
        assert torchserve.json() == [2 * each for each in row(3)]
        binary = np.array([row(4)], "<f4").tobytes()
        inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}]
        header = orjson.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}})
        headers = {**IN_TIME, "inference-header-content-length": str(len(header))}
        answer = plain.post(busy.url + V2_PATH, content=header + binary, headers=headers)
        assert np.frombuffer(answer.content[-16:], "<f4").tolist() == [2 * each for each in row(4)]
        assert forwarded(busy) == {"answered": 3}


def test_what_a_client_requests_travels_with_its_request() -> None:
    settings: dict[str, Any] = {"proxy__forward_headers": ("x-tenant",), "fair_share_header": "x-user"}
    with (
        replica(**settings) as idle,
        replica(at(idle), **settings) as busy,
        concurrent_clients(busy.url) as group,
        made_busy(busy, group),
    ):
        asked = {
            "x-tenant": "blue", "x-user": "me", "x-shoal-priority": "3", "x-request-id": "r1",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", **IN_TIME,
        }  # fmt: skip
        response = plain.post(busy.url + V2_PATH, json=v2_body([row(1)]), headers=asked)
        assert answer_to(response)
        assert response.headers["x-request-id"] == "r1"
        (seen,) = idle.runtime.seen
        assert seen.headers["x-tenant"] == "blue"
        assert seen.headers["x-request-id"] == "r1"
        assert seen.headers["traceparent"] == asked["traceparent"]
        assert 0 < int(seen.headers["x-request-timeout-ms"]) <= TIME_MS


def test_a_model_that_pads_gets_rows_as_they_were_sent() -> None:
    def runtime() -> FakeRuntime:
        inputs = [tensor("x", "FP32", [-1, -1], pad_axis=1, pad_value=0, pad_buckets="8,16")]
        return FakeRuntime(inputs=inputs, outputs=[tensor("y", "FP32", [-1, -1], unpad_axis=1, unpad_input="x")])

    with (
        replica(make_runtime=runtime) as idle,
        replica(at(idle), make_runtime=runtime) as busy,
        concurrent_clients(busy.url) as group,
    ):
        busy.until(lambda: known(busy)[0].wait_s < 0.5)
        busy.hold()

        first = group.post(V1_PATH, json={"instances": [[1.0, 2.0]]})
        busy.until(lambda: busy.runtime.running == 1)
        believe(busy, BUSY_S)
        same = plain.post(busy.url + V1_PATH, json={"instances": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}, headers=IN_TIME)
        assert same.json() == {"predictions": [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]}
        assert idle.runtime.seen[0].inputs["x"].shape == (2, 8)
        ragged = plain.post(busy.url + V1_PATH, json={"instances": [[1.0], [4.0, 5.0, 6.0]]}, headers=IN_TIME)
        assert ragged.status_code == 503  # V2 has no form for it
        assert forwarded(busy) == {"answered": 1}
        busy.release()
        assert first.result().status_code == 200


def test_rows_that_fail_at_the_peer_are_reported() -> None:
    def failing(seen: Any) -> dict[str, Any]:
        return {"errors": '[{"row": 0, "status": 422, "message": "not this one"}]'}

    def runtime() -> FakeRuntime:
        return FakeRuntime(model=lambda inputs: {"y": inputs["x"][1:] * 2}, answer_parameters=failing)

    with (
        replica(make_runtime=runtime) as idle,
        replica(at(idle)) as busy,
        concurrent_clients(busy.url) as group,
        made_busy(busy, group),
    ):
        response = plain.post(busy.url + V2_PATH, json=v2_body([row(1), row(2)]), headers=IN_TIME)
        assert response.status_code == 422
        assert response.json()["errors"] == [{"row": 0, "status": 422, "message": "not this one"}]
        assert response.headers["x-shoal-executed"] == "maybe"
        assert forwarded(busy) == {"error": 1}


def test_a_request_left_out_of_a_batch_and_late_is_forwarded() -> None:
    with replica() as idle, replica(at(idle)) as busy, concurrent_clients(busy.url) as group, made_busy(busy, group):
        believe(busy, 0.02)
        waiting = [hurried(group, value) for value in (1, 2)]
        busy.until_waiting(2)
        believe(busy, 0.9)
        busy.release()
        for value, answer in zip((1, 2), waiting, strict=True):
            assert answer_to(answer.result()) == [2 * each for each in row(value)]
        assert forwarded(busy)["answered"] >= 1
        assert sum(seen.rows for seen in idle.runtime.seen) >= 1


def test_a_request_that_was_forwarded_is_never_handed_on() -> None:
    with replica() as idle, replica(at(idle)) as busy, concurrent_clients(busy.url) as group, made_busy(busy, group):
        late(group.ask(1, headers={**IN_TIME, "x-shoal-forwarded": "1"}), executed="no")
        assert forwarded(busy) == {}
        assert busy.proxy.metrics.rejections == {}  # counted by the forwarding replica
        assert not idle.runtime.seen


def test_three_that_are_full_reject_as_if_they_were_alone() -> None:
    with (
        replica() as third,
        replica(at(third)) as second,
        replica(at(second), at(third)) as first,
        concurrent_clients(first.url) as one,
        concurrent_clients(second.url) as two,
        concurrent_clients(third.url) as three,
        made_busy(third, three, promises=0),
        made_busy(second, two, promises=0),
        made_busy(first, one, promises=0),
    ):
        for running in (first, second):
            running.until(lambda r=running: all(BUSY_S <= each.wait_s < 9 for each in known(r)))  # type: ignore[misc]
        answers = [hurried(group, value) for value in range(1, 11) for group in (one, two)]
        for answer in answers:
            late(answer, executed="no")
        assert sum(forwarded(each).get("refused", 0) for each in (first, second)) <= 4
        assert all(not running.runtime.seen[1:] for running in (first, second, third))


def test_a_peer_that_lies_is_polled_seldom_and_rejections_are_as_before() -> None:
    async def refuse(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nx-shoal-executed: no\r\n%bcontent-length: 0\r\n\r\n" % peer.lines)

    with with_peer(refuse, b"0.0") as (busy, peer), concurrent_clients(busy.url) as group, made_busy(busy, group):
        begun_s = time.monotonic()
        for answer in [hurried(group, value) for value in range(60)]:
            late(answer, executed="no")
        seconds = time.monotonic() - begun_s
        assert peer.asked <= 2 * MAX_ROWS + MAX_ROWS * (seconds / 0.02)
        assert busy.proxy.metrics.rejections == {"late": 60}
        assert forwarded(busy) == {"refused": peer.asked}


@pytest.mark.parametrize("promise", [b"nan", b"-1", b"1e99", b"soon", b"inf", b""])
def test_a_promise_that_makes_no_sense_is_not_believed(promise: bytes) -> None:
    async def never(writer: asyncio.StreamWriter) -> None:
        raise AssertionError("it was given something")

    with (
        with_peer(never, promise) as (busy, peer),
        concurrent_clients(busy.url) as group,
        made_busy(busy, group, promises=0),
    ):
        busy.until(lambda: known(busy)[0].reported_s > 0)
        late(hurried(group, 1), executed="no")
        assert peer.asked == 0


def test_a_peer_that_hangs_costs_what_was_left_of_the_objective() -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    with with_peer(hang) as (busy, _), concurrent_clients(busy.url) as group, made_busy(busy, group):
        begun_s = time.monotonic()
        late(hurried(group, 1), executed="maybe")
        assert time.monotonic() - begun_s < TIME_MS / 1000 + 0.4
        begun_s = time.monotonic()
        late(hurried(group, 2), executed="no")  # once bitten
        assert time.monotonic() - begun_s < 0.3
        assert forwarded(busy) == {"late": 1}


def test_a_request_at_a_peer_that_dies_is_not_run_again() -> None:
    async def die(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    with with_peer(die) as (busy, peer), concurrent_clients(busy.url) as group, made_busy(busy, group):
        late(hurried(group, 1), executed="maybe")
        assert (peer.asked, forwarded(busy)) == (1, {"lost": 1})
        assert [seen.inputs["x"][0, 0] for seen in busy.runtime.seen] == [0.0]


FOREIGN = b'{"id":"0","outputs":[{"name":"y","datatype":"FP32","shape":[1,4],"data":[2.0,4.0,6.0,8.0]}]}'
BROKEN_ANSWERS = {
    "nonsense": b'HTTP/1.1 200 OK\r\n%bcontent-length: 13\r\n\r\n{"outputs":5}',
    "another's": b"HTTP/1.1 200 OK\r\n%%bcontent-length: %d\r\n\r\n%b" % (len(FOREIGN), FOREIGN),
    "nothing": b"HTTP/1.1 204 No Content\r\n%b\r\n",
    "created": b"HTTP/1.1 201 Created\r\n%bcontent-length: 2\r\n\r\n{}",
    "elsewhere": b"HTTP/1.1 307 Elsewhere\r\n%blocation: /\r\ncontent-length: 0\r\n\r\n",
    "another type": b"HTTP/1.1 415 Type\r\n%bcontent-length: 0\r\n\r\n",
    "no route": b"HTTP/1.1 404 None\r\n%bx-shoal-executed: maybe\r\ncontent-length: 0\r\n\r\n",
    "a gateway's": b"HTTP/1.1 500 Sorry\r\n%bcontent-length: 0\r\n\r\n",
    "no status": b"HTTP/1.1 999 What\r\n%bx-shoal-executed: maybe\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("kind", BROKEN_ANSWERS)
def test_a_response_that_breaks_the_contract_is_none_and_its_peer_is_left_alone(kind: str) -> None:
    async def babble(writer: asyncio.StreamWriter) -> None:
        writer.write(BROKEN_ANSWERS[kind] % peer.lines)

    with with_peer(babble) as (busy, peer), concurrent_clients(busy.url) as group, made_busy(busy, group):
        late(hurried(group, 1), executed="maybe")
        for answer in [hurried(group, value) for value in range(20)]:
            late(answer, executed="no")
        assert (peer.asked, forwarded(busy)) == (1, {"broken": 1})


def test_a_peer_whose_model_fails_everything_costs_two_clients_their_rejection_and_is_left_alone() -> None:
    async def fail(writer: asyncio.StreamWriter) -> None:
        body = b'{"error":"it raised","code":"FORWARD_FAILED"}'
        head = b"HTTP/1.1 500 Failed\r\nx-shoal-executed: maybe\r\n%bcontent-length: %d\r\n\r\n"
        writer.write(head % (peer.lines, len(body)) + body)

    with with_peer(fail) as (busy, peer), concurrent_clients(busy.url) as group, made_busy(busy, group):
        for value in (1, 2):
            response = hurried(group, value).result()
            assert (response.status_code, response.headers["x-shoal-executed"]) == (500, "maybe")
            assert "it raised" in response.text
        for answer in [hurried(group, value) for value in range(20)]:
            late(answer, executed="no")
        assert (peer.asked, forwarded(busy)) == (2, {"failed": 2})


def test_a_model_that_fails_here_too_is_not_held_against_the_peer() -> None:
    def raising(inputs: Any) -> Any:
        raise ValueError("it always does")

    def runtime() -> FakeRuntime:
        return FakeRuntime(model=raising)

    with replica(make_runtime=runtime) as idle, replica(at(idle), make_runtime=runtime) as busy:
        for _ in range(40):
            assert plain.post(busy.url + V2_PATH, json=v2_body([row(1)])).status_code == 500
        with concurrent_clients(busy.url) as group, made_busy(busy, group):
            for value in range(6):
                assert hurried(group, value).result().status_code == 500
            assert forwarded(busy) == {"failed": 6}


def test_a_disconnect_cancels_the_request_at_the_peer() -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        return

    with with_peer(hang) as (busy, peer), concurrent_clients(busy.url) as group, made_busy(busy, group):
        with RawConnection(busy.address) as leaver:
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % TORCHSERVE_PATH.encode()
            head += b"x-request-timeout-ms: %d\r\n" % TIME_MS
            leaver.send(head, b"content-length: 9\r\n\r\n[1,2,3,4]")
            busy.until(lambda: peer.asked == 1)
        assert peer.gone.wait(0.6)
        busy.until(lambda: forwarded(busy) == {"cancelled": 1})
        assert busy.proxy.metrics.rejections == {"cancelled": 1}


def test_a_replica_among_its_own_peers_recognizes_itself() -> None:
    with replica("127.0.0.1:9") as running:
        chance = running.proxy.forwarder
        assert chance is not None
        running.call(lambda: chance.replicas._targets.append(parse_tcp_address(at(running))))
        running.until(lambda: any(each.is_self for each in known(running)))


def test_a_replica_that_drains_waits_for_what_it_forwarded_and_accepts_nothing() -> None:
    with (
        replica() as idle,
        replica(at(idle), drain_delay_seconds=0.0) as busy,
        concurrent_clients(busy.url) as group,
        made_busy(busy, group),
    ):
        idle.hold()
        given = hurried(group, 1)
        idle.until(lambda: idle.runtime.running == 1)
        busy.call(busy.proxy.stop)
        idle.release()
        assert answer_to(given.result()) == [2 * each for each in row(1)]


def test_without_peers_there_is_no_forwarding_at_all() -> None:
    with running_proxy() as running:
        assert running.proxy.forwarder is None
        assert not running.proxy.scheduler.forwards_late


def test_a_request_that_a_peer_returns_is_served_as_if_it_had_not_been_forwarded() -> None:
    async def refuse(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nx-shoal-executed: no\r\n%bcontent-length: 0\r\n\r\n" % peer.lines)

    with with_peer(refuse) as (busy, peer), concurrent_clients(busy.url) as group, made_busy(busy, group):
        believe(busy, 0.3)
        first = group.ask(1, headers={"x-request-timeout-ms": "700"})
        busy.until_waiting(1)
        believe(busy, BUSY_S)  # now the next one makes the batch late for the first
        second = group.ask(2, headers={"x-request-timeout-ms": "5000"})
        busy.until(lambda: forwarded(busy) == {"refused": 1})
        busy.until_waiting(2)
        believe(busy, 0.01)
        busy.release()
        assert answer_to(second.result()) == [2 * each for each in row(2)]
        assert answer_to(first.result()) == [2 * each for each in row(1)]
        assert peer.asked == 1


def test_the_load_is_reported_on_request_only() -> None:
    with replica() as running:
        plain_answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)]))
        assert "endpoint-load-metrics" not in plain_answer.headers
        for asked, begins in (
            ("TEXT", "TEXT application_utilization=0."),
            ("json", 'JSON {"application_utilization":'),
        ):
            headers = {"endpoint-load-metrics-format": asked}
            answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)]), headers=headers)
            assert answer.headers["endpoint-load-metrics"].startswith(begins)
            assert "expected_wait_seconds" in answer.headers["endpoint-load-metrics"]
            assert "x-shoal-instance" not in answer.headers
            bad = plain.post(running.url + V2_PATH, content=b"{", headers=headers)
            assert (bad.status_code, bad.headers["endpoint-load-metrics"][:4]) == (400, asked.upper())
            ready = plain.get(running.url + "/v2/models/double/ready", headers=headers)
            assert ready.headers["endpoint-load-metrics"].startswith(begins)


@pytest.mark.parametrize("name", ["unknown.invalid:8080", f"{'x' * 70}.svc:8080"])
def test_a_name_without_an_address_is_logged_once(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_proxy.dispatch.replicas.RESOLVE_S", 0.01)
    with caplog.at_level("INFO"), replica(name) as running:
        running.until(lambda: "peers_unknown" in caplog.text)
        assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(1)])))
        running.call(asyncio.sleep, 0.1)
    assert caplog.text.count("event=peers_unknown") == 1


def test_a_disconnected_request_is_not_admitted_when_it_is_sent_back() -> None:
    async def hang(writer: asyncio.StreamWriter) -> None:
        return

    with with_peer(hang) as (busy, peer), concurrent_clients(busy.url) as group, made_busy(busy, group):
        believe(busy, 0.3)
        first = group.ask(1, headers={"x-request-timeout-ms": "5000"})
        busy.until_waiting(1)
        believe(busy, 6.0)
        with RawConnection(busy.address) as leaver:
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % TORCHSERVE_PATH.encode()
            leaver.send(head, b"x-request-timeout-ms: 20000\r\ncontent-length: 9\r\n\r\n[1,2,3,4]")
            busy.until(lambda: peer.asked == 1)
        busy.until(lambda: forwarded(busy) == {"cancelled": 1})
        assert busy.proxy.scheduler.queue.requests == 1
        believe(busy, 0.01)
        busy.release()
        assert first.result().status_code in (200, 503)


def test_while_the_runtime_is_unavailable_and_while_the_replica_drains_peers_serve() -> None:
    with replica() as idle, replica(at(idle), drain_timeout_seconds=5.0) as away, concurrent_clients(away.url) as group:
        away.until(lambda: known(away)[0].wait_s < 0.5)
        with RawConnection(away.address) as kept:
            body = orjson.dumps(v2_body([row(1)]))
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % V2_PATH.encode()
            request = head + b"content-length: %d\r\n\r\n" % len(body) + body
            kept.send(request)
            assert kept.response()[0] == 200
            address = away.proxy.settings.process.runtime
            away.call(away.runtime.stop)
            away.until(lambda: not away.proxy.link.ready)
            assert plain.get(away.admin_url + "/readyz").status_code == 503
            assert answer_to(group.ask(3).result()) == [2 * each for each in row(3)]
            assert plain.get(away.url + "/v2/models/double").status_code == 503
            marked = group.ask(4, headers={"x-shoal-forwarded": "1"}).result()
            assert (marked.status_code, marked.headers["x-shoal-executed"]) == (503, "no")
            away.call(away.runtime.start, address)
            away.until(lambda: away.proxy.link.ready)
            away.hold()
            first = group.ask(5)
            away.until(lambda: away.runtime.running == 1)
            away.call(setattr, away.proxy.dispatcher, "phase", ProxyPhase.DRAINING)
            kept.send(request)
            status, headers, _ = kept.response()
            assert (status, headers["connection"]) == (200, "close")
            away.release()
            assert answer_to(first.result()) == [2 * each for each in row(5)]
        assert forwarded(away) == {"answered": 2}


def test_a_full_queue_overflows_to_the_peer_without_deadlines() -> None:
    with (
        replica(max_rows=MAX_ROWS) as idle,
        replica(at(idle), max_rows=MAX_ROWS) as busy,
        concurrent_clients(busy.url) as group,
        made_busy(busy, group),
    ):
        waiting = [group.ask(value) for value in range(1, MAX_ROWS + 1)]
        busy.until(lambda: len(busy.proxy.scheduler.running) == 2)  # a full batch goes ahead
        waiting += [group.ask(value) for value in range(1, MAX_ROWS + 1)]
        busy.until_waiting(MAX_ROWS)
        assert answer_to(group.ask(9).result()) == [2 * each for each in row(9)]
        assert forwarded(busy) == {"answered": 1}
        believe(busy, 0.01)
        busy.release()
        assert [answer.result().status_code for answer in waiting] == [200] * 2 * MAX_ROWS
