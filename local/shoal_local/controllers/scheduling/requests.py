"""What a pod asks for, added up."""

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from shoal_local.apiserver.schemas.quantities import parse_quantity

Object = dict[str, Any]
Amounts = dict[str, Decimal]


def amounts(resources: Mapping[str, Any]) -> Amounts:
    """Return quantities as numbers."""
    return {name: parse_quantity(str(value)) for name, value in resources.items()}


def pod_requests(pod: Object) -> Amounts:
    """Return what the node must hold.

    The containers and sidecars together, or the largest step of the start.

    An init container runs beside the sidecars that started before it. Each pod also takes one of
    ``pods``.
    """
    spec = pod["spec"]
    total: Counter[str] = Counter()
    for container in spec["containers"]:
        _add(total, _requests(container))
    sidecars: Counter[str] = Counter()
    peak: Amounts = {}
    for container in spec.get("initContainers") or []:
        if container.get("restartPolicy") == "Always":
            _add(sidecars, _requests(container))
            step = dict(sidecars)
        else:
            step = dict(sidecars)
            _add(step, _requests(container))
        peak = _larger(peak, step)
    _add(total, dict(sidecars))
    found = _larger(peak, dict(total))
    _add(found, amounts(spec.get("overhead") or {}))
    return {**found, "pods": Decimal(1)}


def _requests(container: Object) -> Amounts:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _add(total: Any, more: Mapping[str, Any]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


def _larger(one: Mapping[str, Any], other: Mapping[str, Any]) -> Amounts:
    names = {*one, *other}
    return {name: max(one.get(name, Decimal(0)), other.get(name, Decimal(0))) for name in names}
