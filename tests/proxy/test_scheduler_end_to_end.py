"""The scheduler from outside: coalescing, order, objectives, timing, explanations, recordings."""

import re
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest

import shoal_proxy
from shoal_proxy.batching.pending import PLAIN_KEY
from shoal_schema.resource.traffic import BatchingPolicy
from tests import plain
from tests.calls import TORCHSERVE_PATH, V1_PATH, V2_PATH, RawConnection, answer_to, concurrent_clients, row, v2_body
from tests.fakes import RunningProxy, running_proxy


def doubled(value: float) -> list[float]:
    return [2 * x for x in row(value)]


def asked_for(running: RunningProxy) -> list[list[float]]:
    """Return the first value of each row of each batch that the runtime saw."""
    return [seen.inputs["x"][:, 0].tolist() for seen in running.runtime.seen]


def believe(running: RunningProxy, latency_s: float) -> None:
    """Let the proxy believe that a batch of any size takes so long."""

    def learn() -> None:
        table = running.proxy.scheduler.batcher.tables[PLAIN_KEY]
        for rows in table.sizes * 50:
            table.observe(rows, latency_s)

    running.call(learn)


def test_identical_waiting_requests_share_one_row() -> None:
    with running_proxy(coalesce_identical=True) as running, concurrent_clients(running.url) as group:
        running.hold()
        first = group.ask(3)
        running.until(lambda: len(running.runtime.seen) == 1)
        body = orjson.dumps(v2_body([row(1)]))
        with RawConnection(running.address) as leaver:
            leaver.send(b"POST %s HTTP/1.1\r\nhost: x\r\n" % V2_PATH.encode())
            leaver.send(b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body), body)
            running.until_waiting(1)
            same = [group.ask(1) for _ in range(5)]
            other = group.ask(2)
            running.until(lambda: running.proxy.scheduler.coalesced_rows == 5)
            leaver.socket.close()
            running.until(lambda: running.proxy.metrics.rejections["cancelled"] == 1)
        running.until_waiting(2)
        running.release()
        assert answer_to(first.result()) == doubled(3)
        answers = [answer.result() for answer in same]
        assert [answer_to(answer) for answer in answers] == [doubled(1)] * 5
        assert {answer.headers["server-timing"].count("queue;dur=") for answer in answers} == {1}
        assert answer_to(other.result()) == doubled(2)
        assert asked_for(running) == [[3.0], [1.0, 2.0]]
        coalescing = running.proxy.scheduler._coalescing
        assert coalescing is not None
        assert coalescing.empty


def test_without_coalescing_each_request_costs_its_rows(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        answers = [group.ask(1)]
        running.until(lambda: len(running.runtime.seen) == 1)
        answers.extend(group.ask(1) for _ in range(3))
        running.until_waiting(3)
        running.release()
        assert [answer_to(answer.result()) for answer in answers] == [doubled(1)] * 4
    assert asked_for(running) == [[1.0], [1.0, 1.0, 1.0]]


def test_priorities_and_fair_shares_are_the_order_in_which_rows_reach_the_runtime() -> None:
    settings: dict[str, Any] = {
        "fair_share_header": "x-api-key",
        "fair_share_weights": {"ann": 2.0},
        "max_batch_size": 3,
    }
    with running_proxy(**settings) as running, concurrent_clients(running.url) as group:
        running.hold()
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        ahead = group.post(V2_PATH, json=v2_body([row(9)] * 3))
        running.until(lambda: len(running.runtime.seen) == 2)
        answers = []
        for number, (who, level) in enumerate([("bob", 9), ("bob", 0), ("ann", 0), ("ann", 0), ("ann", 0), ("ann", 9)]):
            answers.append(group.ask(10 + number, headers={"x-api-key": who, "x-shoal-priority": str(level)}))
            running.until_waiting(number + 1)
        running.release()
        assert {answer.result().status_code for answer in [first, ahead, *answers]} == {200}
        batches = asked_for(running)[2:]
        assert [sorted(batch) for batch in batches] == [[11.0, 12.0, 13.0], [10.0, 14.0, 15.0]]


def test_a_rare_parameter_is_not_starved_by_full_batches() -> None:
    with running_proxy(max_batch_size=4) as running, concurrent_clients(running.url) as group:
        running.hold()
        answers = [group.ask(0)]
        running.until(lambda: len(running.runtime.seen) == 1)
        answers.append(group.post(V2_PATH, json=v2_body([row(1)] * 4)))
        running.until(lambda: len(running.runtime.seen) == 2)
        answers.append(group.post(V2_PATH, json=v2_body([row(9)], parameters={"rare": True})))
        running.until_waiting(1)
        answers.extend(group.ask(number) for number in range(16))
        running.until_waiting(17)
        running.release()
        assert {answer.result().status_code for answer in answers} == {200}
    assert asked_for(running)[2] == [9.0]
    assert [len(batch) for batch in asked_for(running)[3:]] == [4] * 4


def test_a_huge_request_neither_fills_the_queue_nor_delays_later_ones() -> None:
    with running_proxy(max_batch_size=4, max_rows=32) as running, concurrent_clients(running.url) as group:
        running.hold()
        huge = group.post(V2_PATH, json=v2_body([row(9)] * 400))
        running.until(lambda: len(running.runtime.seen) == 2)
        small = [group.ask(1) for _ in range(10)]
        running.until_waiting(11)
        running.release()
        assert [answer_to(answer.result()) for answer in small] == [doubled(1)] * 10
        assert huge.result().json()["outputs"][0]["shape"] == [400, 4]
        queue = running.proxy.scheduler.queue
        assert (queue.rows, queue.later_rows, queue.groups) == (0, 0, {})
    last = max(number for number, batch in enumerate(asked_for(running)) if 1.0 in batch)
    assert last <= 7, "one portion of four rows, and then they"


@pytest.mark.parametrize("priority", ["10", "-1", "high", "1.5"])
def test_a_priority_that_is_no_digit_is_rejected(client: httpx.Client, priority: str) -> None:
    answer = client.post(V2_PATH, json=v2_body([row(1)]), headers={"x-shoal-priority": priority})
    assert answer.status_code == 400
    assert "x-shoal-priority must be a digit" in answer.json()["error"]


def test_overload_is_rejected_at_once_and_admitted_requests_get_responses() -> None:
    with (
        running_proxy(latency_objective_milliseconds=2000.0, max_batch_size=2) as running,
        concurrent_clients(running.url) as group,
    ):
        believe(running, 0.4)
        running.hold()
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        asked = [group.ask(number) for number in range(1, 31)]
        running.until(lambda: running.proxy.metrics.rejections["late"] >= 15)
        running.release()
        answers = [answer.result() for answer in asked]
        assert answer_to(first.result()) == doubled(0)
    late = [answer for answer in answers if answer.status_code == 503]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in late)
    assert all("late" in answer.json()["error"] for answer in late)
    assert all("server-timing" not in answer.headers for answer in late)


