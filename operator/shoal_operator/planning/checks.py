"""The checks that conditions are made of: each answers, or leaves the answer to the next."""

import re

from shoal_operator.manifests.containers import MODEL
from shoal_operator.manifests.desired import HPA, HTTP_ROUTE, INGRESS, SCALED_OBJECT, SERVICE
from shoal_operator.manifests.labels import SERVICE_NAME_LABEL, selector_text
from shoal_operator.planning.admission_advice import pod_advice
from shoal_operator.planning.blocked import Check, Verdict, failure_text
from shoal_operator.planning.conditions import find, stored_condition
from shoal_operator.planning.evidence import Evidence
from shoal_operator.planning.observation import dig
from shoal_operator.planning.pods import is_ready, runs, unready_containers
from shoal_operator.planning.startup_advice import proxy_advice, waiting_advice
from shoal_schema.conditions import ConditionType, Reason, Status
from shoal_schema.declaring import Json
from shoal_schema.resource import GRAPH_KIND


def pods_refused(evidence: Evidence) -> Verdict | None:
    """Pods cannot even be created: a quota, a policy, a missing account."""
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


def pods_in_trouble(evidence: Evidence) -> Verdict | None:
    """A new pod cannot start, load or stay."""
    if problem := evidence.problem:
        return Status.FALSE, problem.reason, problem.message
    return None


def deadline_exceeded(evidence: Evidence) -> Verdict | None:
    """The Deployment gave up waiting."""
    progressing = _deployment_condition(evidence, "Progressing")
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        waiting = ", ".join(unready_containers(evidence.new_pods))
        state = f"the newest pods are not ready, waiting for {waiting}" if waiting else "no newest pod was made"
        pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
        text = (
            f"the rollout made no progress within rollout.progressDeadlineSeconds: {state}. If loading the model takes"
            f" longer, raise it; else kubectl describe pods {pods} and kubectl logs --all-containers {pods} tell more"
            f"{proxy_advice(evidence)}"
        )
        return Status.FALSE, Reason.PROGRESS_DEADLINE_EXCEEDED, text
    return None


def rollout_paused(evidence: Evidence) -> Verdict | None:
    """Somebody paused the Deployment before the newest spec was served."""
    if rolling_out(evidence) and dig(evidence.deployment, "spec", "paused"):
        resume = f"kubectl rollout resume deployment/{evidence.name} --namespace {evidence.namespace}"
        text = f"the Deployment is paused, so no pod of the newest spec is started; {resume} lets it go on"
        return Status.FALSE, Reason.ROLLOUT_PAUSED, text
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


def complete(evidence: Evidence) -> Verdict:
    """All pods are of the newest spec and ready, or there are to be none."""
    if not evidence.wanted:
        return Status.TRUE, Reason.COMPLETE, "no pod runs; the next one is of the newest spec"
    return Status.TRUE, Reason.COMPLETE, "all pods are of the newest spec"


def asleep(evidence: Evidence) -> Verdict | None:
    """Nobody calls, so no pod runs; whoever calls is heard all the same."""
    if evidence.target is None or evidence.target.hosting is None or not evidence.deployment or evidence.wanted:
        return None
    if not evidence.target.hosting.held:
        text = (
            f"no pod runs, and {evidence.target.hosting.shortcoming}. Until then whoever calls is refused, and wakes"
            f" nobody; kubectl scale infsvc {evidence.name} --namespace {evidence.namespace} --replicas=1 starts a pod"
        )
        return Status.FALSE, Reason.NO_WAITING_ROOM, text
    text = "no pod runs while nobody calls: the waiting room holds the next request, and a pod is started for it"
    return Status.TRUE, Reason.SCALED_TO_ZERO, text


