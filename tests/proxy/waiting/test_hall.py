"""Who waits: within bounds, first come first forwarded, and each of them once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal_proxy.errors import BodyTooLarge, Overloaded
from shoal_proxy.waiting.hall import Hall
from shoal_proxy.waiting.line import PAUSE_S, Held
from shoal_schema.processes import WaitingProcess
from shoal_schema.waiting import RoomService

PODS = ("10.0.0.1:8080", "10.0.0.2:8080")
BOUNDS = WaitingProcess(max_requests=6, service_max_requests=4, max_bytes=2000, service_max_bytes=1500)


def service(name: str = "default/adder", *pods: str, forwards: int = 2, start_s: float | None = None) -> RoomService:
    return RoomService(
        name, 20000, addresses=tuple(pods), max_body_bytes=1000, forwards=forwards, start_s=start_s
    )  # fmt: skip


def held(now_s: float = 0.0) -> Held:
    return Held(now_s, lambda pod: None, lambda: None)


def standing(hall: Hall, name: str, size_bytes: int = 1, now_s: float = 0.0) -> Held:
    one = held(now_s)
    hall.enter(name, one, now_s)
    hall.grow(name, one, size_bytes, now_s)
    hall.lines[name].stand(one)
    return one


def test_nobody_is_forwarded_before_a_pod_is_ready_and_then_the_first_who_came() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service()])
    line = hall.lines["default/adder"]
    first, second, third = (standing(hall, "default/adder") for _ in range(3))

    assert line.turns(0) == []
    hall.follow([service("default/adder", PODS[0])])
    assert line.turns(0) == [(first, PODS[0]), (second, PODS[0])]
    assert hall.waiting() == {"default/adder": 1}
    hall.leave("default/adder", first)
    assert line.turns(0) == [(third, PODS[0])]


def test_who_came_whole_later_is_behind_who_began_later_and_came_whole_first() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service("default/adder", PODS[0], forwards=1)])
    line = hall.lines["default/adder"]
    slow = held()
    hall.enter("default/adder", slow, 0)
    quick = standing(hall, "default/adder")

    assert line.turns(0) == [(quick, PODS[0])]
    line.stand(slow)
    hall.leave("default/adder", quick)
    assert line.turns(0) == [(slow, PODS[0])]


def test_the_pod_with_the_fewest_is_next() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service("default/adder", *PODS)])
    for _ in range(4):
        standing(hall, "default/adder")

    assert [pod for _, pod in hall.lines["default/adder"].turns(0)] == [PODS[0], PODS[1], PODS[0], PODS[1]]


def test_who_was_not_run_keeps_its_place_and_that_pod_is_left_alone_for_a_moment() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service("default/adder", PODS[0], forwards=1)])
    line = hall.lines["default/adder"]
    first, second = standing(hall, "default/adder"), standing(hall, "default/adder")
    line.turns(0)

    line.back(first, 5.0)
    assert line.turns(5.0) == []
    assert line.next_look_s(5.0) == 5.0 + PAUSE_S
    assert line.turns(5.0 + PAUSE_S) == [(first, PODS[0])]
    hall.follow([service("default/adder", *PODS, forwards=1)])
    assert line.turns(5.0 + PAUSE_S) == [(second, PODS[1])]


def test_nobody_looks_for_a_pod_that_was_tried_again_and_is_busy() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service("default/adder", PODS[0], forwards=1)])
    line = hall.lines["default/adder"]
    first, _ = standing(hall, "default/adder"), standing(hall, "default/adder")
    line.turns(0)
    line.back(first, 0)

    assert line.turns(PAUSE_S) == [(first, PODS[0])]
    assert line.next_look_s(PAUSE_S) is None


def test_a_pod_that_was_silent_comes_last_and_gets_one_until_it_answers() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service("default/adder", *PODS)])
    line = hall.lines["default/adder"]
    for _ in range(4):
        standing(hall, "default/adder")
    line.was_silent(PODS[0], 0)

    assert [pod for _, pod in line.turns(PAUSE_S)] == [PODS[1], PODS[1], PODS[0]]
    line.has_answered(PODS[0])
    assert [pod for _, pod in line.turns(PAUSE_S)] == [PODS[0]]


def test_what_is_told_past_the_deadline_is_why() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service("default/adder", start_s=9.0)])
    one = standing(hall, "default/adder")
    asleep = hall.expired("default/adder", one, 1)
    hall.follow([service("default/adder", PODS[0], start_s=9.0)])
    busy = hall.expired("default/adder", one, 1)
    one.refusals = 3
    refused = hall.expired("default/adder", one, 1)

    assert [error.retry_after_s for error in (asleep, busy, refused)] == [8, 1, 1]
    assert "sleeps" in asleep.message
    assert "busy" in busy.message
    assert "refused 3 times" in refused.message


def test_too_many_too_much_and_too_large_are_refused_and_the_others_stay() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service(), service("default/cat"), service("default/dog", start_s=9.2)])
    for _ in range(4):
        standing(hall, "default/adder", 300)
    with pytest.raises(Overloaded, match="4 requests wait for this service"):
        hall.enter("default/adder", held(), 0)
    one = standing(hall, "default/cat", 700)
    with pytest.raises(Overloaded, match="the waiting room is full"):
        hall.grow("default/cat", one, 200, 0)
    with pytest.raises(BodyTooLarge, match="1000 bytes"):
        hall.grow("default/cat", one, 301, 0)
    standing(hall, "default/cat", 0)
    with pytest.raises(Overloaded) as refused:
        hall.enter("default/dog", held(), 0)

    assert refused.value.retry_after_s == 10
    assert (hall.requests, hall.size_bytes) == (6, 1900)


def test_retry_after_is_when_the_pod_should_be_ready_by_the_last_start() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service(start_s=30.0)])
    standing(hall, "default/adder", now_s=100.0)

    assert [hall.lines["default/adder"].retry_after_s(at) for at in (100.0, 110.5, 129.5, 500.0)] == [30, 20, 1, 1]


def test_those_who_waited_for_a_service_that_is_no_more_are_told_and_forgotten() -> None:
    hall = Hall(BOUNDS)
    hall.follow([service(), service("default/cat")])
    one, other = standing(hall, "default/adder"), standing(hall, "default/cat")

    assert hall.follow([service("default/cat")]) == [one]
    hall.leave("default/adder", one)
    assert (hall.requests, hall.waiting()) == (1, {"default/cat": 1})
    assert not other.gone


class Room(RuleBasedStateMachine):
    """Requests come, grow, stand, are forwarded, come back and leave, pods come and go; in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall(BOUNDS)
        self.now_s = 0.0
        self.hall.follow([service()])
        self.coming: list[Held] = []
        self.standing: list[Held] = []
        self.at_pods: dict[Held, str] = {}

    @property
    def line(self):  # type: ignore[no-untyped-def]
        return self.hall.lines["default/adder"]

    @rule()
    def comes(self) -> None:
        one = held(self.now_s)
        try:
            self.hall.enter("default/adder", one, self.now_s)
        except Overloaded:
            assert len(self.line.held) == BOUNDS.service_max_requests
        else:
            self.coming.append(one)

    @precondition(lambda self: self.coming)
    @rule(data=st.data(), size_bytes=st.integers(0, 600))
    def grows(self, data: st.DataObject, size_bytes: int) -> None:
        one = data.draw(st.sampled_from(self.coming))
        try:
            self.hall.grow("default/adder", one, size_bytes, self.now_s)
        except (Overloaded, BodyTooLarge):
            self.hall.leave("default/adder", one)
            self.coming.remove(one)

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def stands(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.coming))
        self.coming.remove(one)
        self.line.stand(one)
        self.standing.append(one)

    @rule(pods=st.sets(st.sampled_from(PODS)), after_s=st.sampled_from((0.0, 0.1, PAUSE_S)))
    def pods_are(self, pods: set[str], after_s: float) -> None:
        self.now_s += after_s
        self.hall.follow([service("default/adder", *sorted(pods))])

    @rule()
    def turns(self) -> None:
        for one, pod in self.line.turns(self.now_s):
            assert one is self.standing[0], "first come, first forwarded"
            assert pod in self.line.service.addresses
            self.standing.remove(one)
            self.at_pods[one] = pod

    @precondition(lambda self: self.at_pods)
    @rule(data=st.data(), ran=st.booleans())
    def a_pod_is_done(self, data: st.DataObject, ran: bool) -> None:
        one = data.draw(st.sampled_from(sorted(self.at_pods, key=lambda each: each.order)))
        del self.at_pods[one]
        if ran:
            self.hall.leave("default/adder", one)
        else:
            self.line.back(one, self.now_s)
            self.standing = sorted([*self.standing, one], key=lambda each: each.order)

    @precondition(lambda self: self.standing or self.at_pods or self.coming)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        everybody = [*self.standing, *self.at_pods, *self.coming]
        one = everybody[data.draw(st.integers(0, len(everybody) - 1))]
        self.hall.leave("default/adder", one)
        self.hall.leave("default/adder", one)
        self.standing = [each for each in self.standing if each is not one]
        self.coming = [each for each in self.coming if each is not one]
        self.at_pods.pop(one, None)

    @invariant()
    def nobody_is_lost_and_the_counts_are_true(self) -> None:
        everybody = {*self.standing, *self.at_pods, *self.coming}
        assert self.line.held == everybody
        assert self.hall.requests == len(everybody) <= BOUNDS.service_max_requests
        assert self.hall.size_bytes == sum(one.size_bytes for one in everybody) <= BOUNDS.service_max_bytes
        assert self.line.waiting == len(everybody) - len(self.at_pods)
        assert all(list(self.at_pods.values()).count(pod) <= 2 for pod in PODS)


TestRoom = Room.TestCase


@given(st.permutations(range(4)))
def test_all_who_stand_are_forwarded_in_the_end_each_once(order: list[int]) -> None:
    hall = Hall(BOUNDS)
    hall.follow([service("default/adder", PODS[0], forwards=1)])
    line = hall.lines["default/adder"]
    waiting = [standing(hall, "default/adder") for _ in order]
    seen, now_s = [], 0.0
    for _ in range(20):
        for one, _ in line.turns(now_s):
            if waiting.index(one) in order[:2] and one not in seen:
                line.back(one, now_s)
                order = [each for each in order if each != waiting.index(one)]
            else:
                hall.leave("default/adder", one)
                seen.append(one)
        now_s += PAUSE_S

    assert seen == waiting
