"""What a decision about a rollout depends on, and the decision."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.rollout.progress import Command, RolloutProgress
from shoal_schema.interfaces.rollout import RolloutReport
from shoal_schema.resource.conditions import Reason, Status
from shoal_schema.resource.rollout import RolloutSpec, RolloutStrategy


@dataclass(frozen=True, slots=True)
class Reports:
    """Sums of the reports of a service's pods about one candidate."""

    stable: RolloutReport
    candidate: RolloutReport


class Care(StrEnum):
    """What happens to the candidate's Deployment."""

    RUN = "run"
    """It gets the newest spec."""
    KEEP = "keep"
    """It stays as it is."""
    REMOVE = "remove"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCandidate:
    """The candidate's Deployment and pods."""

    revision: str = ""
    """Revision of the Deployment; empty if there is none."""
    ready: int = 0
    """Ready pods."""
    problem: str = ""
    """Why pods do not become ready."""
    overdue: bool = False
    """No pod became ready within the deadline."""
    start_s: float | None = None
    """Shortest time from the creation of a pod until it was ready (s); None if none is ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a decision depends on."""

    rollout: RolloutSpec
    """Of the newest spec."""
    newest: str
    """Revision of the newest spec."""
    stable: str | None
    """Revision of the stable Deployment; None if there is none, empty if it is unknown."""
    progress: RolloutProgress | None = None
    """As stored."""
    command: Command | None = None
    changed_together: tuple[str, ...] = ()
    """Other parts of the pods that the newest spec changes too."""
    obstacle: str = ""
    """Why a candidate cannot be compared."""
    stable_replicas: int = 1
    """Desired stable pods."""
    stable_settled: bool = True
    """All stable pods have the template of their Deployment, and are available."""
    stable_problem: str = ""
    """Why the stable pods do not become ready."""
    stable_start_s: float | None = None
    """As `ObservedCandidate.start_s`, of the stable pods."""
    candidate: ObservedCandidate = ObservedCandidate()
    responds: bool = True
    """A stable pod has accepted the plan that names the candidate."""
    quiet: bool = True
    """No stable pod sends anything to a candidate."""
    reports: Reports | None = None
    """None before all pods were read."""
    repeats: bool = True
    """Stable pods repeat rows, which shows the noise of their results."""
    terms: str = ""
    """Digest of the steps and tolerances."""
    now: str
    """The time, in the API's format."""
    age_s: Callable[[str], float]
    """Returns the seconds since a time of the API; 0 for an invalid one."""

    @property
    def judged(self) -> bool:
        """Whether changes of the model are judged."""
        return self.rollout.strategy is not RolloutStrategy.ROLLING


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do for a rollout."""

    applied: bool
    """The stable pods get the newest spec; otherwise they keep theirs."""
    care: Care = Care.REMOVE
    replicas: int = 0
    """Pods of the candidate."""
    compared: bool = False
    """Proxies count for this candidate; otherwise they get the plan without any."""
    weight: int = 0
    """Percentage of requests that the candidate serves."""
    shadow: int = 0
    """Percentage of batches that it runs again."""
    progress: RolloutProgress | None
    """None: no strategy with candidates, and nothing is left of one."""
    reason: Reason = Reason.NO_CANDIDATE
    message: str = ""

    @property
    def status(self) -> Status:
        """Status of the condition: no candidate awaits a verdict or a user."""
        return Status.TRUE if self.reason is Reason.NO_CANDIDATE else Status.FALSE
