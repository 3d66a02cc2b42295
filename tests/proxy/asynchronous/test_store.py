"""Asynchronous requests with a store: restarts at the worst moments, and several replicas."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from shoal_proxy.asynchronous import recovery
from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.asynchronous.leases import LEASE_S
from shoal_proxy.asynchronous.records import encode_request
from shoal_proxy.asynchronous.recovery import Recovery
from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.access.test_keys_between_peers import ALICE, EDGE, guarded
from tests.proxy.asynchronous.requests import ASYNC, accept, asynchronous_proxy, doubled, outputs, requests_of, result

REQUESTS = 12


class Replica:
    """A proxy in a process of its own, before the runtime of a test."""

    def __init__(self, running: RunningProxy, store: Path, **variables: str) -> None:
        host, port = running.runtime.address
        environment = {
            **os.environ,
            "SHOAL_MODEL_NAME": running.runtime.name,
            "SHOAL_PROXY_INSTANCE": "pod-1",
            "SHOAL_PROXY_LISTEN": "127.0.0.1:0",
            "SHOAL_PROXY_ADMIN_LISTEN": "127.0.0.1:0",
            "SHOAL_PROXY_RUNTIME": f"http://{host}:{port}",
            "SHOAL_BATCHING_MAX_BATCH_SIZE": "1",
            "SHOAL_BATCHING_ROW_CHECKS": "Off",
            "SHOAL_ASYNC_TIMEOUT_S": "60",
            "SHOAL_ASYNC_STORE": f"file://{store}",
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal_proxy"], env=environment, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.url = f"http://{line.split(' address=')[1].split()[0]}"
        admin = line.split(" admin=")[1].split()[0]
        assert plain.get(f"http://{admin}/readyz?wait_ms=20000", timeout=30).status_code == 200
        self._until_accepting()

    def _until_accepting(self) -> None:
        """Wait for the first lease: before it requests are rejected."""
        end_s = time.monotonic() + 20
        while time.monotonic() < end_s:
            headers = {**ASYNC, "x-shoal-callback": "none"}
            response = plain.post(self.url + V2_PATH, json=v2_body([row(0.0)]), headers=headers)
            if response.status_code == 400:
                return
            time.sleep(0.02)
        raise AssertionError("no lease")

    def kill(self) -> None:
        """End the process without a chance to save anything."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.communicate(timeout=20)


@contextmanager
def replica(running: RunningProxy, store: Path, **variables: str) -> Iterator[Replica]:
    made = Replica(running, store, **variables)
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture
def running() -> Iterator[RunningProxy]:
    """Run a runtime; the proxy before it serves no request of these tests."""
    with running_proxy(max_batch_size=1) as proxy:
        yield proxy


def runs(running: RunningProxy) -> Counter[float]:
    """Return how often the row of each value ran."""
    return Counter(float(value) for seen in running.runtime.seen for value in seen.inputs["x"][:, 0])


def executed(response: httpx.Response) -> str:
    assert response.status_code == 503, response.text
    return str(response.headers["x-shoal-executed"])


@pytest.mark.integration
def test_waiting_requests_survive_a_kill_and_started_ones_do_not_run_again(
    running: RunningProxy, tmp_path: Path
) -> None:
    running.hold()
    with replica(running, tmp_path) as first:
        locations = [accept(first.url, float(number)) for number in range(REQUESTS)]
        running.until(lambda: running.runtime.running >= 1)
        first.kill()
    running.release()
    with replica(running, tmp_path) as second:
        responses = [result(second.url, location) for location in locations]
    lost = [response for response in responses if response.status_code != 200]
    assert [executed(response) for response in lost] == ["maybe"] * len(lost)
    assert 1 <= len(lost) < REQUESTS // 2
    for number, response in enumerate(responses):
        if response.status_code == 200:
            assert outputs(response) == doubled(float(number))
    assert max(runs(running).values()) == 1


