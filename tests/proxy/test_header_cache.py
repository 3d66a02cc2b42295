import re
import socket
from collections.abc import Iterator

import httptools
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_proxy.batching.pending import PLAIN_LANE
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.http.header_cache import (
    MAX_BYTES,
    MAX_TEMPLATES,
    HeaderCache,
    InferRoute,
    QueueParameters,
    RequestHead,
)
from shoal_schema.wire.framing import FIELD_BYTES
from tests.calls import V2_PATH, RawConnection, v2_body
from tests.fakes import RunningProxy, running_proxy

BODY = b"0123456789"
PLAIN = QueueParameters(0.0, PLAIN_LANE, (), None)
ROUTE = InferRoute("v2", V2())


def request(
    *headers: bytes, target: bytes = b"POST /x HTTP/1.1", length: bytes | None = None, body: bytes = BODY
) -> bytes:
    size = b"%d" % len(body) if length is None else length
    return b"\r\n".join([target, *headers, b"Content-Length: " + size, b"", body])


class Parsed:
    """One request as httptools reads it: what the cache must agree with."""

    def __init__(self, data: bytes) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.url = self.body = b""
        self.names = self.messages = 0
        self.parser = httptools.HttpRequestParser(self)
        self.valid = True
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.valid = False
        self.whole = self.valid and self.messages == 1 and data.endswith(self.body)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value.rstrip()
        self.names += 1

    def on_headers_complete(self) -> None:
        self.keep_alive = self.parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1

    def head(self, parameters: QueueParameters | None = PLAIN) -> RequestHead:
        head = RequestHead(ROUTE, self.headers, keep_alive=self.keep_alive)
        head.parameters = parameters
        return head


def cache(*learned: bytes, max_body_bytes: int = 100, max_head_bytes: int = 32768) -> HeaderCache:
    made = HeaderCache(max_body_bytes, max_head_bytes, frozenset({b"x-request-id"}))
    for data in learned:
        made.store(data, Parsed(data).head())
    return made


def test_a_whole_request_with_the_same_beginning_is_recognized() -> None:
    known = cache(request()).find(request(body=b"abcdef"))

    assert known is not None
    assert known[0].headers == {b"content-length": b"6"}
    assert known[0].parameters is PLAIN
    assert request(body=b"abcdef")[known[1] :] == b"abcdef"


def test_values_that_were_seen_to_change_may_change_again() -> None:
    learned = [request(b"Host: a", b"X-Request-Id: %d" % n, b"Authorization: Bearer %d" % n) for n in (1, 2)]
    asked = request(b"Host: a", b"X-Request-Id: a3", b"Authorization: Basic other=", body=b"!")

    assert cache(learned[0]).find(asked) is None
    known = cache(*learned).find(asked)

    assert known is not None
    assert known[0].headers == Parsed(asked).headers
    assert known[0].parameters is None  # an id is for the runtime too


def test_a_value_that_never_changed_is_compared() -> None:
    learned = [request(b"Host: a", b"X-Id: %d" % n) for n in (1, 2)]

    assert cache(*learned).find(request(b"Host: b", b"X-Id: 3")) is None


@pytest.mark.parametrize(
    "data",
    [
        request(b"Accept: */*", b"A: 1"),
        request(b"A: 1", length=b"9"),
        request(b"A: 1", length=b"11"),
        request(b"A: 1", length=b"+10"),
        request(b"A: 1", length=b"10 "),
        request(b"A: 1", length=b""),
        request(b"A: 1", length=b"1_0"),
        request(b"A: 1", length=b"0" * 30 + b"10"),
        request(b"A: 1", body=b"x" * 101),
        request(b"A: 1") + b"P",
        request(b"A: 1") * 2,
        request(b"A: 1")[:20],
        request(b"A: 1")[1:],
        request(b"A: 1\r\nContent-Length: 10"),
        request(b"A: 1\r\nTransfer-Encoding: chunked"),
        request(b"A: 1\r\n folded"),
        *(request(b"A: 1%b2" % control) for control in (b"\0", b"\r", b"\n", b"\x0b", b"\x7f", b"\xff", b"\t")),
        request(b"A: "),
        request(b"A:  1"),
        request(b"A: 1 "),
        request(b"a: 1"),
        request(b"A: " + b"y" * MAX_BYTES),
        b"",
    ],
)
def test_whatever_differs_in_more_than_a_plain_value_is_for_the_parser(data: bytes) -> None:
    assert cache(request(b"A: 0"), request(b"A: 9")).find(data) is None


@pytest.mark.parametrize(
    "data",
    [
        request(b"Expect: 100-continue"),
        request(b"Connection: close"),
        request(target=b"GET /x HTTP/1.1"),
        request(target=b"POST /x HTTP/1.0"),
        request(b"Connection: keep-alive", target=b"POST /x HTTP/1.0"),
        b"\r\n" + request(),
        request(body=b"x" * 200),
        request(b"X: " + b"y" * MAX_BYTES),
        request(b"X: 1", b"X: 1"),
    ],
    ids=["expect", "close", "get", "old", "old-kept", "newline", "large", "long", "twice"],
)
def test_requests_with_expectations_are_not_cached(data: bytes) -> None:
    assert cache(data).find(data) is None


def test_an_invalid_head_is_not_cached() -> None:
    made = cache()
    made.store(request(), Parsed(request()).head(parameters=None))

    assert made.find(request()) is None