def waking(evidence: Evidence) -> Verdict | None:
    """A pod is started for a service that slept; whoever calls is held until it is ready."""
    if evidence.target is None or evidence.target.hosting is None or not evidence.target.hosting.held:
        return None
    conditions = dig(evidence.observation.resource, "status", "conditions", default=[])
    # What was said before is all that an operator knows which has just started.
    said = (find(conditions, ConditionType.READY) or {}).get("reason") in (Reason.SCALED_TO_ZERO, Reason.WAKING)
    if not (evidence.target.hosting.waking or (said and not evidence.count("availableReplicas"))):
        return None
    pods = "a pod is" if evidence.wanted < 2 else f"{evidence.wanted} pods are"
    text = f"{pods} being started; the waiting room holds requests until one is ready"
    return Status.TRUE, Reason.WAKING, text


def parked(evidence: Evidence) -> Verdict | None:
    """Nothing should run, and nobody holds what comes."""
    if evidence.target is not None and evidence.deployment and evidence.wanted == 0:
        short = "infgraph" if evidence.kind == GRAPH_KIND else "infsvc"
        start = f"kubectl scale {short}/{evidence.name} --namespace {evidence.namespace} --replicas=1"
        return Status.FALSE, Reason.PARKED, f"replicas is 0, so whoever calls is refused; {start} starts the service"
    return None


def none_started(evidence: Evidence) -> Verdict | None:
    """No pod runs, and the spec is one that none can be started for."""
    if evidence.target is None and evidence.deployment and evidence.wanted == 0:
        return Status.FALSE, Reason.INVALID_SPEC, f"no pod runs, and none is started: {evidence.spec_error}"
    return None


def no_endpoints(evidence: Evidence) -> Verdict | None:
    """Pods are ready, but the Service leads to none of them."""
    if evidence.count("availableReplicas") > 0 and evidence.endpoints == 0 and evidence.observation.ours(SERVICE):
        text = (
            "pods are ready, but the Service has no ready endpoint; if this stays, see kubectl get endpointslices"
            f" --namespace {evidence.namespace} --selector {SERVICE_NAME_LABEL}={evidence.name}"
        )
        return Status.FALSE, Reason.NO_ENDPOINTS, text
    return None


def served_by_old(evidence: Evidence) -> Verdict | None:
    """Pods answer, but none of them is of the newest spec."""
    new = any(is_ready(pod) for pod in evidence.new_pods)
    if evidence.count("availableReplicas") > 0 and rolling_out(evidence) and not new:
        text = "pods of an older spec answer requests; none of the newest is ready"
        return Status.TRUE, Reason.SERVED_BY_OLD_PODS, text
    return None


def answers(evidence: Evidence) -> Verdict | None:
    """A pod answers."""
    if evidence.count("availableReplicas") > 0:
        return Status.TRUE, Reason.AVAILABLE, "at least one pod answers requests"
    return None


def answers_unowned(evidence: Evidence) -> Verdict | None:
    """Pods answer behind our Service, though their Deployment is not ours (any more)."""
    if not evidence.deployment and evidence.endpoints:
        text = f"pods behind the Service answer requests, but their Deployment does not belong to this {evidence.kind}"
        return Status.TRUE, Reason.AVAILABLE, text
    return None


def pods_not_ready(evidence: Evidence) -> Verdict:
    """No pod answers yet."""
    return Status.FALSE, Reason.PODS_NOT_READY, f"no pod is ready yet{waiting_advice(evidence)}"


def silent(evidence: Evidence) -> Verdict | None:
    """No pod answers, now that one should."""
    return no_endpoints(evidence) or (None if answers(evidence) else pods_not_ready(evidence))


def model_loaded(evidence: Evidence) -> Verdict | None:
    """A pod of the newest spec is ready, so its model is loaded and warm."""
    if any(is_ready(pod) for pod in evidence.new_pods):
        return Status.TRUE, Reason.MODEL_LOADED, "the model is loaded and warm"
    return None


def model_away(evidence: Evidence) -> Verdict | None:
    """The service sleeps, and its model with it."""
    if (verdict := asleep(evidence)) is None or verdict[0] is not Status.TRUE:
        return verdict
    return (
        Status.FALSE,
        verdict[1],
        "no pod runs while nobody calls: the next request starts one, which loads the model",
    )


