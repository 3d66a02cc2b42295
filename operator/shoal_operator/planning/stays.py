"""Which stopping pods keep serving, because no other pod is ready and a replacement is on its way.

Pods that are evicted, or deleted, get SIGTERM at once; their replacements need minutes to load a model. Routers send
requests to pods that stop while no other pod is ready, so the last ones are told to keep serving until one is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal_operator.load.fleet import Replica
from shoal_operator.manifests.containers import PROXY, drain_time_s, replacement_time_s
from shoal_operator.manifests.target import Target
from shoal_operator.planning.observation import dig
from shoal_operator.planning.pods import is_leaving, is_ready, runs, scheduling_problem
from shoal_schema.declaring import Json

_NODE_LEAVES = frozenset({"EvictionByEvictionAPI", "DeletionByTaintManager"})
"""Reasons of a pod's condition DisruptionTarget: its resources are free for no replacement, as its node goes."""
_PREEMPTED = "PreemptionByScheduler"


UNSEEN_S = 10
"""A pod stays no longer before its replacement exists: in a namespace that is being deleted none is ever made."""


@dataclass(frozen=True, slots=True)
class Stay:
    """How long a stopping pod keeps serving (s); 0: it leaves."""

    replica: Replica
    seconds: int


def find_stays(
    target: Target, pods: Sequence[Json], deployment: Json, until_s: Callable[[str], float]
) -> tuple[Stay, ...]:
    """Return what each stopping pod of a service is to be told.

    Args:
        target: the service.
        pods: all pods of its Deployment.
        deployment: which makes replacements.
        until_s: returns how far off a time of the API server is (s).
    """
    if not replacement_time_s(target):
        return ()
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

    def stay(pod: Json) -> Stay:
        helps = most_s > 0 and _helps(pod, target, others)
        metadata = pod["metadata"]
        grace_s = metadata.get("deletionGracePeriodSeconds") or 0
        left_s = until_s(metadata["deletionTimestamp"]) - min(drain_time_s(target), grace_s / 2)
        return Stay(
            Replica(pod["metadata"]["uid"], pod["status"]["podIP"], pod["metadata"]["name"]),
            min(most_s, max(0, int(left_s))) if helps else 0,
        )

    return tuple(stay(pod) for pod in pods if _stops(pod))


def _helps(pod: Json, target: Target, others: Iterable[Json]) -> bool:
    """Return whether a replacement can start beside the pod: not if it waits for what the pod holds."""
    conditions = dig(pod, "status", "conditions", default=[])
    found = (each for each in conditions if each.get("type") == "DisruptionTarget" and each.get("status") == "True")
    condition: Json = next(found, {})
    reason = str(condition.get("reason", ""))
    if reason in _NODE_LEAVES:
        return True
    if reason == _PREEMPTED or not target.spec.rollout.max_surge:
        return False
    return not any(map(scheduling_problem, others))


def _stops(pod: Json) -> bool:
    """Return whether the pod is being deleted and its proxy still runs."""
    leaves = dig(pod, "metadata", "deletionTimestamp") is not None
    return leaves and dig(pod, "status", "podIP") is not None and runs(pod, PROXY)