def test_an_objective_that_cannot_be_met_is_served_and_reported() -> None:
    with running_proxy(latency_objective_milliseconds=10.0) as running, plain.Client(base_url=running.url) as client:
        believe(running, 0.5)
        assert answer_to(client.post(V2_PATH, json=v2_body([row(1)]))) == doubled(1)
        believe(running, 0.5)
        metrics = plain.get(running.admin_url + "/metrics").text
        assert "shoal_proxy_objective_attainable 0.0" in metrics
        explained = plain.get(running.admin_url + "/v1/explain").text
        assert "The latency objective of 10 ms cannot be met" in explained
        assert "batching.latencyObjectiveMilliseconds" in explained


def test_policy_none_runs_each_request_alone() -> None:
    with running_proxy(policy=BatchingPolicy.NONE) as running, concurrent_clients(running.url) as group:
        running.hold()
        answers = [group.ask(number) for number in range(6)]
        running.until(lambda: running.proxy.scheduler.queue.requests == 4)
        running.release()
        assert [answer_to(answer.result()) for answer in answers] == [doubled(number) for number in range(6)]
        assert [seen.rows for seen in running.runtime.seen] == [1] * 6


def test_a_deadline_is_the_clients_own(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        patient = group.ask(1)
        running.until(lambda: len(running.runtime.seen) == 1)
        hurried = group.ask(2, headers={"x-request-timeout-ms": "100"})
        answer = hurried.result()
        assert answer.status_code in (503, 504)
        assert "server-timing" not in answer.headers
        running.release()
        assert answer_to(patient.result()) == doubled(1)
    assert running.proxy.scheduler.queue.requests == 0


TIMING = re.compile(
    r'queue;dur=(\d+\.\d\d), batch;dur=(\d+\.\d\d), runtime;dur=(\d+\.\d\d), rows;desc="(\d+)", padding;desc="(\d+)%"'
)


@pytest.mark.parametrize(
    ("path", "body", "rows"),
    [
        (V2_PATH, v2_body([row(1), row(2)]), 2),
        (V1_PATH, {"instances": [row(1)]}, 1),
        (TORCHSERVE_PATH, row(1), 1),
    ],
    ids=["v2", "v1", "torchserve"],
)
def test_each_response_states_what_it_cost(client: httpx.Client, path: str, body: object, rows: int) -> None:
    answer = client.post(path, json=body)

    match = TIMING.fullmatch(answer.headers["server-timing"])
    assert match, answer.headers["server-timing"]
    parts_ms = [float(part) for part in match.groups()[:3]]
    assert sum(parts_ms) <= 1000 * answer.elapsed.total_seconds() + 1
    assert match[4] == str(rows)


@pytest.mark.parametrize(("path", "body"), [(V2_PATH, {}), (V1_PATH, {"instances": []}), (TORCHSERVE_PATH, "x")])
def test_an_error_states_no_costs(client: httpx.Client, path: str, body: object) -> None:
    answer = client.post(path, json=body)

    assert answer.status_code == 400
    assert "server-timing" not in answer.headers


def test_the_admin_port_states_what_is_there(running: RunningProxy) -> None:
    with plain.Client(base_url=running.admin_url) as admin:
        index, elsewhere = admin.get("/"), admin.get("/v1/models")
        listed = re.findall("^GET (\\S+)", index.text, re.MULTILINE)
        known = [admin.get(path, params={"seconds": "0"}).status_code for path in listed]

    assert (index.status_code, elsewhere.status_code) == (200, 404)
    assert "/v1/explain" in listed
    assert 404 not in known
    assert elsewhere.text == f"no such path: /v1/models\n{index.text}"


def test_the_admin_port_explains_and_shows_what_was_learned(running: RunningProxy, client: httpx.Client) -> None:
    with plain.Client(base_url=running.admin_url) as admin:
        assert "No batch has run yet" in admin.get("/v1/explain").text
        assert admin.get("/v1/latency").json()["tables"] == []
        for number in range(3):
            answer_to(client.post(V2_PATH, json=v2_body([row(number)])))
        assert "rows per second" in admin.get("/v1/explain").text
        document = admin.get("/v1/explain", headers={"accept": "application/json"}).json()
        assert document["sentences"] == admin.get("/v1/explain").text.splitlines()
        assert document["report"]["policy"] == "Adaptive"
        (table,) = admin.get("/v1/latency").json()["tables"]
        assert table["sizes"][0]["rows"] == 1
        assert table["sizes"][0]["mean_s"] > 0


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon", "3601", ""])
def test_a_recording_of_no_time_is_rejected(running: RunningProxy, seconds: str) -> None:
    answer = plain.get(f"{running.admin_url}/v1/trace", params={"seconds": seconds}, headers={"x-shoal-admin": "1"})
    assert answer.status_code == 400
    assert "above 0 and at most 3600" in answer.json()["error"]


def test_recordings_end_with_their_readers(running: RunningProxy, client: httpx.Client) -> None:
    recordings = running.proxy.dispatcher.recorder._recordings
    lines: list[str] = []
    seen = threading.Event()

    def read() -> None:
        with plain.stream(
            "GET", running.admin_url + "/v1/trace?seconds=60", timeout=20, headers={"x-shoal-admin": "1"}
        ) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) == 3:
                    seen.set()
                    return

    with plain.stream("GET", running.admin_url + "/v1/trace?seconds=60", timeout=20, headers={"x-shoal-admin": "1"}):
        reader = threading.Thread(target=read)
        reader.start()
        running.until(lambda: len(recordings) == 2)
    running.until(lambda: len(recordings) == 1)
    client.post(V2_PATH, json=v2_body([row(1), row(2)]))
    client.post(V2_PATH, json=v2_body([row(3)]), headers={"x-request-timeout-ms": "2000"})
    assert seen.wait(20)
    reader.join()
    running.until(lambda: not recordings)
    assert lines[0] == "arrived_s,rows,shape,deadline_ms"
    assert [line.split(",")[1:] for line in lines[1:]] == [["2", "", ""], ["1", "", "2000.000"]]


