"""The decision on a service's replicas, from its pods' loads and earlier decisions.

    want     that of the long window, or that of the short window where it is much larger (`want`)
    up       at once, to the want, within a rate limit (`down.most_up`)
    down     to the highest want of the last minutes (`down.remember`), by half per minute at most; never in panic,
             during a rollout, or while a pod cannot be read

Without data the count is held. A held count also counts as a want, so that replicas do not drop after a gap. The first
state is panic, so that a restarted operator keeps the existing count until it has data.

The count is stored in ``spec.replicas`` alone, which users may set too (``kubectl scale``). A foreign count replaces
the state: it is accepted and held for the window, unless the load requires more.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from shoal_operator.autoscaler.aim import Aim
from shoal_operator.autoscaler.down import TOLERANCE, UP_PERIOD_S, Counts, least_down, most_up, remember, whole
from shoal_operator.autoscaler.explanation import Explanation, Window
from shoal_operator.autoscaler.panic import HOLD_S, STRAINED_TICKS, panic_until_s, strained
from shoal_operator.autoscaler.signals import Signals
from shoal_operator.autoscaler.want import Want, want
from shoal_schema.conditions import Reason, ScalingReason

WINDOW_S = 300.0
BLIND_S = 30.0
"""A shorter gap in the data is not reported."""
SURPRISE = 1.2
"""The short window counts from this multiple of the ready replicas; below it, six seconds are mostly noise."""


class Limit(StrEnum):
    """Reasons for fewer replicas than the load requires."""

    MAXIMUM = "AtMaxReplicas"
    CAPACITY = "NoFreeCapacity"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """State of a service apart from its load."""

    start_s: float | None = None
    """Start time of a replica (s); None before the first start."""
    rolling: bool = False
    """Pods of two templates exist."""
    unschedulable: int = 0
    """Pods that fit no node."""


@dataclass(frozen=True, slots=True)
class State:
    """State between decisions; times in monotonic seconds."""

    decided: int | None = None
    """The last decided count; None at first."""
    wants: Counts = ()
    """Recent wants, decreasing."""
    raised: Counts = ()
    """Counts before recent increases."""
    lowered_s: float = -math.inf
    """When the count last fell."""
    panic_s: float = -math.inf
    """End of the panic."""
    strained: int = 0
    """Ticks under strain, in a row."""
    blind_since_s: float | None = None
    """Since when no pod could be read; None while one can."""
    hand_s: float | None = None
    """When a count set from outside was observed; None for a decided count."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decided count with its reason."""

    replicas: int
    reason: ScalingReason | None
    """None in a gap that is too short to report."""
    wanted: Want | None = None
    """Replicas that the load requires, regardless of bounds; None without data."""
    explanation: Explanation | None = None
    """None without data."""
    limit: Limit | None = None
    """Reason that the count is below ``wanted``."""

    @property
    def sentence(self) -> str:
        """The explanation as text; empty without data."""
        return self.explanation.sentence if self.explanation else ""


