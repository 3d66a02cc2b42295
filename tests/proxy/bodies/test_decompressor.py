"""Compressed bodies in steps: any split gives the same bytes, and no step does more than it may."""

import gzip
import random
import zlib

import pytest

from shoal_proxy.bodies.decompressor import FEED_BYTES, MAX_MEMBERS, STEP_BYTES, BodyDecompressor, is_supported_coding
from shoal_proxy.errors import InvalidRequest

TEXT = b"fish and chips " * 40_000
NOISE = random.Random(3).randbytes(700_000)


def unpacked(coding: bytes, *pieces: bytes) -> bytes:
    packed = BodyDecompressor(coding)
    for piece in pieces:
        packed.add(piece)
        drain(packed)
    return bytes(packed.take())


def drain(packed: BodyDecompressor) -> int:
    made_bytes = 0
    while packed.waiting:
        read, made = packed.step()
        assert read <= FEED_BYTES
        assert made <= STEP_BYTES
        made_bytes += made
    return made_bytes


@pytest.mark.parametrize("plain", [b"", b"{}", TEXT, NOISE, bytes(STEP_BYTES), bytes(STEP_BYTES + 1), bytes(5 << 20)])
@pytest.mark.parametrize(
    ("coding", "pack"), [(b"gzip", gzip.compress), (b"GZIP", gzip.compress), (b"x-gzip", gzip.compress),
                         (b"deflate", zlib.compress)],
)  # fmt: skip
@pytest.mark.parametrize("at", [0, 1, 9, 1000])
def test_a_body_in_any_pieces_becomes_what_was_packed(coding: bytes, pack: object, plain: bytes, at: int) -> None:
    whole = pack(plain)  # type: ignore[operator]
    assert unpacked(coding, whole[:at], whole[at:]) == plain


def test_several_gzip_streams_are_one_body_and_too_many_are_rejected() -> None:
    assert unpacked(b"gzip", gzip.compress(b"ab") + gzip.compress(b"") + gzip.compress(b"cd")) == b"abcd"
    assert unpacked(b"gzip", gzip.compress(b"a") * MAX_MEMBERS) == b"a" * MAX_MEMBERS
    with pytest.raises(InvalidRequest, match="streams"):
        unpacked(b"gzip", gzip.compress(b"a") * (MAX_MEMBERS + 1))


@pytest.mark.parametrize(("coding", "whole"), [(b"gzip", gzip.compress(TEXT)), (b"deflate", zlib.compress(TEXT))])
def test_streams_that_are_cut_off_or_corrupt_are_rejected(coding: bytes, whole: bytes) -> None:
    for length in (0, 1, 5, 11, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InvalidRequest, match="truncated"):
            unpacked(coding, whole[:length])
    for wrong in (b"{}", b"\0" + whole, whole[:-5] + b"\0\1\2\3\4", whole + b"\0", whole + b"{}"):
        with pytest.raises(InvalidRequest):
            unpacked(coding, wrong)


def test_the_codings_are_not_confused() -> None:
    for coding, other in ((b"gzip", zlib.compress(TEXT)), (b"deflate", gzip.compress(TEXT))):
        with pytest.raises(InvalidRequest, match="not a valid"):
            unpacked(coding, other)
    assert not any(map(is_supported_coding, (b"identity", b"br", b"gzip, gzip", b"gzip,deflate", b"")))
