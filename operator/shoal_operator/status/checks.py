"""The checks behind status conditions: each returns a verdict, or None to defer to the next check."""

import re

from shoal_operator.children.conditions import find, stored_condition
from shoal_operator.children.observation import dig
from shoal_operator.children.pods import is_ready, runs, unready_containers
from shoal_operator.manifests.containers import MODEL
from shoal_operator.manifests.desired import HPA, HTTP_ROUTE, INGRESS, SCALED_OBJECT, SERVICE
from shoal_operator.manifests.labels import SERVICE_NAME_LABEL, selector_text
from shoal_operator.ownership.conflicts import HPA_MANAGER, replicas_writer
from shoal_operator.status.admission_advice import pod_advice
from shoal_operator.status.blocked import Check, Verdict, failure_text
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.startup_advice import proxy_advice, waiting_advice
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import GRAPH_KIND
from shoal_schema.resource.conditions import ConditionType, Reason, Status


def pods_rejected(evidence: Evidence) -> Verdict | None:
    """Report that the API server rejects pods, for example by a quota."""
    failed = _deployment_condition(evidence, "ReplicaFailure")
    if failed.get("status") != "True":
        return None
    words = failed.get("message", "")
    refused = _REFUSED_POD.match(words)
    newest = _REPLICA_SET.search(_deployment_condition(evidence, "Progressing").get("message", ""))
    # Kubernetes keeps the first message of a refusal: it may be about an older ReplicaSet.
    if refused and newest and newest["name"] != refused["replica_set"]:
        if evidence.new_pods:
            return None
        text = (
            "the API server rejects pods of the newest template. kubectl describe replicaset"
            f" {newest['name']} --namespace {evidence.namespace} shows why"
        )
        return Status.FALSE, Reason.PODS_REFUSED, text
    # Each attempt names another pod: remove the name, so that the message stays the same.
    cause = _REFUSED_POD.sub("", words)
    template: Json = dig(evidence.deployment, "spec", "template", default={})
    return Status.FALSE, Reason.PODS_REFUSED, f"the API server rejects pods: {cause}{pod_advice(cause, template)}"


_REFUSED_POD = re.compile(r'^pods "(?P<replica_set>[^"]*)-[^"-]*" is forbidden: ')
_REPLICA_SET = re.compile(r'[Rr]eplica ?[Ss]et "(?P<name>[^"]+)"')


def pods_failing(evidence: Evidence) -> Verdict | None:
    """Report that a new pod cannot start, load the model or stay alive."""
    if problem := evidence.problem:
        return Status.FALSE, problem.reason, problem.message
    return None


def deadline_exceeded(evidence: Evidence) -> Verdict | None:
    """Report that the rollout exceeded its deadline."""
    progressing = _deployment_condition(evidence, "Progressing")
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        waiting = ", ".join(unready_containers(evidence.new_pods))
        state = f"containers of new pods are not ready: {waiting}" if waiting else "no new pod was created"
        pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
        text = (
            f"the rollout made no progress within rollout.progressDeadlineSeconds: {state}. If the model takes longer"
            f" to load, raise it; otherwise see kubectl describe pods {pods} and kubectl logs --all-containers {pods}"
            f"{proxy_advice(evidence)}"
        )
        return Status.FALSE, Reason.PROGRESS_DEADLINE_EXCEEDED, text
    return None


def rollout_paused(evidence: Evidence) -> Verdict | None:
    """Report that the Deployment was paused before the newest spec was served."""
    if rolling_out(evidence) and dig(evidence.deployment, "spec", "paused"):
        resume = f"kubectl rollout resume deployment/{evidence.name} --namespace {evidence.namespace}"
        text = f"the Deployment is paused, so no pod of the newest spec starts. {resume} resumes it"
        return Status.FALSE, Reason.ROLLOUT_PAUSED, text
    return None


def rolling_out(evidence: Evidence) -> Verdict | None:
    """Report that old pods are being replaced, or the first pods created."""
    # A new Deployment has no pods at all yet.
    if not evidence.rolled_out or evidence.count("replicas") == 0 < evidence.wanted:
        return Status.TRUE, Reason.ROLLING_OUT, "pods of the newest spec are starting"
    return None


