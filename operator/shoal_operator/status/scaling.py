"""Status checks of replicas: autoscaling, scale to zero, and other writers."""

from shoal_operator.children.conditions import find, stored_condition
from shoal_operator.children.observation import dig
from shoal_operator.manifests.desired import HPA, SCALED_OBJECT
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.ownership.conflicts import HPA_MANAGER, replicas_writer
from shoal_operator.scaling.decision import ScalingLimit
from shoal_operator.scaling.report import NoLoad
from shoal_operator.status.blocked import Verdict, failure_text
from shoal_operator.status.evidence import Evidence
from shoal_schema.resource import GRAPH_KIND
from shoal_schema.resource.conditions import ConditionType, Reason, ScalingReason, Status
from shoal_schema.resource.traffic import ScalingMode


def scaled_to_zero(evidence: Evidence) -> Verdict | None:
    """Report that the service is scaled to zero."""
    if evidence.target is None or evidence.target.hosting is None or not evidence.deployment or evidence.wanted:
        return None
    # Without an activator requests would be lost.
    if not evidence.target.hosting.held:
        text = (
            f"no pod runs, and {evidence.target.hosting.problem}. Until then requests are rejected and start no"
            f" pod; kubectl scale infsvc {evidence.name} --namespace {evidence.namespace} --replicas=1 starts one"
        )
        return Status.FALSE, Reason.NO_ACTIVATOR, text
    text = "scaled to zero: the activator holds the next request until a pod has started for it"
    return Status.TRUE, Reason.SCALED_TO_ZERO, text


def scaling_from_zero(evidence: Evidence) -> Verdict | None:
    """Report that the service is starting from zero."""
    if evidence.target is None or evidence.target.hosting is None or not evidence.target.hosting.held:
        return None
    conditions = dig(evidence.observation.resource, "status", "conditions", default=[])
    # After a restart of the operator the stored condition is the only record.
    stored = (find(conditions, ConditionType.READY) or {}).get("reason")
    waking_before = stored in (Reason.SCALED_TO_ZERO, Reason.WAKING) and not evidence.count("availableReplicas")
    if not (evidence.target.hosting.waking or waking_before):
        return None
    pods = "a pod starts" if evidence.wanted < 2 else f"{evidence.wanted} pods start"
    return Status.TRUE, Reason.WAKING, f"{pods}; the activator holds requests until one is ready"


def without_replicas(evidence: Evidence) -> Verdict | None:
    """Report that ``spec.replicas`` is 0, so that no pod runs."""
    if evidence.target is not None and evidence.deployment and evidence.wanted == evidence.target.replicas == 0:
        short = "infgraph" if evidence.kind == GRAPH_KIND else "infsvc"
        start = f"kubectl scale {short}/{evidence.name} --namespace {evidence.namespace} --replicas=1"
        return Status.FALSE, Reason.PARKED, f"spec.replicas is 0, so requests are rejected. {start} starts the service"
    return None


def scaled_to_zero_by_another(evidence: Evidence) -> Verdict | None:
    """Report that another writer keeps the Deployment at 0 replicas."""
    if evidence.target is None or not evidence.deployment or evidence.wanted or not evidence.target.replicas:
        return None
    writer = replicas_writer(evidence.deployment)
    if not writer:
        return None
    text = (
        f"{writer_text(writer)} set spec.replicas of the Deployment to 0, so no pod runs. The operator restores"
        f" {evidence.target.replicas} within a few minutes. Remove that writer, or set replicas: 0 of the"
        f" {evidence.kind} {evidence.name} if no pod should run"
    )
    return Status.FALSE, Reason.ANOTHER_SCALER, text


def writer_text(manager: str) -> str:
    """Return the name of a field manager, for a message."""
    return f"{manager!r} (an HPA)" if manager == HPA_MANAGER else repr(manager) if manager else "another writer"


_NOT_FOUND = 404

_SCALERS = {HPA: ("AbleToScale", "ScalingActive"), SCALED_OBJECT: ("Ready",)}
"""Conditions of each autoscaler about its metric and its target."""


def scaled_by_another(evidence: Evidence) -> Verdict:
    """Report the status of an HPA or of KEDA, which sets the replicas."""
    for failure in evidence.failures:
        if failure.kind == SCALED_OBJECT and failure.code == _NOT_FOUND:
            text = (
                "scaling.external.scaledObject requires KEDA, which is not installed. Install it, or use"
                " horizontalPodAutoscaler"
            )
            return Status.FALSE, Reason.SCALER_MISSING, text
        if failure.kind in _SCALERS:
            return Status.FALSE, Reason.SCALER_FAILS, failure_text(failure)
    for kind, types in _SCALERS.items():
        for condition in dig(evidence.observation.owned(kind), "status", "conditions", default=[]):
            if condition.get("type") in types and condition.get("status") == "False":
                text = f"the {kind.kind} does not follow the load: {condition.get('message', '')}"
                return Status.FALSE, Reason.SCALER_FAILS, text
    text = "scaling.mode is External: another autoscaler (an HPA, KEDA) sets replicas, not the operator"
    return Status.UNKNOWN, Reason.EXTERNAL, text


