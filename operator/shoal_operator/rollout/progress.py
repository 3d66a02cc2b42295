"""Progress of a rollout with a candidate, as stored in ``status.rollout``, and a user's command about it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from shoal_operator.children.observation import dig
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.rollout import COMMAND_ANNOTATION, RolloutCommand


class RolloutPhase(StrEnum):
    """Phase of a rollout."""

    STABLE = "Stable"
    """The stable pods have the newest spec."""
    WAITING = "Waiting"
    """The candidate cannot be compared yet: its pods start, or no requests arrive."""
    COMPARING = "Comparing"
    PAUSED = "Paused"
    PROMOTING = "Promoting"
    """The stable pods are being replaced by pods of the newest spec."""
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Command:
    """A user's command about one candidate."""

    verb: RolloutCommand
    revision: str
    """The candidate that it is about: a command never applies to a later one."""

    def __str__(self) -> str:
        return f"{self.verb} {self.revision}".strip()

    @classmethod
    def of(cls, resource: Json) -> "Command | None":
        """Return the command in a resource's annotation; None if there is none, or it is invalid."""
        text = dig(resource, "metadata", "annotations", COMMAND_ANNOTATION, default="")
        verb, _, revision = str(text).strip().partition(" ")
        try:
            return cls(RolloutCommand(verb), revision.strip())
        except ValueError:
            return None


class RolloutProgress(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Progress of a rollout: ``status.rollout``."""

    phase: RolloutPhase
    stable: str = ""
    """Revision that serves all requests; while the stable pods are replaced, the one that they had before."""
    candidate: str = ""
    """Revision that is compared with it, or that failed."""
    step: int = 0
    """Number of the step, from 1."""
    steps: int = 0
    since: str = ""
    """Start of the step, in the API's format."""
    rows_before: int = 0
    """Rows that the candidate had run at the start of the step."""
    served_before: int = 0
    """Rows that the stable pods had run for clients at the start of the step."""
    dropped_before: int = 0
    """Batches and requests that were selected for the candidate and did not run there, at the start of the step."""
    weight: int = 0
    """Percentage of requests that it serves."""
    shadow: int = 0
    """Percentage of batches that it runs again."""
    terms: str = ""
    """Digest of the steps and tolerances by which it is judged."""
    earlier_command: str = ""
    """Command about another revision that the service had when the candidate appeared."""
    reason: str = ""
    """Reason of the failure."""
    verdict: str = ""
    """The last comparison, in a sentence; or why the candidate failed."""
    figures: dict[str, Any] = {}

    @classmethod
    def stored(cls, resource: Json) -> "RolloutProgress | None":
        """Return the progress in a resource's status; None if it has none, or an invalid one."""
        try:
            return convert(dig(resource, "status", "rollout"), cls)
        except ValidationError:
            return None

    def as_status(self) -> Json:
        """Return ``status.rollout``."""
        status: Json = to_builtins(self)
        return status
