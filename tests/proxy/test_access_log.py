"""The access log: a line per inference request, which clients cannot forge and which blocks no request."""

import contextlib
import gzip
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.observe.access_log import RING, AccessLog, AccessLogEntry, format_entry
from shoal_proxy.observe.log_writer import MAX_LINES, LogWriter, writing
from shoal_proxy.observe.timing import batch_rows
from shoal_proxy.observe.tracer import GONE
from shoal_proxy.rpc import inference_pb2 as messages
from shoal_schema.interfaces.protocols import GRPC_SERVICE
from shoal_schema.process.log_lines import fields_of
from shoal_schema.process.logs import JsonFormatter, TextFormatter
from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy, running_proxy
from tests.proxy.test_grpc import request
from tests.proxy.test_grpc_stream import Stream

ROW = {"instances": [[0.5, 0.5, 0.5, 0.5]]}
V1_PATH = "/v1/models/double:predict"


@contextlib.contextmanager
def logging_proxy(**settings: Any) -> Iterator[RunningProxy]:
    with running_proxy(access_log_percent=100.0, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def running() -> Iterator[RunningProxy]:
    with logging_proxy(grpc_port=0, max_body_bytes=2000, max_rows=8, max_batch_size=8) as made:
        yield made


@pytest.fixture(autouse=True)
def forgotten(running: RunningProxy) -> None:
    log_of(running).take()


def log_of(running: RunningProxy) -> AccessLog:
    log = running.proxy.inference.access_log
    assert log is not None
    return log


def logged(running: RunningProxy, count: int = 1) -> list[dict[str, Any]]:
    found: list[AccessLogEntry] = []

    def came() -> bool:
        found.extend(log_of(running).take())
        return len(found) >= count

    running.until(came)
    return [fields_of(*format_entry(entry)) for entry in found]


def raw(running: RunningProxy, data: bytes) -> bytes:
    with socket.create_connection(running.address, 10) as client:
        client.sendall(data)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


def head(path: str = V1_PATH, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: a", *lines, "", ""]).encode()


def test_a_response_has_a_line_of_all_available_fields(running: RunningProxy) -> None:
    headers = {"x-request-id": "me-2", "user-agent": "a client/1.0"}
    answer = httpx.post(f"{running.url}{V1_PATH}?a=b", json=ROW, headers=headers)

    [line] = logged(running)
    assert 0 <= line.pop("queue_ms") <= line.pop("ms")
    assert line == {
        "event": "access",
        "method": "POST",
        "path": f"{V1_PATH}?a=b",
        "protocol": "v1",
        "status": 200,
        "rows": 1,
        "batch_rows": 1,
        "bytes_in": len(answer.request.content),
        "bytes_out": len(answer.content),
        "client": "127.0.0.1",
        "x-request-id": "me-2",
        "user_agent": "a client/1.0",
    }


def test_a_compressed_body_counts_as_it_came(running: RunningProxy) -> None:
    for body in (gzip.compress(orjson.dumps(v2_body([row(1)]))), gzip.compress(bytes(100_000))):
        answer = plain.post(f"{running.url}{V2_PATH}", content=body, headers={"content-encoding": "gzip"})
        [line] = logged(running)
        assert (line["status"], line["bytes_in"]) == (answer.status_code, len(body))


def test_each_request_of_a_stream_has_its_own_line(running: RunningProxy) -> None:
    with Stream(running) as stream:
        stream.send(request(row(1)), request([1, 2]))
        for _ in range(2):
            stream.next()
        lines = logged(running, 2)
    assert sorted((line["status"], line["protocol"], line["path"]) for line in lines) == [
        (status, "grpc", "/inference.GRPCInferenceService/ModelStreamInfer") for status in (200, 400)
    ]


def test_each_request_of_a_connection_has_its_own_line(running: RunningProxy) -> None:
    with httpx.Client() as client:
        for number in range(4):  # from the second on its head is known
            client.post(
                f"{running.url}{V2_PATH}", json=v2_body([row(1)] * (number + 1)), headers={"x-request-id": f"{number}"}
            )

    lines = logged(running, 4)
    assert [(line["x-request-id"], line["rows"], line["path"]) for line in lines] == [
        (str(number), number + 1, V2_PATH) for number in range(4)
    ]
    assert {line["method"] for line in lines} == {"POST"}


@pytest.mark.parametrize(
    ("data", "status", "path"),
    [
        (head(V1_PATH, "content-length: 1") + b"{", 400, V1_PATH),
        (head("/v1/models/cat:predict", "content-length: 0"), 404, "/v1/models/cat:predict"),
        (head("/nowhere?a", "content-length: 0"), 404, "/nowhere?a"),
        (head(V1_PATH, "connection: close", method="GET"), 405, V1_PATH),
        (head(V1_PATH, "content-length: 3000"), 413, V1_PATH),
        (head(V1_PATH, "content-length: 2", "content-encoding: br") + b"{}", 415, V1_PATH),
        (head(V1_PATH, "content-length: 2", "content-encoding: gzip") + b"{}", 400, V1_PATH),
        (head(V1_PATH, "content-length: 0x"), 400, V1_PATH),
        (head(V1_PATH, "transfer-encoding: chunked") + b"zz\r\n", 400, V1_PATH),
        (b"\x16\x03\x01\x02 what is this\r\n\r\n", 400, None),
    ],
)
def test_what_is_rejected_has_a_line_too(running: RunningProxy, data: bytes, status: int, path: str | None) -> None:
    answer = raw(running, data.replace(b"host: a", b"host: a\r\nconnection: close"))

    assert answer.startswith(b"HTTP/1.1 %d" % status)
    [line] = logged(running)
    assert (line["status"], line.get("path"), line["client"]) == (status, path, "127.0.0.1")


def test_pages_that_are_read_have_none(running: RunningProxy) -> None:
    assert httpx.get(f"{running.url}/v2/health/ready").status_code == 200
    assert httpx.get(f"{running.url}/v2/models/cat").status_code == 404
    httpx.post(f"{running.url}{V1_PATH}", json=ROW)

    assert [line["path"] for line in logged(running)] == [V1_PATH]


def test_disconnects_and_rejected_connections_are_logged(running: RunningProxy) -> None:
    running.hold()
    body = json.dumps({"instances": [row(1)] * 8}).encode()
    whole = head(V1_PATH, f"content-length: {len(body)}") + body
    scheduler = running.proxy.scheduler
    clients: list[socket.socket] = []

    def has(rows: int) -> bool:
        return scheduler.in_flight_rows + scheduler.queue.rows == rows

    # One batch runs, one is sent ahead, one waits, and there is no room for another.
    for rows in (8, 16, 24, 24):
        clients.append(socket.create_connection(running.address, 10))
        clients[-1].sendall(whole)
        running.until(partial(has, rows))
    assert clients[3].recv(65536).startswith(b"HTTP/1.1 503")
    [refused] = logged(running)
    for each in clients:
        each.close()
    gone = logged(running, 3)
    running.release()

    assert (refused["status"], refused["bytes_in"]) == (503, len(body))
    assert {(line["status"], line["rows"]) for line in gone} == {(GONE, 8)}
    assert min(line["queue_ms"] for line in gone) >= 0


def test_a_client_that_disconnects_within_its_body_is_logged(running: RunningProxy) -> None:
    with socket.create_connection(running.address, 10) as client:
        client.sendall(head(V1_PATH, "content-length: 100") + b"0123456789")

    [line] = logged(running)
    assert (line["status"], line["bytes_in"]) == (GONE, 10)


def test_calls_of_grpc_have_lines(running: RunningProxy) -> None:
    assert running.proxy.grpc is not None
    with grpc.insecure_channel(str(running.proxy.grpc.address)) as channel:
        ask = channel.stream_unary(
            f"/{GRPC_SERVICE}/ModelInfer",
            request_serializer=messages.ModelInferRequest.SerializeToString,
            response_deserializer=messages.ModelInferResponse.FromString,
        )
        good = messages.ModelInferRequest(model_name="double")
        good.inputs.add(name="x", datatype="FP32", shape=[1, 4]).contents.fp32_contents.extend([1.0] * 4)
        ask(iter([good]), timeout=20, metadata=[("x-request-id", "g")])
        with pytest.raises(grpc.RpcError):
            ask(iter([messages.ModelInferRequest(model_name="cat")]), timeout=20)
        running.hold()
        left = ask.future(iter([good]), timeout=20)
        running.until(lambda: running.proxy.scheduler.in_flight_rows == 1)
        left.cancel()
        lines = logged(running, 3)
        running.release()

    assert [(line["status"], line["protocol"]) for line in lines] == [(200, "grpc"), (404, "grpc"), (GONE, "grpc")]
    assert [line.get("rows") for line in lines] == [1, None, 1]
    assert (lines[0]["path"], lines[0]["x-request-id"], lines[0]["client"]) == (
        f"/{GRPC_SERVICE}/ModelInfer",
        "g",
        "127.0.0.1",
    )
    assert lines[0]["bytes_in"] == good.ByteSize()
    assert lines[0]["bytes_out"] > 0


def test_the_client_is_logged_by_name_and_never_by_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("team-a=sesame-is-what-opens-this-door\n")
    (tmp_path / "keys").chmod(0o600)
    key = "sesame-is-what-opens-this-door"
    limits = {"access_limits__rows_per_second": {"team-a": 0.01}}
    with logging_proxy(api_keys=str(tmp_path / "keys"), **limits) as running:
        url = f"{running.url}{V1_PATH}"
        codes = [
            httpx.post(url, json=ROW, headers={"x-api-key": given}).status_code for given in (key, key, "another key")
        ]
        lines = logged(running, 3)

    assert codes == [200, 429, 401]
    assert [(line["status"], line.get("caller")) for line in lines] == [(200, "team-a"), (429, "team-a"), (401, None)]
    assert key not in str(lines)


def test_off_there_is_no_log() -> None:
    with running_proxy() as quiet:
        assert quiet.proxy.inference.access_log is None
        assert httpx.post(f"{quiet.url}{V1_PATH}", json=ROW).status_code == 200


# The fields of a line.

BYTES = st.binary(max_size=700)


@given(BYTES, BYTES, BYTES, st.text(max_size=300))
def test_no_client_can_forge_a_line_or_a_field(path: bytes, agent: bytes, identity: bytes, name: str) -> None:
    entry = AccessLogEntry(b"POST", path, "v1", {b"user-agent": agent, b"x-request-id": identity}, "::1")
    entry.status, entry.client_name = 200, name[:128]
    line = format_entry(entry)
    formatted = [
        form.format(logging.makeLogRecord({"msg": line.template, "args": line.arguments}))
        for form in (TextFormatter(), JsonFormatter())
    ]

    names = ["method", "path", "protocol", "status", "ms", "bytes_in", "bytes_out", "client", "caller"]
    may = {"path": path, "caller": name, "x-request-id": identity, "user_agent": agent}
    names = [each for each in (*names, "x-request-id", "user_agent") if may.get(each, "is")]
    for text in formatted:
        assert len(text.splitlines()) == 1
        assert len(text) < 8000
    assert list(json.loads(formatted[1]))[4:] == names
    assert [each for each in unquoted(formatted[0]) if "=" in each] == [f"{each}=" for each in ("event", *names)]


def unquoted(text: str) -> list[str]:
    """Return the words of a line that stand outside of quotes, each up to its equals sign."""
    words, quote, word, escaped = [], "", "", False
    for letter in f"{text} ":
        if quote:
            escaped, ends = letter == "\\" and not escaped, letter == quote and not escaped
            quote = "" if ends else quote
        elif letter in "'\"":
            quote = letter
        elif letter == " ":
            words.append(word.partition("=")[0] + ("=" if "=" in word else ""))
            word = ""
        else:
            word += letter
    return words


@pytest.mark.parametrize(("timing", "rows"), [(b"", None), (b'batch;dur=1.00, rows;desc="12", padding;desc="0%"', 12)])
def test_the_batch_is_as_large_as_server_timing_states(timing: bytes, rows: int | None) -> None:
    assert batch_rows(timing) == rows


@pytest.mark.parametrize(("percent", "least", "most"), [(100.0, 1000, 1000), (50.0, 300, 700), (0.001, 0, 20)])
def test_the_configured_share_of_requests_is_logged(percent: float, least: int, most: int) -> None:
    log = AccessLog(percent)
    taken = [each for each in range(1000) if log.begin(b"POST", b"/", "v1", {}, "") is not None]
    assert least <= len(taken) <= most


def test_more_than_the_ring_holds_are_counted() -> None:
    log = AccessLog(100.0)
    for _ in range(RING + 3):
        log.end(AccessLogEntry(b"POST", b"/", "v1", {}, ""), 200)
    assert (len(log.take()), log.dropped) == (RING, 3)


def test_an_entry_is_logged_once() -> None:
    log, entry = AccessLog(100.0), AccessLogEntry(b"POST", b"/", "v1", {}, "")
    log.end(entry, GONE)
    log.end(entry, 200)
    assert [each.status for each in log.take()] == [GONE]


# Who writes it.


def test_an_unread_pipe_blocks_no_request_and_dropped_lines_are_counted() -> None:
    log = AccessLog(100.0)
    reading, writing_end = os.pipe()
    writer = LogWriter(log, TextFormatter(), writing_end)
    writer.start()
    long = b"/" + b"a" * 500
    while select.select([], [writing_end], [], 0)[1]:
        log.end(AccessLogEntry(b"POST", long, "v1", {}, ""), 200)
    for _ in range(RING + 1):
        log.end(AccessLogEntry(b"POST", long, "v1", {}, ""), 200)
    for number in range(MAX_LINES + 2):
        writer.handle(logging.makeLogRecord({"levelname": "INFO", "msg": "event=other n=%d", "args": (number,)}))

    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(iter(lambda: os.read(reading, 1 << 16), b"")))
    reader.start()
    writer.end()
    os.close(writing_end)
    reader.join(20)
    os.close(reading)
    lines = b"".join(read).decode().splitlines()
    [dropped] = [
        int(line.rpartition("=")[2]) for line in lines if " WARNING " in line and "event=log_lines_dropped" in line
    ]
    assert dropped >= 2
    assert sum("event=other" in line for line in lines) >= MAX_LINES - 1
    assert {line.split(" ", 2)[1] for line in lines} == {"INFO", "WARNING"}


def test_meanwhile_all_of_the_log_goes_by_the_thread(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:]
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    root.handlers[:] = [handler]
    log = AccessLog(100.0)
    try:
        with writing(log):
            assert root.handlers != [handler]
            logging.getLogger("a").warning("event=b rows=%d", 3)
            logging.getLogger("a").warning("event=b rows=%d", "many")
            log.end(AccessLogEntry(b"POST", b"/p", "v1", {}, ""), 200)
        assert root.handlers == [handler]
    finally:
        root.handlers[:] = before

    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["logger"], line.get("event")) for line in lines] == [
        ("a", "b"),
        ("a", None),
        ("shoal_proxy.observe.access_log", "access"),
    ]


def test_without_an_access_log_nothing_is_in_between() -> None:
    before = logging.getLogger().handlers[:]
    with writing(None):
        assert logging.getLogger().handlers == before
