from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.serving.routing import MAX_HEAD_BYTES, MAX_LINE_BYTES, Piece, Scanner, model_of


def request(target: str, body: bytes = b"", *, chunks: list[bytes] | None = None) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\n"
    if chunks is None:
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    written = b"".join(b"%x;a=b\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk)
    return f"{head}Transfer-Encoding: Chunked\r\n\r\n".encode() + written + b"0\r\nTrailer: x\r\n\r\n"


def joined(pieces: list[Piece]) -> list[tuple[str | None, bytes]]:
    """Return the requests that pieces make up: the model that each names, and all of its bytes."""
    requests: list[tuple[str | None, bytes]] = []
    for piece in pieces:
        if piece.model is not None or not requests:
            requests.append((piece.model, piece.data))
        else:
            requests[-1] = requests[-1][0], requests[-1][1] + piece.data
    return requests


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("/predictions/cat", "cat"),
        ("/predictions/cat/1.0?x=/predictions/dog", "cat"),
        ("/v1/models/cat:predict", "cat"),
        ("/v1/models/cat", "cat"),
        ("/v2/models/cat/versions/1/infer", "cat"),
        ("/models/cat", "cat"),
        ("http://host:80/predictions/c%61t", "cat"),
        ("/v1/models", ""),
        ("/models", ""),
        ("/ping", ""),
        ("/invocations?x=1", "/invocations"),
        ("/docs", "/docs"),
        ("/x/predictions/cat", ""),
        ("*", ""),
    ],
)
def test_the_path_names_the_model(target: str, model: str) -> None:
    assert model_of(target) == model


REQUESTS = st.lists(
    st.one_of(
        st.builds(lambda m, b: (m, request(f"/predictions/{m}", b)), st.sampled_from("ab"), st.binary(max_size=30)),
        st.builds(
            lambda m, c: (m, request(f"/v2/models/{m}/infer", chunks=c)),
            st.sampled_from("ab"),
            st.lists(st.binary(max_size=20), max_size=3),
        ),
        st.just(("", b"GET /ping HTTP/1.1\r\n\r\n")),
    ),
    max_size=5,
)


@given(REQUESTS, st.lists(st.integers(0, 600)))
def test_however_bytes_come_they_are_the_same_requests(requests: list[tuple[str, bytes]], cuts: list[int]) -> None:
    text = b"".join(data for _, data in requests)
    scanner = Scanner()
    ends = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [piece for start, end in pairwise(ends) for piece in scanner.feed(text[start:end])]

    assert joined(pieces) == requests
    assert scanner.between


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: many",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        f"Content-Length: {'9' * 20}",
    ],
)
def test_where_the_end_of_a_body_is_in_doubt_all_that_follows_is_its_servers(lines: str) -> None:
    text = f"POST /predictions/a HTTP/1.1\r\n{lines}\r\n\r\nabc".encode() + request("/predictions/b")
    scanner = Scanner()

    assert joined(scanner.feed(text)) == [("a", text)]
    assert joined(scanner.feed(request("/predictions/b"))) == [(None, request("/predictions/b"))]
    assert not scanner.between


@pytest.mark.parametrize("size", [b"x\r\n", b"-5\r\n", b"+5\r\n", b"0x5\r\n", b"5_0\r\n", b"1" * (MAX_LINE_BYTES + 1)])
def test_a_chunk_that_is_none_is_left_to_the_server(size: bytes) -> None:
    head = b"POST /predictions/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    scanner = Scanner()

    assert joined(scanner.feed(head + size + b"more")) == [("a", head + size + b"more")]


def test_a_head_without_an_end_is_passed_on_to_be_refused() -> None:
    scanner = Scanner()

    assert scanner.feed(b"POST /predictions/a HTTP/1.1\r\n") == []
    assert not scanner.between
    assert joined(scanner.feed(b"x" * MAX_HEAD_BYTES))[0][0] == ""
