"""Status checks of routes to a service from outside the cluster."""

from shoal_operator.children.observation import dig
from shoal_operator.manifests.desired import HTTP_ROUTE, INGRESS
from shoal_operator.status.blocked import Verdict, failure_text
from shoal_operator.status.evidence import Evidence
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import Reason, Status


def route_rejected(evidence: Evidence) -> Verdict | None:
    """Report that the API server rejected the route."""
    for failure in evidence.failures:
        if failure.kind == HTTP_ROUTE and failure.code == 404:
            text = "route.httpRoute requires the Gateway API, which is not installed. Install it, or use route.ingress"
            return Status.FALSE, Reason.GATEWAY_API_MISSING, text
        if failure.kind in (HTTP_ROUTE, INGRESS) and not failure.at_admission:
            return Status.FALSE, Reason.ROUTE_REFUSED, failure_text(failure)
    return None


def http_route_rejected(evidence: Evidence) -> Verdict | None:
    """Report that a Gateway rejected the route."""
    for parent in _route_parents(evidence):
        for condition in parent.get("conditions", []):
            if condition.get("status") == "False":
                text = f"a Gateway rejects the route: {condition.get('message', '')}"
                return Status.FALSE, Reason.ROUTE_REFUSED, text
    return None


def route_pending(evidence: Evidence) -> Verdict | None:
    """Report that the route's controller has not reported a status."""
    ours = evidence.observation.owned
    pending = ours(INGRESS) and not dig(ours(INGRESS), "status", "loadBalancer", "ingress")
    if pending or (ours(HTTP_ROUTE) and not _route_parents(evidence)):
        text = "the route exists; its controller has not reported a status yet"
        return Status.UNKNOWN, Reason.ROUTE_PENDING, text
    return None


def route_unread(evidence: Evidence) -> Verdict | None:
    """Report that the spec is not applied, and no older route exists."""
    ours = evidence.observation.owned
    if not evidence.followed and not ours(INGRESS) and not ours(HTTP_ROUTE):
        return Status.UNKNOWN, evidence.spec_reason, evidence.spec_error
    return None


def route_ready(evidence: Evidence) -> Verdict:
    """Report that the route is accepted, or that the spec has none."""
    if evidence.target is not None and evidence.target.spec.route is None:
        return Status.TRUE, Reason.CLUSTER_INTERNAL, "spec.route is not set: the service is reachable in the cluster"
    return Status.TRUE, Reason.ROUTE_ACCEPTED, "the route is accepted"


def _route_parents(evidence: Evidence) -> list[Json]:
    parents: list[Json] = dig(evidence.observation.owned(HTTP_ROUTE), "status", "parents", default=[])
    return parents
