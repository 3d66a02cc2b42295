"""Plan for stopping pods to keep serving until a replacement is ready.

Evicted and deleted pods receive SIGTERM at once, but their replacements need minutes to load a model. Routers send
requests to stopping pods while no other pod is ready, so the operator requests the last pods to keep serving.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal_operator.children.observation import dig
from shoal_operator.children.pods import is_leaving, is_ready, runs, scheduling_problem
from shoal_operator.manifests.containers import PROXY
from shoal_operator.manifests.stop_times import drain_time_s, replacement_time_s
from shoal_operator.manifests.target import Target
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.fields.declaring import Json

_NODE_LEAVES = frozenset({"EvictionByEvictionAPI", "DeletionByTaintManager"})
"""Reasons in a pod's condition DisruptionTarget: its node is leaving, so a replacement starts elsewhere."""
_PREEMPTED = "PreemptionByScheduler"


UNSEEN_S = 10
"""The longest stay before a replacement exists (s): in a namespace that is being deleted none is ever created."""


@dataclass(frozen=True, slots=True)
class StayRequest:
    """A request to a stopping pod to keep serving, or to stop."""

    replica: Replica
    seconds: int
    """Time to keep serving (s); 0: stop now."""


def plan_stays(
    target: Target, pods: Sequence[Json], deployment: Json, until_s: Callable[[str], float]
) -> tuple[StayRequest, ...]:
    """Return how long each stopping pod of a service must keep serving.

    Args:
        target: the service.
        pods: all pods of its Deployment.
        deployment: the Deployment, which creates replacements.
        until_s: returns the seconds until a timestamp of the API server.
    """
    if not replacement_time_s(target):
        return ()
    # Possible replacements, ready or not.
    others = [pod for pod in pods if not is_leaving(pod)]
    # How long to wait for a replacement (s); 0 where none is needed, or none will be created.
    wanted = min(dig(deployment, "spec", "replicas", default=0), target.replicas)
    if not wanted or any(map(is_ready, others)):
        most_s = 0
    elif others:
        most_s = replacement_time_s(target)
    else:
        conditions = dig(deployment, "status", "conditions", default=[])
        refused = any(each.get("type") == "ReplicaFailure" and each.get("status") == "True" for each in conditions)
        most_s = 0 if refused else min(UNSEEN_S, replacement_time_s(target))

    def stay(pod: Json) -> StayRequest:
        helps = most_s > 0 and _helps(pod, target, others)
        # The pod must drain within its grace period, which an eviction may have shortened.
        metadata = pod["metadata"]
        grace_s = metadata.get("deletionGracePeriodSeconds") or 0
        left_s = until_s(metadata["deletionTimestamp"]) - min(drain_time_s(target), grace_s / 2)
        return StayRequest(Replica.of(pod), min(most_s, max(0, int(left_s))) if helps else 0)

    # Pods that are being deleted and whose proxy still runs.
    deleted = [pod for pod in pods if dig(pod, "metadata", "deletionTimestamp") is not None]
    return tuple(stay(pod) for pod in deleted if dig(pod, "status", "podIP") is not None and runs(pod, PROXY))


def _helps(pod: Json, target: Target, others: Iterable[Json]) -> bool:
    """Return whether a replacement can start while the pod still runs."""
    # Why the pod is being deleted; empty where a client deleted it.
    conditions = dig(pod, "status", "conditions", default=[])
    found = (each for each in conditions if each.get("type") == "DisruptionTarget" and each.get("status") == "True")
    condition: Json = next(found, {})
    reason = str(condition.get("reason", ""))
    if reason in _NODE_LEAVES:
        return True
    # The replacement needs the resources of this pod.
    if reason == _PREEMPTED or not target.spec.rollout.max_surge:
        return False
    return not any(map(scheduling_problem, others))