@pytest.mark.integration
def test_started_requests_of_an_idempotent_model_run_again(running: RunningProxy, tmp_path: Path) -> None:
    running.hold()
    with replica(running, tmp_path, SHOAL_BATCHING_IDEMPOTENT="true") as first:
        locations = [accept(first.url, float(number)) for number in range(REQUESTS)]
        running.until(lambda: running.runtime.running >= 1)
        first.kill()
    running.release()
    with replica(running, tmp_path, SHOAL_BATCHING_IDEMPOTENT="true") as second:
        for number, location in enumerate(locations):
            assert outputs(result(second.url, location)) == doubled(float(number))


@pytest.mark.integration
def test_results_survive_a_kill(running: RunningProxy, tmp_path: Path) -> None:
    with replica(running, tmp_path) as first:
        location = accept(first.url, 3.0)
        before = result(first.url, location)
        first.kill()
    with replica(running, tmp_path) as second:
        after = plain.get(second.url + location)
        assert (after.status_code, after.content) == (200, before.content)
        assert after.headers["content-type"] == before.headers["content-type"]
        assert plain.delete(second.url + location).status_code == 204
        assert plain.get(second.url + location).status_code == 404
    assert runs(running)[3.0] == 1


@pytest.mark.integration
def test_a_request_deleted_before_a_kill_never_runs(running: RunningProxy, tmp_path: Path) -> None:
    running.hold()
    with replica(running, tmp_path) as first:
        locations = [accept(first.url, float(number)) for number in range(REQUESTS)]
        assert plain.delete(first.url + locations[-1]).status_code == 204
        first.kill()
    running.release()
    with replica(running, tmp_path) as second:
        assert result(second.url, locations[-2]).status_code == 200
        assert plain.get(second.url + locations[-1]).status_code == 404
    assert float(REQUESTS - 1) not in runs(running)


def stored_proxy(store: Path, **settings: Any) -> Any:
    given = {"async_store__uri": f"file://{store}", "max_batch_size": 1, **settings}
    return asynchronous_proxy(**given)


def recovery_of(running: RunningProxy) -> Recovery:
    assert running.proxy.recovery is not None
    return running.proxy.recovery


def until_accepting(*replicas: RunningProxy) -> None:
    for each in replicas:
        each.until(lambda each=each: requests_of(each).store.ready)  # type: ignore[misc, union-attr]


def test_any_replica_serves_and_deletes_the_results_of_all(tmp_path: Path) -> None:
    with stored_proxy(tmp_path) as first, stored_proxy(tmp_path) as second:
        until_accepting(first, second)
        first.hold()
        location = accept(first.url, 2.0)
        assert plain.get(second.url + location).json()["status"] == "waiting"
        first.release()
        assert outputs(result(second.url, location)) == doubled(2.0)
        first.until(lambda: len(requests_of(first).table) == 0)
        assert outputs(result(first.url, location)) == doubled(2.0)
        assert plain.delete(second.url + location).status_code == 204
        assert plain.get(first.url + location).status_code == 404


def test_a_request_deleted_at_another_replica_gets_no_result(tmp_path: Path) -> None:
    with stored_proxy(tmp_path) as first, stored_proxy(tmp_path) as second:
        until_accepting(first, second)
        first.hold()
        locations = [accept(first.url, float(number)) for number in range(REQUESTS)]
        first.until(lambda: first.runtime.running >= 1)
        for location in (locations[0], locations[-1]):
            assert plain.delete(second.url + location).status_code == 204
        first.release()
        first.until(lambda: requests_of(first).settled)
        for each in (first, second):
            for location in (locations[0], locations[-1]):
                assert plain.get(each.url + location).status_code == 404
        assert float(REQUESTS - 1) not in runs(first)


