"""The states of a pod's containers, and its next steps: starts, restarts and termination."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class ObservedContainer:
    """The state of one container; the kubelet updates it, and decides on a copy."""

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


def seen_of(containers: Containers, member: Member) -> ObservedContainer:
    """Return the state of a container, also before its first run."""
    return containers.get(member.name, ObservedContainer())


MIN_SIDECAR_GRACE_S = 2.0
"""Grace period of a sidecar when the other containers have used up the pod's."""


@dataclass(frozen=True, slots=True)
class StopAction:
    """Action: stop a run by SIGTERM, and by SIGKILL after the grace period."""

    name: str
    grace_s: float
    why: str


@dataclass(slots=True)
class PodActions:
    """Next steps of a pod: starts, stops, and the time of the next decision."""

    start: list[str] = field(default_factory=list)
    stop: list[StopAction] = field(default_factory=list)
    held_back: list[str] = field(default_factory=list)
    """Containers that have ended and wait for their restart."""
    wake_at: float | None = None
    over: bool = False
    """No container runs, and none will."""


@dataclass(frozen=True, slots=True)
class PodTermination:
    """The deletion of a pod: its time, and the grace period."""

    since: float
    grace_s: float


def next_actions(spec: Object, containers: Containers, now: float, end: PodTermination | None = None) -> PodActions:
    """Return the next steps of a pod; times are seconds since 1970."""
    members = members_of(spec)
    steps = PodActions()
    if end is not None or has_finished(spec, containers):
        # Main and init containers stop together; then the sidecars one by one, last first.
        running = [m for m in members if seen_of(containers, m).running]
        steps.over = not running
        end = end or PodTermination(now, _grace_s(spec))
        first = [m for m in running if m.role is not Role.SIDECAR]
        left_s = max(0.0, end.since + end.grace_s - now)
        if not first and end.grace_s > 0:
            left_s = max(left_s, MIN_SIDECAR_GRACE_S)
        for member in first or running[-1:]:
            if not containers[member.name].stopping:
                steps.stop.append(StopAction(member.name, left_s, "ending"))
        return steps
    for member in members:
        # A failed liveness or startup probe.
        seen = seen_of(containers, member)
        if seen.running and not seen.healthy and not seen.stopping:
            steps.stop.append(StopAction(member.name, _grace_s(spec, member), "unhealthy"))
    if _run_initial(steps, spec, members, containers, now):
        for member in members:
            if member.role is Role.MAIN:
                _keep_running(steps, spec, member, seen_of(containers, member), now)
    return steps


def has_finished(spec: Object, containers: Containers) -> bool:
    """Return whether a pod needs no further steps.

    Its main containers have ended and are not restarted, or an init container failed for good.
    """
    policy = spec.get("restartPolicy", "Always")
    ends = [(m.role, seen_of(containers, m).exit) for m in members_of(spec)]
    # Init containers that failed are not retried, so the pod can never complete.
    if policy == "Never" and any(role is Role.INIT and end and end.code for role, end in ends):
        return True
    return all(end and not restarts(policy, end.code) for role, end in ends if role is Role.MAIN)


def restarts(policy: str, code: int) -> bool:
    """Return whether a container that ended with this exit code is restarted."""
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def policy_of(member: Member, spec: Object) -> str:
    """Return a container's restart policy. Sidecars always restart; init containers restart until they succeed."""
    policy = str(spec.get("restartPolicy", "Always"))
    if member.role is Role.SIDECAR:
        return "Always"
    return "OnFailure" if member.role is Role.INIT and policy == "Always" else policy


def _grace_s(spec: Object, member: Member | None = None) -> float:
    """Return the grace period in seconds: of a member's probe, or the pod's."""
    for probe in ("livenessProbe", "startupProbe") if member else ():
        own = (member.spec.get(probe) or {}).get("terminationGracePeriodSeconds") if member else None
        if own is not None:
            return float(own)
    return float(spec.get("terminationGracePeriodSeconds", 30))


def _run_initial(steps: PodActions, spec: Object, members: list[Member], containers: Containers, now: float) -> bool:
    """Start init containers and sidecars in order; return whether the main containers may start.

    Once a main container has run, init containers do not run again.
    """
    begun = any(m.role is Role.MAIN and seen_of(containers, m).attempt >= 0 for m in members)
    for member in members:
        seen = seen_of(containers, member)
        if member.role is Role.SIDECAR:
            _keep_running(steps, spec, member, seen, now)
            if not begun and not (seen.running and seen.started):
                return False
        elif member.role is Role.INIT and not begun and (seen.exit is None or seen.exit.code):
            _keep_running(steps, spec, member, seen, now)
            return False
    return True


def _keep_running(steps: PodActions, spec: Object, member: Member, seen: ObservedContainer, now: float) -> None:
    """Plan the start of a container that does not run.

    A container that has ended for good is not started. A delayed restart schedules the next decision instead.
    """
    if seen.running:
        return
    if seen.exit is not None and not restarts(policy_of(member, spec), seen.exit.code):
        return
    at = start_at(seen)
    # The restart is delayed by the back-off.
    if at > now:
        steps.wake_at = min(at, steps.wake_at or at)
        if seen.exit is not None and seen.waiting is None:
            steps.held_back.append(member.name)
    else:
        steps.start.append(member.name)


def start_at(seen: ObservedContainer) -> float:
    """Return the earliest time of the container's next run."""
    if seen.exit is None:
        return seen.retry_at
    return max(seen.retry_at, seen.exit.finished_at + restart_delay_s(seen.streak))
