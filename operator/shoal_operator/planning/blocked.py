"""The checks of what stops a service before any pod is looked at: its spec, other owners, the API server."""

import re
from collections.abc import Callable

from shoal_operator.manifests.desired import HPA, HTTP_ROUTE, INGRESS, SCALED_OBJECT, Kind
from shoal_operator.planning.admission import NO_IMAGE_VOLUMES
from shoal_operator.planning.changes import Conflict
from shoal_operator.planning.evidence import Evidence
from shoal_operator.planning.naming import stored_naming
from shoal_operator.planning.observation import Failure
from shoal_schema.conditions import Reason, Status

Verdict = tuple[Status, Reason, str]
Check = Callable[[Evidence], Verdict | None]


def spec_invalid(evidence: Evidence) -> Verdict | None:
    """The spec cannot work, or may not; what runs now is left as it is."""
    if not evidence.followed:
        return Status.FALSE, evidence.spec_reason, evidence.spec_error
    refused = [f for f in evidence.failures if f.code in (400, 422)]
    return _failed(refused[0]) if refused else None


def model_unresolved(evidence: Evidence) -> Verdict | None:
    """No version is known of a name that moves, so pods cannot be told one; what runs now keeps its model."""
    naming = evidence.naming
    if naming is None or naming.resolved:
        return None
    known = stored_naming(evidence.observation.resource).resolved
    kept = f" (pods keep {known or 'the model that they have'})" if evidence.deployment else ""
    if naming.problem:
        return Status.FALSE, Reason.MODEL_UNRESOLVED, f"{naming.problem}{kept}"
    return Status.FALSE, Reason.MODEL_RESOLVING, f"the registry is asked which version {naming.uri} is{kept}"


def name_taken(evidence: Evidence) -> Verdict | None:
    """An object of somebody else stands in the way."""
    return _taken(evidence.conflicts[0], evidence.kind) if evidence.conflicts else None


def _taken(conflict: Conflict, own: str) -> Verdict:
    what = f"{conflict.kind.kind} {conflict.name}"
    if conflict.stale:
        text = f"waiting until the {what} of a deleted {own} of this name is gone"
        return Status.FALSE, Reason.WAITING_FOR_CLEANUP, text
    if conflict.uncontrolled:
        text = (
            f"the ownerReference of {what} that names this {own} lacks controller: true; it is left alone."
            " Set it there, or delete the object"
        )
        return Status.FALSE, Reason.NAME_TAKEN, text
    text = (
        f"{what} exists and does not belong to this {own}; it is left alone. Delete it, or give the {own} another name"
    )
    return Status.FALSE, Reason.NAME_TAKEN, text


def _failed(failure: Failure) -> Verdict:
    if failure.undone:
        reason = Reason.ANOTHER_OPERATOR
    elif failure.at_admission:
        reason = Reason.CHANGED_AT_ADMISSION
    else:
        reason = Reason.INVALID_SPEC if failure.code in (400, 422) else Reason.APPLY_FAILED
    return Status.FALSE, reason, failure_text(failure)


def alone(evidence: Evidence) -> Verdict | None:
    """Replicas do not find one another: each serves as if it had no siblings."""
    if isinstance(evidence.alone, Failure):
        return _failed(evidence.alone)
    if evidence.alone is None:
        return None
    text = (
        f"Service {evidence.alone.name} is not this {evidence.kind}'s; it is left alone, and pods are not told of it."
        " All is served; only who would be late at one replica is not handed to another until that name is free"
    )
    return Status.FALSE, Reason.NAME_TAKEN, text


def taken(*kinds: Kind) -> Check:
    """Return a check that tells of an object of somebody else in the place of one of ours."""

    def check(evidence: Evidence) -> Verdict | None:
        return next((_taken(each, evidence.kind) for each in evidence.conflicts if each.kind in kinds), None)

    return check


def missing(kind: Kind) -> Check:
    """Return a check that tells why an object of ours is not there, where one is not."""

    def check(evidence: Evidence) -> Verdict | None:
        if evidence.observation.ours(kind):
            return None
        failed = (_failed(failure) for failure in evidence.failures if failure.kind == kind)
        held = taken(kind)(evidence) or next(failed, None)
        return held or (None if evidence.followed else spec_invalid(evidence))

    return check


def undone(evidence: Evidence) -> Verdict | None:
    """Somebody changes back what we write, so we hold it back."""
    return next((_failed(failure) for failure in evidence.failures if failure.undone), None)


def apply_failed(evidence: Evidence) -> Verdict | None:
    """The API server refused a write for a reason that is not the spec's."""
    told_elsewhere = (HTTP_ROUTE, INGRESS, HPA, SCALED_OBJECT)
    others = [f for f in evidence.failures if f.kind not in told_elsewhere and not f.at_admission]
    return _failed(others[0]) if others else None


def changed_at_admission(evidence: Evidence) -> Verdict | None:
    """A policy of the cluster changes what we write, as it is written; the pods may well serve."""
    return next((_failed(failure) for failure in evidence.failures if failure.at_admission), None)


def failure_text(failure: Failure) -> str:
    """Return what was refused, in the API server's words, and what to do where that is known."""
    return f"{failure.kind.kind}: {failure.message}{advice(failure.code, failure.message)}"


def advice(code: int, message: str) -> str:
    """Return what to do about an answer of the API server, as the end of a sentence; empty where that is not known.

    The authorizer, quotas and admission policies all count as 403 (`ApiError.code`): their words tell them apart.
    """
    if code in (400, 422) and _UNKNOWN_VOLUME.search(message):
        return f". {NO_IMAGE_VOLUMES}"
    if code != 403:
        return ""
    return next((text for words, text in _FORBIDDEN if all(word in message for word in words)), "")


_UNKNOWN_VOLUME = re.compile(r'unknown field "[^"]*volumes\[\d+\]\.image"')
_FORBIDDEN = (
    (
        (" cannot ", "resource "),
        ". The operator's account lacks the permission: install the role of the chart again (helm upgrade of"
        " charts/shoal), or bind its account to an equal one",
    ),
    (
        ("exceeded quota",),
        ". A ResourceQuota of the namespace has no room: raise it, or delete what counts against it; it is tried again"
        " by itself",
    ),
    (
        ("denied",),
        ". A policy or a webhook of this cluster refuses it: ask who keeps it, or change the spec as it says",
    ),
)
"""Words of an answer -> what to do; the first that fit."""
