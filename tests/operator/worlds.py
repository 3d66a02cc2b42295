"""What a cluster shows of a service: Deployments and pods in every state."""

import copy
from typing import Any

from shoal_operator.children.observation import Observation
from shoal_operator.manifests.desired import DEPLOYMENT, Child, desired_objects
from shoal_operator.status.evidence import Evidence
from shoal_schema.fields.declaring import Json
from tests.operator.samples import UID, service, target

POD_UID = "pod-1"


def children(spec: Json | None = None, **deployment_status: Any) -> dict[Child, Json]:
    """Return the children as the server stores them, with a Deployment's status."""
    stored = copy.deepcopy(desired_objects(target(spec)))
    for index, body in enumerate(stored.values()):
        body["metadata"] |= {"uid": f"uid-{index}", "resourceVersion": "7", "generation": 1}
    stored[DEPLOYMENT]["status"] = {"observedGeneration": 1, **deployment_status}
    return stored


def healthy(count: int = 1) -> Json:
    """Return the status of a Deployment that is done."""
    names = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    return dict.fromkeys(names, count)


def pod(spec: Json | None = None, *, ready: bool = True, uid: str = POD_UID, **status: Any) -> Json:
    """Return a pod of the newest template."""
    template = desired_objects(target(spec))[DEPLOYMENT]["spec"]["template"]
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": "cat-1", "uid": uid, **copy.deepcopy(template["metadata"])},
        "spec": copy.deepcopy(template["spec"]),
        "status": {"podIP": "10.0.0.1", "phase": "Running", "conditions": conditions, **status},
    }


def waiting(container: str, why: str, detail: str = "", **last: Any) -> Json:
    """Return the status of a container that waits, after it ended like ``last``."""
    state = {"waiting": {"reason": why, "message": detail}}
    return {"name": container, "image": f"{container}:1", "state": state, "lastState": _ended(last)}


def running(container: str, **last: Any) -> Json:
    """Return the status of a container that runs, after it ended like ``last``."""
    return {"name": container, "state": {"running": {}}, "lastState": _ended(last)}


def unschedulable(message: str) -> list[Json]:
    """Return the conditions of a pod that no node takes."""
    reason = {"status": "False", "reason": "Unschedulable", "message": message}
    return [{"type": "PodScheduled", **reason}]


def evidence(
    spec: Json | None = None,
    *pods: Json,
    deployment: Json | None = None,
    stored: Json | None = None,
    **more: Any,
) -> Evidence:
    """Return the evidence about a service whose objects are all there."""
    resource = service(spec)
    assert resource["metadata"]["uid"] == UID
    if stored is not None:
        resource["status"] = stored
    found = children(spec, **(deployment or {}))
    observation = Observation(resource, found, tuple(pods))
    return Evidence(observation=observation, target=target(spec), **more)


def _ended(last: Json) -> Json:
    return {"terminated": last} if last else {}
