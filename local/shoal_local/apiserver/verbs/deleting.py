"""The delete verb: at once, after a grace period, or after finalizers; and evictions within disruption budgets."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from shoal_local.apiserver.errors import ApiError, Cause, bad_request, conflict
from shoal_local.apiserver.kinds.registry import NAMESPACES, PODS, Resource
from shoal_local.apiserver.storage.selectors import matches_label_selector
from shoal_local.apiserver.verbs.admission import read_as
from shoal_local.apiserver.verbs.call import SUCCESS, ApiResponse, Call, Target
from shoal_local.apiserver.verbs.state import ClusterState, presented
from shoal_local.apiserver.verbs.writing import namespace_finalizers
from shoal_local.objects import (
    Object,
    controller_of,
    dig,
    has_ended,
    is_deleting,
    is_ready,
    key_of,
    make_condition,
    other_conditions,
    share_of,
    timestamp,
)

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_FINALIZER = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_POLICIES = ("Background", *_FINALIZER)


def delete(state: ClusterState, call: Call) -> ApiResponse:
    """Delete one object; return its last state.

    Raises ApiError: 400, the propagation policy is unknown; 404, there is no object; 409, a precondition failed.
    """
    resource, live = state.existing(call.target)
    options = read_as(state, call, "apimachinery.pkg.apis.meta.v1.DeleteOptions")
    # Options in the body override those of the query.
    if policy := call.query.get("propagationPolicy"):
        options.setdefault("propagationPolicy", policy)
    if (grace_s := call.number("gracePeriodSeconds")) is not None:
        options.setdefault("gracePeriodSeconds", int(grace_s))
    call = checked_call(call, resource, live, options)
    return ApiResponse(presented(resource, delete_object(state, call, resource, live, options)))


def checked_call(call: Call, resource: Resource, live: Object, options: dict[str, Any]) -> Call:
    """Check the options of a deletion against the object.

    Returns the call, which is a dry run if the options request one.

    Raises ApiError: 400, the propagation policy is unknown; 409, a precondition failed.
    """
    if options.get("propagationPolicy", "Background") not in _POLICIES:
        raise bad_request(f"invalid propagationPolicy {options['propagationPolicy']!r}, must be one of {_POLICIES}")
    wanted, meta = options.get("preconditions") or {}, live["metadata"]
    for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != meta[field]:
            why = (
                f"the {name} in the precondition ({wanted[field]}) does not match the {name} in record "
                f"({meta[field]}). The object might have been deleted and then recreated"
            )
            raise conflict(resource.kind, resource.group, meta["name"], why)
    return replace(call, query={**call.query, "dryRun": "All"}) if options.get("dryRun") else call


def delete_object(state: ClusterState, call: Call, resource: Resource, live: Object, options: dict[str, Any]) -> Object:
    """Remove an object, or mark it as deleted if its removal must wait.

    Removal waits for finalizers and for the grace period.
    """
    meta = dict(live["metadata"])
    if policy := options.get("propagationPolicy"):
        others = [name for name in meta.get("finalizers") or [] if name not in _FINALIZER.values()]
        meta["finalizers"] = others + ([_FINALIZER[policy]] if policy in _FINALIZER else [])
    grace_s = 0
    # Only a pod that runs on a node has a grace period.
    if resource.key == PODS and live["spec"].get("nodeName") and not has_ended(live):
        requested, default = options.get("gracePeriodSeconds"), live["spec"].get("terminationGracePeriodSeconds", 30)
        grace_s = int(default if requested is None else requested)
    if not meta.get("finalizers"):
        meta.pop("finalizers", None)
    held = "finalizers" in meta or grace_s or namespace_finalizers(live)
    if not held:
        return state.remove(call, resource, {**live, "metadata": meta})
    # A second deletion can only shorten the grace period.
    shorter = grace_s < meta.get("deletionGracePeriodSeconds", grace_s + 1)
    if shorter or not meta.get("deletionTimestamp"):
        if "generation" in meta and not meta.get("deletionTimestamp"):
            meta["generation"] += 1
        meta["deletionTimestamp"] = timestamp(call.now + timedelta(seconds=grace_s))
        meta["deletionGracePeriodSeconds"] = grace_s
    new = {**live, "metadata": meta}
    if resource.key == NAMESPACES:
        new["status"] = {**(live.get("status") or {}), "phase": "Terminating"}
    return live if new == live else state.write(call, resource, new)


def target_of(resource: Resource, obj: Object) -> Target:
    """Return the resource, namespace and name of an object as a target."""
    namespace, name = key_of(obj)
    return Target(resource.group, resource.version, resource.plural, namespace, name)


def evict(state: ClusterState, call: Call) -> ApiResponse:
    """Delete a pod unless a PodDisruptionBudget forbids it.

    Raises ApiError: 404, there is no pod; 409, a precondition failed; 429, a PodDisruptionBudget forbids the eviction.
    """
    resource, pod = state.existing(call.target)
    options = dict(read_as(state, call, "api.policy.v1.Eviction").get("deleteOptions") or {})
    call = checked_call(call, resource, pod, options)
    # A pod that does not run serves nothing.
    if dig(pod, "status", "phase") == "Running" and not is_deleting(pod):
        for budget in state.store.objects_of("policy/poddisruptionbudgets", call.target.namespace):
            _check_budget(state, budget, pod)
    kind, reason = "DisruptionTarget", "EvictionByEvictionAPI"
    target = make_condition(kind, "True", reason, "Eviction API: evicting", call.timestamp)
    status = {**(pod.get("status") or {}), "conditions": [*other_conditions(pod, kind), target]}
    delete_object(state, call, resource, {**pod, "status": status}, options)
    return ApiResponse(SUCCESS, 201)


def _check_budget(state: ClusterState, budget: Object, pod: Object) -> None:
    """Raise a 429 (ApiError) if the budget selects the pod and allows no disruption."""
    spec, namespace = budget["spec"], pod["metadata"]["namespace"]
    selector = spec.get("selector")
    if not matches_label_selector(selector, pod["metadata"].get("labels") or {}):
        return
    pods = state.store.objects_of(PODS, namespace)
    chosen = [each for each in pods if matches_label_selector(selector, each["metadata"].get("labels") or {})]
    healthy = sum(is_ready(each) and not is_deleting(each) for each in chosen)
    expected = _expected(state, chosen)
    if "maxUnavailable" in spec:
        wanted = max(0, expected - share_of(spec["maxUnavailable"], expected))
    else:
        wanted = share_of(spec.get("minAvailable", 1), expected)
    spare = healthy > wanted
    if not is_ready(pod):
        spare = spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= wanted
    if not spare:
        name = budget["metadata"]["name"]
        why = f"The disruption budget {name} needs {wanted} healthy pods and has {healthy} currently"
        message = "Cannot evict pod as it would violate the pod's disruption budget."
        causes = [Cause("", why, "DisruptionBudget").as_json()]
        raise ApiError(429, "TooManyRequests", message, {"causes": causes})


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