def scaling_up(evidence: Evidence) -> Verdict | None:
    """Report that fewer pods than desired are available."""
    if evidence.count("availableReplicas") < evidence.wanted:
        text = f"{evidence.count('availableReplicas')} of {evidence.wanted} pods are ready"
        return Status.TRUE, Reason.SCALING_UP, text
    return None


def complete(evidence: Evidence) -> Verdict:
    """Report that all pods are ready with the newest spec, or none should run."""
    if not evidence.wanted:
        return Status.TRUE, Reason.COMPLETE, "no pod runs; the next one has the newest spec"
    return Status.TRUE, Reason.COMPLETE, "all pods have the newest spec"


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


def none_started(evidence: Evidence) -> Verdict | None:
    """Report that no pod runs, and none can start with this spec."""
    if evidence.target is None and evidence.deployment and evidence.wanted == 0:
        return Status.FALSE, Reason.INVALID_SPEC, f"no pod runs, and none starts: {evidence.spec_error}"
    return None


def no_endpoints(evidence: Evidence) -> Verdict | None:
    """Report that pods are ready, but the Service has no endpoint."""
    if evidence.count("availableReplicas") > 0 and evidence.endpoints == 0 and evidence.observation.owned(SERVICE):
        text = (
            "pods are ready, but the Service has no ready endpoint. If this persists, see kubectl get endpointslices"
            f" --namespace {evidence.namespace} --selector {SERVICE_NAME_LABEL}={evidence.name}"
        )
        return Status.FALSE, Reason.NO_ENDPOINTS, text
    return None


def served_by_old_pods(evidence: Evidence) -> Verdict | None:
    """Report that pods are available, but none has the newest spec."""
    new = any(is_ready(pod) for pod in evidence.new_pods)
    if evidence.count("availableReplicas") > 0 and rolling_out(evidence) and not new:
        text = "pods of an older spec serve requests; no pod of the newest spec is ready"
        return Status.TRUE, Reason.SERVED_BY_OLD_PODS, text
    return None


def available(evidence: Evidence) -> Verdict | None:
    """Report that a pod is available."""
    if evidence.count("availableReplicas") > 0:
        return Status.TRUE, Reason.AVAILABLE, "at least one pod serves requests"
    return None


def available_unowned(evidence: Evidence) -> Verdict | None:
    """Report endpoints of the Service while the Deployment has another owner."""
    if not evidence.deployment and evidence.endpoints:
        text = f"pods of the Service serve requests, but this {evidence.kind} does not own their Deployment"
        return Status.TRUE, Reason.AVAILABLE, text
    return None


def pods_not_ready(evidence: Evidence) -> Verdict:
    """Report that no pod is ready."""
    return Status.FALSE, Reason.PODS_NOT_READY, f"no pod is ready yet{waiting_advice(evidence)}"


def unavailable(evidence: Evidence) -> Verdict | None:
    """Report that no pod is available, though the rollout is complete."""
    return no_endpoints(evidence) or (None if available(evidence) else pods_not_ready(evidence))


def model_loaded(evidence: Evidence) -> Verdict | None:
    """Report that a pod of the newest spec is ready, so the model is loaded."""
    if any(is_ready(pod) for pod in evidence.new_pods):
        return Status.TRUE, Reason.MODEL_LOADED, "the model is loaded and warm"
    return None


def model_at_zero(evidence: Evidence) -> Verdict | None:
    """Report that the service is scaled to zero, so no model is loaded."""
    if (verdict := scaled_to_zero(evidence)) is None or verdict[0] is not Status.TRUE:
        return verdict
    return Status.FALSE, verdict[1], "scaled to zero: the next request starts a pod, which loads the model"


def model_downloading(evidence: Evidence) -> Verdict | None:
    """Report that the init container of a new pod downloads the model."""
    if not any(runs(pod, MODEL) for pod in evidence.new_pods):
        return None
    pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
    text = f"the model is being downloaded. kubectl logs {pods} --container {MODEL} shows the progress"
    return Status.FALSE, Reason.MODEL_DOWNLOADING, text


def model_loading(_: Evidence) -> Verdict:
    """Report that the model is being loaded."""
    return Status.FALSE, Reason.MODEL_LOADING, "no pod of the newest spec is ready yet"


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


_NOT_FOUND = 404
_SCALERS = {HPA: ("AbleToScale", "ScalingActive"), SCALED_OBJECT: ("Ready",)}
"""Conditions of each autoscaler about its metric and its target."""


