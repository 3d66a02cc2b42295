"""The eviction subresource: deletion of a pod within disruption budgets."""

import math

from shoal_local.apiserver.errors import Cause, too_many_requests
from shoal_local.apiserver.storage.selectors import matches_label_selector
from shoal_local.apiserver.verbs.admission import read_as
from shoal_local.apiserver.verbs.call import ApiResponse, Call
from shoal_local.apiserver.verbs.deleting import checked_call, delete_object
from shoal_local.apiserver.verbs.state import ClusterState
from shoal_local.objects import Object, controller_of, dig, is_deleting, is_ready

_SUCCESS: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def evict(state: ClusterState, call: Call) -> ApiResponse:
    """Delete a pod unless a PodDisruptionBudget forbids it.

    Raises ApiError: 404, there is no pod; 409, a precondition failed; 429, a PodDisruptionBudget forbids the eviction.
    """
    resource = state.resource(call.target)
    pod = state.existing(resource, call.target)
    options = dict(read_as(state, call, "api.policy.v1.Eviction").get("deleteOptions") or {})
    call = checked_call(call, resource, pod, options)
    # A pod that does not run serves nothing.
    if dig(pod, "status", "phase") == "Running" and not is_deleting(pod):
        for budget in state.store.objects_of("policy/poddisruptionbudgets", call.target.namespace):
            _check_budget(state, budget, pod)
    status = pod.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each["type"] != "DisruptionTarget"]
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": call.timestamp,
    }
    delete_object(state, call, resource, {**pod, "status": {**status, "conditions": [*others, target]}}, options)
    return ApiResponse(_SUCCESS, 201)


def _check_budget(state: ClusterState, budget: Object, pod: Object) -> None:
    """Raise a 429 (ApiError) if the budget selects the pod and allows no disruption."""
    spec, namespace = budget["spec"], pod["metadata"]["namespace"]
    selector = spec.get("selector")
    if not matches_label_selector(selector, pod["metadata"].get("labels") or {}):
        return
    pods = state.store.objects_of("/pods", namespace)
    chosen = [each for each in pods if matches_label_selector(selector, each["metadata"].get("labels") or {})]
    healthy = sum(is_ready(each) and not is_deleting(each) for each in chosen)
    expected = _expected(state, chosen)
    if "maxUnavailable" in spec:
        wanted = max(0, expected - _share(spec["maxUnavailable"], expected))
    else:
        wanted = _share(spec.get("minAvailable", 1), expected)
    spare = healthy > wanted
    if not is_ready(pod):
        spare = spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= wanted
    if not spare:
        name = budget["metadata"]["name"]
        why = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        raise too_many_requests(message, [Cause("", why, "DisruptionBudget")])


def _expected(state: ClusterState, pods: list[Object]) -> int:
    """Return the sum of the owners' replicas; a pod without owner counts as 1."""
    counts: dict[str, int] = {}
    for pod in pods:
        owner, replicas = pod, 1
        for key in ("apps/replicasets", "apps/deployments"):
            reference = controller_of(owner) or {}
            found = state.store.get(key, (pod["metadata"]["namespace"], reference.get("name", "")))
            if found is None or found["metadata"]["uid"] != reference["uid"]:
                break
            owner, replicas = found, found["spec"].get("replicas", 1)
        counts[owner["metadata"]["uid"]] = replicas
    return sum(counts.values())


def _share(value: int | str, total: int) -> int:
    """Return a count or a percentage of ``total`` as a count, rounded up."""
    return value if isinstance(value, int) else math.ceil(int(value.rstrip("%")) * total / 100)
