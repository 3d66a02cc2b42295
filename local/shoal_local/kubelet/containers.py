"""The states of a pod's containers, and the delay before a restart."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from shoal_local.objects import Object

MIN_BACK_OFF_S, MAX_BACK_OFF_S, BACK_OFF_RESET_S = 10.0, 300.0, 600.0


def next_streak(streak: int, ran_s: float) -> int:
    """Return the number of consecutive restarts after a run of ``ran_s``.

    ``streak`` is the number before the run. A long run resets the number to 1.
    """
    return 1 if ran_s >= BACK_OFF_RESET_S else streak + 1


def restart_delay_s(streak: int) -> float:
    """Return the delay before the next restart: 0, 10 s, 20 s, and so on up to 5 min.

    ``streak`` is the number of earlier restarts in a row.
    """
    # The exponent is bounded to keep the product small.
    return 0.0 if streak == 0 else min(MIN_BACK_OFF_S * 2.0 ** min(streak - 1, 10), MAX_BACK_OFF_S)


class Role(StrEnum):
    """The role of a container in its pod."""

    INIT = "runs to its end before the next one"
    SIDECAR = "starts before the others and ends after them"
    MAIN = "is what the pod is for"


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a container's run; times are seconds since 1970."""

    code: int
    finished_at: float
    signal: int = 0
    started_at: float = 0.0
    reason: str = ""
    message: str = ""

    @property
    def shown_reason(self) -> str:
        """Return the reason that kubectl shows."""
        return self.reason or ("Completed" if self.code == 0 else "Error")


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    """The state of one container at one moment."""

    attempt: int = -1
    """Number of the latest run, from 0; -1 before the first."""
    running_since: float | None = None
    exit: Exit | None = None
    """End of the latest run; None while it runs and before the first."""
    previous: Exit | None = None
    """End of the run before the latest."""
    streak: int = 0
    """Restarts in a row after short runs."""
    started: bool = False
    ready: bool = False
    healthy: bool = True
    """False after liveness or startup has failed: the run must be stopped."""
    stopping: bool = False
    waiting: tuple[str, str] | None = None
    """Reason and message of why it cannot start, such as an unknown image."""
    retry_at: float = 0.0
    """Time of the next attempt after ``waiting``."""

    @property
    def running(self) -> bool:
        """Return whether the latest run has not ended."""
        return self.running_since is not None


@dataclass(frozen=True, slots=True)
class Member:
    """A container's name, role and spec."""

    name: str
    role: Role
    spec: Object


def members_of(spec: Object) -> list[Member]:
    """Return the containers in the order of their start."""
    first = [
        Member(c["name"], Role.SIDECAR if c.get("restartPolicy") == "Always" else Role.INIT, c)
        for c in spec.get("initContainers") or []
    ]
    # Init containers and sidecars precede the main containers.
    return first + [Member(c["name"], Role.MAIN, c) for c in spec["containers"]]


Containers = Mapping[str, ObservedContainer]
