"""Remedies for pods that a quota or a LimitRange rejects. The API server's message names no container or field."""

import re
from collections.abc import Iterator
from decimal import Decimal

from shoal_operator.children.drift import quantity
from shoal_operator.children.observation import dig
from shoal_operator.manifests.containers import MODEL, PROXY, RUNTIME
from shoal_schema.fields.declaring import Json

_BOUND = re.compile(
    r"(?:maximum|minimum) (?P<resource>\S+) usage per Container is [^,\s]*[^,.\s]"
    r"(?:, but (?P<side>limit|request) is (?P<value>[^\s,\]]+)|\. No (?P<missing>limit|request) is specified)"
)
_RATIO = re.compile(r"(?P<resource>\S+) max limit to request ratio per Container is (?P<most>[^\s,]+), but")
_FIELDS = {RUNTIME: "runtime.resources", PROXY: "proxy.resources", MODEL: "model.resources"}


def pod_advice(cause: str, template: Json) -> str:
    """Return the remedy for rejected pods as text; empty if unknown.

    Args:
        cause: the API server's message.
        template: template of the rejected pods.
    """
    if "must specify" in cause:
        return f". Set limits in {' and '.join(_fields(template))}"
    if "exceeded quota" in cause:
        return (
            ". Request less, raise the quota, or set rollout.maxSurge 0 and maxUnavailable 1 if only the surge exceeds"
            " it"
        )
    if found := list(dict.fromkeys(_at_fault(cause, template))):
        return f". Change {' and '.join(found)}, or the namespace's LimitRange"
    if " per Container is " in cause or " per Pod is " in cause:
        return f". Change {' or '.join(_fields(template))}, or the namespace's LimitRange"
    return ""


def _containers(template: Json) -> list[Json]:
    return [each for kind in ("initContainers", "containers") for each in dig(template, "spec", kind, default=[])]


def _fields(template: Json) -> list[str]:
    """Return the fields of the spec that set the containers' resources."""
    names = [container["name"] for container in _containers(template)]
    return [field for name, field in _FIELDS.items() if name in names]


def _at_fault(cause: str, template: Json) -> Iterator[str]:
    """Yield the fields that a LimitRange rejects, with their values."""
    containers = _containers(template)
    # The message names resource and value only: find the containers with that value.
    for bound in _BOUND.finditer(cause):
        side = bound["side"] or bound["missing"]
        for container in containers:
            requested = _requested(container, side, bound["resource"])
            if quantity(requested) == quantity(bound["value"]):
                yield _field(container, side, bound["resource"], requested)
    for ratio in _RATIO.finditer(cause):
        for container in containers:
            limit, request = (_requested(container, side, ratio["resource"]) for side in ("limit", "request"))
            values = [quantity(each) for each in (limit, request, ratio["most"])]
            known = limit and request and all(isinstance(each, Decimal) for each in values)
            if known and values[0] > values[1] * values[2]:
                yield _field(container, "limit", ratio["resource"], limit)


def _requested(container: Json, side: str, resource: str) -> str | None:
    """Return a container's limit or request; the request defaults to the limit."""
    resources: Json = container.get("resources", {})
    requested = dig(resources, f"{side}s", resource) or (
        dig(resources, "limits", resource) if side == "request" else None
    )
    return None if requested is None else str(requested)


def _field(container: Json, side: str, resource: str, requested: str | None) -> str:
    name = container["name"]
    return f"{_FIELDS.get(name, f'container {name}: resources')}.{side}s.{resource} (now {requested or 'not set'})"
