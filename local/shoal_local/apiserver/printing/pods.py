"""The columns of a pod.

Source: kubernetes/kubernetes pkg/printers/internalversion/printers.go (printPod).
"""

from datetime import datetime
from typing import Any

from shoal_local.apiserver.printing.cells import age
from shoal_local.objects import Object, is_ready

NONE = "<none>"


def _always(container: Object) -> bool:
    return container.get("restartPolicy") == "Always"


def pod_reason(pod: Object) -> str:
    """Return the value of a pod's STATUS column."""
    status = pod.get("status", {})
    reason = _init_reason(pod)
    if not reason:
        reason, running = status.get("reason") or status.get("phase", "Unknown"), False
        # The first container that waits or has ended gives the reason.
        for container in reversed(status.get("containerStatuses", [])):
            state = container.get("state", {})
            if waiting := state.get("waiting", {}).get("reason"):
                reason = waiting
            elif "terminated" in state:
                reason = _ended(state["terminated"])
            elif container.get("ready") and "running" in state:
                running = True
        if reason == "Completed" and running:
            reason = "Running" if is_ready(pod) else "NotReady"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _init_reason(pod: Object) -> str:
    """Return ``Init:...`` until all init containers are done, else ''."""
    containers = pod["spec"].get("initContainers", [])
    sidecars = {c["name"] for c in containers if _always(c)}
    for done, status in enumerate(pod.get("status", {}).get("initContainerStatuses", [])):
        state = status.get("state", {})
        ended = state.get("terminated")
        if (ended and ended.get("exitCode") == 0) or (status["name"] in sidecars and status.get("started")):
            continue
        if ended:
            return "Init:" + _ended(ended)
        waiting = state.get("waiting", {}).get("reason", "")
        return f"Init:{waiting}" if waiting not in ("", "PodInitializing") else f"Init:{done}/{len(containers)}"
    return ""


def _ended(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _counted(pod: Object) -> list[Object]:
    """Return the statuses of the containers that keep running: sidecars and main containers."""
    status = pod.get("status", {})
    sidecars = {c["name"] for c in pod["spec"].get("initContainers", []) if _always(c)}
    first = [s for s in status.get("initContainerStatuses", []) if s["name"] in sidecars]
    return [*first, *status.get("containerStatuses", [])]


def pod_cells(pod: Object, now: datetime) -> list[Any]:
    """Return ready containers, status, restarts and age; for ``-o wide`` also address and node."""
    spec, status = pod["spec"], pod.get("status", {})
    total = len(spec["containers"]) + sum(_always(c) for c in spec.get("initContainers", []))
    ready = f"{sum(bool(s.get('ready')) for s in _counted(pod))}/{total}"
    # Until init containers are done, their restarts count; then those of the others.
    counted = status.get("initContainerStatuses", []) if _init_reason(pod) else _counted(pod)
    restarts = str(sum(s.get("restartCount", 0) for s in counted))
    ends = [e for s in counted if (e := s.get("lastState", {}).get("terminated", {}).get("finishedAt"))]
    if restarts != "0" and ends:
        restarts += f" ({age(max(ends), now)} ago)"
    own = [ready, pod_reason(pod), restarts, age(pod["metadata"]["creationTimestamp"], now)]
    return [*own, status.get("podIP") or NONE, spec.get("nodeName") or NONE]