def test_what_becomes_of_the_connection_is_never_a_gap() -> None:
    made = cache(*(request(b"Connection: " + value) for value in (b"keep-alive", b"Keep-Alive")))

    assert made.find(request(b"Connection: keep-alive")) is not None
    assert made.find(request(b"Connection: close")) is None


def test_the_limit_of_a_head_holds() -> None:
    learned = [request(b"A: %d" % n) for n in (1, 2)]
    most = len(request()) - len(BODY) + 100 + 2 * FIELD_BYTES
    made = cache(*learned, max_head_bytes=most)

    assert made.find(request(b"A: " + b"x" * 90)) is not None
    assert made.find(request(b"A: " + b"x" * 200)) is None


def test_clients_of_several_kinds_are_cached_together_and_no_more_than_so_many() -> None:
    kinds = [
        each
        for number in range(MAX_TEMPLATES)
        for each in (request(b"X-%d: 1" % number), request(target=b"POST /%d HTTP/1.1" % number))
    ]
    made = cache(*kinds)

    assert [data for data in kinds if made.find(data)] == kinds[MAX_TEMPLATES:]


NAMES = st.sampled_from([b"Host", b"x-request-id", b"Traceparent", b"Authorization", b"Cookie", b"A", b"Connection"])
VALUES = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1, max_size=12).map(str.encode)
HOSTILE = st.sampled_from([
    b"\r", b"\n", b"\r\n", b"\0", b"\t", b" ", b":", b"\r\n\r\n", b"\r\n ", b"\x7f", b"\xe4", b"\r\nContent-Length: 3",
    b"\r\nTransfer-Encoding: chunked", b"\r\nConnection: close", b"\r\nUpgrade: h2c", b"Content-Length", b"0",
])  # fmt: skip


@st.composite
def alike(draw: st.DrawFn, bodies: st.SearchStrategy[bytes], target: bytes) -> list[bytes]:
    """Draw requests that differ in values and bodies alone."""
    names = draw(st.lists(NAMES, max_size=5, unique=True))
    made = []
    for _ in range(draw(st.integers(2, 4))):
        lines = [b"%b: %b" % (n, b"keep-alive" if n == b"Connection" else draw(VALUES)) for n in names]
        made.append(request(*lines, target=target, body=draw(bodies)))
    return made


@st.composite
def mutated(draw: st.DrawFn, made: st.SearchStrategy[list[bytes]]) -> tuple[list[bytes], bytes]:
    """Draw requests alike, and one more that was tampered with."""
    *learned, last = draw(made)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(last)))
        stop = min(len(last), start + draw(st.sampled_from([0, 0, 1, 2, 8])))
        last = last[:start] + draw(HOSTILE | VALUES) + last[stop:]
    return learned, last


ANY = alike(st.binary(max_size=20), b"POST /x HTTP/1.1")
ROWS = st.lists(st.integers(0, 99), min_size=4, max_size=4).map(lambda row: orjson.dumps(v2_body([row])))
REAL = alike(ROWS, b"POST %b HTTP/1.1" % V2_PATH.encode())


@given(ANY)
def test_values_that_change_are_found_with_all_that_the_parser_reads(made: list[bytes]) -> None:
    learned, asked = made[:-1], made[-1]
    known = cache(*learned, asked).find(asked)

    assert known is not None
    assert (known[0].headers, asked[known[1] :]) == (Parsed(asked).headers, Parsed(asked).body)


@given(mutated(ANY))
@settings(max_examples=300)
def test_whatever_is_found_is_what_the_parser_reads(drawn: tuple[list[bytes], bytes]) -> None:
    learned, asked = drawn
    known = cache(*learned).find(asked)
    if known is None:
        return
    parsed = Parsed(asked)
    assert parsed.whole
    assert (known[0].headers, known[0].keep_alive, asked[known[1] :]) == (
        parsed.headers,
        parsed.keep_alive,
        parsed.body,
    )
    assert (parsed.url, parsed.parser.get_method(), parsed.parser.get_http_version()) == (b"/x", b"POST", "1.1")
    assert parsed.names == len(parsed.headers)


@pytest.fixture(scope="module")
def double() -> Iterator[RunningProxy]:
    """Run one proxy for all examples."""
    with running_proxy() as proxy:
        yield proxy


def answers(running: RunningProxy, *pieces: bytes) -> bytes:
    """Send one request in these pieces and return all that comes back, but for what depends on the time."""
    with RawConnection(running.address) as client:
        for piece in pieces:
            client.send(piece)
            running.call(lambda: None)
        client.socket.shutdown(socket.SHUT_WR)
        data = b""
        while more := client.socket.recv(65536):
            data += more
    return re.sub(rb"(date|server-timing|connection): [^\r]*\r\n|HTTP/1.1 100 Continue\r\n\r\n", b"", data)


@given(mutated(REAL))
@settings(max_examples=100, deadline=None)
def test_a_proxy_handles_a_cached_head_like_one_that_it_parses(
    double: RunningProxy, drawn: tuple[list[bytes], bytes]
) -> None:
    learned, asked = drawn
    for data in learned:
        assert answers(double, data).startswith(b"HTTP/1.1 200 OK\r\n")

    assert answers(double, asked) == answers(double, asked[:1], asked[1:])
