"""Scale to zero and back: to zero after the delay once activators hold requests, back at the first request."""

from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.scaling.targets import ZeroPolicy
from shoal_operator.zero.decision import SETTLE_S, Phase, ZeroDecision, ZeroObservation, ZeroState, decide

POLICY = ZeroPolicy(delay_s=60, maximum=4, per_replica=10)


class Service:
    """A service with the last decided scale, whose pods are ready at once by default."""

    def __init__(self, replicas: int = 1, *, ready: bool = True) -> None:
        self.replicas, self.ready, self.held = replicas, ready, True
        self.state: ZeroState | None = None
        self.at(0)

    def at(self, now_s: float, *, requested: bool = False, waiting: int = 0) -> ZeroDecision:
        ready = self.replicas if self.ready else 0
        seen = ZeroObservation(self.replicas, ready, requested=requested, waiting=waiting, held=self.held)
        verdict, self.state = decide(POLICY, seen, self.state, now_s)
        self.replicas = self.replicas if verdict.replicas is None else verdict.replicas
        return verdict


def asleep() -> Service:
    service = Service()
    service.at(60)
    service.at(60 + SETTLE_S)
    assert service.replicas == 0
    return service


def test_service_without_requests_scales_to_zero_after_the_delay() -> None:
    service = Service()

    assert service.at(59.9) == ZeroDecision(Phase.AWAKE)
    assert service.at(60) == ZeroDecision(Phase.SETTLING)
    assert service.at(60 + SETTLE_S - 0.1) == ZeroDecision(Phase.SETTLING)
    assert service.at(60 + SETTLE_S) == ZeroDecision(Phase.ASLEEP, 0)


def test_each_request_restarts_the_delay() -> None:
    service = Service()

    service.at(50, requested=True)
    assert service.at(109) == ZeroDecision(Phase.AWAKE)
    assert service.at(110) == ZeroDecision(Phase.SETTLING)


def test_service_scales_to_zero_only_once_activators_hold_requests() -> None:
    service = Service()
    service.held = False
    service.at(60)

    assert service.at(1000) == ZeroDecision(Phase.SETTLING)
    service.held = True
    assert service.at(1001) == ZeroDecision(Phase.ASLEEP, 0)


def test_request_while_settling_cancels_scaling_to_zero() -> None:
    for call in ({"requested": True}, {"waiting": 1}):
        service = Service()
        service.at(60)
        assert service.at(61, **call) == ZeroDecision(Phase.AWAKE)
        assert service.at(120) == ZeroDecision(Phase.AWAKE)


def test_held_requests_start_pods_at_once_by_their_number() -> None:
    assert asleep().at(100, waiting=1) == ZeroDecision(Phase.WAKING, 1)
    assert asleep().at(100, waiting=11) == ZeroDecision(Phase.WAKING, 2)
    assert asleep().at(100, waiting=1000) == ZeroDecision(Phase.WAKING, 4)


def test_requests_held_while_waking_add_replicas_and_never_remove_any() -> None:
    service = asleep()
    service.ready = False
    service.at(100, waiting=1)

    assert service.at(101, waiting=35) == ZeroDecision(Phase.WAKING, 4)
    assert service.at(102, waiting=1) == ZeroDecision(Phase.WAKING, 4)
    service.ready = True
    assert service.at(103) == ZeroDecision(Phase.AWAKE)


def test_cancelled_request_does_not_stop_a_waking_service() -> None:
    service = asleep()
    service.ready = False
    service.at(100, waiting=1)

    assert service.at(500) == ZeroDecision(Phase.WAKING, 1)
    service.ready = True
    assert service.at(501) == ZeroDecision(Phase.AWAKE)
    assert service.at(560) == ZeroDecision(Phase.AWAKE)
    assert service.at(561) == ZeroDecision(Phase.SETTLING)


def test_replicas_set_by_a_user_are_kept_for_the_delay() -> None:
    service = Service()
    service.at(50)
    service.replicas = 3

    assert service.at(55) == ZeroDecision(Phase.AWAKE)
    assert service.at(114) == ZeroDecision(Phase.AWAKE)
    assert service.at(115) == ZeroDecision(Phase.SETTLING)


def test_restarted_operator_continues_from_observations() -> None:
    assert decide(POLICY, ZeroObservation(0, 0, requested=False, waiting=0, held=True), None, 5)[0] == ZeroDecision(
        Phase.ASLEEP, 0
    )
    assert decide(POLICY, ZeroObservation(0, 0, requested=False, waiting=1, held=True), None, 5)[0] == ZeroDecision(
        Phase.WAKING, 1
    )
    assert decide(POLICY, ZeroObservation(2, 0, requested=False, waiting=0, held=True), None, 5)[0] == ZeroDecision(
        Phase.WAKING, 2
    )
    assert decide(POLICY, ZeroObservation(2, 2, requested=False, waiting=0, held=True), None, 5)[0] == ZeroDecision(
        Phase.AWAKE
    )


seen = st.builds(
    ZeroObservation,
    replicas=st.integers(0, 5),
    ready=st.integers(0, 5),
    requested=st.booleans(),
    waiting=st.sampled_from((0, 0, 1, 7, 500)),
    held=st.booleans(),
)


@given(st.lists(st.tuples(st.sampled_from((0.1, 2.0, 31.0, 100.0)), seen), max_size=30))
def test_pods_stop_only_without_requests_while_activators_hold_and_no_request_is_dropped(
    events: list[tuple[float, ZeroObservation]],
) -> None:
    memory, now_s, quiet_since_s = None, 0.0, 0.0
    for after_s, one in events:
        now_s += after_s
        before = memory
        verdict, memory = decide(POLICY, one, memory, now_s)
        if before is None or one.requested or one.waiting:
            quiet_since_s = now_s
        if verdict.replicas == 0 and one.replicas:
            assert one.held
            assert not one.requested
            assert not one.waiting
            assert now_s - quiet_since_s >= POLICY.delay_s
            assert before is not None
            assert before.phase is Phase.SETTLING
        if one.waiting and not one.ready:
            assert (verdict.replicas or 0) >= 1
        if verdict.replicas is not None:
            assert 0 <= verdict.replicas <= POLICY.maximum
