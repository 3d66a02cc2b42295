"""Conditions, status and Events of a service, derived from observations.

Each condition is a list of checks in order of precedence: the first verdict wins (as in cert-manager's policies).
"""

from collections.abc import Mapping, Sequence

from shoal_operator.children.conditions import Condition, find, stamped, stored_condition
from shoal_operator.children.events import ServiceEvent
from shoal_operator.children.exact import settings_text
from shoal_operator.children.observation import dig
from shoal_operator.errors import ApiError
from shoal_operator.manifests.desired import DEPLOYMENT, HTTP_ROUTE, INGRESS, SERVICE
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.manifests.labels import selector_text
from shoal_operator.manifests.route import service_url
from shoal_operator.models.resolution import stored_resolution
from shoal_operator.scaling.decision import ScalingLimit
from shoal_operator.scaling.report import NoLoad
from shoal_operator.status import blocked, checks, graphs
from shoal_operator.status.blocked import Check, Verdict
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.renamed_fields import dropped_fields, dropped_text
from shoal_operator.status.upgrades import upgrade_status, upgraded
from shoal_schema.decoding import broken_rules
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import GRAPH_KIND
from shoal_schema.resource.conditions import FAILURES, ConditionType, Reason, ScalingReason, Status
from shoal_schema.resource.traffic import ScalingMode

_BLOCKED: tuple[Check, ...] = (
    blocked.spec_invalid,
    blocked.model_unresolved,
    blocked.name_taken,
    blocked.undone_write,
    blocked.apply_failed,
)
POLICIES: dict[ConditionType, tuple[Check, ...]] = {
    ConditionType.READY: (
        *_BLOCKED,
        blocked.changed_at_admission,
        checks.scaled_to_zero_by_another,
        checks.scaled_to_zero,
        checks.without_replicas,
        checks.unless_served(graphs.step_blocks),
        checks.unless_served(checks.pods_rejected),
        checks.unless_served(checks.pods_failing),
        checks.unless_served(checks.deadline_exceeded),
        checks.rollout_paused,
        checks.route_rejected,
        checks.http_route_rejected,
        checks.scaling_from_zero,
        checks.not_rolled_out,
        checks.unavailable,
        checks.ready,
    ),
    ConditionType.AVAILABLE: (
        blocked.missing(SERVICE),
        checks.no_endpoints,
        checks.served_by_old_pods,
        checks.available,
        checks.available_unowned,
        blocked.model_unresolved,
        blocked.missing(DEPLOYMENT),
        checks.none_started,
        checks.scaled_to_zero_by_another,
        checks.scaled_to_zero,
        checks.without_replicas,
        checks.pods_rejected,
        checks.pods_failing,
        checks.scaling_from_zero,
        checks.pods_not_ready,
    ),
    ConditionType.PROGRESSING: (
        *_BLOCKED,
        checks.pods_rejected,
        checks.pods_failing,
        checks.deadline_exceeded,
        checks.rollout_paused,
        checks.rolling_out,
        checks.scaling_up,
        checks.complete,
    ),
    ConditionType.MODEL_LOADED: (
        blocked.model_unresolved,
        checks.model_loaded,
        blocked.missing(DEPLOYMENT),
        checks.none_started,
        checks.scaled_to_zero_by_another,
        checks.model_at_zero,
        checks.without_replicas,
        checks.pods_rejected,
        checks.pods_failing,
        checks.deadline_exceeded,
        checks.rollout_paused,
        checks.model_downloading,
        checks.model_loading,
    ),
    ConditionType.GRAPH_VALID: (
        graphs.invalid,
        graphs.valid,
        graphs.step_invalid,
        graphs.step_not_ready,
        blocked.missing(DEPLOYMENT),
        checks.scaled_to_zero_by_another,
        checks.without_replicas,
        checks.pods_rejected,
        checks.pods_failing,
        graphs.unreported,
    ),
    ConditionType.ROUTE_READY: (
        blocked.missing(SERVICE),
        checks.route_rejected,
        checks.http_route_rejected,
        checks.route_unread,
        blocked.taken(INGRESS, HTTP_ROUTE),
        checks.route_pending,
        checks.route_ready,
    ),
}
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
OBJECTIVE: tuple[Check, ...] = (
    checks.objective_as_stored,
    checks.objective_missed,
    checks.objective_met,
    checks.objective_unknown,
)

ROWS: tuple[Check, ...] = (checks.rows_as_stored, checks.rows_mixed, checks.rows_independent, checks.rows_unknown)