def objective_as_stored(evidence: Evidence) -> Verdict | None:
    """Report the stored condition until the restarted operator reads a pod."""
    return None if evidence.attainable is not None else _as_stored(evidence, ConditionType.OBJECTIVE_ATTAINABLE)


def rows_as_stored(evidence: Evidence) -> Verdict | None:
    """Report the stored condition until the restarted operator reads a pod."""
    return None if evidence.independent is not None else _as_stored(evidence, ConditionType.ROWS_INDEPENDENT)


def rows_mixed(evidence: Evidence) -> Verdict | None:
    """Report that results of a row depend on other rows of the batch."""
    if all(evidence.has_independent_rows):
        return None
    text = (
        "the model's results for a row depend on the other rows of its batch, so a response may have contained another"
        " client's result. Until the model is replaced, each batch contains one request. Make the model return one"
        " result per row, in order and independent of other rows, or set batching.policy: None. If results depend on"
        " more than the inputs, set batching.rowChecks: Off"
    )
    return Status.FALSE, Reason.ROWS_MIXED, text


def rows_independent(evidence: Evidence) -> Verdict | None:
    """Report that rows that were run again had the same results."""
    if evidence.has_independent_rows:
        text = "rows of shared batches had the same results when they were run again"
        return Status.TRUE, Reason.ROWS_INDEPENDENT, text
    return None


def rows_unknown(evidence: Evidence) -> Verdict | None:
    """Report that no new pod has checked rows, if an older condition exists."""
    conditions = dig(evidence.observation.resource, "status", "conditions", default=[])
    if find(conditions, ConditionType.ROWS_INDEPENDENT) is None:
        return None
    text = "no ready pod of the newest spec has checked rows of shared batches yet"
    return Status.UNKNOWN, Reason.ROWS_NOT_CHECKED, text


def _as_stored(evidence: Evidence, kind: ConditionType) -> Verdict | None:
    resource = evidence.observation.resource
    conditions = dig(resource, "status", "conditions", default=[])
    raw = find(conditions, kind)
    known = stored_condition(conditions, kind)
    if raw is None or known is None or raw.get("observedGeneration") != resource["metadata"].get("generation"):
        return None
    return known.status, known.reason, known.message


def objective_missed(evidence: Evidence) -> Verdict | None:
    """Report a pod on which even one request exceeds the latency objective."""
    if all(evidence.meets_objective):
        return None
    text = (
        "even a batch of one request takes longer than batching.latencyObjectiveMilliseconds"
        f" ({evidence.objective_ms:g}), so responses are late. Raise the objective, or use a faster device or model."
        " kubectl port-forward POD 9090 and curl localhost:9090/v1/explain show the latency of a single request"
    )
    return Status.FALSE, Reason.OBJECTIVE_UNATTAINABLE, text


def objective_met(evidence: Evidence) -> Verdict | None:
    """Report that pods can meet the latency objective."""
    if evidence.meets_objective:
        text = "a single request takes no longer than batching.latencyObjectiveMilliseconds"
        return Status.TRUE, Reason.OBJECTIVE_ATTAINABLE, text
    return None


def objective_unknown(_: Evidence) -> Verdict:
    """Report that no new pod reported recently on the latency objective."""
    text = "no ready pod of the newest spec has recently reported whether it can meet the objective"
    return Status.UNKNOWN, Reason.NO_LATENCY_DATA, text


def not_rolled_out(evidence: Evidence) -> Verdict | None:
    """Report that the rollout is in progress."""
    verdict = rolling_out(evidence)
    return verdict and (Status.FALSE, *verdict[1:])


def unless_served(check: Check) -> Check:
    """Return ``check``, limited to the time until the newest spec is served."""
    return lambda evidence: None if evidence.served else check(evidence)


def ready(_: Evidence) -> Verdict:
    """Report that the newest spec is served."""
    return Status.TRUE, Reason.READY, "the newest spec is served"


def _deployment_condition(evidence: Evidence, kind: str) -> Json:
    if not evidence.seen:
        return {}  # the status belongs to an older spec
    # Of the Deployment controller.
    conditions: list[Json] = dig(evidence.deployment, "status", "conditions", default=[])
    return next((item for item in conditions if item.get("type") == kind), {})


def _route_parents(evidence: Evidence) -> list[Json]:
    parents: list[Json] = dig(evidence.observation.owned(HTTP_ROUTE), "status", "parents", default=[])
    return parents
