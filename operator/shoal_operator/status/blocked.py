"""Status checks of the spec, of foreign objects and of rejected writes."""

import re
from collections.abc import Callable

from shoal_operator.children.changes import Conflict
from shoal_operator.children.exact import foreign_settings, settings_text
from shoal_operator.children.observation import Failure, dig
from shoal_operator.manifests.desired import HPA, HTTP_ROUTE, INGRESS, SCALED_OBJECT, Child
from shoal_operator.manifests.specs import service_spec
from shoal_operator.models.resolution import is_unresolved, stored_resolution
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.renamed_fields import dropped_fields, dropped_text
from shoal_schema.decoding import broken_rules
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import Reason, Status

_NO_IMAGE_VOLUMES = (
    "the API server drops image volumes, so pods would have no model: oci:// and model.volume.image require"
    " Kubernetes 1.35, or 1.33 with the feature gate ImageVolume on servers and nodes. Use a bucket, a registry or a"
    " claim (pvc://) instead"
)
Verdict = tuple[Status, Reason, str]
Check = Callable[[Evidence], Verdict | None]


def spec_invalid(evidence: Evidence) -> Verdict | None:
    """Report that the spec is invalid or not allowed."""
    if not evidence.followed:
        return Status.FALSE, evidence.spec_reason, evidence.spec_error
    refused = [f for f in evidence.failures if f.code in (400, 422)]
    return failed(refused[0]) if refused else None


def spec_misread(evidence: Evidence) -> Verdict | None:
    """Report dropped fields of the spec, or rules that the spec breaks.

    The API server drops fields that have the names of an older release.
    """
    if dropped := dropped_fields(evidence.observation.resource):
        return Status.FALSE, Reason.FIELD_RENAMED, dropped_text(dropped)
    resource, newest = evidence.observation.resource, evidence.newest or evidence.target
    # A graph that breaks a rule is invalid. A spec is checked as it was written: `newest` has another model URI.
    if newest is None or newest.graph is not None:
        return None
    if faults := broken_rules(service_spec(resource), "spec"):
        text = f"{'; '.join(faults)}. The API server may reject the next change of the spec: correct the fields with it"
        return Status.FALSE, Reason.RULE_BROKEN, text
    return None


def model_unresolved(evidence: Evidence) -> Verdict | None:
    """Report that the model's mutable name is not resolved."""
    resolution = evidence.resolution
    if not is_unresolved(resolution):
        return None
    known = stored_resolution(evidence.observation.resource).resolved
    kept = f" (pods keep {known or 'their model'})" if evidence.deployment else ""
    if resolution.problem:
        return Status.FALSE, Reason.MODEL_UNRESOLVED, f"{resolution.problem}{kept}"
    return Status.FALSE, Reason.MODEL_RESOLVING, f"waiting for the registry's response to {resolution.uri}{kept}"


def model_resolved(evidence: Evidence) -> Verdict | None:
    """Report the version of a mutable model name; None for a fixed version."""
    resolution = evidence.resolution
    if resolution is None:
        return None
    if verdict := model_unresolved(evidence):
        return verdict
    # A version is cached from before, so pods continue with it.
    if resolution.problem:
        return Status.FALSE, Reason.MODEL_UNRESOLVED, f"{resolution.problem} (pods keep {resolution.resolved})"
    return Status.TRUE, Reason.MODEL_RESOLVED, f"{resolution.uri} resolved to {resolution.resolved} at the last request"


def name_taken(evidence: Evidence) -> Verdict | None:
    """Report that an object with a child's name has another owner."""
    return taken_name(evidence.conflicts[0], evidence.kind) if evidence.conflicts else None


def taken_name(conflict: Conflict, own: str) -> Verdict:
    """Return the verdict on an object that has the name of a child, but another owner."""
    what = f"{conflict.kind.kind} {conflict.name}"
    if conflict.stale:
        text = f"waiting for the deletion of the {what} of a deleted {own} of this name"
        return Status.FALSE, Reason.WAITING_FOR_CLEANUP, text
    if conflict.uncontrolled:
        text = (
            f"the ownerReference of {what} to this {own} is missing controller: true, so the operator does not write"
            " the object. Set it, or delete the object"
        )
        return Status.FALSE, Reason.NAME_TAKEN, text
    return (
        Status.FALSE,
        Reason.NAME_TAKEN,
        f"{what} exists, and this {own} does not own it. Delete it, or rename the {own}",
    )


def failed(failure: Failure) -> Verdict:
    """Return the verdict on a write that failed, was changed or was not attempted."""
    if failure.undone:
        reason = Reason.ANOTHER_OPERATOR
    elif failure.at_admission:
        reason = Reason.CHANGED_AT_ADMISSION
    else:
        reason = Reason.INVALID_SPEC if failure.code in (400, 422) else Reason.APPLY_FAILED
    return Status.FALSE, reason, failure_text(failure)


