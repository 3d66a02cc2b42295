"""Requests and batches as a collector of OpenTelemetry's hears of them."""

import logging
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shoal_proxy.observe.tracer import RING, Tracer, tracer_from
from shoal_proxy.tracing.sampling import Sampling
from tests.certificates import Authority
from tests.fakes import RunningProxy, running_proxy

TRUST = Authority()
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = f"{CALLER[:-1]}0"
ROW = {"instances": [[0.5, 0.5, 0.5, 0.5]]}


class Collector:
    """Takes spans by OTLP over HTTP."""

    def __init__(self, port: int, status: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.status = status
        self.resource: dict[str, str] = {}
        self.spans: list[Any] = []
        self.came = threading.Condition()

    def take(self, body: bytes) -> None:
        message = ExportTraceServiceRequest.FromString(body)
        with self.came:
            for group in message.resource_spans:
                self.resource = {each.key: each.value.string_value for each in group.resource.attributes}
                self.spans += [span for scope in group.scope_spans for span in scope.spans]
            self.came.notify_all()

    def until(self, count: int) -> list[Any]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.spans) >= count, 20), self.spans
            return list(self.spans)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting(200) as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


@contextmanager
def collecting(status: int, context: ssl.SSLContext | None = None) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(made.status)
            self.send_header("content-length", "0")
            self.end_headers()
            made.take(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made = Collector(server.server_port, status)
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            made.url = made.url.replace("http://", "https://")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def ask(running: RunningProxy, body: Any = ROW, **headers: str) -> httpx.Response:
    return httpx.post(f"{running.url}/v1/models/double:predict", json=body, headers=headers)


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_requests_of_one_batch_are_linked_to_its_span_and_it_to_theirs(collector: Collector) -> None:
    with running_proxy() as running, ThreadPoolExecutor(3) as clients:
        running.hold()
        first = clients.submit(ask, running)
        running.until(lambda: running.proxy.scheduler.in_flight_rows == 1)
        others = [clients.submit(ask, running, traceparent=CALLER) for _ in range(2)]
        running.until_waiting(2)
        running.release()
        assert {each.result().status_code for each in (first, *others)} == {200}
        spans = collector.until(5)

    assert collector.resource["service.name"] == "double"
    requests = [span for span in spans if span.name == "infer v1" and span.parent_span_id]
    [batch] = [span for span in spans if span.name == "batch" and attributes(span)["shoal.batch.requests"] == 2]
    assert {span.trace_id.hex() for span in requests} == {"4bf92f3577b34da6a3ce929d0e0e4736"}
    assert {span.parent_span_id.hex() for span in requests} == {"00f067aa0ba902b7"}
    assert {link.span_id for link in batch.links} == {span.span_id for span in requests}
    for span in requests:
        assert [link.span_id for link in span.links] == [batch.span_id]
        assert [event.name for event in span.events] == ["queued", "batched"]
        assert attributes(span) == {"http.response.status_code": 200, "shoal.rows": 1}
        assert span.start_time_unix_nano <= batch.start_time_unix_nano <= batch.end_time_unix_nano
        assert batch.end_time_unix_nano <= span.end_time_unix_nano
    assert [event.name for event in batch.events] == ["sent", "answered"]


def test_the_runtime_sees_our_span_as_its_client_and_the_client_its_own(collector: Collector) -> None:
    with running_proxy() as running:
        answer = ask(running, traceparent=CALLER)
        spans = collector.until(2)
        seen = running.runtime.seen[-1].headers["traceparent"]

    [request] = [span for span in spans if span.name != "batch"]
    assert answer.headers["traceparent"] == CALLER
    assert seen == f"00-{request.trace_id.hex()}-{request.span_id.hex()}-01"


def test_a_request_that_its_client_does_not_sample_is_not_traced(collector: Collector) -> None:
    with running_proxy() as running:
        assert ask(running, traceparent=UNSAMPLED).status_code == 200
        assert ask(running, traceparent=CALLER).status_code == 200
        collector.until(2)

    assert sum(span.name != "batch" for span in collector.spans) == 1


def test_a_request_that_is_rejected_has_a_span_without_a_batch(collector: Collector) -> None:
    with running_proxy() as running:
        assert ask(running, {"instances": "no"}, **{"x-request-id": "mine"}).status_code == 400
        [span] = collector.until(1)

    assert attributes(span) == {"http.response.status_code": 400, "shoal.request_id": "mine"}
    assert not span.links


def test_the_last_response_is_sent_before_the_process_ends(collector: Collector) -> None:
    with running_proxy() as running:
        assert ask(running).status_code == 200
    assert len(collector.spans) == 2


def test_a_collector_that_is_unavailable_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with running_proxy() as running:
        assert {ask(running).status_code for _ in range(20)} == {200}


@pytest.fixture
def private_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Run a collector whose certificate is of a private authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*TRUST.issue().written(tmp_path / "server"))
    with collecting(200, context) as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


@pytest.mark.parametrize(
    "setting", ["SSL_CERT_FILE", "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE"]
)
def test_a_collector_with_a_private_authority_receives_spans_if_a_setting_names_the_authority(
    private_collector: Collector, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The exporter's settings have priority over those of the process and of its HTTP library.
    for each in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(each, str(Authority("another authority").written(tmp_path / "other")))
    monkeypatch.setenv(setting, str(TRUST.written(tmp_path / "ca")))
    with running_proxy() as running:
        assert ask(running).status_code == 200
        assert len(private_collector.until(2)) == 2


def test_the_log_names_the_setting_if_the_certificate_of_a_collector_is_not_trusted(
    private_collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # One try: the exporter retries until its time limit.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with caplog.at_level(logging.WARNING), running_proxy() as running:
        assert ask(running).status_code == 200
        running.until(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)

    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in caplog.text
    assert private_collector.spans == []


def test_without_a_collector_nothing_is_traced() -> None:
    assert tracer_from({}) is None
    with running_proxy() as running:
        assert running.proxy.inference.tracer is None


def test_of_more_than_the_ring_holds_the_oldest_are_forgotten() -> None:
    tracer = Tracer(Sampling())
    for status in range(RING + 3):
        span = tracer.begin({}, "v1", 0.0)
        assert span is not None
        tracer.end(span, status, 1.0)

    kept = tracer.take()
    assert len(kept) == RING
    assert kept[0].attributes["http.response.status_code"] == 3
    assert tracer.dropped == 3
    assert tracer.take() == []
