"""Replicas follow the rows that wait and run.

    want = ceil(rows in all pods / target), within [minimum, maximum]
    replicas = the highest want of the window, five minutes unless the operator's settings say otherwise

So the count rises at once and falls slowly. It is absolute: it comes from the total, never from the
present count, so pods that are still starting cannot make it run away. Without data it holds, and
what it holds counts as a want, so a gap is never followed by a plunge.

``spec.replicas`` is the truth that this law writes, and that a person may write too
(``kubectl scale``). A number that the law did not write replaces its memory: it is taken at once
and held for the window, unless the load wants more.
"""

from dataclasses import dataclass

from shoal_schema.conditions import Reason, ScalingReason

WINDOW_S = 300.0
BLIND_S = 30.0
"""A shorter gap in the data is not reported."""


@dataclass(frozen=True, slots=True)
class Law:
    """The bounds and the aim.

    Args:
        target_queue_depth: rows waiting and running that one pod should have, >= 1.
    """

    minimum: int
    maximum: int
    target_queue_depth: int

    def __post_init__(self) -> None:
        if not (1 <= self.minimum <= self.maximum and self.target_queue_depth >= 1):
            raise ValueError(f"need 1 <= minReplicas <= maxReplicas and a target >= 1, not {self}")

    def within(self, replicas: int) -> int:
        """Return the count, kept within the bounds."""
        return max(self.minimum, min(replicas, self.maximum))


@dataclass(frozen=True, slots=True)
class Load:
    """Rows that wait and run in the pods that could be read.

    Args:
        complete: every ready pod could be read; otherwise the count may rise and not fall.
    """

    rows: int
    complete: bool


@dataclass(frozen=True, slots=True)
class State:
    """What the law remembers.

    Args:
        decided: the count it last decided; None at first.
        wants: recent wants (time, count), falling.
        blind_since_s: since when no pod could be read; None while one can.
    """

    decided: int | None = None
    wants: tuple[tuple[float, int], ...] = ()
    blind_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The count, and why; None in a gap too short to say anything new."""

    replicas: int
    reason: ScalingReason | None


def decide(
    law: Law, load: Load | None, replicas: int, state: State, now_s: float, *, window_s: float = WINDOW_S
) -> tuple[Decision, State]:
    """Return the count and the next state.

    Args:
        law: the bounds and the aim.
        load: None when no pod could be read.
        replicas: ``spec.replicas`` as it is now.
        state: what the last call returned; ``State()`` at first.
        now_s: monotonic time in seconds; must not go back between calls.
        window_s: how long a want counts.
    """
    recent = tuple(item for item in state.wants if item[0] > now_s - window_s)
    wants = recent if state.decided == replicas else ((now_s, replicas),)
    want = _want(law, load, replicas)
    wants = (*(item for item in wants if item[1] > want), (now_s, want))
    decided = law.within(max(count for _, count in wants))
    if load is not None:
        return Decision(decided, Reason.FOLLOWING_LOAD), State(decided, wants)
    blind_since_s = now_s if state.blind_since_s is None else state.blind_since_s
    blind = now_s - blind_since_s >= BLIND_S
    return Decision(decided, Reason.NO_LOAD_DATA if blind else None), State(decided, wants, blind_since_s)


def _want(law: Law, load: Load | None, replicas: int) -> int:
    if load is None:
        return law.within(replicas)
    want = law.within(-(-load.rows // law.target_queue_depth))
    return want if load.complete else max(want, law.within(replicas))
