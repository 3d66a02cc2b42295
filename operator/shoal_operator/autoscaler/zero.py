"""Scale to zero and back, while the activator holds requests.

    AWAKE ── no request for the delay ──▶ SETTLING ── activators hold, no request ──▶ ASLEEP
      ▲                                      │ a request                                │ a held request
      ├──────────────────────────────────────┘                                          ▼
      └──────────────────────────── a pod is ready ──────────────────────────────── WAKING

The phase follows from observations, so that a restarted operator continues: no replicas are ASLEEP, replicas without a
ready pod are WAKING. Only in these two phases are replicas decided here, as there is no load to follow.
"""

from dataclasses import dataclass
from enum import StrEnum

SETTLE_S = 3.0
"""Time that activators are endpoints before the pods stop, so that every node's routing includes them."""


class Phase(StrEnum):
    """The phase of scaling to zero and back."""

    AWAKE = "awake"
    SETTLING = "settling"
    """Activators are endpoints beside the pods; a request that they receive ends the phase."""
    ASLEEP = "asleep"
    WAKING = "waking"


HOLDING = frozenset({Phase.SETTLING, Phase.ASLEEP})
"""Phases in which activators forward nothing, even to ready pods, which are about to stop."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings of a service that scales to zero."""

    delay_s: float
    """Time without requests before scaling to zero (s)."""
    maximum: int
    """Maximum of replicas, >= 1."""
    per_replica: int
    """Held requests for each replica to start, >= 1."""

    def backlog(self, waiting: int) -> int:
        """Return the replicas for a number of held requests; at least one."""
        return max(1, min(self.maximum, -(-waiting // self.per_replica)))


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations of a service."""

    replicas: int
    """``spec.replicas``."""
    ready: int
    """Ready pods."""
    called: bool
    """A pod received a request since the last call, or may have."""
    waiting: int
    """Requests held by activators."""
    held: bool
    """Activators hold requests and are endpoints of the Service."""


@dataclass(frozen=True, slots=True)
class Memory:
    """State between calls; times in monotonic seconds."""

    phase: Phase
    since_s: float
    """Start of the phase."""
    called_s: float
    """Time of the last request."""
    replicas: int
    """The last ``spec.replicas``."""
    slept: bool = False
    """It had no replicas since it was last awake."""

    @property
    def is_waking(self) -> bool:
        """Whether the service starts from zero, and no pod is ready yet."""
        return self.slept and self.phase is Phase.WAKING


@dataclass(frozen=True, slots=True)
class Verdict:
    """The phase and replicas to set."""

    phase: Phase
    replicas: int | None = None
    """None if the load decides."""


def step(rule: Rule, seen: Seen, memory: Memory | None, now_s: float) -> tuple[Verdict, Memory]:
    """Return the verdict and the next state.

    Args:
        rule: settings of the service.
        seen: observations.
        memory: state of the last call; None at first.
        now_s: monotonic time (s); must not decrease between calls.
    """
    if memory is None:
        memory = Memory(Phase.AWAKE, now_s, now_s, seen.replicas)
    # An increase of replicas from outside, and a pod that just became ready, restart the delay like requests.
    called = seen.called or seen.waiting or seen.replicas > memory.replicas or memory.phase is Phase.WAKING
    called_s = now_s if called else memory.called_s
    verdict = _verdict(rule, seen, memory, now_s - called_s, now_s)
    since_s = memory.since_s if verdict.phase is memory.phase else now_s
    replicas = seen.replicas if verdict.replicas is None else verdict.replicas
    slept = verdict.phase is not Phase.AWAKE and (memory.slept or seen.replicas == 0)
    return verdict, Memory(verdict.phase, since_s, called_s, replicas, slept)


def _verdict(rule: Rule, seen: Seen, memory: Memory, quiet_s: float, now_s: float) -> Verdict:
    # At zero: start when a request is held.
    if seen.replicas == 0:
        if not seen.waiting:
            return Verdict(Phase.ASLEEP, 0)
        return Verdict(Phase.WAKING, rule.backlog(seen.waiting))
    # Starting: more replicas if more requests are held.
    if seen.ready == 0:
        return Verdict(Phase.WAKING, max(min(seen.replicas, rule.maximum), rule.backlog(seen.waiting)))
    if quiet_s < rule.delay_s:
        return Verdict(Phase.AWAKE)
    if memory.phase is not Phase.SETTLING:
        return Verdict(Phase.SETTLING)
    # Pods stop once activators hold all requests and every node routes to them.
    settled = seen.held and now_s - memory.since_s >= SETTLE_S
    return Verdict(Phase.ASLEEP, 0) if settled else Verdict(Phase.SETTLING)


def reason_of(rule: Rule, seen: Seen) -> str:
    """Return the explanation of a verdict's replicas."""
    if not seen.waiting:
        return f"no requests for {rule.delay_s:g} s"
    return f"{seen.waiting} request{'' if seen.waiting == 1 else 's'} held in the activator"
