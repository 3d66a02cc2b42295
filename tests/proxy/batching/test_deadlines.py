import hypothesis.strategies as st
from hypothesis import given, settings

from shoal_proxy.batching.pending import NEVER_S, Deadlines
from tests.proxy.signatures import request


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans())), st.floats(0, 100))
@settings(deadline=None)
def test_deadlines_expire_in_order_and_without_the_resolved(entries: list[tuple[float, bool]], now_s: float) -> None:
    deadlines = Deadlines()
    for deadline_s, resolved in entries:
        pending = request(1, deadline_s=deadline_s)
        deadlines.add(pending)
        if resolved:
            pending.abandon()

    expired = [pending.deadline_s for pending in deadlines.expired(now_s)]

    live = sorted(deadline_s for deadline_s, resolved in entries if not resolved)
    assert expired == [deadline_s for deadline_s in live if deadline_s <= now_s]
    later = [deadline_s for deadline_s in live if deadline_s > now_s]
    assert deadlines.next_s == (later[0] if later else NEVER_S)


def test_resolved_requests_do_not_pile_up_until_their_deadlines() -> None:
    deadlines = Deadlines()
    live = [request(1) for _ in range(10)]
    for pending in live:
        deadlines.add(pending)

    for _ in range(20_000):
        pending = request(1)
        pending.abandon()
        deadlines.add(pending)

    assert len(deadlines._heap) <= 256 + 2 * len(live) + 1
    assert deadlines.expired(60.0) == live
