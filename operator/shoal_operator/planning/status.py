"""What is observed -> conditions, status and events.

Each condition is a list of checks, tried in order; the first that answers wins, so the order of
decisions can be read here (after cert-manager's policies).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shoal_operator.api.conditions import (
    FAILURES,
    Condition,
    ConditionType,
    Reason,
    Status,
    find,
    stamped,
)
from shoal_operator.api.fields import Json
from shoal_operator.manifests.desired import DEPLOYMENT, HTTP_ROUTE, INGRESS
from shoal_operator.manifests.labels import selector_text
from shoal_operator.manifests.route import service_url
from shoal_operator.manifests.target import Target
from shoal_operator.planning.observation import Failure, Observation, dig, is_owned
from shoal_operator.planning.plan import Conflict
from shoal_operator.planning.pods import Problem, find_problem, is_leaving, is_ready, template_hash


class ScalingState(StrEnum):
    """What the autoscaler last did for a service."""

    FOLLOWING = "following"
    NO_DATA = "no data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the conditions are judged by.

    Args:
        target: None when the spec cannot be read; ``spec_error`` then says why.
        scaling: None when the autoscaler has not looked yet.
    """

    observation: Observation
    target: Target | None
    spec_error: str = ""
    conflicts: tuple[Conflict, ...] = ()
    failures: tuple[Failure, ...] = ()
    scaling: ScalingState | None = None

    @property
    def deployment(self) -> Json:
        """Our Deployment, or an empty object."""
        live = self.observation.children.get(DEPLOYMENT)
        uid = self.observation.resource["metadata"]["uid"]
        return live if live is not None and is_owned(live, uid) else {}

    @property
    def new_pods(self) -> list[Json]:
        """Pods of the newest template that are not leaving."""
        newest = template_hash(dig(self.deployment, "spec", "template", default={}))
        pods = self.observation.pods
        return [pod for pod in pods if template_hash(pod) == newest and not is_leaving(pod)]

    @property
    def problem(self) -> Problem | None:
        """What keeps the newest pods from serving."""
        return find_problem(self.new_pods)

    def count(self, field: str) -> int:
        """Return a number of the Deployment's status."""
        number: int = dig(self.deployment, "status", field, default=0)
        return number

    @property
    def wanted(self) -> int:
        """The pods that should run."""
        number: int = dig(self.deployment, "spec", "replicas", default=0)
        return number

    @property
    def rolled_out(self) -> bool:
        """Whether every pod that exists is of the newest template."""
        generation = dig(self.deployment, "metadata", "generation", default=0)
        seen = bool(self.deployment) and self.count("observedGeneration") >= generation
        return seen and self.count("updatedReplicas") == self.count("replicas")


Verdict = tuple[Status, Reason, str]
Check = Callable[[Evidence], Verdict | None]


def spec_invalid(evidence: Evidence) -> Verdict | None:
    """The spec cannot work; what runs now is left as it is."""
    if evidence.target is None:
        return Status.FALSE, Reason.INVALID_SPEC, evidence.spec_error
    refused = [f for f in evidence.failures if f.code in (400, 422)]
    if refused:
        return Status.FALSE, Reason.INVALID_SPEC, _failure_text(refused[0])
    return None


def name_taken(evidence: Evidence) -> Verdict | None:
    """An object of somebody else stands in the way."""
    for conflict in evidence.conflicts:
        what = f"{conflict.kind.kind} {conflict.name}"
        if conflict.stale:
            text = f"waiting until the {what} of a deleted service of this name is gone"
            return Status.FALSE, Reason.WAITING_FOR_CLEANUP, text
        text = (
            f"{what} exists and does not belong to this InferenceService; it is left alone."
            " Delete it, or give the InferenceService another name"
        )
        return Status.FALSE, Reason.NAME_TAKEN, text
    return None


def apply_failed(evidence: Evidence) -> Verdict | None:
    """The API server refused a write for a reason that is not the spec's."""
    others = [f for f in evidence.failures if f.kind not in (HTTP_ROUTE, INGRESS)]
    if others:
        return Status.FALSE, Reason.APPLY_FAILED, _failure_text(others[0])
    return None


def pods_refused(evidence: Evidence) -> Verdict | None:
    """Pods cannot even be created: a quota, a policy, a missing account."""
    if (failed := _deployment_condition(evidence, "ReplicaFailure")).get("status") == "True":
        text = f"pods cannot be created: {failed.get('message', '')}"
        return Status.FALSE, Reason.PODS_REFUSED, text
    return None


def pods_in_trouble(evidence: Evidence) -> Verdict | None:
    """A new pod cannot start, load or stay."""
    if problem := evidence.problem:
        return Status.FALSE, problem.reason, problem.message
    return None


