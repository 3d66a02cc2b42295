import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.wire.framing import (
    FIELD_BYTES,
    FramingError,
    HeadMeter,
    check_head,
    check_repeated,
    check_upgrade,
    join_lists,
    without_upgrade,
)


@pytest.mark.parametrize(
    ("version", "coding", "status"),
    [
        ("2.0", None, 505),
        ("0.9", None, 505),
        ("1.0", b"chunked", 400),
        ("1.1", b"gzip, chunked", 501),
        ("1.1", b"", 501),
    ],
)
def test_a_head_that_leaves_open_where_its_request_ends_is_rejected(
    version: str, coding: bytes | None, status: int
) -> None:
    with pytest.raises(FramingError) as refused:
        check_head(version, {} if coding is None else {b"transfer-encoding": coding})

    assert refused.value.status == status


@pytest.mark.parametrize(
    ("version", "coding"), [("1.1", None), ("1.0", None), ("1.1", b"chunked"), ("1.1", b"Chunked")]
)
def test_any_other_head_is_accepted(version: str, coding: bytes | None) -> None:
    check_head(version, {} if coding is None else {b"transfer-encoding": coding})


def test_a_tunnel_is_rejected() -> None:
    check_upgrade(b"POST")
    with pytest.raises(FramingError, match="CONNECT"):
        check_upgrade(b"CONNECT")


def test_an_offer_to_upgrade_is_left_out_and_nothing_else() -> None:
    headers = [(b"host", b"x"), (b"connection", b"keep-alive, Upgrade, TE"), (b"upgrade", b"h2c"), (b"te", b"trailers")]

    assert without_upgrade(b"POST", b"/x", "1.1", headers) == (
        b"POST /x HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, TE\r\nte: trailers\r\n\r\n"
    )


@given(st.lists(st.integers(0, 300), max_size=20))
def test_a_head_is_rejected_as_soon_as_it_is_over_the_limit(sizes: list[int]) -> None:
    meter, taken = HeadMeter(1024), 0
    for size in sizes:
        if taken + size + FIELD_BYTES > 1024:
            with pytest.raises(FramingError, match="1024 bytes"):
                meter.field(b"a" * (size // 2), b"b" * (size - size // 2))
            return
        meter.field(b"a" * (size // 2), b"b" * (size - size // 2))
        taken += size + FIELD_BYTES


def test_framing_of_a_body_is_limited() -> None:
    meter = HeadMeter(100)
    meter.begin_body()
    meter.body_bytes = 10
    meter.unreported(260, in_body=True)
    with pytest.raises(FramingError, match="chunk headers and extensions"):
        meter.unreported(1, in_body=True)


def test_each_request_and_each_body_is_counted_anew() -> None:
    meter = HeadMeter(100)
    for _ in range(3):
        meter.begin()
        meter.target(60)
        meter.unreported(100, in_body=False)
        meter.begin_body()
        meter.body_bytes = 10
        meter.unreported(260, in_body=True)


@pytest.mark.parametrize("piece", ["target", "field", "unreported"])
def test_a_head_of_just_the_limit_is_accepted_and_one_byte_more_is_not(piece: str) -> None:
    def count(meter: HeadMeter, size_bytes: int) -> None:
        if piece == "target":
            meter.target(size_bytes)
        elif piece == "field":
            meter.field(b"", b"x" * (size_bytes - FIELD_BYTES))
        else:
            meter.unreported(size_bytes, in_body=False)

    count(HeadMeter(100), 100)
    with pytest.raises(FramingError) as refused:
        count(HeadMeter(100), 101)
    assert refused.value.status == 431


def test_many_small_headers_are_a_large_head() -> None:
    meter = HeadMeter(16_384)
    for _ in range(496):
        meter.field(b"a", b"")
    with pytest.raises(FramingError):
        meter.field(b"abcdefgh", b"123456789")


@pytest.mark.parametrize("name", [b"host", b"content-encoding"])
def test_two_hosts_or_codings_are_rejected_and_one_or_none_are_not(name: bytes) -> None:
    said, other = (name, b"a"), (b"x-a", b"1")
    check_repeated([other, other])
    check_repeated([said, other])
    for again in (said, (name, b"b")):
        with pytest.raises(FramingError) as refused:
            check_repeated([said, other, again])
        assert refused.value.status == 400


@pytest.mark.parametrize("name", [b"prefer", b"tracestate", b"accept-encoding"])
def test_lines_of_a_list_are_joined_and_the_last_one_of_other_headers_counts(name: bytes) -> None:
    headers = [(name, b"a"), (b"x", b"1"), (name, b"b;c"), (b"x", b"2"), (b"y", b"3")]

    assert join_lists(headers) == {name: b"a, b;c", b"x": b"2", b"y": b"3"}


@pytest.mark.parametrize("name", [b"inference-header-content-length", b"x-request-timeout-ms", b"x-shoal-priority"])
def test_a_control_header_has_one_value(name: bytes) -> None:
    check_repeated([(b"host", b"x"), (name, b"5"), (b"a", b"1"), (b"a", b"2"), (name, b"5")])
    with pytest.raises(FramingError) as refused:
        check_repeated([(name, b"5"), (b"a", b"1"), (name, b"6")])
    assert refused.value.status == 400
