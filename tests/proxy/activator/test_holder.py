"""HeldRequest requests: within limits, in order, each forwarded once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal_proxy.activator.holder import RequestHolder
from shoal_proxy.activator.queue import PAUSE_S, HeldRequest
from shoal_proxy.errors import BodyTooLarge, Overloaded
from shoal_schema.interfaces.activator import ActivatorService
from shoal_schema.process.settings.activator import ActivatorProcess

PODS = ("10.0.0.1:8080", "10.0.0.2:8080")
BOUNDS = ActivatorProcess(max_requests=6, service_max_requests=4, max_bytes=2000, service_max_bytes=1500)


def service(
    name: str = "default/adder", *pods: str, forwards: int = 2, start_s: float | None = None
) -> ActivatorService:
    return ActivatorService(
        name, 20000, addresses=tuple(pods), max_body_bytes=1000, forwards=forwards, start_s=start_s
    )  # fmt: skip


def held(now_s: float = 0.0) -> HeldRequest:
    return HeldRequest(now_s, lambda pod: None, lambda: None)


def enqueued(holder: RequestHolder, name: str, size_bytes: int = 1, now_s: float = 0.0) -> HeldRequest:
    one = held(now_s)
    holder.enter(name, one, now_s)
    holder.grow(name, one, size_bytes, now_s)
    holder.queues[name].enqueue(one)
    return one


def test_requests_are_forwarded_in_order_once_a_pod_is_ready() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service()])
    queue = holder.queues["default/adder"]
    first, second, third = (enqueued(holder, "default/adder") for _ in range(3))

    assert queue.release(0) == []
    holder.follow([service("default/adder", PODS[0])])
    assert queue.release(0) == [(first, PODS[0]), (second, PODS[0])]
    assert holder.waiting() == {"default/adder": 1}
    holder.leave("default/adder", first)
    assert queue.release(0) == [(third, PODS[0])]


def test_requests_are_ordered_by_when_their_bodies_were_complete() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service("default/adder", PODS[0], forwards=1)])
    queue = holder.queues["default/adder"]
    slow = held()
    holder.enter("default/adder", slow, 0)
    quick = enqueued(holder, "default/adder")

    assert queue.release(0) == [(quick, PODS[0])]
    queue.enqueue(slow)
    holder.leave("default/adder", quick)
    assert queue.release(0) == [(slow, PODS[0])]


def test_the_pod_with_the_fewest_requests_is_next() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service("default/adder", *PODS)])
    for _ in range(4):
        enqueued(holder, "default/adder")

    assert [pod for _, pod in holder.queues["default/adder"].release(0)] == [PODS[0], PODS[1], PODS[0], PODS[1]]


def test_a_rejected_request_keeps_its_position_and_its_pod_is_skipped() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service("default/adder", PODS[0], forwards=1)])
    queue = holder.queues["default/adder"]
    first, second = enqueued(holder, "default/adder"), enqueued(holder, "default/adder")
    queue.release(0)

    queue.requeue(first, 5.0)
    assert queue.release(5.0) == []
    assert queue.next_release_s(5.0) == 5.0 + PAUSE_S
    assert queue.release(5.0 + PAUSE_S) == [(first, PODS[0])]
    holder.follow([service("default/adder", *PODS, forwards=1)])
    assert queue.release(5.0 + PAUSE_S) == [(second, PODS[1])]


def test_no_release_is_scheduled_for_a_busy_pod() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service("default/adder", PODS[0], forwards=1)])
    queue = holder.queues["default/adder"]
    first, _ = enqueued(holder, "default/adder"), enqueued(holder, "default/adder")
    queue.release(0)
    queue.requeue(first, 0)

    assert queue.release(PAUSE_S) == [(first, PODS[0])]
    assert queue.next_release_s(PAUSE_S) is None


def test_an_unresponsive_pod_is_last_and_gets_one_request_until_it_responds() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service("default/adder", *PODS)])
    queue = holder.queues["default/adder"]
    for _ in range(4):
        enqueued(holder, "default/adder")
    queue.record_timeout(PODS[0], 0)

    assert [pod for _, pod in queue.release(PAUSE_S)] == [PODS[1], PODS[1], PODS[0]]
    queue.record_response(PODS[0])
    assert [pod for _, pod in queue.release(PAUSE_S)] == [PODS[0]]


def test_the_error_past_the_deadline_states_the_cause() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service("default/adder", start_s=9.0)])
    one = enqueued(holder, "default/adder")
    asleep = holder.expired("default/adder", one, 1)
    holder.follow([service("default/adder", PODS[0], start_s=9.0)])
    busy = holder.expired("default/adder", one, 1)
    one.refusals = 3
    refused = holder.expired("default/adder", one, 1)

    assert [error.retry_after_s for error in (asleep, busy, refused)] == [8, 1, 1]
    assert "starting" in asleep.message
    assert "busy" in busy.message
    assert "rejected 3 times" in refused.message


def test_requests_over_a_limit_are_rejected_and_the_others_stay() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service(), service("default/cat"), service("default/dog", start_s=9.2)])
    for _ in range(4):
        enqueued(holder, "default/adder", 300)
    with pytest.raises(Overloaded, match="4 requests wait for this service"):
        holder.enter("default/adder", held(), 0)
    one = enqueued(holder, "default/cat", 700)
    with pytest.raises(Overloaded, match="is full"):
        holder.grow("default/cat", one, 200, 0)
    with pytest.raises(BodyTooLarge, match="1000 bytes"):
        holder.grow("default/cat", one, 301, 0)
    enqueued(holder, "default/cat", 0)
    with pytest.raises(Overloaded) as refused:
        holder.enter("default/dog", held(), 0)

    assert refused.value.retry_after_s == 10
    assert (holder.requests, holder.size_bytes) == (6, 1900)


def test_retry_after_is_when_the_pod_should_be_ready_by_the_last_start() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service(start_s=30.0)])
    enqueued(holder, "default/adder", now_s=100.0)

    assert [holder.queues["default/adder"].retry_after_s(at) for at in (100.0, 110.5, 129.5, 500.0)] == [30, 20, 1, 1]


def test_requests_of_a_deleted_service_are_returned_and_removed() -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service(), service("default/cat")])
    one, other = enqueued(holder, "default/adder"), enqueued(holder, "default/cat")

    assert holder.follow([service("default/cat")]) == [one]
    holder.leave("default/adder", one)
    assert (holder.requests, holder.waiting()) == (1, {"default/cat": 1})
    assert not other.gone


class Holding(RuleBasedStateMachine):
    """Requests arrive, grow, are enqueued, forwarded, refused and removed while pods change, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = RequestHolder(BOUNDS)
        self.now_s = 0.0
        self.holder.follow([service()])
        self.coming: list[HeldRequest] = []
        self.enqueued: list[HeldRequest] = []
        self.at_pods: dict[HeldRequest, str] = {}

    @property
    def queue(self):  # type: ignore[no-untyped-def]
        return self.holder.queues["default/adder"]

    @rule()
    def comes(self) -> None:
        one = held(self.now_s)
        try:
            self.holder.enter("default/adder", one, self.now_s)
        except Overloaded:
            assert len(self.queue.held) == BOUNDS.service_max_requests
        else:
            self.coming.append(one)

    @precondition(lambda self: self.coming)
    @rule(data=st.data(), size_bytes=st.integers(0, 600))
    def grows(self, data: st.DataObject, size_bytes: int) -> None:
        one = data.draw(st.sampled_from(self.coming))
        try:
            self.holder.grow("default/adder", one, size_bytes, self.now_s)
        except (Overloaded, BodyTooLarge):
            self.holder.leave("default/adder", one)
            self.coming.remove(one)

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def stands(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.coming))
        self.coming.remove(one)
        self.queue.enqueue(one)
        self.enqueued = sorted([*self.enqueued, one], key=lambda each: each.order)

    @rule(pods=st.sets(st.sampled_from(PODS)), after_s=st.sampled_from((0.0, 0.1, PAUSE_S)))
    def pods_are(self, pods: set[str], after_s: float) -> None:
        self.now_s += after_s
        self.holder.follow([service("default/adder", *sorted(pods))])

    @rule()
    def turns(self) -> None:
        for one, pod in self.queue.release(self.now_s):
            assert one is self.enqueued[0], "first come, first forwarded"
            assert pod in self.queue.service.addresses
            self.enqueued.remove(one)
            self.at_pods[one] = pod

    @precondition(lambda self: self.at_pods)
    @rule(data=st.data(), ran=st.booleans())
    def a_pod_is_done(self, data: st.DataObject, ran: bool) -> None:
        one = data.draw(st.sampled_from(sorted(self.at_pods, key=lambda each: each.order)))
        del self.at_pods[one]
        if ran:
            self.holder.leave("default/adder", one)
        else:
            self.queue.requeue(one, self.now_s)
            self.enqueued = sorted([*self.enqueued, one], key=lambda each: each.order)

    @precondition(lambda self: self.enqueued or self.at_pods or self.coming)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        every = [*self.enqueued, *self.at_pods, *self.coming]
        one = every[data.draw(st.integers(0, len(every) - 1))]
        self.holder.leave("default/adder", one)
        self.holder.leave("default/adder", one)
        self.enqueued = [each for each in self.enqueued if each is not one]
        self.coming = [each for each in self.coming if each is not one]
        self.at_pods.pop(one, None)

    @invariant()
    def no_request_is_lost_and_the_counts_are_correct(self) -> None:
        every = {*self.enqueued, *self.at_pods, *self.coming}
        assert self.queue.held == every
        assert self.holder.requests == len(every) <= BOUNDS.service_max_requests
        assert self.holder.size_bytes == sum(one.size_bytes for one in every) <= BOUNDS.service_max_bytes
        assert self.queue.waiting == len(every) - len(self.at_pods)
        assert all(list(self.at_pods.values()).count(pod) <= 2 for pod in PODS)


TestHolding = Holding.TestCase


@given(st.permutations(range(4)))
def test_all_enqueued_requests_are_forwarded_once(order: list[int]) -> None:
    holder = RequestHolder(BOUNDS)
    holder.follow([service("default/adder", PODS[0], forwards=1)])
    queue = holder.queues["default/adder"]
    waiting = [enqueued(holder, "default/adder") for _ in order]
    seen, now_s = [], 0.0
    for _ in range(20):
        for one, _ in queue.release(now_s):
            if waiting.index(one) in order[:2] and one not in seen:
                queue.requeue(one, now_s)
                order = [each for each in order if each != waiting.index(one)]
            else:
                holder.leave("default/adder", one)
                seen.append(one)
        now_s += PAUSE_S

    assert seen == waiting
