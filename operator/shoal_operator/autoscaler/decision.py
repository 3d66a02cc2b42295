"""The law of scaling: what the pods of a service say, and what was decided before -> the count, and why.

    want     the larger of the long window's and, where it surprises, the short window's (`want`)
    up       at once, to the want, within what may come up at a time (`down.most_up`)
    down     to the highest want of the last minutes (`down.remember`), by half a minute at most; never in panic, in a
             rollout, or while a pod cannot be read

Without data it holds, and what it holds counts as a want, so a gap is never followed by a plunge. The law begins in
panic: an operator that comes back finds the scale that is there, and keeps it until it knows better.

``spec.replicas`` is the truth that this law writes, and that a person may write too (``kubectl scale``). A number that
the law did not write replaces its memory: it is taken at once and held for the window, unless the load wants more.
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
"""The short window counts where it wants so many times what is ready; below that six seconds are mostly noise."""


class Limit(StrEnum):
    """What keeps replicas from being as many as the load asks for."""

    MAXIMUM = "AtMaxReplicas"
    CAPACITY = "NoFreeCapacity"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else is known of a service.

    Args:
        start_s: how long a replica takes to start; None before one was seen to.
        rolling: pods of two templates are there.
        unschedulable: pods that no node has room for.
    """

    start_s: float | None = None
    rolling: bool = False
    unschedulable: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """What the law remembers.

    Args:
        decided: the count it last decided; None at first.
        wants: recent wants, falling.
        raised: the counts before recent rises.
        lowered_s: when it last fell.
        panic_s: until when there is panic.
        strained: ticks in a row.
        blind_since_s: since when no pod could be read; None while one can.
        hand_s: when a number was found that the law had not decided; None where what is there is the law's.
    """

    decided: int | None = None
    wants: Counts = ()
    raised: Counts = ()
    lowered_s: float = -math.inf
    panic_s: float = -math.inf
    strained: int = 0
    blind_since_s: float | None = None
    hand_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The count, and why.

    Args:
        reason: None in a gap too short to say anything new.
        wanted: what the load asks for, bounds aside; None without data.
        explanation: why, for people; None without data.
        limit: what keeps the count below ``wanted``.
    """

    replicas: int
    reason: ScalingReason | None
    wanted: Want | None = None
    explanation: Explanation | None = None
    limit: Limit | None = None

    @property
    def sentence(self) -> str:
        """Why, in words; empty without data."""
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
        signals: None when no pod could be read.
        replicas: ``spec.replicas`` as it is now.
        state: what the last call returned; ``State()`` at first.
        now_s: monotonic time in seconds; must not go back between calls.
        around: what else is known.
        window_s: how long a want counts.
    """
    if state.decided is None:
        state = replace(state, panic_s=now_s + min(HOLD_S, window_s), hand_s=None)
    elif state.decided != replicas:
        state = replace(state, hand_s=now_s)
    if state.decided != replicas:
        state = replace(state, wants=((now_s, replicas),), raised=())
    if signals is None:
        # Without data keep the count. It also counts as a want, so that replicas do not drop when data returns.
        held = aim.within(replicas)
        since_s = now_s if state.blind_since_s is None else state.blind_since_s
        wants = (*(each for each in state.wants if each[0] > now_s - window_s and each[1] > held), (now_s, held))
        reason: ScalingReason | None = Reason.NO_LOAD_DATA if now_s - since_s >= BLIND_S else None
        return Decision(held, reason), replace(state, decided=held, wants=wants, strained=0, blind_since_s=since_s)
    # Replicas for the loads of the short and of the long window.
    short, long = (want(aim, signals, rates, around.start_s) for rates in (signals.short, signals.long))
    state = replace(
        state,
        panic_s=panic_until_s(state.panic_s, short.replicas, signals.ready, now_s, window_s),
        strained=state.strained + 1 if strained(aim, signals) else 0,
        blind_since_s=None,
    )
    surprising = short.replicas > max(long.replicas, SURPRISE * signals.ready)
    wanted = short if surprising else long
    count = whole(wanted.replicas)
    if state.strained >= STRAINED_TICKS:
        count = max(count, signals.ready + 1)
    state = replace(state, wants=remember(state.wants, max(wanted.replicas * TOLERANCE, count), now_s, window_s))
    still = now_s < state.panic_s or around.rolling or not signals.complete
    decided = aim.within(_bounded(count, replicas, state, now_s, around, None if still else window_s))
    limit = Limit.MAXIMUM if count > aim.maximum else None
    if around.unschedulable and count >= decided:
        limit = Limit.CAPACITY
    raised = tuple(each for each in state.raised if each[0] > now_s - UP_PERIOD_S)
    if decided > replicas:
        raised = (*raised, (now_s, replicas))
    lowered_s = now_s if decided < replicas else state.lowered_s
    # A count that was set from outside is held for one window.
    by_hand = decided == replicas and state.hand_s is not None and now_s - state.hand_s < window_s
    hand_s = state.hand_s if by_hand else None
    state = replace(state, decided=decided, raised=raised, lowered_s=lowered_s, hand_s=hand_s)
    window = Window.STABLE if not surprising else Window.PANIC if now_s < state.panic_s else Window.SHORT
    held_s = None if state.hand_s is None else window_s
    explanation = Explanation(aim, decided, wanted, count, window, falling=decided < replicas, held_s=held_s)
    return Decision(decided, Reason.FOLLOWING_LOAD, wanted, explanation, limit), state


def _bounded(
    count: int, replicas: int, state: State, now_s: float, around: Surroundings, window_s: float | None
) -> int:
    """Return the count as far as it may go now; without a window it may not fall."""
    if count > replicas:
        raised = tuple(each for each in state.raised if each[0] > now_s - UP_PERIOD_S)
        return replicas if around.unschedulable else min(count, max(replicas, most_up(raised, replicas)))
    if window_s is None:
        return replicas
    held = max(wanted for _, wanted in state.wants)
    return max(count, min(replicas, held), least_down(state.lowered_s, replicas, now_s, window_s))
