import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_local.apiserver.spdy import (
    DICTIONARY,
    MAX_FRAME_BYTES,
    BrokenFrameError,
    Data,
    Frame,
    Opened,
    Ping,
    Reset,
    Session,
    data_frame,
)


class Client:
    """A client, by the draft of the protocol."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def open(self, stream: int, headers: dict[str, str], flags: int = 0) -> bytes:
        texts = [text.encode() for pair in headers.items() for text in pair]
        block = struct.pack(">I", len(headers)) + b"".join(struct.pack(">I", len(t)) + t for t in texts)
        packed = self._deflate.compress(block) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return control(1, struct.pack(">IIH", stream, 0, 0) + packed, flags)


def control(kind: int, body: bytes, flags: int = 0, version: int = 3) -> bytes:
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(body)) + body


def test_the_dictionary_is_the_one_of_the_draft() -> None:
    # The checksum by which zlib streams identify the dictionary.
    assert (len(DICTIONARY), zlib.adler32(DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_streams_are_opened_with_headers_that_share_their_compression() -> None:
    client, session = Client(), Session()
    first, second = {"streamtype": "error", "port": "80", "requestid": "0"}, {"streamtype": "data", "port": "80"}
    frames = session.receive(client.open(1, first, flags=1) + client.open(3, second))
    assert list(frames) == [Opened(1, first), Opened(3, second)]


@given(st.binary(max_size=60), st.lists(st.integers(0, 200), max_size=6))
def test_frames_are_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    ping, reset = control(6, b"\0\0\0\7"), control(3, struct.pack(">II", 3, 5))
    opened = Client().open(3, {"streamtype": "data"})
    ignored = control(4, b"\0\0\0\0")
    sent = opened + data_frame(3, data) + ping + ignored + data_frame(3, b"", last=True) + reset
    session, frames = Session(), list[Frame]()
    edges = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
    for begin, end in pairwise(edges):
        frames += session.receive(sent[begin:end])
    assert frames == [
        Opened(3, {"streamtype": "data"}),
        Data(3, data, last=False),
        Ping(ping),
        Data(3, b"", last=True),
        Reset(3),
    ]


def test_an_accepted_stream_is_answered_with_no_headers() -> None:
    session, inflate = Session(), zlib.decompressobj(zdict=DICTIONARY)
    for stream in (1, 3):
        answer = session.accept(stream)
        assert struct.unpack(">HH", answer[:4]) == (0x8003, 2)
        assert struct.unpack(">I", answer[8:12]) == (stream,)
        assert inflate.decompress(answer[12:]) == b"\0\0\0\0"


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (control(1, b"\0" * 10, version=2), "SPDY version 2"),
        (control(1, b"\0" * 10 + b"no zlib"), "control frame"),
        (control(1, b"\0"), "control frame"),
        (control(3, b""), "control frame"),
        (struct.pack(">II", 1, MAX_FRAME_BYTES), "are allowed"),
        (b"GET / HTTP/1.1\r\n", "are allowed"),
    ],
    ids=["version", "headers", "short", "empty", "long", "http"],
)
def test_what_is_no_spdy_is_refused(sent: bytes, message: str) -> None:
    with pytest.raises(BrokenFrameError, match=message):
        list(Session().receive(sent))


@given(st.binary(max_size=100))
def test_no_bytes_break_the_reader_otherwise(data: bytes) -> None:
    try:
        list(Session().receive(data))
        list(Session().receive(control(1, data)))
    except BrokenFrameError:
        pass
