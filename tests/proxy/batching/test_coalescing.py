from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shoal_proxy.batching.pending import BatchKey, LaneKey, Outcome, PendingRequest, RequestResult
from shoal_proxy.batching.recovery import Coalescing
from tests.proxy.signatures import deliver_outcome, request

ANSWER = RequestResult({}, {})


@dataclass(eq=False)
class Client:
    pending: PendingRequest
    payload: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)


def client(payload: float = 1.0, *, key: BatchKey | None = None, arrived_s: float = 0.0) -> Client:
    outcomes: list[Outcome] = []
    inputs = {"x": np.array([[payload]], np.float32)}
    made = request(inputs, deliver=outcomes.append, key=key or BatchKey(), arrived_s=arrived_s)
    return Client(made, payload, outcomes)


def test_identical_clients_get_the_outcome_of_the_one_that_ran() -> None:
    coalescing, clients = Coalescing(), [client() for _ in range(3)]
    shared, *others = [coalescing.join(one.pending) for one in clients]
    assert shared is not None
    assert others == [None, None]
    shared.timing = b"batch;dur=1"

    deliver_outcome(coalescing.deliveries(shared, ANSWER))

    assert [one.outcomes for one in clients] == [[ANSWER]] * 3
    assert {one.pending.timing for one in clients} == {b"batch;dur=1"}
    assert coalescing.join(client().pending) is not None, "what is answered is shared no longer"


def change(pending: PendingRequest, **values: Any) -> PendingRequest:
    for name, value in values.items():
        setattr(pending, name, value)
    return pending


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(client(2.0).pending, id="another payload"),
        pytest.param(client(key=BatchKey(parameters=b"{}")).pending, id="other parameters"),
        pytest.param(change(client().pending, lengths={"x": [0]}), id="the same, but as padding"),
        pytest.param(change(client().pending, lane=LaneKey(b"", 3)), id="another priority"),
        pytest.param(change(client().pending, lane=LaneKey(b"bob")), id="another class"),
        pytest.param(change(client().pending, soft_deadline_s=0.05), id="less time to live"),
    ],
)
def test_a_request_that_differs_in_what_matters_runs_on_its_own(other: PendingRequest) -> None:
    coalescing = Coalescing()
    coalescing.join(client().pending)

    assert coalescing.join(other) is not None


def test_clients_with_the_same_time_to_live_share_although_they_came_apart() -> None:
    coalescing = Coalescing()
    first, second = client(arrived_s=1.1), client(arrived_s=7.3)
    for one in (first, second):
        one.pending.soft_deadline_s = one.pending.deadline_s = one.pending.arrived_s + 0.1

    shared = coalescing.join(first.pending)

    assert coalescing.join(second.pending) is None
    assert shared is not None
    assert shared.deadline_s == second.pending.deadline_s, "the batch is waited for as long as anybody waits"


def test_each_is_forwarded_with_its_own_waiting_time() -> None:
    coalescing, clients = Coalescing(), [client(arrived_s=1.0), client(arrived_s=1.2), client(arrived_s=9.0)]
    shared, *_ = [coalescing.join(one.pending) for one in clients]
    assert shared is not None
    shared.queued_s = 0.5

    deliver_outcome(coalescing.deliveries(shared, ANSWER))

    assert [one.pending.queued_s for one in clients] == pytest.approx([0.5, 0.3, 0.0])


def test_payloads_that_do_not_run_are_not_kept() -> None:
    coalescing, first, second = Coalescing(), client(), client()
    shared = coalescing.join(first.pending)
    coalescing.join(second.pending)

    assert second.pending.inputs == {}
    assert shared is not None
    assert shared.inputs["x"].tolist() == [[1.0]]


def test_a_request_that_arrives_after_the_start_runs_on_its_own_and_shares_with_those_after() -> None:
    coalescing, first, late, later = Coalescing(), client(), client(arrived_s=0.9), client(arrived_s=0.95)
    begun = coalescing.join(first.pending)
    assert begun is not None
    begun.dequeued_rows = 1

    own = coalescing.join(late.pending)

    assert own is not None, "the runtime has the first one's deadline"
    assert coalescing.join(later.pending) is None
    deliver_outcome(coalescing.deliveries(begun, ANSWER))
    assert (first.outcomes, late.outcomes, later.outcomes) == ([ANSWER], [], [])
    deliver_outcome(coalescing.deliveries(own, ANSWER))
    assert late.outcomes == later.outcomes == [ANSWER]
    assert coalescing.empty


class CoalescingMachine(RuleBasedStateMachine):
    """Clients come, go and are answered in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.coalescing = Coalescing()
        self.running: dict[float, tuple[PendingRequest, list[Client]]] = {}

    @rule(payload=st.sampled_from([1.0, 2.0]))
    def join(self, payload: float) -> None:
        one = client(payload)
        shared = self.coalescing.join(one.pending)
        assert (shared is None) == (payload in self.running)
        if shared is not None:
            self.running[payload] = (shared, [])
        self.running[payload][1].append(one)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        payload = data.draw(st.sampled_from(sorted(self.running)))
        shared, clients = self.running[payload]
        one = clients.pop(data.draw(st.integers(0, len(clients) - 1)))
        one.pending.abandon()
        assert self.coalescing.leave(one.pending) is (None if clients else shared)
        assert self.coalescing.leave(one.pending) is None
        if not clients:
            del self.running[payload]
            shared.abandon()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        payload = data.draw(st.sampled_from(sorted(self.running)))
        shared, clients = self.running.pop(payload)
        deliver_outcome(self.coalescing.deliveries(shared, ANSWER))
        assert [one.outcomes for one in clients] == [[ANSWER]] * len(clients)

    @invariant()
    def nothing_is_kept_of_those_who_are_gone(self) -> None:
        assert self.coalescing.empty == (not self.running)
        for shared, clients in self.running.values():
            assert all(self.coalescing.executed_for(one.pending) is shared for one in clients)


CoalescingMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestCoalescing = CoalescingMachine.TestCase