def model_downloading(evidence: Evidence) -> Verdict | None:
    """The init container fetches the model; how far it is stands in its log, which the operator may not read."""
    if not any(runs(pod, MODEL) for pod in evidence.new_pods):
        return None
    pods = f"--namespace {evidence.namespace} --selector {selector_text(evidence.name)}"
    text = f"the model is being fetched; kubectl logs {pods} --container {MODEL} tells how far it is"
    return Status.FALSE, Reason.MODEL_DOWNLOADING, text


def model_loading(_: Evidence) -> Verdict:
    """The model is being fetched or loaded."""
    return Status.FALSE, Reason.MODEL_LOADING, "no pod of the newest spec is ready yet"


def route_refused(evidence: Evidence) -> Verdict | None:
    """The route could not be written."""
    for failure in evidence.failures:
        if failure.kind == HTTP_ROUTE and failure.code == 404:
            text = "route.httpRoute needs the Gateway API: install its CRDs, or use route.ingress"
            return Status.FALSE, Reason.GATEWAY_API_MISSING, text
        if failure.kind in (HTTP_ROUTE, INGRESS) and not failure.at_admission:
            return Status.FALSE, Reason.ROUTE_REFUSED, failure_text(failure)
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
    ours = evidence.observation.ours
    silent = ours(INGRESS) and not dig(ours(INGRESS), "status", "loadBalancer", "ingress")
    if silent or (ours(HTTP_ROUTE) and not _route_parents(evidence)):
        text = "the route exists; its controller has not reported an address or an answer yet"
        return Status.UNKNOWN, Reason.ROUTE_PENDING, text
    return None


def route_unread(evidence: Evidence) -> Verdict | None:
    """The spec is not followed, and no route of an older one is there."""
    ours = evidence.observation.ours
    if not evidence.followed and not ours(INGRESS) and not ours(HTTP_ROUTE):
        return Status.UNKNOWN, evidence.spec_reason, evidence.spec_error
    return None


def route_ready(evidence: Evidence) -> Verdict:
    """The route is accepted, or none is asked for."""
    if evidence.target is not None and evidence.target.spec.route is None:
        return Status.TRUE, Reason.CLUSTER_INTERNAL, "no route is asked for: the service is reached inside the cluster"
    return Status.TRUE, Reason.ROUTE_ACCEPTED, "the route is accepted"


def scaled_by_another(evidence: Evidence) -> Verdict:
    """Somebody else drives ``/scale``: the autoscaler that we wrote says how it fares, of others nothing is known."""
    for failure in evidence.failures:
        if failure.kind == SCALED_OBJECT and failure.code == _NOT_FOUND:
            text = "scaling.external.scaledObject needs KEDA: install it, or use horizontalPodAutoscaler"
            return Status.FALSE, Reason.SCALER_MISSING, text
        if failure.kind in _SCALERS:
            return Status.FALSE, Reason.SCALER_FAILS, failure_text(failure)
    for kind, telling in _SCALERS.items():
        for condition in dig(evidence.observation.ours(kind), "status", "conditions", default=[]):
            if condition.get("type") in telling and condition.get("status") == "False":
                text = f"the {kind.kind} does not follow the load: {condition.get('message', '')}"
                return Status.FALSE, Reason.SCALER_FAILS, text
    text = "scaling.mode is External: whatever drives /scale (an HPA, KEDA) decides, and the operator never does"
    return Status.UNKNOWN, Reason.EXTERNAL, text


_NOT_FOUND = 404
_SCALERS = {HPA: ("AbleToScale", "ScalingActive"), SCALED_OBJECT: ("Ready",)}
"""By which conditions each says that it reads its metric, and finds what it scales."""


def objective_as_stored(evidence: Evidence) -> Verdict | None:
    """No pod could be asked yet, after a restart of the operator: what was said of this spec stays."""
    return None if evidence.attainable is not None else _as_stored(evidence, ConditionType.OBJECTIVE_ATTAINABLE)


def rows_as_stored(evidence: Evidence) -> Verdict | None:
    """No pod could be read yet, after a restart of the operator: what was said of this spec stays."""
    return None if evidence.independent is not None else _as_stored(evidence, ConditionType.ROWS_INDEPENDENT)


