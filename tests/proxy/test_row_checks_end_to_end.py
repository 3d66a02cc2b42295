"""Rows run again behind a real proxy: a runtime that mixes rows is found, and clients share no batch afterwards."""

import time
from collections.abc import Mapping
from random import Random

import numpy as np
import orjson
import pytest

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.row_checks.checks import RowChecks as Checks
from shoal_schema.resource.traffic import RowChecks
from tests import plain
from tests.calls import V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import Array, FakeRuntime, RunningProxy, Seen, double, running_proxy

BURST = 6
MOST_S = 100.0
"""A machine with too much to do runs rows again seldom: they have a share of the device's time."""


def leaky(every: int) -> FakeRuntime:
    """Return a runtime that exchanges two rows of one batch in ``every``, from the beginning on."""
    batches = 0

    def model(inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        nonlocal batches
        y = double(inputs)["y"]
        if len(y) > 1:
            batches += 1
            if batches % every == 0:
                y = y[[1, 0, *range(2, len(y))]]
        return {"y": y}

    return FakeRuntime(model=model)


def burst(running: RunningProxy, chance: Random) -> list[bool]:
    """Send requests that share a batch; return which got the result of their own row."""
    # Of independent numbers: no other row is near enough to be taken for one of them.
    rows = [[chance.randrange(10_000) for _ in range(4)] for _ in range(BURST)]
    with concurrent_clients(running.url) as group:
        running.hold()
        first = group.post(V2_PATH, json=v2_body(rows[:1]))
        running.until(lambda: running.runtime.running > 0)
        rest = [group.post(V2_PATH, json=v2_body([row])) for row in rows[1:]]
        scheduler = running.proxy.scheduler
        running.until(lambda: scheduler.queue.rows + scheduler.in_flight_rows == BURST)
        running.release()
        answers = [answer_to(each.result()) for each in (first, *rest)]
    return [answer == [2 * value for value in row] for answer, row in zip(answers, rows, strict=True)]


def checks_of(running: RunningProxy) -> Checks:
    checks = running.proxy.scheduler.checks
    assert checks is not None
    return checks


def metric(running: RunningProxy, name: str) -> float:
    with plain.Client(base_url=running.admin_url) as client:
        lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"shoal_proxy_{name} ")))


def test_a_runtime_that_mixes_rows_is_found_and_serves_one_request_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    with running_proxy(lambda: leaky(2), row_checks=RowChecks.AUTO) as running:
        checks = checks_of(running)
        chance, begun_s = Random(1), time.monotonic()
        while not checks.violated and time.monotonic() - begun_s < MOST_S:
            burst(running, chance)

        assert metric(running, "rows_independent") == 0
        assert metric(running, "row_violations_total") > 0
        assert metric(running, "rows_checked_total") > 0
        with plain.Client(base_url=running.admin_url) as client:
            load = client.get("/v1/load").json()
            explained = client.get("/v1/explain").text
        assert load["rows"]["independent"] is False
        assert "batching.rowChecks: Off" in explained
        [line] = [record for record in caplog.messages if "event=rows_not_independent" in record]
        assert "checked_rows=" in line

        running.call(running.runtime.seen.clear)
        assert all(burst(running, chance))
        assert [seen.rows for seen in running.runtime.seen] == [1] * BURST


def test_checks_count_as_no_clients_traffic() -> None:
    with running_proxy(row_checks=RowChecks.AUTO) as running:
        sent, chance = 0, Random(1)
        for _ in range(6):
            assert all(burst(running, chance))
            sent += BURST
        running.until(lambda: checks_of(running).checked_rows >= 4)

        assert metric(running, "rows_total") == sent
        assert metric(running, "rows_suspected_total") == 0
        assert metric(running, "rows_independent") == 1
        assert sum(seen.rows for seen in running.runtime.seen) > sent
        with plain.Client(base_url=running.admin_url) as client:
            load = client.get("/v1/load").json()
        assert load["arrived_rows"] == load["answered_rows"] == sent


def test_checks_that_fail_concern_no_client() -> None:
    def fail(seen: Seen) -> tuple[int, dict[str, str], bytes] | None:
        return 500, {}, b'{"error": "no"}'

    with running_proxy(row_checks=RowChecks.AUTO) as running:
        chance = Random(1)
        for _ in range(6):
            assert all(burst(running, chance))
        running.runtime.respond = fail
        running.until(lambda: checks_of(running)._failures > 0)
        running.runtime.respond = None

        assert all(burst(running, chance))
        assert metric(running, "retries_total") == 0
        assert metric(running, "failed_rows_total") == 0


def test_a_check_that_hangs_holds_up_no_client() -> None:
    with running_proxy(row_checks=RowChecks.AUTO) as running:
        chance = Random(1)
        for _ in range(6):
            assert all(burst(running, chance))
        running.hold()
        batcher: Batcher = running.proxy.scheduler.batcher
        running.until(lambda: any(each.check is not None for each in batcher.running))
        with concurrent_clients(running.url) as group:
            answer = group.ask(7)
            running.until(lambda: any(np.all(seen.inputs["x"] == row(7)) for seen in running.runtime.seen))
            running.release()
            assert answer_to(answer.result()) == [2 * value for value in row(7)]


def test_off_runs_no_row_twice() -> None:
    with running_proxy(row_checks=RowChecks.OFF) as running:
        chance = Random(1)
        for _ in range(6):
            assert all(burst(running, chance))

        assert running.proxy.scheduler.checks is None
        with plain.Client(base_url=running.admin_url) as client:
            assert orjson.loads(client.get("/v1/load").content)["rows"] is None
