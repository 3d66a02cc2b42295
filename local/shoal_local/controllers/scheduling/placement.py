"""Chooses the node for a pod."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from shoal_local.controllers.plans.reading import has_ended
from shoal_local.controllers.scheduling.filters import refusals
from shoal_local.controllers.scheduling.requests import Amounts, amounts, pod_requests

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """A node's name, or the reason why there is none."""

    node: str = ""
    message: str = ""


def place(pod: Object, nodes: Sequence[Object], pods: Iterable[Object]) -> Placement:
    """Return the node with most left of what the pod asks for, of those that can take it."""
    requests = pod_requests(pod)
    taken = _taken(pods)
    reasons: Counter[str] = Counter()
    fitting: list[tuple[Decimal, str]] = []
    for node in nodes:
        name = node["metadata"]["name"]
        free = _free(node, taken.get(name, {}))
        if why := refusals(pod, requests, node, free):
            reasons.update(why)
        else:
            fitting.append((_score(requests, node, free), name))
    if fitting:
        return Placement(node=max(fitting)[1])
    return Placement(message=_message(len(nodes), reasons))


def _taken(pods: Iterable[Object]) -> dict[str, Amounts]:
    taken: dict[str, Amounts] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and not has_ended(pod):
            used = taken.setdefault(node, {})
            for name, amount in pod_requests(pod).items():
                used[name] = used.get(name, Decimal(0)) + amount
    return taken


def _free(node: Object, taken: Amounts) -> Amounts:
    has = amounts((node.get("status") or {}).get("allocatable") or {})
    return {name: amount - taken.get(name, Decimal(0)) for name, amount in has.items()}


def _score(requests: Amounts, node: Object, free: Amounts) -> Decimal:
    has = amounts(node["status"]["allocatable"])
    parts = [(free[name] - requests.get(name, Decimal(0))) / has[name] for name in ("cpu", "memory") if has.get(name)]
    return sum(parts, Decimal(0)) / max(1, len(parts))


def _message(count: int, reasons: Counter[str]) -> str:
    if not count:
        return "no nodes available to schedule pods"
    told = ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
    return f"0/{count} nodes are available: {told}."
