"""What the kubelet knows of a pod's containers, as values, and how long one that keeps ending waits."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shoal_local.objects import Object

MIN_BACK_OFF_S, MAX_BACK_OFF_S, BACK_OFF_RESET_S = 10.0, 300.0, 600.0


def next_streak(streak: int, ran_s: float) -> int:
    """Return the number of restarts in a row, after a run of this length. A long run clears the slate."""
    return 1 if ran_s >= BACK_OFF_RESET_S else streak + 1


def restart_delay_s(streak: int) -> float:
    """Return the wait before the next restart: none, 10 s, 20 s ... 5 min.

    ``streak`` is the number of restarts in a row that were made before.
    """
    return 0.0 if streak == 0 else min(MIN_BACK_OFF_S * 2.0 ** min(streak - 1, 10), MAX_BACK_OFF_S)


class Role(StrEnum):
    """How a container lives in its pod."""

    INIT = "runs to its end before the next one"
    SIDECAR = "starts before the others and ends after them"
    MAIN = "is what the pod is for"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a run ended; times are seconds since 1970."""

    code: int
    finished_at: float
    signal: int = 0
    started_at: float = 0.0
    reason: str = ""
    message: str = ""

    @property
    def shown_reason(self) -> str:
        """Return the word that kubectl shows."""
        return self.reason or ("Completed" if self.code == 0 else "Error")


@dataclass(frozen=True, slots=True)
class Observed:
    """One container by now."""

    attempt: int = -1
    """Number of the latest run, from 0; -1 before the first."""
    running_since: float | None = None
    exit: Exit | None = None
    """End of the latest run; None while it runs and before the first."""
    previous: Exit | None = None
    """End of the run before the latest."""
    streak: int = 0
    """Restarts in a row that did not live long."""
    started: bool = False
    ready: bool = False
    healthy: bool = True
    """False once liveness or startup has failed: the run must end."""
    stopping: bool = False
    waiting: tuple[str, str] | None = None
    """Reason and message why it cannot be started, such as an unknown image."""
    retry_at: float = 0.0
    """When to try again after ``waiting``."""

    @property
    def running(self) -> bool:
        """Return whether the latest run lives."""
        return self.running_since is not None


@dataclass(frozen=True, slots=True)
class Member:
    """A container's place in the pod."""

    name: str
    role: Role
    spec: Object


def members_of(spec: Object) -> list[Member]:
    """Return the containers in the order in which they start."""
    first = [
        Member(c["name"], Role.SIDECAR if c.get("restartPolicy") == "Always" else Role.INIT, c)
        for c in spec.get("initContainers") or []
    ]
    return first + [Member(c["name"], Role.MAIN, c) for c in spec["containers"]]


Containers = Mapping[str, Observed]