SCALING: dict[ScalingReason, tuple[Status, str]] = {
    Reason.FOLLOWING_LOAD: (Status.TRUE, "replicas follow the queued and running rows"),
    Reason.NO_LOAD_DATA: (Status.FALSE, "no proxy's /v1/load can be read, so replicas do not change"),
}

UNREAD: dict[NoLoad, str] = {
    NoLoad.NO_READY_POD: "no pod is ready, so there is no load to follow and replicas do not change",
    NoLoad.UNREACHABLE: (
        f"no ready pod responds to the operator on port {ADMIN_PORT} (/v1/load), so replicas do not change. Check"
        " whether a NetworkPolicy or a service mesh blocks the operator"
    ),
    NoLoad.REFUSED: (
        f"ready pods send an invalid response on port {ADMIN_PORT} (/v1/load), so replicas do not change. Check whether"
        " proxy.image is Shoal's proxy, or a service mesh responds instead"
    ),
}


def left_to_another(evidence: Evidence) -> Verdict | None:
    """Report that another writer keeps resetting the Deployment's replicas.

    The operator then leaves the replicas to this writer.
    """
    if not evidence.scaler:
        return None
    text = (
        f"{writer_text(evidence.scaler)} resets spec.replicas of the Deployment after each write. The"
        f" operator keeps {evidence.wanted} and retries every hour. Remove that writer, or set scaling.mode:"
        f" External and let it scale the {evidence.kind} {evidence.name}"
    )
    return Status.FALSE, Reason.ANOTHER_SCALER, text


def follows_load(evidence: Evidence) -> Verdict | None:
    """Report whether replicas follow the load; None without ``spec.scaling``."""
    if evidence.target is None or evidence.target.spec.scaling is None:
        return None
    if evidence.target.spec.scaling.mode is ScalingMode.EXTERNAL:
        return scaled_by_another(evidence)
    if (scaling := evidence.scaling) is not None:
        status, text = SCALING[scaling.reason]
        if scaling.reason is Reason.NO_LOAD_DATA and scaling.no_load is not None:
            text = UNREAD[scaling.no_load]
        if scaling.conflicting_writer is not None:
            text = (
                f"{writer_text(scaling.conflicting_writer)} also sets spec.replicas, so the count"
                " changes back and forth. Set scaling.mode: External, or remove the other writer"
            )
            text = f"{text}. {scaling.sentence}" if scaling.sentence else text
            return Status.FALSE, Reason.ANOTHER_SCALER, text
        return status, scaling.reason, scaling.sentence or text
    if evidence.target.hosting is not None and not evidence.wanted:
        text = "0 replicas: no requests, and scaling.minReplicas is 0; the next request starts the first replica"
        return Status.TRUE, Reason.FOLLOWING_LOAD, text
    # Until the restarted operator has read the pods.
    stored = dig(evidence.observation.resource, "status", "conditions", default=[])
    known = stored_condition(stored, ConditionType.SCALING_ACTIVE)
    return (known.status, known.reason, known.message) if known else None


_LIMITED: dict[ScalingLimit, tuple[Reason, str]] = {
    ScalingLimit.MAXIMUM: (
        Reason.AT_MAX_REPLICAS,
        "the load requires more replicas than scaling.maxReplicas, so requests wait or are rejected. Raise it",
    ),
    ScalingLimit.CAPACITY: (
        Reason.NO_FREE_CAPACITY,
        "no node has room for pending pods, so the operator requests no more replicas. Add nodes, or request less"
        " (runtime.resources, proxy.resources)",
    ),
}


def limited(evidence: Evidence) -> Verdict | None:
    """Report that replicas are fewer than the load requires."""
    if evidence.scaling is None or evidence.scaling.limit is None or evidence.target is None:
        return None
    asked = evidence.target.spec.scaling
    if asked is None or asked.mode is ScalingMode.EXTERNAL:
        return None  # the limit belongs to the previous spec
    return Status.TRUE, *_LIMITED[evidence.scaling.limit]


def without_activator(evidence: Evidence) -> Verdict | None:
    """Report that no activator can hold requests, so that no pod is removed."""
    if evidence.target is None or evidence.target.hosting is None or not evidence.target.hosting.problem:
        return None
    text = f"{evidence.target.hosting.problem}. Until then the operator removes no pod"
    if (slept := scaled_to_zero(evidence)) and slept[0] is Status.FALSE:
        text = slept[2]
    return Status.FALSE, Reason.NO_ACTIVATOR, text