def evaluate_conditions(evidence: Evidence) -> list[Condition]:
    """Return all conditions of a service's status."""
    left_out = _left_out(evidence.observation.resource)
    conditions = [Condition(kind, *_first(policy, evidence)) for kind, policy in POLICIES.items() if kind != left_out]
    # READY is the first policy.
    ready = conditions[0].status is Status.TRUE
    scaling = _scaling_condition(evidence)
    conditions += [scaling] if scaling else []
    if evidence.objective_ms is not None:
        conditions.append(Condition(ConditionType.OBJECTIVE_ATTAINABLE, *_first(OBJECTIVE, evidence)))
    # Conditions that a status has only while there is something to report.
    exceptional: dict[ConditionType, Verdict | None] = {
        ConditionType.UPGRADED: upgraded(evidence, ready=ready),
        ConditionType.SCALING_LIMITED: _scaling_limited(evidence),
        ConditionType.ACTIVATOR_READY: _activator_ready(evidence),
        ConditionType.MODEL_RESOLVED: _model_resolved(evidence),
        ConditionType.SOLE_OPERATOR: _sole_operator(evidence),
        ConditionType.SPEC_READ: _spec_read(evidence),
        ConditionType.PEERS_FOUND: blocked.peers_service_taken(evidence),
        ConditionType.ROWS_INDEPENDENT: next((each for check in ROWS if (each := check(evidence))), None),
    }
    return [*conditions, *(Condition(kind, *verdict) for kind, verdict in exceptional.items() if verdict)]