def rows_mixed(evidence: Evidence) -> Verdict | None:
    """A pod found that results of a batch were not those of its own rows."""
    if all(evidence.has_independent_rows):
        return None
    text = (
        "results of a batch of several requests were not those of its own rows, so a response may have held another"
        " client's row: now each batch holds one request, until the model is replaced. Make the model return one result"
        " for each row, in order and whatever its neighbours, or set batching.policy: None; if its results follow"
        " something besides its inputs, set batching.rowChecks: Off"
    )
    return Status.FALSE, Reason.ROWS_MIXED, text


def rows_independent(evidence: Evidence) -> Verdict | None:
    """Rows that were run again had results of their own."""
    if evidence.has_independent_rows:
        text = "rows of shared batches that were run again gave the same results"
        return Status.TRUE, Reason.ROWS_INDEPENDENT, text
    return None


def rows_unknown(evidence: Evidence) -> Verdict | None:
    """No pod of the newest spec has run rows again, though something was said before."""
    conditions = dig(evidence.observation.resource, "status", "conditions", default=[])
    if find(conditions, ConditionType.ROWS_INDEPENDENT) is None:
        return None
    text = "no ready pod of the newest spec has run rows of shared batches again yet"
    return Status.UNKNOWN, Reason.ROWS_NOT_CHECKED, text


def _as_stored(evidence: Evidence, kind: ConditionType) -> Verdict | None:
    resource = evidence.observation.resource
    conditions = dig(resource, "status", "conditions", default=[])
    stored = find(conditions, kind)
    told = stored_condition(conditions, kind)
    if stored is None or told is None or stored.get("observedGeneration") != resource["metadata"].get("generation"):
        return None
    return told.status, told.reason, told.message


def objective_missed(evidence: Evidence) -> Verdict | None:
    """A pod says that even a request alone takes too long."""
    if all(evidence.meets_objective):
        return None
    text = (
        f"even a request alone takes longer than batching.latencyObjectiveMilliseconds {evidence.objective_ms:g}:"
        " answers leave as fast as they can, but late. Set a larger one, or use a faster device or model; kubectl"
        " port-forward POD 9090 and curl localhost:9090/v1/explain tell what a request alone takes"
    )
    return Status.FALSE, Reason.OBJECTIVE_UNATTAINABLE, text


def objective_met(evidence: Evidence) -> Verdict | None:
    """All pods that said anything lately can meet the objective."""
    if evidence.meets_objective:
        text = "a request alone takes no longer than batching.latencyObjectiveMilliseconds"
        return Status.TRUE, Reason.OBJECTIVE_ATTAINABLE, text
    return None


def objective_unknown(_: Evidence) -> Verdict:
    """No pod of the newest spec said anything lately."""
    text = "no ready pod of the newest spec has told lately whether it can meet the objective"
    return Status.UNKNOWN, Reason.NO_LATENCY_DATA, text


def not_rolled_out(evidence: Evidence) -> Verdict | None:
    """Old pods still serve; the newest spec does not yet."""
    verdict = rolling_out(evidence)
    return verdict and (Status.FALSE, *verdict[1:])


def unless_served(check: Check) -> Check:
    """Return a check that counts while the newest spec is not served; afterwards its trouble only slows scaling."""
    return lambda evidence: None if evidence.served else check(evidence)


def ready(_: Evidence) -> Verdict:
    """The newest spec is served."""
    return Status.TRUE, Reason.READY, "the newest spec is served"


def _deployment_condition(evidence: Evidence, kind: str) -> Json:
    if not evidence.seen:
        return {}  # about an older spec
    conditions: list[Json] = dig(evidence.deployment, "status", "conditions", default=[])
    return next((item for item in conditions if item.get("type") == kind), {})


def _route_parents(evidence: Evidence) -> list[Json]:
    parents: list[Json] = dig(evidence.observation.ours(HTTP_ROUTE), "status", "parents", default=[])
    return parents
