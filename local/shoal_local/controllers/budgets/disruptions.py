"""How many pods of a budget may be given up now."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from shoal_local.controllers.plans.plan import Patch, Plan
from shoal_local.controllers.plans.reading import condition, has_ended, is_going, is_ready, stamp, tells_more

Object = dict[str, Any]


def plan_budget(budget: Object, pods: Sequence[Object], expected: int, now: datetime) -> Plan:
    """Return the status of a budget for its pods; their controllers ask for ``expected`` pods."""
    plan = Plan()
    status = budget_status(budget, pods, expected, now)
    if tells_more(status, budget):
        plan.add(Patch(budget, {"status": status}, subresource="status"))
    return plan


def budget_status(budget: Object, pods: Sequence[Object], expected: int, now: datetime) -> Object:
    """Return the budget's status."""
    spec = budget["spec"]
    counted = [pod for pod in pods if not has_ended(pod)]
    healthy = sum(is_ready(pod) and not is_going(pod) for pod in counted)
    if "maxUnavailable" in spec:
        desired = max(0, expected - _count(spec["maxUnavailable"], expected))
    else:
        desired = _count(spec.get("minAvailable", 1), expected)
    allowed = max(0, healthy - desired) if counted else 0
    reason = "SufficientPods" if allowed else "InsufficientPods"
    return {
        "observedGeneration": budget["metadata"]["generation"],
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "disruptionsAllowed": allowed,
        "conditions": [_condition(budget, "True" if allowed else "False", reason, now)],
    }


def _count(value: int | str, of: int) -> int:
    if isinstance(value, int):
        return value
    return -(-int(value.removesuffix("%")) * of // 100)


def _condition(budget: Object, status: str, reason: str, now: datetime) -> Object:
    known = condition(budget, "DisruptionAllowed")
    generation = budget["metadata"]["generation"]
    same = known is not None and known["status"] == status
    since = known["lastTransitionTime"] if known and same else stamp(now)
    return {
        "type": "DisruptionAllowed",
        "status": status,
        "reason": reason,
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": since,
    }