def test_replicas_continue_the_requests_of_a_stopped_one_once_each(tmp_path: Path) -> None:
    with stored_proxy(tmp_path) as first, stored_proxy(tmp_path) as second, stored_proxy(tmp_path) as third:
        until_accepting(first, second, third)
        first.hold()
        locations = [accept(first.url, float(number)) for number in range(REQUESTS)]
        first.until(lambda: first.runtime.running >= 1)
        # To the others the first one seems to have stopped, though it runs.
        later_s = time.monotonic() + LEASE_S + 1
        for each in (second, third):
            each.call(recovery_of(each).continue_requests, later_s)
        for each in (second, third):
            each.until(lambda each=each: requests_of(each).settled)
        first.release()
        first.until(lambda: requests_of(first).settled)
        total = runs(first) + runs(second) + runs(third)
        assert total == Counter({float(number): 1 for number in range(REQUESTS)})
        responses = [plain.get(third.url + location) for location in locations]
        started = [response for response in responses if response.status_code == 503]
        assert [executed(response) for response in started] == ["maybe"] * len(started)
        assert started
        assert sum(response.status_code == 200 for response in responses) == REQUESTS - len(started)


def test_a_request_past_its_deadline_does_not_run_when_it_is_continued(tmp_path: Path) -> None:
    job_id = "ab" * 16
    request = JobRequest("v2", {b"content-type": b"application/json"}, orjson.dumps(v2_body([row(7.0)])))
    job = Job(job_id, request, rows=1, accepted_s=0.0, deadline_s=60.0)
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        place = tmp_path / "model-double" / "requests" / job_id
        place.mkdir(parents=True)
        (place / "stopped.process").write_bytes(encode_request(job, 0.0))  # in 1970
        running.call(recovery_of(running).continue_requests, time.monotonic())
        assert result(running.url, f"/v2/models/double/results/{job_id}").status_code == 504
        assert not runs(running)


def test_a_request_whose_result_was_written_before_a_kill_is_removed(tmp_path: Path) -> None:
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        location = accept(running.url, 5.0)
        before = result(running.url, location)
        running.until(lambda: requests_of(running).settled)
        place = tmp_path / "model-double" / "requests" / location.rpartition("/")[2]
        place.mkdir(parents=True, exist_ok=True)
        (place / "stopped.process").write_bytes(b"any")
        running.call(recovery_of(running).continue_requests, time.monotonic())
        assert not (place / "stopped.process").exists()
        assert plain.get(running.url + location).content == before.content
        assert runs(running)[5.0] == 1


def test_an_object_that_is_no_record_is_removed(tmp_path: Path) -> None:
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        place = tmp_path / "model-double" / "requests" / ("ab" * 16)
        place.mkdir(parents=True)
        (place / "stopped.process").write_bytes(b"no record")
        running.call(recovery_of(running).continue_requests, time.monotonic())
        assert not (place / "stopped.process").exists()


def test_a_drained_replica_leaves_waiting_requests_to_others(tmp_path: Path) -> None:
    with stored_proxy(tmp_path) as other:
        until_accepting(other)
        with stored_proxy(tmp_path) as running:
            until_accepting(running)
            running.hold()
            locations = [accept(running.url, float(number)) for number in range(REQUESTS)]
            running.until(lambda: running.runtime.running >= 1)
            running.call(running.proxy.stop)
            running.until(lambda: running.proxy.dispatcher.phase == "draining")
            running.release()
        other.call(recovery_of(other).renew, time.monotonic())
        other.call(recovery_of(other).continue_requests, time.monotonic())
        for number, location in enumerate(locations):
            assert outputs(result(other.url, location)) == doubled(float(number))
        assert runs(running) + runs(other) == Counter({float(number): 1 for number in range(REQUESTS)})
        assert runs(other)


def make_older(result: Path, age_s: float) -> None:
    """Let a stored result be so old."""
    written_s = result.stat().st_mtime - age_s
    os.utime(result, (written_s, written_s))