def deadline_exceeded(evidence: Evidence) -> Verdict | None:
    """The Deployment gave up waiting."""
    progressing = _deployment_condition(evidence, "Progressing")
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        text = (
            "the rollout made no progress within rollout.progressDeadlineSeconds; if loading the"
            " model takes longer, raise it, else see the pods' logs"
        )
        return Status.FALSE, Reason.PROGRESS_DEADLINE_EXCEEDED, text
    return None


def rolling_out(evidence: Evidence) -> Verdict | None:
    """Old pods are being replaced, or the first ones made."""
    if not evidence.rolled_out or evidence.count("replicas") == 0 < evidence.wanted:
        return Status.TRUE, Reason.ROLLING_OUT, "pods of the newest spec are being started"
    return None


def scaling_up(evidence: Evidence) -> Verdict | None:
    """More pods are on their way."""
    if evidence.count("availableReplicas") < evidence.wanted:
        return Status.TRUE, Reason.SCALING_UP, "some pods are not ready yet"
    return None


def complete(_: Evidence) -> Verdict:
    """All pods are of the newest spec and ready."""
    return Status.TRUE, Reason.COMPLETE, "all pods are of the newest spec"


def scaled_to_zero(evidence: Evidence) -> Verdict | None:
    """Nothing should run."""
    if evidence.target is not None and evidence.deployment and evidence.wanted == 0:
        text = "replicas is 0; kubectl scale --replicas=1 starts the service"
        return Status.FALSE, Reason.SCALED_TO_ZERO, text
    return None


def answers(evidence: Evidence) -> Verdict | None:
    """A pod answers."""
    if evidence.count("availableReplicas") > 0:
        return Status.TRUE, Reason.AVAILABLE, "at least one pod answers requests"
    return None


def pods_not_ready(_: Evidence) -> Verdict:
    """No pod answers yet."""
    return Status.FALSE, Reason.PODS_NOT_READY, "no pod is ready yet"


def model_loaded(evidence: Evidence) -> Verdict | None:
    """A pod of the newest spec is ready, so its model is loaded and warm."""
    if any(is_ready(pod) for pod in evidence.new_pods):
        return Status.TRUE, Reason.MODEL_LOADED, "the model is loaded and warm"
    return None


def model_loading(_: Evidence) -> Verdict:
    """The model is being fetched or loaded."""
    return Status.FALSE, Reason.MODEL_LOADING, "no pod of the newest spec is ready yet"


def route_refused(evidence: Evidence) -> Verdict | None:
    """The route could not be written."""
    for failure in evidence.failures:
        if failure.kind == HTTP_ROUTE and failure.code == 404:
            text = "route.httpRoute needs the Gateway API: install its CRDs, or use route.ingress"
            return Status.FALSE, Reason.GATEWAY_API_MISSING, text
        if failure.kind in (HTTP_ROUTE, INGRESS):
            return Status.FALSE, Reason.ROUTE_REFUSED, _failure_text(failure)
    return None


def http_route_refused(evidence: Evidence) -> Verdict | None:
    """A Gateway said no."""
    for parent in _route_parents(evidence):
        for condition in parent.get("conditions", []):
            if condition.get("status") == "False":
                text = f"a Gateway refuses the route: {condition.get('message', '')}"
                return Status.FALSE, Reason.ROUTE_REFUSED, text
    return None


def route_pending(evidence: Evidence) -> Verdict | None:
    """The controller of the route has not answered; some never do."""
    children = evidence.observation.children
    ingress = children.get(INGRESS)
    silent = ingress and not dig(ingress, "status", "loadBalancer", "ingress")
    if silent or (HTTP_ROUTE in children and not _route_parents(evidence)):
        text = "the route exists; its controller has not reported an address or an answer yet"
        return Status.UNKNOWN, Reason.ROUTE_PENDING, text
    return None


def route_ready(evidence: Evidence) -> Verdict:
    """The route is accepted, or none is asked for."""
    if evidence.target is not None and evidence.target.spec.route is None:
        text = "no route is asked for: the service is reached inside the cluster"
        return Status.TRUE, Reason.CLUSTER_INTERNAL, text
    return Status.TRUE, Reason.ROUTE_ACCEPTED, "the route is accepted"


def not_rolled_out(evidence: Evidence) -> Verdict | None:
    """Old pods still serve; the newest spec does not yet."""
    verdict = rolling_out(evidence)
    return verdict and (Status.FALSE, *verdict[1:])


def trouble_before_rollout(evidence: Evidence) -> Verdict | None:
    """A trouble counts while the newest spec is not served; afterwards it only slows scaling."""
    served = evidence.rolled_out and evidence.count("availableReplicas") > 0
    return None if served else pods_in_trouble(evidence)