def peers_service_taken(evidence: Evidence) -> Verdict | None:
    """Report that replicas cannot discover their peers."""
    if isinstance(evidence.peers_obstacle, Failure):
        return failed(evidence.peers_obstacle)
    if evidence.peers_obstacle is None:
        return None
    text = (
        f"Service {evidence.peers_obstacle.name} exists and has another owner, so replicas do not forward late requests"
        " to one another. Requests are served. Delete that Service to enable request forwarding"
    )
    return Status.FALSE, Reason.NAME_TAKEN, text


def taken(*kinds: Child) -> Check:
    """Return a check for children of these kinds that have another owner."""

    def check(evidence: Evidence) -> Verdict | None:
        return next((taken_name(each, evidence.kind) for each in evidence.conflicts if each.kind in kinds), None)

    return check


def missing(kind: Child) -> Check:
    """Return a check that reports why a child of this kind is missing."""

    def check(evidence: Evidence) -> Verdict | None:
        if evidence.observation.owned(kind):
            return None
        failures = (failed(failure) for failure in evidence.failures if failure.kind == kind)
        held = taken(kind)(evidence) or next(failures, None)
        return held or (None if evidence.followed else spec_invalid(evidence))

    return check


def claimed(evidence: Evidence) -> Verdict | None:
    """Report that another install of the operator claims the service."""
    if not evidence.other_operator:
        return None
    text = (
        f"the operator in namespace {evidence.other_operator} also watches this namespace, but does not write to "
        "this service. Uninstall one of them, or give them different watchNamespaces"
    )
    return Status.FALSE, Reason.ANOTHER_OPERATOR, text


def undone_write(evidence: Evidence) -> Verdict | None:
    """Report that another writer undoes the operator's writes."""
    return next((failed(failure) for failure in evidence.failures if failure.undone), None)


def apply_failed(evidence: Evidence) -> Verdict | None:
    """Report that the API server rejected a write."""
    # Failures of these kinds have conditions of their own.
    reported = (HTTP_ROUTE, INGRESS, HPA, SCALED_OBJECT)
    others = [f for f in evidence.failures if f.kind not in reported and not f.at_admission]
    return failed(others[0]) if others else None


def changed_at_admission(evidence: Evidence) -> Verdict | None:
    """Report that an admission policy changes the operator's writes."""
    return next((failed(failure) for failure in evidence.failures if failure.at_admission), None)


def failure_text(failure: Failure) -> str:
    """Return the API server's message about a rejected write, with a remedy."""
    return f"{failure.kind.kind}: {failure.message}{advice(failure.code, failure.message)}"


def changed_text(desired: Json, stored: Json) -> str:
    """Return the message for an object that was stored with changes."""
    if _image_volumes(desired) - _image_volumes(stored):
        return _NO_IMAGE_VOLUMES
    settings = foreign_settings(desired, stored)
    if not settings:
        return (
            "an admission policy or webhook changes this object at each write. Exempt the object from the policy; the"
            " operator retries every few minutes"
        )
    return (
        f"an admission policy or webhook adds {settings_text(settings)} at each write, so these settings are in effect."
        " Exempt names that start with SHOAL_, which come from the spec; the operator retries every few minutes"
    )


def _image_volumes(deployment: Json) -> set[str]:
    volumes = dig(deployment, "spec", "template", "spec", "volumes", default=[])
    return {volume["name"] for volume in volumes if volume.get("image")}


def advice(code: int, message: str) -> str:
    """Return the remedy for an API server's error; empty if unknown.

    ``message`` distinguishes the authorizer, quotas and admission policies, which all count as 403 (`ApiError.code`).
    """
    if code in (400, 422) and _UNKNOWN_VOLUME.search(message):
        return f". {_NO_IMAGE_VOLUMES[:1].upper()}{_NO_IMAGE_VOLUMES[1:]}"
    if code != 403:
        return ""
    return next((text for words, text in _FORBIDDEN if all(word in message for word in words)), "")


_UNKNOWN_VOLUME = re.compile(r'unknown field "[^"]*volumes\[\d+\]\.image"')
_FORBIDDEN = (
    (
        (" cannot ", "resource "),
        ". The operator's ServiceAccount does not have this permission. Install the chart's role again (helm"
        " upgrade), or bind an equal role",
    ),
    (
        ("exceeded quota",),
        ". A ResourceQuota of the namespace is exhausted. Raise it, or delete objects that count against it; the"
        " operator retries",
    ),
    (
        ("denied",),
        ". An admission policy or webhook of this cluster denies the object. Exempt it there, or change the spec",
    ),
)
"""Fragments of a message, with the remedy; the first match wins."""
