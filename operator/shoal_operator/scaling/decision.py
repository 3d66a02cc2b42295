"""Decision on a service's replicas, from loads and earlier decisions.

    recommendation   of the long window, or of the short window if that is much larger (`recommend`)
    up               at once, to the recommendation, within a rate limit (`limits.increase_limit`)
    down             to the highest recommendation of the last minutes (`limits.record_recommendation`), by half per
                     minute at most; never in panic, during a rollout, or while a pod cannot be read

Without load data the count does not change, and counts as a recommendation, so that replicas do not drop after a gap.
The first state is panic (see `panic`), so that a restarted operator keeps the existing count until it has data.

The count is stored in ``spec.replicas`` alone, which users may set too (``kubectl scale``). A count written by a user
replaces the state: it is accepted and held for the window, unless the load requires more.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from shoal_operator.scaling.explanation import Explanation, Window
from shoal_operator.scaling.limits import (
    TOLERANCE,
    UP_PERIOD_S,
    ReplicaHistory,
    decrease_limit,
    increase_limit,
    record_recommendation,
    rounded_up,
)
from shoal_operator.scaling.panic import HOLD_S, STRAINED_TICKS, panic_until_s, strained
from shoal_operator.scaling.recommendation import Recommendation, recommend
from shoal_operator.scaling.signals import Signals
from shoal_operator.scaling.targets import ScalingTargets
from shoal_schema.resource.conditions import Reason, ScalingReason

WINDOW_S = 300.0
NO_DATA_S = 30.0
"""A shorter gap in the data is not reported."""
BURST_FACTOR = 1.2
"""The short window counts from this multiple of the ready replicas; below it, six seconds are mostly noise."""


class ScalingLimit(StrEnum):
    """Reason that a service has fewer replicas than its load requires."""

    MAXIMUM = "AtMaxReplicas"
    CAPACITY = "NoFreeCapacity"


@dataclass(frozen=True, slots=True)
class ScalingContext:
    """Startup and rollout state of a service, for decisions on replicas."""

    start_s: float | None = None
    """Start time of a replica (s); None before the first start."""
    rolling: bool = False
    """Pods of two templates exist, or a candidate beside the stable pods."""
    unschedulable: int = 0
    """Pods that fit no node."""


@dataclass(frozen=True, slots=True)
class AutoscalerState:
    """One service's autoscaler state between decisions (times: monotonic s)."""

    decided: int | None = None
    """The last decided count; None at first."""
    recommendations: ReplicaHistory = ()
    """Recent recommendations, decreasing."""
    raised: ReplicaHistory = ()
    """Counts before recent increases."""
    lowered_s: float = -math.inf
    """When the count last fell."""
    panic_s: float = -math.inf
    """End of the panic."""
    strained: int = 0
    """Ticks under strain, in a row."""
    no_data_since_s: float | None = None
    """Since when no pod could be read; None while one can."""
    manual_since_s: float | None = None
    """When a count set from outside was observed; None for a decided count."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Number of replicas that the autoscaler decided, with the reason."""

    replicas: int
    reason: ScalingReason | None
    """None in a gap that is too short to report."""
    recommendation: Recommendation | None = None
    """Replicas that the load requires, regardless of bounds; None without data."""
    explanation: Explanation | None = None
    """None without data."""
    limit: ScalingLimit | None = None
    """Why the count is below ``recommendation``."""

    @property
    def sentence(self) -> str:
        """The explanation of the count as text; empty without load data."""
        return self.explanation.sentence if self.explanation else ""