def test_an_old_result_is_gone_before_and_after_it_is_swept(tmp_path: Path) -> None:
    with stored_proxy(tmp_path, asynchronous__result_seconds=600) as running:
        until_accepting(running)
        location = accept(running.url)
        assert result(running.url, location).status_code == 200
        running.until(lambda: requests_of(running).settled)
        stored = tmp_path / "model-double" / "results" / location.rpartition("/")[2]
        make_older(stored, 500)
        running.call(recovery_of(running).sweep)
        assert plain.get(running.url + location).status_code == 200
        make_older(stored, 101)
        assert plain.get(running.url + location).status_code == 404
        assert plain.delete(running.url + location).status_code == 404
        assert stored.exists()
        running.call(recovery_of(running).sweep)
        assert not stored.exists()
        assert plain.get(running.url + location).status_code == 404
        # The request may not start again: its claim is kept longer.
        assert list((tmp_path / "model-double" / "started").iterdir())


def test_a_store_that_fails_rejects_requests(tmp_path: Path) -> None:
    with stored_proxy(tmp_path / "store") as running:
        until_accepting(running)
        (tmp_path / "store" / "model-double" / "requests").write_text("no directory")
        response = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=ASYNC)
        assert response.status_code == 503
        assert response.headers["x-shoal-executed"] == "no"
        assert len(requests_of(running).table) == 0


def test_no_key_is_stored_and_clients_find_only_their_own_results(tmp_path: Path) -> None:
    settings = guarded(tmp_path / "keys")
    store = tmp_path / "store"
    alice, carol = {"x-api-key": ALICE}, {"x-api-key": EDGE, "x-consumer": "carol"}
    with stored_proxy(store, **settings) as running, stored_proxy(store, **settings) as other:
        until_accepting(running, other)
        location = accept(running.url, headers=alice)
        assert result(other.url, location, headers=alice).status_code == 200
        running.until(lambda: len(requests_of(running).table) == 0)
        for each in (running, other):
            assert plain.get(each.url + location, headers=carol).status_code == 404
            assert plain.delete(each.url + location, headers=carol).status_code == 404
        assert all(ALICE.encode() not in path.read_bytes() for path in store.rglob("*") if path.is_file())


def test_an_id_belongs_to_one_request_also_after_its_end_and_at_other_replicas(tmp_path: Path) -> None:
    given = {**ASYNC, "x-shoal-async-id": "ab" * 16}

    def status(running: RunningProxy, value: float) -> int:
        return plain.post(running.url + V2_PATH, json=v2_body([row(value)]), headers=given).status_code

    with stored_proxy(tmp_path) as first, stored_proxy(tmp_path) as second:
        until_accepting(first, second)
        first.hold()
        assert status(first, 1.0) == 202
        assert [status(first, 2.0), status(second, 3.0)] == [409, 409]
        first.release()
        location = f"/v2/models/double/results/{'ab' * 16}"
        assert outputs(result(first.url, location)) == doubled(1.0)
        first.until(lambda: requests_of(first).settled)
        assert [status(first, 4.0), status(second, 5.0)] == [409, 409]
        assert plain.delete(first.url + location).status_code == 204
        assert [status(first, 6.0), status(second, 7.0)] == [409, 409]
        assert runs(first) + runs(second) == Counter({1.0: 1})
        assert all(len(requests_of(each).table) == 0 for each in (first, second))


def test_a_result_that_is_not_in_the_store_yet_is_not_returned(tmp_path: Path) -> None:
    with stored_proxy(tmp_path) as first, stored_proxy(tmp_path) as second:
        until_accepting(first, second)
        first.hold()
        location = accept(first.url, 1.0)
        first.until(lambda: first.runtime.running >= 1)
        # The first replica seems to have stopped, and the store has an error as the request's result.
        second.call(recovery_of(second).continue_requests, time.monotonic() + LEASE_S + 1)
        assert executed(plain.get(second.url + location)) == "maybe"
        place = tmp_path / "model-double" / "results"
        place.rename(tmp_path / "away")
        place.write_text("no directory")
        first.release()
        first.until(lambda: requests_of(first).table.started == 0)
        assert plain.get(first.url + location).status_code == 202
        place.unlink()
        (tmp_path / "away").rename(place)
        first.until(lambda: requests_of(first).settled)
        assert executed(plain.get(first.url + location)) == "maybe"


