"""Which coding a client gets, and bodies that are packed in steps."""

import gzip
import random
import zlib
from collections.abc import Callable

import pytest

from shoal_proxy.bodies.compressor import FEED_BYTES, BodyCompressor, coding_for


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"gzip, deflate", b"gzip"),
        (b"deflate, gzip, br, zstd", b"gzip"),
        (b"GZIP;q=0.1,  deflate ; q=0.9", b"deflate"),
        (b"gzip;q=0", None),
        (b"gzip;q=0, deflate", b"deflate"),
        (b"gzip;q=0.000", None),
        (b"*", b"gzip"),
        (b"*;q=0", None),
        (b"gzip;q=0, *", b"deflate"),
        (b"identity", None),
        (b"identity, gzip;q=0.5", None),
        (b"identity;q=0.5, gzip", b"gzip"),
        (b"br", None),
        (b"", None),
        (b"gzip;q=nan", None),
        (b"gzip;q=7", None),
        (b"gzip;level=1", b"gzip"),
    ],
)
def test_the_best_coding_that_is_accepted_is_accepted(accepted: bytes, coding: bytes | None) -> None:
    assert coding_for(accepted) == coding


def packed(coding: bytes, *body: bytes) -> bytes | None:
    packing, steps = BodyCompressor(coding, body), 1
    while packing.step():
        steps += 1
    assert steps <= sum(len(part) // FEED_BYTES + 1 for part in body)
    return None if packing.given_up else b"".join(map(bytes, packing.body))


TEXT = b"[0.25,0.5,0.75]" * 50_000


@pytest.mark.parametrize(("coding", "unpack"), [(b"gzip", gzip.decompress), (b"deflate", zlib.decompress)])
@pytest.mark.parametrize("body", [(TEXT,), (b"{" * 99, memoryview(TEXT), b"}"), (TEXT[: FEED_BYTES * 2],)])
def test_any_pieces_are_one_stream(coding: bytes, unpack: Callable[[bytes], bytes], body: tuple[bytes, ...]) -> None:
    made = packed(coding, *body)
    assert made is not None
    assert unpack(made) == b"".join(map(bytes, body))


@pytest.mark.parametrize("size_bytes", [1024, 1 << 20])
def test_what_gets_no_smaller_stays_as_it_is(size_bytes: int) -> None:
    noise = random.Random(1).randbytes(size_bytes)
    packing = BodyCompressor(b"gzip", (noise,))
    steps = 1
    while packing.step():
        steps += 1
    assert packing.given_up
    assert packing.body == (noise,)
    assert steps <= 10, "it is not read to its end"
