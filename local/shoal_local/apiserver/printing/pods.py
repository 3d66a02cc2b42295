"""How a pod is printed: the one word that says what is going on with it.

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
    """Return what stands under STATUS."""
    status = pod.get("status", {})
    reason = status.get("reason") or status.get("phase", "Unknown")
    waiting = _init_reason(pod)
    reason = waiting or _container_reason(pod, reason)
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return reason


def _init_reason(pod: Object) -> str:
    """Return ``Init:...`` while some init container is not done."""
    containers = pod["spec"].get("initContainers", [])
    sidecars = {c["name"] for c in containers if _always(c)}
    for done, status in enumerate(pod.get("status", {}).get("initContainerStatuses", [])):
        state = status.get("state", {})
        ended = state.get("terminated")
        if (ended and ended.get("exitCode") == 0) or (status["name"] in sidecars and status.get("started")):
            continue
        if ended:
            return "Init:" + _ended(ended)
        told = state.get("waiting", {}).get("reason", "")
        return f"Init:{told}" if told not in ("", "PodInitializing") else f"Init:{done}/{len(containers)}"
    return ""


def _ended(terminated: Object) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _container_reason(pod: Object, reason: str) -> str:
    running = False
    statuses = pod.get("status", {}).get("containerStatuses", [])
    for status in reversed(statuses):
        state = status.get("state", {})
        if told := state.get("waiting", {}).get("reason"):
            reason = told
        elif "terminated" in state:
            reason = _ended(state["terminated"])
        elif status.get("ready") and "running" in state:
            running = True
    if reason == "Completed" and running:
        return "Running" if is_ready(pod) else "NotReady"
    return reason


def _counted(pod: Object) -> list[Object]:
    """Return the statuses of the containers that stay. Sidecars count, other init containers do not."""
    status = pod.get("status", {})
    sidecars = {c["name"] for c in pod["spec"].get("initContainers", []) if _always(c)}
    first = [s for s in status.get("initContainerStatuses", []) if s["name"] in sidecars]
    return [*first, *status.get("containerStatuses", [])]


def _restarts(pod: Object, now: datetime) -> str:
    status = pod.get("status", {})
    starting = bool(_init_reason(pod))
    counted = status.get("initContainerStatuses", []) if starting else _counted(pod)
    count = sum(s.get("restartCount", 0) for s in counted)
    ends = [e for s in counted if (e := s.get("lastState", {}).get("terminated", {}).get("finishedAt"))]
    return f"{count} ({age(max(ends), now)} ago)" if count and ends else str(count)


def pod_cells(pod: Object, now: datetime) -> list[Any]:
    """Return ready containers, status, restarts and age; address and node for ``-o wide``."""
    spec, status = pod["spec"], pod.get("status", {})
    total = len(spec["containers"]) + sum(_always(c) for c in spec.get("initContainers", []))
    ready = f"{sum(bool(s.get('ready')) for s in _counted(pod))}/{total}"
    own = [ready, pod_reason(pod), _restarts(pod, now), age(pod["metadata"]["creationTimestamp"], now)]
    return [*own, status.get("podIP") or NONE, spec.get("nodeName") or NONE]