def decide(  # noqa: PLR0913 (what a decision is made of)
    targets: ScalingTargets,
    signals: Signals | None,
    replicas: int,
    state: AutoscalerState,
    now_s: float,
    context: ScalingContext = ScalingContext(),
    *,
    window_s: float = WINDOW_S,
) -> tuple[ScalingDecision, AutoscalerState]:
    """Return the decision on a service's replicas, and the next state.

    Args:
        targets: scaling targets of the service's spec.
        signals: load of the service; None if no pod could be read.
        replicas: the current ``spec.replicas``.
        state: state that the last call returned; ``AutoscalerState()`` at first.
        now_s: monotonic time (s); must not decrease between calls.
        context: startup and rollout state of the service.
        window_s: time for which replicas do not fall below a recommendation (s).
    """
    # The first call starts in panic; a foreign count replaces the recommendations.
    if state.decided is None:
        state = replace(state, panic_s=now_s + min(HOLD_S, window_s), manual_since_s=None)
    elif state.decided != replicas:
        state = replace(state, manual_since_s=now_s)
    if state.decided != replicas:
        state = replace(state, recommendations=((now_s, replicas),), raised=())
    if signals is None:
        return _hold(targets, replicas, state, now_s, window_s)
    # Replicas for the loads of the short and of the long window.
    short, long = (recommend(targets, signals, rates, context.start_s) for rates in (signals.short, signals.long))
    state = replace(
        state,
        panic_s=panic_until_s(state.panic_s, short.replicas, signals.ready, now_s, window_s),
        strained=state.strained + 1 if strained(targets, signals) else 0,
        no_data_since_s=None,
    )
    # The short window decides only on a large increase.
    is_burst = short.replicas > max(long.replicas, BURST_FACTOR * signals.ready)
    recommendation = short if is_burst else long
    count = rounded_up(recommendation.replicas)
    # Strain: at least one replica more than are ready.
    if state.strained >= STRAINED_TICKS:
        count = max(count, signals.ready + 1)
    state = replace(
        state,
        recommendations=record_recommendation(
            state.recommendations, max(recommendation.replicas * TOLERANCE, count), now_s, window_s
        ),
    )
    # Replicas may not fall in panic, during a rollout, or while a pod cannot be read.
    no_decrease = now_s < state.panic_s or context.rolling or not signals.complete
    decided = targets.within(_limited(count, replicas, state, now_s, context, None if no_decrease else window_s))
    limit = ScalingLimit.MAXIMUM if count > targets.maximum else None
    if context.unschedulable and count >= decided:
        limit = ScalingLimit.CAPACITY
    state = _after(state, decided, replicas, now_s, window_s)
    # For the explanation alone.
    window = Window.STABLE if not is_burst else Window.PANIC if now_s < state.panic_s else Window.SHORT
    held_s = None if state.manual_since_s is None else window_s
    explanation = Explanation(
        targets, decided, recommendation, count, window, falling=decided < replicas, held_s=held_s
    )
    return ScalingDecision(decided, Reason.FOLLOWING_LOAD, recommendation, explanation, limit), state


def _hold(
    targets: ScalingTargets, replicas: int, state: AutoscalerState, now_s: float, window_s: float
) -> tuple[ScalingDecision, AutoscalerState]:
    """Keep the count while no load can be read."""
    held = targets.within(replicas)
    since_s = now_s if state.no_data_since_s is None else state.no_data_since_s
    # The kept count is a recommendation too, so that replicas do not drop after the gap.
    recommendations = (
        *(each for each in state.recommendations if each[0] > now_s - window_s and each[1] > held),
        (now_s, held),
    )
    reason: ScalingReason | None = Reason.NO_LOAD_DATA if now_s - since_s >= NO_DATA_S else None
    return ScalingDecision(held, reason), replace(
        state, decided=held, recommendations=recommendations, strained=0, no_data_since_s=since_s
    )


def _after(state: AutoscalerState, decided: int, replicas: int, now_s: float, window_s: float) -> AutoscalerState:
    raised = tuple(each for each in state.raised if each[0] > now_s - UP_PERIOD_S)
    if decided > replicas:
        raised = (*raised, (now_s, replicas))
    lowered_s = now_s if decided < replicas else state.lowered_s
    # A count that was set from outside is held for one window.
    by_hand = decided == replicas and state.manual_since_s is not None and now_s - state.manual_since_s < window_s
    manual_since_s = state.manual_since_s if by_hand else None
    return replace(state, decided=decided, raised=raised, lowered_s=lowered_s, manual_since_s=manual_since_s)


def _limited(
    count: int, replicas: int, state: AutoscalerState, now_s: float, context: ScalingContext, window_s: float | None
) -> int:
    """Return ``count`` within the rate limits of changes.

    The result is not below the highest recommendation of the window; if ``window_s`` is None, not below ``replicas``.
    """
    # Up: not while pods wait for a node, and within the rate limit.
    if count > replicas:
        raised = tuple(each for each in state.raised if each[0] > now_s - UP_PERIOD_S)
        return replicas if context.unschedulable else min(count, max(replicas, increase_limit(raised, replicas)))
    if window_s is None:
        return replicas
    # Down: to the highest recommendation of the window, within the rate limit.
    held = max(recommendation for _, recommendation in state.recommendations)
    return max(count, min(replicas, held), decrease_limit(state.lowered_s, replicas, now_s, window_s))