def test_records_that_another_program_wrote_do_not_keep_requests_waiting(tmp_path: Path) -> None:
    place = tmp_path / "model-double"
    request = JobRequest("v2", {b"content-type": b"application/json"}, orjson.dumps(v2_body([row(7.0)])))
    good = encode_request(Job("", request, rows=1, accepted_s=0.0, deadline_s=1e9), time.time())  # noqa: TID251
    line, body = orjson.loads(good.partition(b"\n")[0]), good.partition(b"\n")[2]
    faults = [
        {"headers": [["x", "\u4e2d"]]}, {"protocol": "unknown"}, {"rows": -1}, {"rows": 10**18}, {"level": 10**9},
        {"accepted_at": "now"}, {"callback": 1}, {"owner": None},
    ]  # fmt: skip
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        for number, fault in enumerate(faults):
            (place / "requests" / f"{number:032x}").mkdir(parents=True)
            (place / "requests" / f"{number:032x}" / "gone.1").write_bytes(orjson.dumps(line | fault) + b"\n" + body)
        for name in ("e" * 32, "f" * 32):
            (place / "requests" / name).mkdir()
            (place / "requests" / name / "gone.1").write_bytes(good)
        (place / "started" / ("e" * 32)).mkdir(parents=True)
        (place / "started" / ("e" * 32) / "\u00b2").write_bytes(b"no number")
        running.call(recovery_of(running).continue_requests, time.monotonic())
        for name in ("e" * 32, "f" * 32):
            assert outputs(result(running.url, f"/v2/models/double/results/{name}")) == doubled(7.0)
        running.until(lambda: requests_of(running).settled)
        assert not list((place / "requests").rglob("gone.1"))


@pytest.mark.parametrize(
    "record", [b"junk", b'{"owner":"","status":1000}\n', b'{"owner":"","status":200,"lines":"\xe4\xb8\xad"}\n']
)
def test_an_unreadable_result_is_an_error_of_its_request(tmp_path: Path, record: bytes) -> None:
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        place = tmp_path / "model-double" / "results"
        place.mkdir()
        (place / ("ab" * 16)).write_bytes(record)
        response = plain.get(f"{running.url}/v2/models/double/results/{'ab' * 16}")
        assert response.status_code == 500
        assert "ab" * 16 in response.json()["error"]


def test_the_store_keeps_no_empty_directories(tmp_path: Path) -> None:
    with stored_proxy(tmp_path, asynchronous__timeout_seconds=60, asynchronous__result_seconds=60) as running:
        until_accepting(running)
        assert result(running.url, accept(running.url)).status_code == 200
        running.until(lambda: requests_of(running).settled)
        place = tmp_path / "model-double"
        assert not (place / "requests").exists()
        for path in (*place.glob("results/*"), *place.glob("started/*/*")):
            make_older(path, 121)
        running.call(recovery_of(running).sweep)
        assert {path.name for path in place.iterdir()} == {"processes"}
        assert result(running.url, accept(running.url)).status_code == 200


def test_a_store_that_fails_to_write_is_still_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SWEEP_S", 0.0)
    monkeypatch.setattr(recovery, "RENEW_S", 0.01)
    with stored_proxy(tmp_path, asynchronous__result_seconds=0) as running:
        until_accepting(running)
        place = tmp_path / "model-double"
        shutil.rmtree(place / "processes")
        (place / "processes").write_text("no directory")
        (place / "results").mkdir(exist_ok=True)
        (place / "results" / ("ab" * 16)).write_bytes(b"old")
        running.until(lambda: not (place / "results").exists())
