import pytest

from shoal_proxy.batching.pending import PLAIN_LANE
from shoal_proxy.codecs.v2 import V2
from shoal_proxy.heads import LONGEST_BYTES, Head, Heads, Route, Terms

BODY = b"0123456789"
PLAIN = Terms(0.0, PLAIN_LANE, (), None)


def request(*headers: bytes, method: bytes = b"POST", length: bytes = b"10", body: bytes = BODY) -> bytes:
    return b"\r\n".join([method + b" /x HTTP/1.1", b"Content-Length: " + length, *headers, b"", body])


def head(*more: bytes, keep_alive: bool = True, terms: Terms | None = PLAIN, length: bytes = b"10") -> Head:
    headers = {b"content-length": length, **dict.fromkeys(more, b"x")}
    found = Head(Route(V2()), headers, keep_alive=keep_alive)
    found.terms = terms
    return found


def test_a_whole_request_that_begins_alike_is_known() -> None:
    heads, first = Heads(100), head()
    heads.remember(request(), first)

    known = heads.find(request(body=b"abcdefghij"))

    assert known is not None
    assert known[0] is first
    assert request(body=b"abcdefghij")[known[1] :] == b"abcdefghij"


@pytest.mark.parametrize(
    "data",
    [
        request(b"Accept: */*"),
        request(length=b"11", body=BODY + b"!"),
        request()[:-1],
        request() + b"P",
        request() + request(),
        request()[:20],
        request()[1:],
        b"",
    ],
)
def test_whatever_differs_is_not(data: bytes) -> None:
    heads = Heads(100)
    heads.remember(request(), head())

    assert heads.find(data) is None


@pytest.mark.parametrize(
    ("data", "parsed"),
    [
        (request(b"X-Request-Id: 1"), head(b"x-request-id")),
        (request(b"Traceparent: 1"), head(b"traceparent")),
        (request(b"Expect: 100-continue"), head(b"expect")),
        (request(b"Connection: close"), head(keep_alive=False)),
        (request(), head(terms=None)),
        (request(length=b"9"), head(length=b"9")),
        (request(method=b"GET"), head()),
        (b"\r\n" + request(), head()),
        (request()[:-3], head()),
        (request(length=b"200", body=b"x" * 200), head(length=b"200")),
        (request(b"X: " + b"y" * LONGEST_BYTES), head(b"x")),
    ],
    ids=["id", "trace", "expect", "close", "unread", "more-than-it", "get", "newline", "cut", "large", "long"],
)
def test_what_will_not_come_again_or_was_not_one_request_is_not_remembered(data: bytes, parsed: Head) -> None:
    heads = Heads(100)
    heads.remember(data, parsed)

    assert heads.find(data) is None


def test_no_more_heads_are_kept_than_so_many() -> None:
    heads = Heads(100)
    for number in range(5000):
        heads.remember(request(b"X: %d" % number), head(b"x"))

    known = [number for number in range(5000) if heads.find(request(b"X: %d" % number))]

    assert known
    assert known[-1] == 4999
    assert len(known) <= 1024
