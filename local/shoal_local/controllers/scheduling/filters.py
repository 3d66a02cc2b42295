"""Reasons why a node cannot take a pod, in the words of the real scheduler."""

from collections.abc import Mapping
from typing import Any

from shoal_local.controllers.scheduling.requests import Amounts

Object = dict[str, Any]
AFFINITY = "node(s) didn't match Pod's node affinity/selector"


def refusals(pod: Object, requests: Amounts, node: Object, free: Amounts) -> list[str]:
    """Return why the node cannot take the pod; nothing when it can."""
    spec = node.get("spec") or {}
    tolerations = pod["spec"].get("tolerations") or []
    if spec.get("unschedulable") and not _tolerates(tolerations, _UNSCHEDULABLE):
        return ["node(s) were unschedulable"]
    taints = [*(spec.get("taints") or []), *_not_ready(node)]
    if found := next((t for t in taints if _repels(t, tolerations)), None):
        value = found.get("value", "")
        return [f"node(s) had untolerated taint(s) {{{found['key']}: {value}}}"]
    if not _wanted_by(pod["spec"], node):
        return [AFFINITY]
    return _short_of(requests, free)


_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def _not_ready(node: Object) -> list[Object]:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = next((c["status"] for c in conditions if c["type"] == "Ready"), "Unknown")
    if ready == "True":
        return []
    name = "not-ready" if ready == "False" else "unreachable"
    return [{"key": f"node.kubernetes.io/{name}", "effect": "NoSchedule"}]


def _repels(taint: Object, tolerations: list[Object]) -> bool:
    return taint["effect"] in ("NoSchedule", "NoExecute") and not _tolerates(tolerations, taint)


def _tolerates(tolerations: list[Object], taint: Object) -> bool:
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    same = toleration.get("value", "") == taint.get("value", "")
    return bool(same and toleration.get("key") == taint["key"])


def _wanted_by(spec: Object, node: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms") or []
    return required is None or any(_term_fits(term, node, labels) for term in terms)


def _term_fits(term: Object, node: Object, labels: Mapping[str, str]) -> bool:
    rules, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    names = {"metadata.name": node["metadata"]["name"]}
    if not rules and not fields:
        return False
    return all(_rule_fits(r, labels) for r in rules) and all(_rule_fits(r, names) for r in fields)


def _rule_fits(rule: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or []
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case comparison:
            return _number_fits(comparison, value, values)


def _number_fits(comparison: str, value: str | None, values: list[str]) -> bool:
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > int(values[0]) if comparison == "Gt" else int(value) < int(values[0])


def _short_of(requests: Amounts, free: Amounts) -> list[str]:
    short = [name for name, amount in requests.items() if amount > free.get(name, 0) and amount > 0]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in sorted(short)]
