"""Copies of batches go to a candidate after the clients have their responses, and results are compared."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal_schema.interfaces.rollout import OutputTolerance
from shoal_schema.resource.traffic import RowChecks
from tests import plain
from tests.calls import V1_PATH, V2_PATH, answer_to, row, v2_body
from tests.fakes import Array, FakeRuntime, RunningProxy, tensor
from tests.proxy.access.test_keys_between_peers import ALICE, guarded
from tests.proxy.rollout.replicas import (
    CANDIDATE,
    HostileCandidate,
    at,
    both,
    candidate,
    read_body,
    report,
    send_plan,
    settle,
    stable,
    until_report,
    until_usable,
    with_hostile,
)


def ask(running: RunningProxy, *values: float, **headers: str) -> None:
    """Send a request of these rows, and check its response."""
    response = plain.post(running.url + V2_PATH, json=v2_body([row(value) for value in values]), headers=headers)
    assert answer_to(response) == [2 * each for value in values for each in row(value)]


def one_by_one(running: RunningProxy, requests: int) -> None:
    """Send requests; none before the comparison of the one before has ended."""
    for value in range(requests):
        ask(running, value, value + 1)
        settle(running)


def test_the_share_of_batches_runs_at_the_candidate_as_they_ran_here() -> None:
    with both(plan={"shadow": 0.25}) as (running, other):
        one_by_one(running, 40)
        seen = report(running)
        assert (seen.shadowed_batches, seen.shadowed_rows, seen.dropped_batches) == (10, 20, 0)
        assert {each.rows for each in other.runtime.seen} == {2}
        outputs = seen.outputs["y"]
        assert (outputs.rows, outputs.disagreements, outputs.max_abs_error) == (20, 0, 0.0)
        assert [(each.rows, each.batches) for each in seen.times] == [(2, 40)]
        # The candidate reports times at equal rows; no client of its own was served.
        theirs = report(other)
        assert [(each.rows, each.batches) for each in theirs.times] == [(2, 10)]
        assert (theirs.served_rows, theirs.shadowed_rows) == (0, 0)


def test_rows_that_differ_are_counted_by_output_and_tolerance() -> None:
    def worse(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"y": np.where(inputs["x"] == 3.0, 7.0, inputs["x"] * 2 + 0.0005).astype(np.float32)}

    with both(lambda: FakeRuntime(model=worse), plan={"shadow": 1.0}) as (running, _):
        for value in (1, 2, 3, 4):
            ask(running, value)
            settle(running)
        outputs = report(running).outputs["y"]
        assert (outputs.rows, outputs.disagreements) == (4, 1)
        assert outputs.max_abs_error == pytest.approx(1.0, abs=0.01)
        exact = {"y": OutputTolerance(max_abs_error=0.0, max_rel_error=0.0)}
        send_plan(running, candidate=CANDIDATE, shadow=1.0, tolerances=exact)
        ask(running, 1)
        settle(running)
        assert report(running).outputs["y"].disagreements == 2


def test_counts_begin_anew_with_another_candidate() -> None:
    with both(plan={"shadow": 1.0}) as (running, _):
        one_by_one(running, 2)
        assert report(running).shadowed_batches == 2
        send_plan(running, candidate=CANDIDATE, shadow=0.5, weight=0.1)  # the same one
        assert report(running).shadowed_batches == 2
        assert send_plan(running, candidate="cccc").shadowed_batches == 0
        assert report(running).outputs == {}


def test_metrics_count_compared_and_disagreeing_rows_by_output() -> None:
    with both(plan={"shadow": 1.0}) as (running, _):
        one_by_one(running, 2)
        settle(running)
        text = plain.get(running.admin_url + "/metrics").text
        assert 'shoal_proxy_rollout_compared_rows_total{output="y"} 4.0' in text
        assert 'shoal_proxy_rollout_disagreeing_rows_total{output="y"} 0.0' in text


def test_a_report_has_the_memory_of_the_runtime() -> None:
    def measured() -> FakeRuntime:
        return FakeRuntime(health={"peak_memory_bytes": 70, "device_memory": [60, 80, 50]})

    with candidate() as other, stable(at(other), make_runtime=measured) as running:
        send_plan(running, candidate=CANDIDATE)
        found = report(running)
        assert (found.memory_bytes, found.device_memory_bytes) == (70, 50)
        assert report(other).memory_bytes == 0


def test_a_changed_output_is_named_and_others_are_compared() -> None:
    def changed() -> FakeRuntime:
        outputs = [tensor("y", "FP32", [-1, 4]), tensor("z", "FP32", [-1])]
        return FakeRuntime(outputs=outputs, model=lambda inputs: {"y": inputs["x"] * 2, "z": inputs["x"][:, 0]})

    def before() -> FakeRuntime:
        outputs = [tensor("y", "FP32", [-1, 4]), tensor("z", "INT64", [-1])]
        two = {"outputs": outputs}
        return FakeRuntime(model=lambda x: {"y": x["x"] * 2, "z": x["x"][:, 0].astype(np.int64)}, **two)  # type: ignore[arg-type]

    with candidate(changed) as other, stable(at(other), make_runtime=before) as running:
        send_plan(running, candidate=CANDIDATE, shadow=1.0, allow_signature_change=True)
        until_usable(running)
        plain.post(running.url + V2_PATH, json=v2_body([row(1)])).raise_for_status()
        settle(running)
        outputs = report(running).outputs
        assert (outputs["y"].disagreements, outputs["y"].change) == (0, "")
        assert (outputs["z"].rows, outputs["z"].disagreements) == (0, 0)
        assert "FP32" in outputs["z"].change


def test_rows_of_different_lengths_are_compared_up_to_their_own() -> None:
    def padding(fill: float) -> FakeRuntime:
        def model(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
            return {"y": np.where(inputs["x"] == 0, fill, inputs["x"] * 2).astype(np.float32)}

        inputs = [tensor("x", "FP32", [-1, -1], pad_axis=1, pad_value=0)]
        return FakeRuntime(
            inputs=inputs, outputs=[tensor("y", "FP32", [-1, -1], unpad_axis=1, unpad_input="x")], model=model
        )

    with (
        candidate(lambda: padding(5.0)) as other,
        stable(at(other), make_runtime=lambda: padding(-5.0)) as running,
    ):
        send_plan(running, candidate=CANDIDATE, shadow=1.0)
        until_usable(running)
        ragged = plain.post(running.url + V1_PATH, json={"instances": [[1.0], [4.0, 5.0, 6.0]]})
        assert ragged.json() == {"predictions": [[2.0], [8.0, 10.0, 12.0]]}
        settle(running)
        outputs = report(running).outputs["y"]
        assert (outputs.rows, outputs.disagreements, outputs.change) == (2, 0, "")


def test_the_candidate_runs_them_last_and_counts_no_client() -> None:
    with both(plan={"shadow": 1.0}, access_log_percent=100.0) as (running, other):
        ask(running, 1)
        settle(running)
        metrics = other.proxy.metrics
        assert dict(metrics.requests) == {("shadow", 200): 1}
        assert metrics.request_seconds.total == 0
        log = other.proxy.inference.access_log
        assert log is not None
        assert [each.protocol for each in log.take()] == ["shadow"]
        (seen,) = other.runtime.seen
        assert "x-shoal-shadow" not in seen.headers
        # A client cannot hide by the mark, and gets the lowest priority.
        marked = {"x-shoal-shadow": "1", "x-shoal-priority": "0"}
        ask(running, 2, **marked)
        settle(running)
        assert dict(running.proxy.metrics.requests) == {("v2", 200): 1, ("shadow", 200): 1}
        assert report(running).shadowed_batches == 1
        assert report(running).served_rows == 1


def test_a_shadow_is_not_split_again() -> None:
    with both(plan={"weight": 1.0, "shadow": 1.0}) as (running, other):
        ask(running, 1, **{"x-shoal-shadow": "1"})
        settle(running)
        assert not other.runtime.seen
        assert report(running).returned_requests == 0


def test_the_stable_model_is_compared_with_itself() -> None:
    noise = np.random.default_rng(1)

    def random(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        return {"y": (inputs["x"] * 2 + noise.uniform(0, 1, inputs["x"].shape)).astype(np.float32)}

    def runtime() -> FakeRuntime:
        return FakeRuntime(model=random)

    settings: dict[str, Any] = {"row_checks": RowChecks.AUTO}
    with candidate(**settings) as other, stable(at(other), make_runtime=runtime, **settings) as running:
        send_plan(running, candidate=CANDIDATE, shadow=1.0)
        until_usable(running)
        plain.post(running.url + V2_PATH, json=v2_body([row(1), row(2)])).raise_for_status()
        found = until_report(running, lambda seen: bool(seen.outputs) and seen.outputs["y"].repeated_rows > 0)
        assert (found.outputs["y"].repeated_rows, found.outputs["y"].repeated_disagreements) == (2, 2)
        # It is no batch of a client.
        assert [(each.rows, each.batches) for each in found.times] == [(2, 1)]
        assert found.served_rows == 2
        assert running.proxy.metrics.rows == 2


def test_without_row_checks_no_row_runs_twice() -> None:
    with both(plan={"shadow": 1.0}) as (running, _):
        one_by_one(running, 3)
        running.call(asyncio.sleep, 0.2)
        assert report(running).outputs["y"].repeated_rows == 0
        assert len(running.runtime.seen) == 3


def test_the_candidate_gets_the_credentials_of_a_client(tmp_path: Path) -> None:
    with (
        candidate(**guarded(tmp_path / "b")) as other,
        stable(at(other), **guarded(tmp_path / "a")) as running,
    ):
        send_plan(running, candidate=CANDIDATE, shadow=1.0)
        ask(running, 1, **{"x-api-key": ALICE})
        until_usable(running)
        ask(running, 1, **{"x-api-key": ALICE})
        settle(running)
        assert report(running).shadowed_batches == 1


# Limits, and candidates that fail.


def test_batches_beyond_the_limit_are_dropped() -> None:
    with both(plan={"shadow": 1.0}) as (running, other):
        other.hold()
        for value in range(4):
            ask(running, value)
        assert report(running).dropped_batches == 3  # one at a time at one pod
        other.release()
        settle(running)
        assert report(running).shadowed_batches == 1


def test_a_batch_that_takes_too_much_memory_is_dropped() -> None:
    with both(plan={"shadow": 1.0}, queue__max_bytes=1020) as (running, other):
        ask(running, *range(8))
        settle(running)
        assert report(running).dropped_batches == 1
        ask(running, 1)
        settle(running)
        assert report(running).shadowed_batches == 1
        assert len(other.runtime.seen) == 1


def test_a_full_candidate_drops_batches_and_has_not_failed() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        await read_body(reader, head)
        writer.write(b"HTTP/1.1 503 Busy\r\nx-shoal-executed: no\r\n%bcontent-length: 0\r\n\r\n" % hostile.lines)

    hostile = HostileCandidate(refuse)
    with with_hostile(hostile, plan={"shadow": 1.0}) as running:
        one_by_one(running, 2)
        seen = report(running)
        assert (seen.dropped_batches, seen.shadow_failed_rows, seen.shadowed_batches) == (2, 0, 0)
        (head, *_) = hostile.heads
        assert b"x-shoal-shadow: 1" in head
        assert b"x-shoal-priority: 9" in head
        assert b"x-request-timeout-ms: " in head


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    writer.close()


async def _fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    await read_body(reader, head)
    writer.write(b'HTTP/1.1 500 No\r\nx-shoal-executed: maybe\r\ncontent-length: 16\r\n\r\n{"error": "boom"}'[:-1])


async def _garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    await read_body(reader, head)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")


async def _reject(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    await read_body(reader, head)
    writer.write(b"HTTP/1.1 400 No\r\nx-shoal-executed: no\r\ncontent-length: 0\r\n\r\n")


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    await read_body(reader, head)
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n")
    while True:
        writer.write(bytes(1 << 20))
        await writer.drain()


async def _enlarge(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    await read_body(reader, head)
    zeros = b"0," * 100_000 + b"0"
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n[%b]" % (len(zeros) + 2, zeros))


@pytest.mark.parametrize("act", [_hang_up, _fail, _garbage, _reject, _flood, _enlarge])
def test_a_candidate_that_fails_affects_no_client(act: Any) -> None:
    hostile = HostileCandidate(act)
    with with_hostile(hostile, plan={"shadow": 1.0}, queue__max_bytes=1 << 20) as running:
        one_by_one(running, 10)
        seen = report(running)
        assert seen.shadow_failed_rows == seen.shadowed_rows == 2 * seen.shadowed_batches
        assert seen.shadowed_batches >= 1
        assert seen.shadowed_batches + seen.dropped_batches == 10
        assert (seen.served_rows, seen.failed_rows) == (20, 0)


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    await reader.read()


async def _read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    await asyncio.Event().wait()


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("act", [_hang, _read_nothing, _trickle])
def test_a_candidate_that_hangs_gets_one_batch_and_delays_no_client(act: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal_proxy.rollout.shadow.WITHIN_S", 0.5)
    hostile = HostileCandidate(act)
    with with_hostile(hostile, plan={"shadow": 1.0}) as running:
        for value in range(20):
            ask(running, value)
        assert len(hostile.heads) <= 1
        assert report(running).dropped_batches >= 19
        settle(running)
        seen = report(running)
        assert (seen.shadowed_rows, seen.shadow_failed_rows) == (1, 1)


def test_a_candidate_with_endless_metadata_gets_nothing() -> None:
    hostile = HostileCandidate(_hang, [tensor("y", "FP32", [-1, 4], columns="x" * (5 << 20))])
    with with_hostile(hostile, plan={"shadow": 1.0}, usable=0) as running:
        until_report(running, lambda seen: seen.ready_candidates == 1)
        running.call(asyncio.sleep, 0.2)
        ask(running, 1)
        assert report(running).dropped_batches == 1


def test_a_stopping_replica_waits_for_no_comparison() -> None:
    hostile = HostileCandidate(_hang)
    with with_hostile(hostile, plan={"shadow": 1.0}, drain_delay_seconds=0.0) as running:
        ask(running, 1)
        running.until(lambda: len(hostile.heads) == 1)
        running.call(running.proxy.stop)
        assert running.left_open.result(5) == 0


@pytest.mark.parametrize("lines", [b"content-length: %d" % (64 << 20), b"transfer-encoding: chunked"])
def test_a_response_that_is_far_larger_than_the_result_is_not_read_to_its_end(lines: bytes) -> None:
    sent_bytes, ended = 0, asyncio.Event()
    piece = bytes(1 << 16)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        nonlocal sent_bytes
        await read_body(reader, head)
        writer.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % lines)
        try:
            for _ in range(1024):
                writer.write(piece if lines.startswith(b"content") else b"10000\r\n%b\r\n" % piece)
                await writer.drain()
                sent_bytes += len(piece)
        finally:
            ended.set()

    hostile = HostileCandidate(flood)
    with with_hostile(hostile, plan={"shadow": 1.0}) as running:
        ask(running, 1)
        until_report(running, lambda seen: seen.shadow_failed_rows == 1)
        running.until(ended.is_set)
        assert sent_bytes < 32 << 20  # of 64 MiB: what the sockets hold
