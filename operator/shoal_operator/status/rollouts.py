"""Status checks of rollouts that compare a candidate with the stable pods."""

from shoal_operator.children.conditions import stored_condition
from shoal_operator.children.observation import Failure, dig
from shoal_operator.models.resolution import is_unresolved
from shoal_operator.rollout.progress import RolloutProgress
from shoal_operator.status.blocked import Verdict, failed
from shoal_operator.status.evidence import Evidence
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status


def candidate_judged(evidence: Evidence) -> Verdict | None:
    """Report the rollout of a candidate; None for a service whose changes are not judged."""
    if not _is_decided(evidence):
        stored = dig(evidence.observation.resource, "status", "conditions", default=[])
        known = stored_condition(stored, ConditionType.CANDIDATE_JUDGED)
        if known and not evidence.followed:
            return Status.UNKNOWN, evidence.spec_reason, evidence.spec_error
        return (known.status, known.reason, known.message) if known else None
    decision = evidence.rollout
    if decision is None or decision.progress is None:
        return None
    # The candidate cannot be written; a name with another owner is part of the decision.
    if isinstance(evidence.candidate_obstacle, Failure) and decision.reason is not Reason.NO_CANDIDATE:
        status, reason, text = failed(evidence.candidate_obstacle)
        return status, reason, f"{text}. {decision.message}"
    return decision.status, decision.reason, decision.message


def rollout_status(evidence: Evidence) -> Json:
    """Return ``status.rollout``; the stored one for a spec that is not followed."""
    progress = evidence.rollout.progress if evidence.rollout else None
    if not _is_decided(evidence):
        progress = RolloutProgress.stored(evidence.observation.resource)
    return {"rollout": progress.as_status()} if progress else {}


def _is_decided(evidence: Evidence) -> bool:
    """Return whether the operator decides about the newest spec."""
    return evidence.followed and not is_unresolved(evidence.resolution)
