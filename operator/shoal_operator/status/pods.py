"""Status checks of pods: rollout, availability and the loaded model."""

import re

from shoal_operator.children.observation import dig
from shoal_operator.children.pods import is_ready, runs, unready_containers
from shoal_operator.manifests.containers import MODEL
from shoal_operator.manifests.desired import SERVICE
from shoal_operator.manifests.labels import SERVICE_NAME_LABEL, selector_text
from shoal_operator.status.admission_advice import pod_advice
from shoal_operator.status.blocked import Check, Verdict
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.scaling import scaled_to_zero
from shoal_operator.status.startup_advice import proxy_advice, waiting_advice
from shoal_schema.fields.declaring import Json
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
    if evidence.held:
        return Status.TRUE, Reason.COMPLETE, f"all pods have the stable revision, not the newest spec ({_JUDGED})"
    return Status.TRUE, Reason.COMPLETE, "all pods have the newest spec"


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


def not_rolled_out(evidence: Evidence) -> Verdict | None:
    """Report that the rollout is in progress."""
    verdict = rolling_out(evidence)
    return verdict and (Status.FALSE, *verdict[1:])


def unless_served(check: Check) -> Check:
    """Return ``check``, limited to the time until the newest spec is served."""
    return lambda evidence: None if evidence.served else check(evidence)


def ready(evidence: Evidence) -> Verdict:
    """Report that the newest spec is served, or the stable revision while a candidate is compared."""
    if evidence.held:
        return Status.TRUE, Reason.READY, f"the stable revision is served; the newest spec is not ({_JUDGED})"
    return Status.TRUE, Reason.READY, "the newest spec is served"


_JUDGED = f"the condition {ConditionType.CANDIDATE_JUDGED} states why"


def _deployment_condition(evidence: Evidence, kind: str) -> Json:
    if not evidence.seen:
        return {}  # the status belongs to an older spec
    # Of the Deployment controller.
    conditions: list[Json] = dig(evidence.deployment, "status", "conditions", default=[])
    return next((item for item in conditions if item.get("type") == kind), {})
