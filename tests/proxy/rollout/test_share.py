"""The share of requests that go to a candidate: exact, even, and the same for each client."""

from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.rollout.share import ExactShare, is_in_share

SHARES = st.floats(0, 1)


@given(SHARES, st.integers(1, 500))
def test_after_any_number_of_events_the_share_is_exact_to_one(share: float, events: int) -> None:
    counter, taken = ExactShare(), 0
    for number in range(1, events + 1):
        taken += counter.takes(share)
        assert abs(taken - number * share) <= 1 + 1e-9


@given(st.lists(SHARES, max_size=200))
def test_a_share_that_changes_is_exact_too(shares: list[float]) -> None:
    counter = ExactShare()
    taken = sum(counter.takes(share) for share in shares)
    assert abs(taken - sum(shares)) <= 2 + sum(share >= 1 for share in shares) * 1e-9


@given(st.lists(SHARES, max_size=50))
def test_none_and_all_are_exact_whatever_was_before(before: list[float]) -> None:
    counter = ExactShare()
    for share in before:
        counter.takes(share)
    assert not any(counter.takes(0.0) for _ in range(20))
    assert all(counter.takes(1.0) for _ in range(20))


def test_clients_in_turn_are_chosen_alike() -> None:
    counter, chosen = ExactShare(), [0, 0]
    for number in range(4000):
        chosen[number % 2] += counter.takes(0.5)
    assert abs(chosen[0] - chosen[1]) < 100


@given(st.binary(max_size=40), SHARES, SHARES)
def test_a_client_stays_chosen_while_the_share_rises(value: bytes, share: float, other: float) -> None:
    low, high = sorted((share, other))
    assert is_in_share(value, "a1", low) <= is_in_share(value, "a1", high)


def test_each_revision_chooses_its_share_and_other_clients() -> None:
    clients = [b"user-%d" % number for number in range(4000)]
    first, second = ({each for each in clients if is_in_share(each, name, 0.1)} for name in ("a1", "b2"))
    assert 320 < len(first) < 480
    assert len(first & second) < 80
    assert all(is_in_share(each, "a1", 1.0) for each in clients)
    assert not any(is_in_share(each, "a1", 0.0) for each in clients)
