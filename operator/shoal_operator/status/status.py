"""The status of a service, derived from observations."""

from shoal_operator.children.conditions import Condition, stamped
from shoal_operator.children.observation import dig
from shoal_operator.errors import ApiError
from shoal_operator.manifests.desired import SERVICE
from shoal_operator.manifests.labels import selector_text
from shoal_operator.manifests.route import service_url
from shoal_operator.models.resolution import is_unresolved, stored_resolution
from shoal_operator.status.blocked import advice
from shoal_operator.status.conditions import POLICIES, evaluate_conditions, left_out
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.rollouts import rollout_status
from shoal_operator.status.upgrades import upgrade_status
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status


def make_status(evidence: Evidence, now: str) -> Json:
    """Return the whole status of a service.

    Args:
        evidence: observations, and the outcome of the operator's writes.
        now: RFC 3339 time in UTC, for conditions that change.
    """
    resource = evidence.observation.resource
    stored = dig(resource, "status", default={})
    generation = resource["metadata"].get("generation", 0)
    previous: list[Json] = stored.get("conditions", [])
    address = dig(evidence.observation.owned(SERVICE), "spec", "clusterIP", default="")
    conditions = evaluate_conditions(evidence)
    ready = conditions[0].status is Status.TRUE
    # An invalid spec keeps the stored URL.
    url = service_url(evidence.target, address) if evidence.target and evidence.followed else stored.get("url", "")
    if any(conflict.kind == SERVICE for conflict in evidence.conflicts):
        url = ""  # the Service of this name has another owner
    model = stored.get("model", {})
    if evidence.followed:
        resolution = evidence.resolution
        # Pods continue to serve the version that was resolved before.
        if is_unresolved(resolution) and evidence.deployment:
            resolution = stored_resolution(resource)
        model = resolution.as_status() if resolution else {}
    # The activator's port stays reserved for a spec that cannot be read.
    room = stored.get("activator", {})
    if evidence.target is not None:
        room = {"port": evidence.target.hosting.port} if evidence.target.hosting else {}
    precision = stored.get("precision", "") if evidence.precisions is None else ", ".join(evidence.chosen_precisions)
    return {
        "observedGeneration": generation,
        "replicas": evidence.count("replicas"),
        "readyReplicas": evidence.count("readyReplicas"),
        "selector": selector_text(resource["metadata"]["name"]),
        "url": url,
        **({"model": model} if model else {}),
        **({"precision": precision} if precision else {}),
        **({"activator": room} if room else {}),
        **upgrade_status(evidence, ready=ready),
        **rollout_status(evidence),
        "conditions": [stamped(item, previous, generation, now) for item in conditions],
    }


def plain_status(resource: Json, why: str, now: str) -> Json:
    """Return a minimal status, for when the API server rejects the whole one.

    Args:
        resource: the service.
        why: the API server's message.
        now: RFC 3339 time in UTC.
    """
    # ASCII: the message itself may be the cause of the rejection.
    text = f"the status cannot be written: {why}".encode("ascii", "replace").decode()
    condition = Condition(ConditionType.READY, Status.FALSE, Reason.APPLY_FAILED, text)
    generation = resource["metadata"].get("generation", 0)
    stored = dig(resource, "status", default={})
    # State that a restart of the operator reads back.
    kept = {name: stored[name] for name in ("model", "images", "upgrade", "rollout") if name in stored}
    ready = stamped(condition, stored.get("conditions", []), generation, now)
    return {"observedGeneration": generation, **kept, "conditions": [ready]}


def unread_status(resource: Json, error: ApiError, now: str) -> Json:
    """Return the status of a service whose children cannot be read.

    Args:
        resource: the service.
        error: error of the API server.
        now: RFC 3339 time in UTC.
    """
    text = f"the service's objects cannot be read: {error}{advice(error.code, error.message)}"
    stored = dig(resource, "status", default={})
    generation = resource["metadata"].get("generation", 0)
    previous: list[Json] = stored.get("conditions", [])
    unread = [
        Condition(kind, Status.FALSE if kind is ConditionType.READY else Status.UNKNOWN, Reason.APPLY_FAILED, text)
        for kind in POLICIES
        if kind != left_out(resource)
    ]
    return {
        "replicas": 0,
        "readyReplicas": 0,
        **stored,
        "observedGeneration": generation,
        "selector": selector_text(resource["metadata"]["name"]),
        "conditions": [
            *(stamped(item, previous, generation, now) for item in unread),
            *(item for item in previous if item.get("type") not in POLICIES),
        ],
    }
