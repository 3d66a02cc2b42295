"""Conditions of a service, derived from observations.

Each condition is a list of checks in order of precedence: the first verdict wins (as in cert-manager's policies).
"""

from collections.abc import Sequence

from shoal_operator.children.conditions import Condition
from shoal_operator.manifests.desired import DEPLOYMENT, HTTP_ROUTE, INGRESS, SERVICE
from shoal_operator.status import blocked, graphs, pods, reports, routes, scaling
from shoal_operator.status.blocked import Check, Verdict
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.rollouts import candidate_judged
from shoal_operator.status.upgrades import upgraded
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import GRAPH_KIND
from shoal_schema.resource.conditions import ConditionType, Status

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
        scaling.scaled_to_zero_by_another,
        scaling.scaled_to_zero,
        scaling.without_replicas,
        pods.unless_served(graphs.step_blocks),
        pods.unless_served(pods.pods_rejected),
        pods.unless_served(pods.pods_failing),
        pods.unless_served(pods.deadline_exceeded),
        pods.rollout_paused,
        routes.route_rejected,
        routes.http_route_rejected,
        scaling.scaling_from_zero,
        pods.not_rolled_out,
        pods.unavailable,
        pods.ready,
    ),
    ConditionType.AVAILABLE: (
        blocked.missing(SERVICE),
        pods.no_endpoints,
        pods.served_by_old_pods,
        pods.available,
        pods.available_unowned,
        blocked.model_unresolved,
        blocked.missing(DEPLOYMENT),
        pods.none_started,
        scaling.scaled_to_zero_by_another,
        scaling.scaled_to_zero,
        scaling.without_replicas,
        pods.pods_rejected,
        pods.pods_failing,
        scaling.scaling_from_zero,
        pods.pods_not_ready,
    ),
    ConditionType.PROGRESSING: (
        *_BLOCKED,
        pods.pods_rejected,
        pods.pods_failing,
        pods.deadline_exceeded,
        pods.rollout_paused,
        pods.rolling_out,
        pods.scaling_up,
        pods.complete,
    ),
    ConditionType.MODEL_LOADED: (
        blocked.model_unresolved,
        pods.model_loaded,
        blocked.missing(DEPLOYMENT),
        pods.none_started,
        scaling.scaled_to_zero_by_another,
        pods.model_at_zero,
        scaling.without_replicas,
        pods.pods_rejected,
        pods.pods_failing,
        pods.deadline_exceeded,
        pods.rollout_paused,
        pods.model_downloading,
        pods.model_loading,
    ),
    ConditionType.GRAPH_VALID: (
        graphs.invalid,
        graphs.valid,
        graphs.step_invalid,
        graphs.step_not_ready,
        blocked.missing(DEPLOYMENT),
        scaling.scaled_to_zero_by_another,
        scaling.without_replicas,
        pods.pods_rejected,
        pods.pods_failing,
        graphs.unreported,
    ),
    ConditionType.ROUTE_READY: (
        blocked.missing(SERVICE),
        routes.route_rejected,
        routes.http_route_rejected,
        routes.route_unread,
        blocked.taken(INGRESS, HTTP_ROUTE),
        routes.route_pending,
        routes.route_ready,
    ),
}
_SCALING: tuple[Check, ...] = (scaling.scaled_to_zero_by_another, scaling.left_to_another, scaling.follows_load)
_OBJECTIVE: tuple[Check, ...] = (
    reports.objective_as_stored,
    reports.objective_missed,
    reports.objective_met,
    reports.objective_unknown,
)
_ROWS: tuple[Check, ...] = (reports.rows_as_stored, reports.rows_mixed, reports.rows_independent, reports.rows_unknown)

_PRECISION: tuple[Check, ...] = (reports.precision_as_stored, reports.precisions_differ, reports.precision_chosen)


def evaluate_conditions(evidence: Evidence) -> list[Condition]:
    """Return all conditions of a service's status."""
    absent = left_out(evidence.observation.resource)
    conditions = [
        Condition(kind, *verdict)
        for kind, policy in POLICIES.items()
        if kind != absent and (verdict := _first(policy, evidence))
    ]
    # READY is the first policy.
    ready = conditions[0].status is Status.TRUE
    # Conditions that a status has only while there is something to report.
    exceptional: dict[ConditionType, Verdict | None] = {
        ConditionType.SCALING_ACTIVE: _first(_SCALING, evidence),
        ConditionType.OBJECTIVE_ATTAINABLE: None if evidence.objective_ms is None else _first(_OBJECTIVE, evidence),
        ConditionType.UPGRADED: upgraded(evidence, ready=ready),
        ConditionType.SCALING_LIMITED: scaling.limited(evidence),
        ConditionType.ACTIVATOR_READY: scaling.without_activator(evidence),
        ConditionType.MODEL_RESOLVED: blocked.model_resolved(evidence),
        ConditionType.SOLE_OPERATOR: blocked.claimed(evidence),
        ConditionType.SPEC_READ: blocked.spec_misread(evidence),
        ConditionType.PEERS_FOUND: blocked.peers_service_taken(evidence),
        ConditionType.ROWS_INDEPENDENT: _first(_ROWS, evidence),
        ConditionType.SAME_PRECISION: _first(_PRECISION, evidence),
        ConditionType.CANDIDATE_JUDGED: candidate_judged(evidence),
    }
    return [*conditions, *(Condition(kind, *verdict) for kind, verdict in exceptional.items() if verdict)]


def left_out(resource: Json) -> ConditionType:
    """Return the condition that resources of this kind do not have."""
    return ConditionType.MODEL_LOADED if resource.get("kind") == GRAPH_KIND else ConditionType.GRAPH_VALID


def _first(policy: Sequence[Check], evidence: Evidence) -> Verdict | None:
    return next((verdict for check in policy if (verdict := check(evidence))), None)
