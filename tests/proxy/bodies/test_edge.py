"""The decisions about clients' connections, with time by hand."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.bodies.body_memory import BodyMemory, BodyTransfer
from shoal_proxy.http.idle_connections import KEPT_DESCRIPTORS, MAX_CONNECTIONS, connection_limit, connections_to_close
from shoal_proxy.observe.log_sampling import LogSampler
from shoal_schema.wire.timeouts import TransferTimeouts

of_the_sources = pytest.mark.skipif(
    not hasattr(BodyTransfer.arrived, "__code__"), reason="a compiled class has no interpreted subclass"
)


class Upload(BodyTransfer):
    def __init__(self, expected_bytes: int) -> None:
        super().__init__()
        self.expected_bytes = expected_bytes
        self.refused = False

    def evict(self) -> None:
        self.refused = True


@dataclass(eq=False)
class Member:
    idle_start_s: float | None
    is_unused: bool = False


@pytest.mark.parametrize(
    ("wanted", "descriptors", "limit"),
    [
        (0, 1 << 20, MAX_CONNECTIONS),
        (0, 1024, 1024 - KEPT_DESCRIPTORS),
        (500, 1024, 500),
        (5000, 1024, 1024 - KEPT_DESCRIPTORS),
        (50_000, 1 << 20, 50_000),
        (0, 100, 50),
        (0, 1, 1),
    ],
)
def test_descriptors_are_kept_for_other_than_clients(wanted: int, descriptors: int, limit: int) -> None:
    assert connection_limit(wanted, descriptors) == limit


def test_the_oldest_of_those_that_sent_no_request_goes_first() -> None:
    busy, fresh, stale, silent, just_here = (
        Member(None),
        Member(9.0),
        Member(1.0),
        Member(5.0, is_unused=True),
        Member(9.9, is_unused=True),
    )
    connections = [busy, fresh, stale, just_here, silent]
    order: list[Member] = []
    while gone := connections_to_close(connections, len(connections)):
        order.extend(gone)
        connections.remove(gone[0])
    assert order == [silent, just_here, stale, fresh]
    assert connections == [busy]


def test_a_large_crowd_goes_a_hundredth_at_a_time() -> None:
    crowd = [Member(float(number)) for number in range(10_000)]
    assert connections_to_close(crowd, len(crowd)) == crowd[:100]


def test_a_stretch_below_the_rate_is_too_slow() -> None:
    timeouts = TransferTimeouts(head_s=1, body_s=60, write_s=60, idle_s=600, min_bytes_per_s=1000)
    assert timeouts.is_fast_enough(60_000, 60)
    assert not timeouts.is_fast_enough(59_999, 60)


@of_the_sources
def test_an_announced_size_reserves_nothing() -> None:
    bodies = BodyMemory(1000)
    four = [Upload(1000) for _ in range(4)]
    assert bodies.reserve(Upload(900), 900, 0, 1.0)
    assert not any(each.refused for each in four)
    assert bodies.size_bytes == 900


@of_the_sources
def test_a_stalled_body_is_dropped_for_a_new_one() -> None:
    bodies = BodyMemory(1000)
    stalled, coming = Upload(900), Upload(900)
    assert bodies.reserve(stalled, 600, 0, 1.0)
    for step in range(8):
        assert bodies.reserve(coming, 100, 0, 10.0 + step / 10)
    assert stalled.refused
    assert not coming.refused
    assert bodies.size_bytes == 800


@of_the_sources
def test_a_nearly_complete_body_is_not_dropped_for_a_new_one() -> None:
    bodies = BodyMemory(1000)
    old, new = Upload(800), Upload(800)
    for step in range(7):
        assert bodies.reserve(old, 100, 0, 1.0 + step / 10)
    taken = [bodies.reserve(new, 100, 0, 1.7 + step / 10) for step in range(4)]
    assert taken == [True, True, True, False]
    assert not old.refused


@of_the_sources
def test_a_small_body_is_accepted_while_large_ones_fill_everything() -> None:
    bodies = BodyMemory(1000)
    large = [Upload(10_000) for _ in range(2)]
    for each in large:
        assert bodies.reserve(each, 500, 0, 1.0)
    assert bodies.reserve(Upload(100), 100, 0, 2.0)
    assert [each.refused for each in large].count(True) == 1


@of_the_sources
def test_a_full_queue_rejects_only_the_newest() -> None:
    bodies = BodyMemory(1000)
    coming = Upload(500)
    assert bodies.reserve(coming, 100, 800, 1.0)
    assert not bodies.reserve(Upload(300), 300, 950, 1.0)
    assert not coming.refused


@of_the_sources
def test_one_body_alone_may_be_larger_than_the_limit() -> None:
    bodies = BodyMemory(1000)
    alone = Upload(5000)
    assert all(bodies.reserve(alone, 1000, 0, float(step)) for step in range(5))


@of_the_sources
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 400), st.floats(0, 2)), max_size=60),
    st.integers(0, 900),
)
def test_bodies_within_half_an_equal_share_are_never_rejected(
    steps: list[tuple[int, int, float]], waiting_bytes: int
) -> None:
    limit_bytes = 1000
    bodies = BodyMemory(limit_bytes)
    uploads = [Upload(2000) for _ in range(6)]
    now_s = 1.0
    for who, size_bytes, wait_s in steps:
        now_s += wait_s
        upload = uploads[who]
        if upload.refused:
            continue
        before = {each: each.held_bytes for each in uploads}
        active = sum(1 for each in uploads if each.held_bytes or each is upload)
        share_bytes = (limit_bytes - waiting_bytes) / 2 / active
        taken = bodies.reserve(upload, size_bytes, waiting_bytes, now_s)
        for each in uploads:
            if each.refused and before[each]:
                assert before[each] > share_bytes or each is upload
        if not taken:
            assert before[upload] + size_bytes > share_bytes
            bodies.release(upload)
            upload.refused = True
        assert bodies.size_bytes == sum(each.held_bytes for each in uploads)
        others = bodies.size_bytes - upload.held_bytes + waiting_bytes
        assert not others or bodies.size_bytes + waiting_bytes <= limit_bytes or not taken


def test_one_line_in_a_while_states_how_many_it_stands_for() -> None:
    sampler = LogSampler(10.0)
    assert [sampler.take(float(second)) for second in range(100, 125)] == [
        0, *[None] * 9, 9, *[None] * 9, 9, *[None] * 4,
    ]  # fmt: skip
