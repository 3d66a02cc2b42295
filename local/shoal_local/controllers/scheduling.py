"""The scheduler: chooses a node for a pod, or states why no node fits."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal_local.objects import Object, condition, has_ended
from shoal_schema.fields.quantities import exact_quantity

Amounts = Counter[str]
"""Decimal quantities by resource; a Counter adds, subtracts and takes the larger of them by name."""

AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def amounts(resources: Mapping[str, Any]) -> Amounts:
    """Return quantities as decimal numbers."""
    numbers: Any = {name: exact_quantity(str(value)) for name, value in resources.items()}
    return Counter(numbers)


def pod_requests(pod: Object) -> Amounts:
    """Return the resources that a pod requests, as the scheduler counts them.

    Each resource is the larger of two sums: all containers and sidecars, or an init container and the sidecars before
    it. A pod also takes one of the node's ``pods``.
    """
    spec = pod["spec"]
    sidecars, peak = Amounts(), Amounts()
    for container in spec.get("initContainers") or []:
        step = sidecars + _requests(container)
        peak |= step
        if container.get("restartPolicy") == "Always":
            sidecars = step
    total = sum(map(_requests, spec["containers"]), sidecars)
    return (total | peak) + amounts(spec.get("overhead") or {}) + amounts({"pods": 1})


def _requests(container: Object) -> Amounts:
    # A limit is the default of the request.
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def unfit_reasons(pod: Object, requests: Amounts, node: Object, free: Amounts) -> list[str]:
    """Return the reasons that the pod does not fit on the node; empty if it fits."""
    spec = node.get("spec") or {}
    tolerations = pod["spec"].get("tolerations") or []
    # `kubectl cordon` sets this field.
    if spec.get("unschedulable") and not _tolerates(tolerations, _UNSCHEDULABLE):
        return ["node(s) were unschedulable"]
    taints = [*(spec.get("taints") or [])]
    ready = (condition(node, "Ready") or {}).get("status", "Unknown")
    if ready != "True":
        # The node controller of Kubernetes sets these as taints.
        name = "not-ready" if ready == "False" else "unreachable"
        taints.append({"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"})
    if repelling := [t for t in taints if t["effect"] != "PreferNoSchedule" and not _tolerates(tolerations, t)]:
        key, value = repelling[0]["key"], repelling[0].get("value", "")
        return [f"node(s) had untolerated taint(s) {{{key}: {value}}}"]
    if not (pod["spec"].get("nodeSelector") or {}).items() <= (node["metadata"].get("labels") or {}).items():
        return [AFFINITY]
    # A Counter has 0 of resources that the node does not list.
    short = [name for name, amount in requests.items() if amount > free[name]]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in sorted(short)]


def _tolerates(tolerations: list[Object], taint: Object) -> bool:
    # An empty effect or key of a toleration matches every taint's.
    own = [each for each in tolerations if each.get("effect") in (None, "", taint["effect"])]
    return any(
        each.get("key") in (None, "", taint["key"])
        if each.get("operator", "Equal") == "Exists"
        else each.get("key") == taint["key"] and each.get("value", "") == taint.get("value", "")
        for each in own
    )


def place(pod: Object, nodes: Sequence[Object], pods: Iterable[Object]) -> tuple[str, str]:
    """Return the first node that fits the pod, or '' and the reason."""
    requests = pod_requests(pod)
    taken: defaultdict[str, Amounts] = defaultdict(Counter)
    for other in pods:
        assigned = other["spec"].get("nodeName")
        if assigned and not has_ended(other):
            taken[assigned] += pod_requests(other)
    # How many nodes each reason rules out.
    reasons: Counter[str] = Counter()
    for node in nodes:
        name = node["metadata"]["name"]
        free = amounts((node.get("status") or {}).get("allocatable") or {}) - taken[name]
        why = unfit_reasons(pod, requests, node, free)
        if not why:
            return name, ""
        reasons.update(why)
    if not nodes:
        return "", "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
    return "", f"0/{len(nodes)} nodes are available: {listed}."
