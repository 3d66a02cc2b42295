"""Scale to zero and back, while the activator holds requests.

    AWAKE ── no request for the delay ──▶ SETTLING ── activators hold, no request ──▶ ASLEEP
      ▲                                      │ a request                                │ a held request
      ├──────────────────────────────────────┘                                          ▼
      └──────────────────────────── a pod is ready ──────────────────────────────── WAKING

The phase follows from observations, so that a restarted operator continues: no replicas are ASLEEP, replicas without a
ready pod are WAKING. Only in these two phases this module decides the replicas, as there is no load to follow.
"""

from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.scaling.targets import ZeroPolicy

SETTLE_S = 3.0
"""Time that activators are endpoints before the pods stop, so that every node's routing includes them."""


class Phase(StrEnum):
    """Phase of a service that scales to zero and back."""

    AWAKE = "awake"
    SETTLING = "settling"
    """Activators are endpoints beside the pods; a request that they receive ends the phase."""
    ASLEEP = "asleep"
    WAKING = "waking"


HOLDING = frozenset({Phase.SETTLING, Phase.ASLEEP})
"""Phases in which activators forward nothing, even to ready pods, which are about to stop."""


@dataclass(frozen=True, slots=True)
class ZeroObservation:
    """Observed replicas and requests of a service that scales to zero."""

    replicas: int
    """``spec.replicas``."""
    ready: int
    """Ready pods."""
    requested: bool
    """A pod received a request since the last call, or may have."""
    waiting: int
    """Requests held by activators."""
    held: bool
    """Activators hold requests and are endpoints of the Service."""


@dataclass(frozen=True, slots=True)
class ZeroState:
    """One service's scale-to-zero state between calls (times: monotonic s)."""

    phase: Phase
    since_s: float
    """Start of the phase."""
    requested_s: float
    """Time of the last request."""
    replicas: int
    """The last ``spec.replicas``."""
    was_at_zero: bool = False
    """It had no replicas since it was last awake."""

    @property
    def is_waking(self) -> bool:
        """Whether the service starts from zero, and no pod is ready yet."""
        return self.was_at_zero and self.phase is Phase.WAKING


@dataclass(frozen=True, slots=True)
class ZeroDecision:
    """Next phase and replicas of a service that scales to zero."""

    phase: Phase
    replicas: int | None = None
    """None if the load decides."""


def decide(
    policy: ZeroPolicy, observation: ZeroObservation, state: ZeroState | None, now_s: float
) -> tuple[ZeroDecision, ZeroState]:
    """Return the decision on scaling to zero or back, and the next state.

    Args:
        policy: settings of the service.
        observation: observed replicas and requests of the service.
        state: state that the last call returned; None at first.
        now_s: monotonic time (s); must not decrease between calls.
    """
    if state is None:
        state = ZeroState(Phase.AWAKE, now_s, now_s, observation.replicas)
    # An increase of replicas from outside, and a pod that just became ready, restart the delay like requests.
    requested = (
        observation.requested
        or observation.waiting
        or observation.replicas > state.replicas
        or state.phase is Phase.WAKING
    )
    requested_s = now_s if requested else state.requested_s
    decision = _decision(policy, observation, state, now_s - requested_s, now_s)
    since_s = state.since_s if decision.phase is state.phase else now_s
    replicas = observation.replicas if decision.replicas is None else decision.replicas
    was_at_zero = decision.phase is not Phase.AWAKE and (state.was_at_zero or observation.replicas == 0)
    return decision, ZeroState(decision.phase, since_s, requested_s, replicas, was_at_zero)


def _decision(
    policy: ZeroPolicy, observation: ZeroObservation, state: ZeroState, quiet_s: float, now_s: float
) -> ZeroDecision:
    # At zero: start when a request is held.
    if observation.replicas == 0:
        if not observation.waiting:
            return ZeroDecision(Phase.ASLEEP, 0)
        return ZeroDecision(Phase.WAKING, policy.backlog(observation.waiting))
    # Starting: more replicas if more requests are held.
    if observation.ready == 0:
        return ZeroDecision(
            Phase.WAKING, max(min(observation.replicas, policy.maximum), policy.backlog(observation.waiting))
        )
    if quiet_s < policy.delay_s:
        return ZeroDecision(Phase.AWAKE)
    if state.phase is not Phase.SETTLING:
        return ZeroDecision(Phase.SETTLING)
    # Pods stop once activators hold all requests and every node routes to them.
    settled = observation.held and now_s - state.since_s >= SETTLE_S
    return ZeroDecision(Phase.ASLEEP, 0) if settled else ZeroDecision(Phase.SETTLING)


def scaling_reason(policy: ZeroPolicy, observation: ZeroObservation) -> str:
    """Return why a service scales to or from zero, for logs and Events."""
    if not observation.waiting:
        return f"no requests for {policy.delay_s:g} s"
    return f"{observation.waiting} request{'' if observation.waiting == 1 else 's'} held in the activator"
