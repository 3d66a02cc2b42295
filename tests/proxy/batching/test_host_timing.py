import pytest

from shoal_proxy.batching.early_batches import HostTiming
from shoal_proxy.batching.pending import NEVER_S


def learned(overhead_s: float = 0.002) -> HostTiming:
    pace = HostTiming()
    pace.observe(overhead_s)
    return pace


def test_nothing_leaves_ahead_before_anything_was_seen() -> None:
    assert HostTiming().send_ahead_s(0.008, 5.0) == NEVER_S


def test_the_device_is_free_when_forward_ends() -> None:
    # Sent at 10 s to an idle runtime: forward from 10.001 to 10.0082.
    assert learned().free_s(0.0072, sent_s=10.0, freed_s=9.0) == pytest.approx(10.0082)
    # Sent at 10 s behind another, which came back at 10.005: forward ran from 10.004 to 10.0112.
    assert learned().free_s(0.0072, sent_s=10.0, freed_s=10.005) == pytest.approx(10.0112)


def test_the_next_batch_leaves_half_an_overhead_and_a_tick_before_forward_ends() -> None:
    assert learned().send_ahead_s(0.0072, 10.0082) == pytest.approx(10.007)


def test_where_the_host_is_the_bottleneck_nothing_leaves_ahead() -> None:
    assert learned().send_ahead_s(0.0001, 10.0) == NEVER_S


def test_a_round_trip_shorter_than_its_forward_counts_as_none() -> None:
    pace = learned(0.001)
    pace.observe(-1.0)
    assert 0 <= pace.overhead_s < 0.001


def test_one_odd_batch_hardly_changes_what_the_host_is_believed_to_take() -> None:
    pace = learned(0.002)
    pace.observe(0.02)

    assert 0.002 < pace.overhead_s < 0.005


@pytest.mark.parametrize(("overhead_s", "ahead"), [(0.00005, False), (0.0002, True), (0.004, True), (0.0041, False)])
def test_a_batch_leaves_ahead_where_that_hides_time_and_forward_is_the_bottleneck(
    overhead_s: float, *, ahead: bool
) -> None:
    left_s = learned(overhead_s).send_ahead_s(0.008, 10.0)

    assert left_s == (pytest.approx(10.0 - overhead_s / 2 - 0.0002) if ahead else NEVER_S)


def test_a_batch_sent_just_when_the_one_before_came_back_found_the_runtime_free() -> None:
    assert learned().free_s(0.0072, sent_s=10.0, freed_s=10.0) == pytest.approx(10.0082)