def ready(_: Evidence) -> Verdict:
    """The newest spec is served."""
    return Status.TRUE, Reason.READY, "the newest spec is served"


_BLOCKED: tuple[Check, ...] = (spec_invalid, name_taken, apply_failed)
POLICIES: dict[ConditionType, tuple[Check, ...]] = {
    ConditionType.READY: (
        *_BLOCKED,
        scaled_to_zero,
        pods_refused,
        trouble_before_rollout,
        route_refused,
        http_route_refused,
        not_rolled_out,
        lambda evidence: None if answers(evidence) else pods_not_ready(evidence),
        ready,
    ),
    ConditionType.AVAILABLE: (answers, scaled_to_zero, pods_in_trouble, pods_not_ready),
    ConditionType.PROGRESSING: (
        *_BLOCKED,
        pods_refused,
        pods_in_trouble,
        deadline_exceeded,
        rolling_out,
        scaling_up,
        complete,
    ),
    ConditionType.MODEL_LOADED: (model_loaded, scaled_to_zero, pods_in_trouble, model_loading),
    ConditionType.ROUTE_READY: (route_refused, http_route_refused, route_pending, route_ready),
}


def judge(evidence: Evidence) -> list[Condition]:
    """Return every condition that applies."""
    conditions = [Condition(kind, *_first(checks, evidence)) for kind, checks in POLICIES.items()]
    scaling = _scaling_condition(evidence)
    return [*conditions, scaling] if scaling else conditions


def make_status(evidence: Evidence, now: str) -> Json:
    """Return the whole status.

    Args:
        evidence: what is observed, and what became of our writes.
        now: RFC 3339 time in UTC, for the conditions that change.
    """
    resource = evidence.observation.resource
    stored = dig(resource, "status", default={})
    generation = resource["metadata"].get("generation", 0)
    previous: list[Json] = stored.get("conditions", [])
    url = service_url(evidence.target) if evidence.target else stored.get("url", "")
    return {
        "observedGeneration": generation,
        "replicas": evidence.count("replicas"),
        "readyReplicas": evidence.count("readyReplicas"),
        "selector": selector_text(resource["metadata"]["name"]),
        "url": url,
        "conditions": [stamped(item, previous, generation, now) for item in judge(evidence)],
    }


@dataclass(frozen=True, slots=True)
class Announcement:
    """What an Event says."""

    warning: bool
    reason: str
    message: str


def transitions(before: Sequence[Json], after: Sequence[Json]) -> list[Announcement]:
    """Return what to announce: Ready's changes, and every failure that is new."""
    said: dict[tuple[str, str], Announcement] = {}
    for condition in after:
        old = find(list(before), ConditionType(condition["type"])) or {}
        same = (old.get("status"), old.get("reason")) == (condition["status"], condition["reason"])
        warning = condition["reason"] in FAILURES
        if same or not (warning or condition["type"] == ConditionType.READY):
            continue
        key = (condition["reason"], condition["message"])
        said[key] = Announcement(warning, *key)
    return list(said.values())


def _first(checks: Sequence[Check], evidence: Evidence) -> Verdict:
    verdicts = (check(evidence) for check in checks)
    return next(verdict for verdict in verdicts if verdict is not None)


def _scaling_condition(evidence: Evidence) -> Condition | None:
    kind = ConditionType.SCALING_ACTIVE
    if evidence.target is None or evidence.target.spec.scaling is None:
        return None
    if evidence.scaling is ScalingState.FOLLOWING:
        text = "replicas follow the rows that wait and run"
        return Condition(kind, Status.TRUE, Reason.FOLLOWING_LOAD, text)
    if evidence.scaling is ScalingState.NO_DATA:
        text = "no proxy's /metrics can be read: replicas stay as they are"
        return Condition(kind, Status.FALSE, Reason.NO_LOAD_DATA, text)
    stored = find(dig(evidence.observation.resource, "status", "conditions", default=[]), kind)
    if stored is None:
        return None
    return Condition(kind, Status(stored["status"]), Reason(stored["reason"]), stored["message"])


def _deployment_condition(evidence: Evidence, kind: str) -> Json:
    conditions: list[Json] = dig(evidence.deployment, "status", "conditions", default=[])
    return next((item for item in conditions if item.get("type") == kind), {})


def _route_parents(evidence: Evidence) -> list[Json]:
    route = evidence.observation.children.get(HTTP_ROUTE)
    parents: list[Json] = dig(route, "status", "parents", default=[])
    return parents


def _failure_text(failure: Failure) -> str:
    return f"{failure.kind.kind}: {failure.message}"
