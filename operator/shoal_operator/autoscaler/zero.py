"""From the last replica to none, and back: the waiting room holds requests meanwhile.

    AWAKE ── nobody called for the delay ──▶ SETTLING ── rooms hold, nobody calls ──▶ ASLEEP
      ▲                                        │ a call                                │ a request waits
      ├────────────────────────────────────────┘                                       ▼
      └──────────────────────────── a pod is ready ──────────────────────────────── WAKING

What can be seen decides, so an operator that has just started goes on where another stopped: no replicas are ASLEEP,
replicas without a ready pod WAKING. How many replicas there are is decided here in those two phases alone, in which
there is no load that the law could follow.
"""

from dataclasses import dataclass
from enum import StrEnum

SETTLE_S = 3.0
"""How long the waiting room is among the endpoints before the pods go, so that every node's routing knows it."""


class Phase(StrEnum):
    """Where a service is on its way to zero and back."""

    AWAKE = "awake"
    SETTLING = "settling"
    """The waiting room is an endpoint beside the pods. What comes there is held: that is a call, and turns it back."""
    ASLEEP = "asleep"
    WAKING = "waking"


HOLDING = frozenset({Phase.SETTLING, Phase.ASLEEP})
"""Phases in which rooms forward nothing, though pods may be ready: they are about to go."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a service asks for.

    Args:
        delay_s: how long nobody must have called.
        maximum: replicas at most, >= 1.
        per_replica: waiting requests that one replica is started for, >= 1.
    """

    delay_s: float
    maximum: int
    per_replica: int

    def backlog(self, waiting: int) -> int:
        """Return the replicas that so many waiting requests are worth; at least one."""
        return max(1, min(self.maximum, -(-waiting // self.per_replica)))


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a service now.

    Args:
        replicas: ``spec.replicas``.
        ready: pods that answer.
        called: a pod was called since the last time; also where that is not known.
        waiting: requests that rooms hold.
        held: rooms hold what comes, and are among the Service's endpoints.
    """

    replicas: int
    ready: int
    called: bool
    waiting: int
    held: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered.

    Args:
        since_s: when the phase began.
        called_s: when somebody called last.
        replicas: what ``spec.replicas`` was.
        slept: it had no replicas since it was awake last.
    """

    phase: Phase
    since_s: float
    called_s: float
    replicas: int
    slept: bool = False

    @property
    def is_waking(self) -> bool:
        """Whether it slept, and no pod is ready yet."""
        return self.slept and self.phase is Phase.WAKING


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done; ``replicas`` is None where it is the law's to say."""

    phase: Phase
    replicas: int | None = None


def step(rule: Rule, seen: Seen, memory: Memory | None, now_s: float) -> tuple[Verdict, Memory]:
    """Return what is to be done now, and what to remember.

    Args:
        rule: what the service asks for.
        seen: what is known of it.
        memory: what the last call returned; None at first.
        now_s: monotonic time in seconds; must not go back between calls.
    """
    if memory is None:
        memory = Memory(Phase.AWAKE, now_s, now_s, seen.replicas)
    # More replicas, whoever set them, and a pod that has just become ready count as calls: both want to be used.
    called = seen.called or seen.waiting or seen.replicas > memory.replicas or memory.phase is Phase.WAKING
    called_s = now_s if called else memory.called_s
    verdict = _verdict(rule, seen, memory, now_s - called_s, now_s)
    since_s = memory.since_s if verdict.phase is memory.phase else now_s
    replicas = seen.replicas if verdict.replicas is None else verdict.replicas
    slept = verdict.phase is not Phase.AWAKE and (memory.slept or seen.replicas == 0)
    return verdict, Memory(verdict.phase, since_s, called_s, replicas, slept)


def _verdict(rule: Rule, seen: Seen, memory: Memory, quiet_s: float, now_s: float) -> Verdict:
    if seen.replicas == 0:
        if not seen.waiting:
            return Verdict(Phase.ASLEEP, 0)
        return Verdict(Phase.WAKING, rule.backlog(seen.waiting))
    if seen.ready == 0:
        return Verdict(Phase.WAKING, max(min(seen.replicas, rule.maximum), rule.backlog(seen.waiting)))
    if quiet_s < rule.delay_s:
        return Verdict(Phase.AWAKE)
    if memory.phase is not Phase.SETTLING:
        return Verdict(Phase.SETTLING)
    settled = seen.held and now_s - memory.since_s >= SETTLE_S
    return Verdict(Phase.ASLEEP, 0) if settled else Verdict(Phase.SETTLING)


def reason_of(rule: Rule, seen: Seen) -> str:
    """Return why a service has the replicas that a verdict gives it, in words."""
    if not seen.waiting:
        return f"nobody called for {rule.delay_s:g} s"
    return (
        "1 request waits in the waiting room"
        if seen.waiting == 1
        else f"{seen.waiting} requests wait in the waiting room"
    )