def _spec_read(evidence: Evidence) -> Verdict | None:
    """Return the verdict on fields that the API server dropped, or on broken rules."""
    if dropped := dropped_fields(evidence.observation.resource):
        return Status.FALSE, Reason.FIELD_RENAMED, dropped_text(dropped)
    if evidence.target is not None and (faults := broken_rules(evidence.target.spec, "spec")):
        text = f"{'; '.join(faults)}. The API server may reject the next change of the spec: correct the fields with it"
        return Status.FALSE, Reason.RULE_BROKEN, text
    return None


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
        if resolution and not resolution.resolved and evidence.deployment:
            resolution = stored_resolution(resource)
        model = resolution.as_status() if resolution else {}
    # The activator's port stays reserved for a spec that cannot be read.
    room = stored.get("activator", {})
    if evidence.target is not None:
        room = {"port": evidence.target.hosting.port} if evidence.target.hosting else {}
    return {
        "observedGeneration": generation,
        "replicas": evidence.count("replicas"),
        "readyReplicas": evidence.count("readyReplicas"),
        "selector": selector_text(resource["metadata"]["name"]),
        "url": url,
        **({"model": model} if model else {}),
        **({"activator": room} if room else {}),
        **upgrade_status(evidence, ready=ready),
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
    kept = {name: stored[name] for name in ("model", "images", "upgrade") if name in stored}
    ready = stamped(condition, stored.get("conditions", []), generation, now)
    return {"observedGeneration": generation, **kept, "conditions": [ready]}


def unread_status(resource: Json, error: ApiError, now: str) -> Json:
    """Return the status of a service whose children cannot be read.

    Args:
        resource: the service.
        error: error of the API server.
        now: RFC 3339 time in UTC.
    """
    text = f"the service's objects cannot be read: {error}{blocked.advice(error.code, error.message)}"
    stored = dig(resource, "status", default={})
    generation = resource["metadata"].get("generation", 0)
    previous: list[Json] = stored.get("conditions", [])
    unread = [
        Condition(kind, Status.FALSE if kind is ConditionType.READY else Status.UNKNOWN, Reason.APPLY_FAILED, text)
        for kind in POLICIES
        if kind != _left_out(resource)
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


def transitions(before: Sequence[Json], after: Sequence[Json]) -> list[ServiceEvent]:
    """Return the Events: one for each change of Ready, and one for each new failure."""
    # One Event for conditions that share reason and message.
    found: dict[tuple[str, str], ServiceEvent] = {}
    for condition in after:
        old = find(list(before), ConditionType(condition["type"])) or {}
        same = (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"])
        warning = condition["reason"] in FAILURES
        if same or not (warning or condition["type"] == ConditionType.READY):
            continue
        key = (condition["reason"], condition["message"])
        found[key] = ServiceEvent(warning, Reason(condition["reason"]), condition["message"])
    return list(found.values())


def removed_settings_event(settings: Mapping[str, Sequence[str]]) -> ServiceEvent:
    """Return the Event about foreign settings that were removed from pods."""
    text = (
        f"removed from the Deployment: {settings_text(settings)}. Variables that start with SHOAL_ come from the spec."
        " Set the field of the spec, or proxy.env"
    )
    return ServiceEvent(warning=True, reason=Reason.SETTING_REMOVED, message=text)


def unwritten_status_event(error: ApiError) -> ServiceEvent:
    """Return the Event about a status that the operator may not write."""
    text = (
        f"the status cannot be written, so all of it may be outdated, including Ready: {error}"
        f"{blocked.advice(error.code, error.message)}"
    )
    return ServiceEvent(warning=True, reason=Reason.APPLY_FAILED, message=text)


def other_owner_event(keeper: str, me: str) -> ServiceEvent:
    """Return the Event about a service that another install owns."""
    text = (
        f"the operator in namespace {keeper} owns this service; the one in {me} does not write to it while that "
        "operator responds. Uninstall one of them, or give them different watchNamespaces"
    )
    return ServiceEvent(warning=True, reason=Reason.ANOTHER_OPERATOR, message=text)


def _left_out(resource: Json) -> ConditionType:
    """Return the condition that resources of this kind do not have."""
    return ConditionType.MODEL_LOADED if resource.get("kind") == GRAPH_KIND else ConditionType.GRAPH_VALID


def _first(policy: Sequence[Check], evidence: Evidence) -> Verdict:
    verdicts = (check(evidence) for check in policy)
    return next(verdict for verdict in verdicts if verdict is not None)


def _model_resolved(evidence: Evidence) -> Verdict | None:
    resolution = evidence.resolution
    if resolution is None:
        return None
    if verdict := blocked.model_unresolved(evidence):
        return verdict
    # A version is cached from before, so pods continue with it.
    if resolution.problem:
        return Status.FALSE, Reason.MODEL_UNRESOLVED, f"{resolution.problem} (pods keep {resolution.resolved})"
    return Status.TRUE, Reason.MODEL_RESOLVED, f"{resolution.uri} resolved to {resolution.resolved} at the last request"


def _sole_operator(evidence: Evidence) -> Verdict | None:
    if not evidence.other_operator:
        return None
    text = (
        f"the operator in namespace {evidence.other_operator} also watches this namespace, but does not write to "
        "this service. Uninstall one of them, or give them different watchNamespaces"
    )
    return Status.FALSE, Reason.ANOTHER_OPERATOR, text


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


def _scaling_limited(evidence: Evidence) -> Verdict | None:
    if evidence.scaling is None or evidence.scaling.limit is None or evidence.target is None:
        return None
    asked = evidence.target.spec.scaling
    if asked is None or asked.mode is ScalingMode.EXTERNAL:
        return None  # the limit belongs to the previous spec
    return Status.TRUE, *_LIMITED[evidence.scaling.limit]


def _activator_ready(evidence: Evidence) -> Verdict | None:
    if evidence.target is None or evidence.target.hosting is None or not evidence.target.hosting.problem:
        return None
    text = f"{evidence.target.hosting.problem}. Until then the operator removes no pod"
    if (slept := checks.scaled_to_zero(evidence)) and slept[0] is Status.FALSE:
        text = slept[2]
    return Status.FALSE, Reason.NO_ACTIVATOR, text


def _scaling_condition(evidence: Evidence) -> Condition | None:
    if verdict := checks.scaled_to_zero_by_another(evidence):
        return Condition(ConditionType.SCALING_ACTIVE, *verdict)
    if evidence.scaler:
        text = (
            f"{checks.writer_text(evidence.scaler)} resets spec.replicas of the Deployment after each write. The"
            f" operator keeps {evidence.wanted} and retries every hour. Remove that writer, or set scaling.mode:"
            f" External and let it scale the {evidence.kind} {evidence.name}"
        )
        return Condition(ConditionType.SCALING_ACTIVE, Status.FALSE, Reason.ANOTHER_SCALER, text)
    kind = ConditionType.SCALING_ACTIVE
    if evidence.target is None or evidence.target.spec.scaling is None:
        return None
    if evidence.target.spec.scaling.mode is ScalingMode.EXTERNAL:
        return Condition(kind, *checks.scaled_by_another(evidence))
    if evidence.scaling is not None:
        scaling = evidence.scaling
        status, text = SCALING[scaling.reason]
        if scaling.reason is Reason.NO_LOAD_DATA and scaling.no_load is not None:
            text = UNREAD[scaling.no_load]
        if scaling.conflicting_writer is not None:
            text = (
                f"{checks.writer_text(scaling.conflicting_writer)} also sets spec.replicas, so the count"
                " changes back and forth. Set scaling.mode: External, or remove the other writer"
            )
            text = f"{text}. {scaling.sentence}" if scaling.sentence else text
            return Condition(kind, Status.FALSE, Reason.ANOTHER_SCALER, text)
        return Condition(kind, status, scaling.reason, scaling.sentence or text)
    if evidence.target.hosting is not None and not evidence.wanted:
        text = "0 replicas: no requests, and scaling.minReplicas is 0; the next request starts the first replica"
        return Condition(kind, Status.TRUE, Reason.FOLLOWING_LOAD, text)
    return stored_condition(dig(evidence.observation.resource, "status", "conditions", default=[]), kind)