def decide(  # noqa: PLR0913 (what a decision is made of)
    aim: Aim,
    signals: Signals | None,
    replicas: int,
    state: State,
    now_s: float,
    around: Surroundings = Surroundings(),
    *,
    window_s: float = WINDOW_S,
) -> tuple[Decision, State]:
    """Return the count and the next state.

    Args:
        aim: of the spec.
        signals: None if no pod could be read.
        replicas: the current ``spec.replicas``.
        state: of the last call; ``State()`` at first.
        now_s: monotonic time (s); must not decrease between calls.
        around: other state of the service.
        window_s: time that a want prevents fewer replicas (s).
    """
    # The first call starts in panic; a foreign count replaces the wants.
    if state.decided is None:
        state = replace(state, panic_s=now_s + min(HOLD_S, window_s), hand_s=None)
    elif state.decided != replicas:
        state = replace(state, hand_s=now_s)
    if state.decided != replicas:
        state = replace(state, wants=((now_s, replicas),), raised=())
    if signals is None:
        return _hold(aim, replicas, state, now_s, window_s)
    # Replicas for the loads of the short and of the long window.
    short, long = (want(aim, signals, rates, around.start_s) for rates in (signals.short, signals.long))
    state = replace(
        state,
        panic_s=panic_until_s(state.panic_s, short.replicas, signals.ready, now_s, window_s),
        strained=state.strained + 1 if strained(aim, signals) else 0,
        blind_since_s=None,
    )
    # The short window decides only on a large increase.
    surprising = short.replicas > max(long.replicas, SURPRISE * signals.ready)
    wanted = short if surprising else long
    count = whole(wanted.replicas)
    # Strain: at least one replica more than are ready.
    if state.strained >= STRAINED_TICKS:
        count = max(count, signals.ready + 1)
    state = replace(state, wants=remember(state.wants, max(wanted.replicas * TOLERANCE, count), now_s, window_s))
    # Replicas may not fall in panic, during a rollout, or while a pod cannot be read.
    no_decrease = now_s < state.panic_s or around.rolling or not signals.complete
    decided = aim.within(_limited(count, replicas, state, now_s, around, None if no_decrease else window_s))
    limit = Limit.MAXIMUM if count > aim.maximum else None
    if around.unschedulable and count >= decided:
        limit = Limit.CAPACITY
    state = _after(state, decided, replicas, now_s, window_s)
    # For the explanation alone.
    window = Window.STABLE if not surprising else Window.PANIC if now_s < state.panic_s else Window.SHORT
    held_s = None if state.hand_s is None else window_s
    explanation = Explanation(aim, decided, wanted, count, window, falling=decided < replicas, held_s=held_s)
    return Decision(decided, Reason.FOLLOWING_LOAD, wanted, explanation, limit), state


def _hold(aim: Aim, replicas: int, state: State, now_s: float, window_s: float) -> tuple[Decision, State]:
    """Keep the count without data. It also counts as a want, so that replicas do not drop when data returns."""
    held = aim.within(replicas)
    since_s = now_s if state.blind_since_s is None else state.blind_since_s
    wants = (*(each for each in state.wants if each[0] > now_s - window_s and each[1] > held), (now_s, held))
    reason: ScalingReason | None = Reason.NO_LOAD_DATA if now_s - since_s >= BLIND_S else None
    return Decision(held, reason), replace(state, decided=held, wants=wants, strained=0, blind_since_s=since_s)


def _after(state: State, decided: int, replicas: int, now_s: float, window_s: float) -> State:
    """Return the state after a decision."""
    raised = tuple(each for each in state.raised if each[0] > now_s - UP_PERIOD_S)
    if decided > replicas:
        raised = (*raised, (now_s, replicas))
    lowered_s = now_s if decided < replicas else state.lowered_s
    # A count that was set from outside is held for one window.
    by_hand = decided == replicas and state.hand_s is not None and now_s - state.hand_s < window_s
    hand_s = state.hand_s if by_hand else None
    return replace(state, decided=decided, raised=raised, lowered_s=lowered_s, hand_s=hand_s)


def _limited(
    count: int, replicas: int, state: State, now_s: float, around: Surroundings, window_s: float | None
) -> int:
    """Return the count within the rate limits; without a window it does not fall."""
    # Up: not while pods wait for a node, and within the rate limit.
    if count > replicas:
        raised = tuple(each for each in state.raised if each[0] > now_s - UP_PERIOD_S)
        return replicas if around.unschedulable else min(count, max(replicas, most_up(raised, replicas)))
    if window_s is None:
        return replicas
    # Down: to the highest want of the window, within the rate limit.
    held = max(wanted for _, wanted in state.wants)
    return max(count, min(replicas, held), least_down(state.lowered_s, replicas, now_s, window_s))
