"""The memory of a large body: whole, wherever its pieces end, and aligned where it is used in place."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.wire.body import Body


def aligned(body: Body, at: int) -> bool:
    return (np.frombuffer(body.view, np.uint8).ctypes.data + at) % 64 == 0


@given(
    st.lists(st.binary(max_size=50), max_size=8),
    st.none() | st.integers(1, 300),
    st.none() | st.integers(0, 200),
)
def test_a_body_is_whole_whatever_its_pieces_and_the_initial_buffer(
    chunks: list[bytes], first_bytes: int | None, aligned_at: int | None
) -> None:
    whole = b"".join(chunks)
    body, taken = Body(len(whole), first_bytes, aligned_at), 0
    for chunk in chunks:
        assert body.complete is (taken == len(whole))
        body.add(chunk)
        taken += len(chunk)

    assert body.complete
    assert bytes(body.view) == whole
    assert aligned_at is None or not whole or aligned(body, aligned_at)


def test_room_is_made_for_the_first_part_and_for_all_once_that_is_here() -> None:
    body = Body(1000, 100)
    assert len(body.rest) == 100

    body.rest[:60] = b"a" * 60
    body.filled(60)
    assert len(body.rest) == 40
    body.add(b"b" * 40)
    assert len(body.rest) == 900
    body.add(b"c" * 900)

    assert bytes(body.view) == b"a" * 60 + b"b" * 40 + b"c" * 900
    assert len(body.rest) == 0


def test_no_more_room_is_made_than_the_body_needs() -> None:
    assert len(Body(10, 100).rest) == 10
    assert len(Body(10).rest) == 10