def test_no_module_reads_a_clock_that_can_be_set() -> None:
    package = Path(shoal_proxy.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\btime\.time(_ns)?\(|datetime\.(now|utcnow)|from time import", path.read_text())
    }
    # Dates, which affect no batch: of spans, Triton's statistics, ids and stored deadlines of asynchronous requests.
    dated = {"observe/exporting.py", "routes/app.py", "routes/results.py", "activator/accepting.py"}
    assert {name for name in found if not name.startswith("asynchronous/")} == dated


def test_clients_that_come_and_go_at_random_leave_nothing_behind() -> None:
    chance = np.random.default_rng(5)
    body = orjson.dumps(v2_body([row(1), row(2)]))
    head = b"POST %s HTTP/1.1\r\nhost: x\r\nx-api-key: %d\r\nx-shoal-priority: %d\r\ncontent-type: application/json\r\n"
    whole = head + b"content-length: %d\r\n\r\n" % len(body)
    with running_proxy(coalesce_identical=True, fair_share_header="x-api-key", max_batch_size=4) as running:
        running.hold()
        connections = [RawConnection(running.address) for _ in range(60)]
        for number, connection in enumerate(connections):
            request = whole % (V2_PATH.encode(), number % 5, number % 3) + body
            connection.send(request[: chance.integers(1, len(request))] if number % 3 == 0 else request)
        running.until(lambda: running.proxy.scheduler.queue.requests >= 3)
        for index in chance.permutation(60)[:40]:
            connections[index].socket.close()
        running.release()
        for connection in connections:
            connection.socket.close()
        scheduler, queue = running.proxy.scheduler, running.proxy.scheduler.queue
        running.until(lambda: scheduler.settled and running.proxy.inference.reading_bytes == 0)
        assert (queue.rows, queue.requests, queue.size_bytes, queue.groups) == (0, 0, 0, {})
        assert (queue.shares._waiting, queue.shares._had) == ({}, {})
        assert (queue._line._heads, queue._line._classes, queue.later_rows) == ({}, [], 0)
        assert scheduler._coalescing is not None
        assert scheduler._coalescing.empty
        assert scheduler.in_flight_rows == len(scheduler.running) == 0
        assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(1)]))) == doubled(1)
